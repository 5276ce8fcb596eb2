//! What `farpage-bench tree` runs: programs of several processes, made of a C compiler, make, Python and the shell, and
//! servers, which `serve.py` starts and asks.

use crate::commands;
use crate::failure::{Failure, Result};
use crate::program::Invocation;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A program of several processes.
#[derive(Debug)]
pub struct Shape {
    /// For the user.
    pub name: &'static str,
    /// For `sh -c`, in the directory with the files.
    script: &'static str,
    /// What it needs besides, where it has requests.
    server: Option<Server>,
}

/// A server that may not be installed.
#[derive(Debug)]
struct Server {
    /// Its commands, all in one directory, which the script gets as `$1`.
    commands: &'static [&'static str],
    /// What installs it.
    install: &'static str,
}

/// Where `serve.py` leaves latencies.
const REQUESTS: &str = "requests.json";

/// C files, and functions in each: a compiler takes some 60 MiB for one.
const SOURCES: usize = 40;
const FUNCTIONS: usize = 600;

static SHAPES: [Shape; 11] = [
    plain("make-j1", "make -s -j1"),
    plain("make-j2", "make -s -j2"),
    plain("make-j4", "make -s -j4"),
    plain("make-j8", "make -s -j8"),
    plain("fork", "python3 workers.py fork"),
    plain("spawn", "python3 workers.py spawn"),
    plain("prefork", "python3 prefork.py"),
    plain("sort", "sort -S 60M lines | uniq -c | sort -S 60M -n | tail -3"),
    plain("loop", "i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done; echo $i"),
    Shape {
        server: Some(Server { commands: &["gunicorn"], install: "apt-get install gunicorn" }),
        ..plain("gunicorn", "exec python3 serve.py gunicorn \"$1\"")
    },
    Shape {
        server: Some(Server {
            commands: &["postgres", "initdb", "pg_isready", "psql", "pgbench"],
            install: "apt-get install postgresql",
        }),
        ..plain("postgres", "exec python3 serve.py postgres \"$1\"")
    },
];

const fn plain(name: &'static str, script: &'static str) -> Shape {
    Shape { name, script, server: None }
}

const MAKEFILE: &str = "\
all: $(patsubst %.c,%.built,$(wildcard *.c))
%.built: %.c
\t@cc -O1 -c $< -o /dev/null
";

const WORKERS: &str = "\
import multiprocessing, sys

def work(seed):
    data = [(seed * 7919 + i) % 1000003 for i in range(1000000)]
    total = 0
    for _ in range(3):
        total += sum(data[::17]) + sum(data[::3])
    return total

if __name__ == '__main__':
    with multiprocessing.get_context(sys.argv[1]).Pool(8) as pool:
        print(sum(pool.map(work, range(16), chunksize=1)))
";

const PREFORK: &str = "\
import os
MB, CHILDREN = 200, 8
heap = bytearray(MB << 20)
for i in range(0, MB << 20, 8):
    if i % 4096 < 512:
        heap[i] = i * 31 % 251
children = []
for child in range(CHILDREN):
    pid = os.fork()
    if pid == 0:
        part = (MB << 20) // 10
        for turn in range(3):
            for i in range(child * part, (child + 1) * part, 4096):
                heap[i] = (heap[i] + turn) % 251
        os._exit(sum(heap[::65536]) % 100)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
";

/// Those that are named; all, if none is.
pub fn chosen(names: &[String]) -> Result<Vec<&'static Shape>> {
    let find = |name: &String| {
        let known = || SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ");
        let none = || Failure::new(format!("--shape: {name} is none of {}", known()));
        SHAPES.iter().find(|shape| shape.name == name).ok_or_else(none)
    };
    if names.is_empty() { Ok(SHAPES.iter().collect()) } else { names.iter().map(find).collect() }
}

/// What the memory of all of make is taken from.
pub fn make_j4() -> &'static Shape {
    &SHAPES[2]
}

impl Shape {
    /// Its memory is a part of what [`make_j4`] takes.
    pub fn is_make(&self) -> bool {
        self.name.starts_with("make")
    }

    /// What installs what it needs, if that is not here.
    pub fn missing(&self) -> Option<&'static str> {
        self.server.as_ref().filter(|server| server.place().is_none()).map(|server| server.install)
    }
}

impl Server {
    /// The directory of its commands: one of `PATH`, or where Debian has those of the newest PostgreSQL.
    fn place(&self) -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
        versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
        let places = commands::path().into_iter().chain(versions.iter().map(|path| path.join("bin")));
        places.into_iter().find(|place| commands::are_in(place, self.commands))
    }
}

/// The directory with the files of all shapes.
#[derive(Debug)]
pub struct Shapes(TempDir);

impl Shapes {
    /// Makes the files.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn make(directory: &Path) -> io::Result<Shapes> {
        let dir = tempfile::Builder::new().prefix("farpage-bench-").tempdir_in(directory)?;
        // A server that refuses to run as root has its files in here, too.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text);
        for i in 0..SOURCES {
            write(&format!("source{i}.c"), &source(i))?;
        }
        let lines: String =
            (0..1_500_000u64).map(|i| format!("{:x}\n", i.wrapping_mul(0x9e37_79b9) % 400_000)).collect();
        write("lines", &lines)?;
        write("Makefile", MAKEFILE)?;
        write("workers.py", WORKERS)?;
        write("prefork.py", PREFORK)?;
        write("serve.py", include_str!("serve.py"))?;
        Ok(Shapes(dir))
    }

    /// How a shape is run.
    pub fn invocation(&self, shape: &Shape) -> Invocation {
        let mut script = OsString::from("cd ");
        script.push(self.0.path());
        script.push(" && ");
        script.push(shape.script);
        let mut argv = vec!["sh".into(), "-c".into(), script];
        argv.extend(shape.server.iter().filter_map(Server::place).flat_map(|place| ["sh".into(), place.into()]));
        let requests = shape.server.is_some().then(|| self.0.path().join(REQUESTS));
        Invocation { argv, requests, ..Invocation::default() }
    }
}

/// A C file with many functions, each file others.
fn source(seed: usize) -> String {
    let mut text = String::new();
    for i in 0..FUNCTIONS {
        let (a, b, c) = ((seed * 31 + i) % 13 + 1, i % 7, i % 5 + 1);
        let _ = writeln!(
            text,
            "int f{seed}_{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) {{ s += a[j] * {a}; \
             if (s & {}) s ^= a[(j * {c}) % n]; }} return s; }}",
            1 << b
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_files_are_there() {
        assert_eq!(chosen(&[]).unwrap().len(), SHAPES.len());
        assert_eq!(chosen(&["sort".into()]).unwrap()[0].name, "sort");
        assert!(chosen(&["nothing".into()]).unwrap_err().sentence.contains("make-j1, make-j2"));
        assert!(make_j4().is_make() && make_j4().name == "make-j4");
        assert!(SHAPES.iter().all(|shape| super::super::EXAMPLES.contains(shape.name) || shape.is_make()));
        let dir = tempfile::tempdir().unwrap();
        let files = Shapes::make(dir.path()).unwrap();
        assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), SOURCES + 5);
        let served = files.invocation(chosen(&["gunicorn".into()]).unwrap()[0]);
        assert_eq!(served.requests.unwrap().parent(), Some(files.0.path()));
        let sort = files.invocation(chosen(&["sort".into()]).unwrap()[0]);
        assert!(sort.requests.is_none() && sort.argv.len() == 3);
        assert_ne!(source(1), source(2));
    }

    #[test]
    fn what_is_not_installed_is_missing() {
        let with = |commands| Shape {
            server: Some(Server { commands, install: "apt-get install it" }),
            ..plain("it", "serve \"$1\"")
        };
        assert_eq!(with(&["sh", "no-such-command"]).missing(), Some("apt-get install it"));
        let sh = with(&["sh"]);
        assert_eq!(sh.missing(), None);
        let dir = tempfile::tempdir().unwrap();
        let argv = Shapes::make(dir.path()).unwrap().invocation(&sh).argv;
        assert!(argv.len() == 5 && Path::new(&argv[4]).join("sh").exists(), "{argv:?}");
        assert_eq!(plain("none", "true").missing(), None);
    }
}
