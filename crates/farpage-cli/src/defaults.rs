//! Options that are not on the command line: from the environment, the user's file, and the machine's, in this order.
//!
//! Each becomes an option in front of those that were given, and clap reads all of them: so every option of
//! `farpage run` can be in a file. Callers: `main`, for `run` and `attach`; `doctor`, which shows them. No locks.

use crate::args::{Cli, Command, EngineArgs};
use crate::budget::ENV_RAM;
use crate::failure::{Failure, Result, say, shown, why};
use crate::run;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Args, CommandFactory, Parser};
use farpage_ipc::conf::ENV_DEFAULTS;
use farpage_ipc::tree;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The machine's.
const MACHINE: &str = "/etc/farpage.conf";

/// More of a file is not read, bytes.
const LONGEST: u64 = 1 << 20;

/// Sets `--swap`: devices, separated by semicolons.
const ENV_SWAP: &str = "FARPAGE_SWAP";

/// Of files, what is for a whole tree: a run below another one does not take them again.
const OUTERMOST: [&str; 7] = ["ram", "ram-per-process", "stats", "stats-json", "report", "user", "trace"];

/// The default of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionDefault {
    /// The option, without dashes.
    pub option: String,
    /// One for each time that the option is given; of a switch none, or an empty one.
    pub values: Vec<String>,
    /// The variable, or the file and the line.
    pub origin: String,
}

impl OptionDefault {
    fn new(option: &str, values: Vec<String>, origin: String) -> Result<OptionDefault> {
        let default = OptionDefault { option: option.to_owned(), values, origin };
        default.check().map_err(|failure| default.prefix(failure))?;
        Ok(default)
    }

    /// Whether the option can have these values.
    fn check(&self) -> Result<()> {
        let command = ["farpage", "run"].map(OsString::from).into_iter().chain(self.arguments());
        Cli::try_parse_from(command.chain(["--".into(), "program".into()])).map_err(|error| said_by_clap(&error))?;
        self.values.iter().try_for_each(|value| run::check_option(&self.option, value))
    }

    fn prefix(&self, failure: Failure) -> Failure {
        let option = format!("--{}", self.option);
        let key = if failure.sentence.contains(&option) { String::new() } else { format!("{option}: ") };
        Failure { sentence: format!("{}: {key}{}", self.origin, failure.sentence), ..failure }
    }

    /// What the command line would have.
    fn arguments(&self) -> impl Iterator<Item = OsString> {
        let argument = |value: &String| match value.as_str() {
            "" => format!("--{}", self.option),
            _ => format!("--{}={value}", self.option),
        };
        self.values.iter().map(argument).map(OsString::from)
    }

    /// Its values in words.
    pub fn value(&self) -> String {
        match &self.values[..] {
            [] => "off".into(),
            [one] if one.is_empty() => "on".into(),
            values => values.join(", then "),
        }
    }
}

/// All of them, one for each option.
#[derive(Debug, Default)]
pub struct Defaults(pub Vec<OptionDefault>);

impl Defaults {
    /// Reads the environment and the files.
    ///
    /// # Errors
    /// A file that cannot be read, a key that is no option, a value that the option cannot have: where it stands.
    pub fn read() -> Result<Defaults> {
        Defaults::of_open(|_| true)
    }

    /// Variables count for options only that are open.
    fn of_open(is_open: impl Fn(&str) -> bool) -> Result<Defaults> {
        let mut all = Defaults(environment(is_open)?);
        for path in files() {
            let Some(text) = text_of(&path)? else { continue };
            let run = run_command();
            let mut of_file = of_file(&path, &text, &run)?;
            let is_there = |argument: &Arg| argument.get_long().is_some_and(|option| all.of(option).is_some());
            let is_taken = |default: &OptionDefault| {
                all.of(&default.option).is_some() || conflicts(&run, &default.option, is_there)
            };
            of_file.retain(|default| !is_taken(default));
            all.0.extend(of_file);
        }
        Ok(all)
    }

    /// That of an option.
    pub fn of(&self, option: &str) -> Option<&OptionDefault> {
        self.0.iter().find(|default| default.option == option)
    }

    /// A failure with where the options stand that it names.
    pub fn explain(&self, mut failure: Failure) -> Failure {
        let named = |default: &&OptionDefault| {
            failure.sentence.contains(&format!("--{}", default.option)) && !failure.sentence.contains(&default.origin)
        };
        let lines: Vec<_> =
            self.0.iter().filter(named).map(|d| format!("--{} is from {}", d.option, d.origin)).collect();
        failure.details.extend(lines);
        failure
    }
}

/// The command line with the defaults of what it leaves open, and these.
///
/// # Errors
/// As [`Defaults::read`]; defaults that exclude each other.
pub fn add(cli: Cli, arguments: &[OsString]) -> Result<(Cli, Defaults)> {
    let takes = match cli.command {
        Command::Run(_) => run_command(),
        Command::Attach(_) => EngineArgs::augment_args(clap::Command::new("attach")),
        _ => return Ok((cli, Defaults::default())),
    };
    let run = run_command();
    let matches = Cli::command().try_get_matches_from(arguments).map_err(|error| said_by_clap(&error))?;
    let Some((_, matches)) = matches.subcommand() else { return Ok((cli, Defaults::default())) };
    let is_given = |argument: &Arg| {
        let id = argument.get_id().as_str();
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let is_open = |option: &str| {
        argument(&takes, option).is_some_and(|argument| !is_given(argument)) && !conflicts(&run, option, is_given)
    };
    let mut defaults = Defaults::of_open(is_open)?;
    defaults.0.retain(|default| is_open(&default.option));
    if defaults.0.is_empty() {
        return Ok((cli, defaults));
    }
    // The subcommand is the first: there are no options before it.
    let (command, given) = arguments.split_at(2.min(arguments.len()));
    let added = defaults.0.iter().flat_map(OptionDefault::arguments);
    let all = command.iter().cloned().chain(added).chain(given.iter().cloned());
    let cli = Cli::try_parse_from(all).map_err(|error| defaults.explain(said_by_clap(&error)))?;
    if matches!(&cli.command, Command::Run(run) if run.verbose) {
        for default in &defaults.0 {
            say(format_args!("farpage: --{} {} ({})", default.option, default.value(), default.origin));
        }
    }
    Ok((cli, defaults))
}

fn run_command() -> clap::Command {
    Cli::command().find_subcommand("run").cloned().unwrap_or_default()
}

fn argument<'a>(command: &'a clap::Command, option: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| argument.get_long() == Some(option))
}

/// Whether an option excludes one that is there.
fn conflicts(run: &clap::Command, option: &str, is_there: impl Fn(&Arg) -> bool) -> bool {
    let excludes = |one: &Arg, other: &Arg| run.get_arg_conflicts_with(one).contains(&other);
    let Some(this) = argument(run, option) else { return false };
    run.get_arguments().filter(|other| excludes(this, other) || excludes(other, this)).any(is_there)
}

/// The first line of what clap would print, and what may be written instead.
fn said_by_clap(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let mut lines = text.lines().map(|line| line.trim_start_matches("error: ").trim()).filter(|line| !line.is_empty());
    let mut failure = Failure::new(lines.next().unwrap_or("the command line cannot be read"));
    failure.details.extend(lines.next().filter(|line| line.starts_with('[')).map(str::to_owned));
    failure
}

fn environment(is_open: impl Fn(&str) -> bool) -> Result<Vec<OptionDefault>> {
    let one = |(option, variable): (&str, &str)| {
        let is_set = |value: &OsString| value.as_encoded_bytes().iter().any(|byte| !b"; ".contains(byte));
        let value = std::env::var_os(variable).filter(|value| is_set(value) && is_open(option))?;
        Some(match value.into_string() {
            Ok(text) => {
                let values = if variable == ENV_SWAP {
                    text.split(';').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
                } else {
                    vec![text]
                };
                OptionDefault::new(option, values, variable.to_owned())
            }
            Err(value) => Err(Failure::new(format!("{variable}: {value:?} is not UTF-8"))),
        })
    };
    [("ram", ENV_RAM), ("swap", ENV_SWAP)].into_iter().filter_map(one).collect()
}

/// Where the files may be, the user's first; nowhere, if no file is to count.
pub fn files() -> Vec<PathBuf> {
    if std::env::var_os(ENV_DEFAULTS).is_some_and(|value| value == "0") {
        return Vec::new();
    }
    let place = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = place("XDG_CONFIG_HOME").or_else(|| Some(place("HOME")?.join(".config")));
    user.map(|directory| directory.join("farpage.conf")).into_iter().chain([MACHINE.into()]).collect()
}

/// Whether there is no such file, as far as this user can know.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    let is_hidden = || path.parent().is_none_or(|p| rustix::fs::access(p, rustix::fs::Access::EXEC_OK).is_err());
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        // Another user's, by HOME.
        ErrorKind::PermissionDenied => is_hidden(),
        _ => false,
    }
}

/// What a file has, if there is one for this user.
fn text_of(path: &Path) -> Result<Option<String>> {
    let read = || {
        // Some wait to be opened.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let found = file.metadata()?;
        // By HOME, root may get the file of a user, who could name a report for root to write. Where root is not
        // mapped, the machine's file is nobody's.
        if path != Path::new(MACHINE) && found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
            return Ok(None);
        }
        match found.file_type() {
            kind if kind.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            kind if !kind.is_file() => return Err(io::Error::other("not a regular file")),
            _ if found.len() > LONGEST => return Err(ErrorKind::FileTooLarge.into()),
            _ => {}
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map(|_| Some(text))
    };
    match read() {
        Err(error) if is_absent(path, &error) => Ok(None),
        Err(error) => {
            let failure = Failure::new(format!("cannot read {}: {}", shown(path), why(&error)));
            Err(failure.help("it has defaults of farpage run: make it readable, or remove it"))
        }
        Ok(text) => Ok(text),
    }
}

fn of_file(path: &Path, text: &str, run: &clap::Command) -> Result<Vec<OptionDefault>> {
    let place = |at: usize| {
        let before = text.as_bytes().get(..at).unwrap_or_default();
        format!("{}, line {}", shown(path), before.iter().filter(|byte| **byte == b'\n').count() + 1)
    };
    let table = DeTable::parse(text).map_err(|error| {
        Failure::new(format!("{}: {}", place(error.span().map_or(0, |span| span.start)), error.message()))
    })?;
    let mut all = Vec::new();
    for (key, value) in table.get_ref() {
        let origin = place(key.span().start);
        let argument = argument(run, key.get_ref()).ok_or_else(|| no_option(&origin, key.get_ref(), run))?;
        let wrong = |what: &str| Failure::new(format!("{origin}: {}: {what}", key.get_ref()));
        let values = match (argument.get_action(), value.get_ref()) {
            (ArgAction::SetTrue, DeValue::Boolean(is_on)) => is_on.then(String::new).into_iter().collect(),
            (ArgAction::SetTrue, _) => return Err(wrong("write true or false")),
            (ArgAction::Append, DeValue::Array(values)) => {
                let texts: Option<Vec<String>> = values.iter().map(|value| one_value(value.get_ref())).collect();
                texts.ok_or_else(|| wrong("write texts in quotes, as in [\"zram\", \"file:/var/tmp\"]"))?
            }
            (_, value) => vec![one_value(value).ok_or_else(|| wrong("write one text in quotes"))?],
        };
        all.push(OptionDefault::new(key.get_ref(), values, origin)?);
    }
    all.retain(|default| tree::inherited().is_none() || !OUTERMOST.contains(&default.option.as_str()));
    Ok(all)
}

/// A text or a number, which options have; not nothing.
fn one_value(value: &DeValue<'_>) -> Option<String> {
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

fn no_option(origin: &str, key: &str, run: &clap::Command) -> Failure {
    let failure = Failure::new(format!("{origin}: {key}: no such key"));
    let with_hyphens = key.replace('_', "-");
    if argument(run, &with_hyphens).is_some() {
        return failure.help(format!("write {with_hyphens}"));
    }
    let names: Vec<_> = run.get_arguments().filter(|a| !a.is_hide_set()).filter_map(Arg::get_long).collect();
    failure.help(format!("keys are the options of farpage run: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file with this text comes to, or the sentence of the refusal.
    fn read(text: &str) -> std::result::Result<Vec<OptionDefault>, String> {
        of_file(Path::new("/a.conf"), text, &run_command()).map_err(|failure| failure.sentence.replace("/a.conf, ", ""))
    }

    #[test]
    fn every_option_of_run_can_be_in_a_file() {
        let text = "ram = \"512M\"\n# twice\nswap = [\"zram\", 'file:/var/tmp']\nverify = true\nquiet = false\n";
        let all = Defaults(read(text).unwrap());
        let of = |option| all.of(option).map(|default| default.arguments().collect::<Vec<_>>()).unwrap();
        assert_eq!(of("swap"), ["--swap=zram", "--swap=file:/var/tmp"]);
        assert_eq!(
            (of("ram"), of("verify"), of("quiet")),
            (vec!["--ram=512M".into()], vec!["--verify".into()], vec![])
        );
        assert!(all.of("swap").unwrap().origin.ends_with("/a.conf, line 3"));
        let by_long_name = |argument: &&Arg| argument.get_long().is_some();
        for argument in run_command().get_arguments().filter(by_long_name) {
            let text = format!("{} = []", argument.get_long().unwrap());
            assert!(!read(&text).is_err_and(|why| why.contains("no such key")), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line_and_its_key() {
        for (text, wants) in [
            ("swap = \"zram\"\nramm = \"1G\"", "line 2: ramm: no such key"),
            ("ram_per_process = \"1G\"", "line 1: ram_per_process: no such key"),
            ("[run]\nram = \"1G\"", "line 1: run: no such key"),
            ("\n\nram = true", "line 3: ram: write one text in quotes"),
            ("ram = \"\"", "line 1: ram: write one text in quotes"),
            ("ram = \"1M\"", "line 1: budget of 1.0 MiB (--ram 1M) is below the minimum of 16.0 MiB"),
            ("stats = \"yes\"", "line 1: stats: write true or false"),
            ("swap = [\"zram\",\n \"zramm\"]", "line 1: --swap: swap device \"zramm\": unknown kind"),
            ("swap = [1.5]", "line 1: swap: write texts in quotes"),
            ("idle = \"10x\"", "line 1: --idle"),
            ("idle-poll = \"often\"", "line 1: invalid value 'often' for '--idle-poll <WHEN>'"),
            ("ram = \"1G\"\nram = \"2G\"", "line 2: duplicate key"),
            ("ram = 1G", "line 1: "),
            ("ram \"1G\"", "line 1: "),
            ("help = true", "line 1: help: no such key"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(wants), "{text}: {said}");
        }
        assert_eq!(read(""), Ok(Vec::new()));
    }

    #[test]
    fn options_that_exclude_each_other() {
        let run = run_command();
        for (one, other) in [("quiet", "verbose"), ("verbose", "quiet"), ("trace", "readahead"), ("readahead", "trace")]
        {
            assert!(conflicts(&run, one, |argument| argument.get_long() == Some(other)), "{one} {other}");
        }
        assert!(!conflicts(&run, "ram", |_| true));
    }
}
