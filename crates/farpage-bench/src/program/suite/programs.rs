//! The programs of the suite: what each one needs, its files, and how it is run.
//!
//! Each takes 100 to 350 MiB and some seconds as it is, prints the same each time (sums, counts, a digest), asks no
//! other machine, and writes into its directory only. Memory is what is measured: so nothing takes its size from the
//! memory that there seems to be (a limit of the cgroup's would be seen on one side only).

use super::inputs;
use crate::commands;
use crate::failure::{Failure, OrCannot, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Stands for the Python that has what the program needs.
const PYTHON: &str = "{python}";

/// Environment of all of them: what would make a run differ from the one before, and leave files behind.
pub const VARIABLES: &[(&str, &str)] =
    &[("LC_ALL", "C"), ("PERL_HASH_SEED", "0"), ("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")];

/// Part of what a program takes as it is that the kernel's limit leaves it, percent.
const QUARTER: u64 = 25;
/// The same for garbage collectors, which go over all of their memory again and again.
const HALF: u64 = 50;

/// A program of the suite.
#[derive(Debug)]
pub struct SuiteProgram {
    /// For the user.
    pub name: &'static str,
    /// The command and its arguments, in its directory.
    argv: &'static [&'static str],
    /// Other commands that it needs, besides the first word of `argv`.
    commands: &'static [&'static str],
    /// Modules of Python that it needs.
    modules: &'static [&'static str],
    /// How what it needs is installed.
    pub install: &'static str,
    /// Names and text of its files.
    files: &'static [(&'static str, &'static str)],
    /// Makes what is too large to be shipped, or compiles.
    prepare: Option<fn(&Path) -> Result<()>>,
    /// `--ram`, if it is not given: percent of what it takes as it is.
    pub percent: u64,
}

/// What a program is by default: nothing is needed, nothing is prepared.
const PLAIN: SuiteProgram = SuiteProgram {
    name: "",
    argv: &[],
    commands: &[],
    modules: &[],
    install: "",
    files: &[],
    prepare: None,
    percent: QUARTER,
};

/// A file of the suite, as its name and its text.
macro_rules! script {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../suite/", $name)))
    };
}

/// All of them, in the order in which they are measured.
pub static PROGRAMS: [SuiteProgram; 18] = [
    SuiteProgram {
        name: "sort",
        argv: &["sort", "-S", "2G", "--parallel=2", "lines"],
        install: "apt-get install coreutils",
        prepare: Some(inputs::lines),
        ..PLAIN
    },
    SuiteProgram {
        name: "perl",
        argv: &["perl", "strings.pl"],
        install: "apt-get install perl",
        files: &[script!("strings.pl")],
        ..PLAIN
    },
    SuiteProgram {
        name: "sqlite",
        argv: &["sqlite3", "-batch", ":memory:", ".read items.sql"],
        install: "apt-get install sqlite3",
        files: &[script!("items.sql")],
        ..PLAIN
    },
    numpy("gather", &[PYTHON, "gather.py"], &[script!("gather.py")]),
    numpy("passes", &[PYTHON, "passes.py"], &[script!("passes.py")]),
    numpy("update", &[PYTHON, "update.py"], &[script!("update.py")]),
    SuiteProgram {
        name: "cc",
        argv: &["gcc", "-O1", "-S", "-o", "-", "functions.c"],
        install: "apt-get install gcc libc6-dev",
        prepare: Some(inputs::functions),
        ..PLAIN
    },
    SuiteProgram {
        name: "node",
        // Its young generation would be smaller in a cgroup with a limit.
        argv: &["node", "--max-old-space-size=2048", "--max-semi-space-size=16", "objects.js"],
        install: "apt-get install nodejs",
        files: &[script!("objects.js")],
        percent: HALF,
        ..PLAIN
    },
    SuiteProgram {
        name: "java",
        argv: &["java", "-Xmx400m", "-XX:-UseContainerSupport", "-XX:-UsePerfData", "-cp", ".", "Table"],
        commands: &["javac"],
        install: "apt-get install default-jdk-headless",
        files: &[script!("Table.java")],
        prepare: Some(inputs::compile_java),
        percent: HALF,
        ..PLAIN
    },
    SuiteProgram {
        name: "objects",
        argv: &[PYTHON, "objects.py"],
        install: "apt-get install python3",
        files: &[script!("objects.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "workers",
        argv: &[PYTHON, "workers.py"],
        modules: &["multiprocessing"],
        install: "apt-get install python3",
        files: &[script!("workers.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "pandas",
        argv: &[PYTHON, "frames.py"],
        modules: &["numpy", "pandas"],
        install: "apt-get install python3-pandas",
        files: &[script!("frames.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "duckdb",
        argv: &[PYTHON, "query.py"],
        modules: &["duckdb"],
        install: "pip install duckdb, --python PATH",
        files: &[script!("query.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "polars",
        argv: &[PYTHON, "lazy.py"],
        modules: &["polars"],
        install: "pip install polars, --python PATH",
        files: &[script!("lazy.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "r",
        argv: &["Rscript", "--vanilla", "frames.R"],
        install: "apt-get install r-base-core",
        files: &[script!("frames.R")],
        ..PLAIN
    },
    SuiteProgram {
        name: "networkx",
        argv: &[PYTHON, "graph.py"],
        modules: &["networkx"],
        install: "apt-get install python3-networkx",
        files: &[script!("graph.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "gdal",
        argv: &[PYTHON, "raster.py"],
        modules: &["numpy", "osgeo.gdal", "osgeo.gdal_array"],
        install: "apt-get install python3-gdal",
        files: &[script!("raster.py")],
        ..PLAIN
    },
    SuiteProgram {
        name: "redis",
        argv: &[PYTHON, "redis.py"],
        commands: &["redis-check-rdb"],
        install: "apt-get install redis-tools",
        files: &[script!("redis.py")],
        ..PLAIN
    },
];

/// A program of Debian's numpy.
const fn numpy(
    name: &'static str,
    argv: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
) -> SuiteProgram {
    SuiteProgram { name, argv, files, modules: &["numpy"], install: "apt-get install python3-numpy", ..PLAIN }
}

/// Those that are named, in the suite's order; all, if none is.
///
/// # Errors
/// A name that is none of them.
pub fn chosen(names: &[String]) -> Result<Vec<&'static SuiteProgram>> {
    if let Some(name) = names.iter().find(|name| PROGRAMS.iter().all(|program| program.name != **name)) {
        let known: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        return Err(Failure::new(format!("--only: {name:?} is none of {}", known.join(", "))));
    }
    let wanted = |program: &&SuiteProgram| names.is_empty() || names.iter().any(|name| name == program.name);
    Ok(PROGRAMS.iter().filter(wanted).collect())
}

impl SuiteProgram {
    /// The program and its arguments; `None`: something that it needs is not there. `pythons`: those that may have
    /// modules, the best first.
    pub fn find(&self, pythons: &[PathBuf]) -> Option<Vec<OsString>> {
        let (first, rest) = self.argv.split_first()?;
        if !self.commands.iter().all(|command| is_command(command)) {
            return None;
        }
        let first = if *first == PYTHON {
            pythons.iter().find_map(|python| python_with(python, self.modules))?.into_os_string()
        } else {
            is_command(first).then(|| OsString::from(first))?
        };
        Some(std::iter::once(first).chain(rest.iter().map(OsString::from)).collect())
    }

    /// Makes its files.
    ///
    /// # Errors
    /// They cannot be written, or not be compiled.
    pub fn prepare(&self, directory: &Path) -> Result<()> {
        for (name, text) in self.files {
            let path = directory.join(name);
            fs::write(&path, text).or_cannot(format_args!("write {}", path.display()))?;
        }
        self.prepare.map_or(Ok(()), |prepare| prepare(directory))
    }
}

/// Whether `PATH` has a command.
fn is_command(name: &str) -> bool {
    commands::path().iter().any(|directory| commands::are_in(directory, &[name]))
}

/// The path of a Python that has these modules: its own, where `python` is a script that chooses one.
fn python_with(python: &Path, modules: &[&str]) -> Option<PathBuf> {
    // Without the directory where the bench was started, which may be any.
    const PROBE: &str = "import sys\n\
                         sys.path = [place for place in sys.path if place]\n\
                         import importlib\n\
                         for name in sys.argv[1:]: importlib.import_module(name)\n\
                         print(sys.executable, end='')";
    let mut command = Command::new(python);
    command.args(["-B", "-c", PROBE]).args(modules).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_each_program_says_how_it_is_installed() {
        let mut names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        assert!(PROGRAMS.iter().all(|p| !p.argv.is_empty() && !p.install.is_empty() && p.percent <= HALF));
        assert!(names.iter().all(|name| crate::program::EXAMPLES.contains(name)), "the help has not all of {names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len());
        assert_eq!(chosen(&[]).unwrap().len(), PROGRAMS.len());
        let two: Vec<&str> = chosen(&["node".into(), "sort".into()]).unwrap().iter().map(|p| p.name).collect();
        assert_eq!(two, ["sort", "node"]);
        assert!(chosen(&["tape".into()]).unwrap_err().sentence.contains("\"tape\" is none of sort, perl"));
    }

    #[test]
    fn files_of_scripts_are_those_that_run() {
        for program in &PROGRAMS {
            let words = program.argv.join(" ");
            for (name, text) in program.files {
                let stem = name.split('.').next().unwrap();
                assert!(words.contains(stem) && !text.is_empty(), "{}: {name}", program.name);
            }
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let sh = SuiteProgram { argv: &["sh", "-c", "true"], ..PLAIN };
        assert_eq!(sh.find(&[]).unwrap(), ["sh", "-c", "true"]);
        assert!(SuiteProgram { argv: &["no-such-command"], ..PLAIN }.find(&[]).is_none());
        assert!(SuiteProgram { argv: &["sh"], commands: &["no-such-command"], ..PLAIN }.find(&[]).is_none());
        // A Python that has nothing but `sys`: any shell script will do.
        let dir = tempfile::tempdir().unwrap();
        let fake = dir.path().join("python");
        fs::write(&fake, "#!/bin/sh\n[ $# = 3 ] && echo -n /the/python\n").unwrap();
        fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let pythons = [PathBuf::from("/nowhere/python"), fake];
        let script = SuiteProgram { argv: &[PYTHON, "x.py"], ..PLAIN };
        assert_eq!(script.find(&pythons).unwrap(), ["/the/python", "x.py"]);
        assert!(SuiteProgram { modules: &["numpy"], ..script }.find(&pythons).is_none());
    }

    #[test]
    fn files_are_made_where_they_are_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let program = SuiteProgram { files: &[("a.py", "pass\n")], ..PLAIN };
        program.prepare(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a.py")).unwrap(), "pass\n");
        assert!(program.prepare(&dir.path().join("nowhere")).unwrap_err().sentence.contains("a.py"));
    }
}
