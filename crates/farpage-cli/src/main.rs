//! The command: run a program under a RAM budget, look at it, find out what works here.

mod args;
mod attach;
mod bench;
mod budget;
mod cgroup;
mod defaults;
mod doctor;
mod doctor_swap;
mod early;
mod embedded;
mod exporter;
mod guard;
mod mappings;
mod memfd;
mod metrics;
mod page;
mod park;
mod preload;
mod report;
mod run;
mod set;
mod stat_cmd;
mod swapoff;
#[cfg(all(test, feature = "top"))]
mod tests {
    mod manual;
    mod pages;
}
#[cfg(feature = "top")]
mod top;
mod trees;
mod user;
mod users;

use args::{Cli, Command};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use farpage_command::{failure, output, process};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    early::restore_sigpipe();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(mut error) => {
            // "To pass it as a value, use --": that would make it the program.
            error.remove(ContextKind::Suggested);
            suggest_ram(&mut error);
            let _ = error.print();
            return match (error.use_stderr(), under_run()) {
                (false, _) => ExitCode::SUCCESS,
                (true, true) => ExitCode::from(failure::FAILED),
                (true, false) => ExitCode::from(failure::USAGE),
            };
        }
    };
    // Scripts tell by 125 that no program ran; of other subcommands only success and failure are told apart.
    let runs = matches!(cli.command, Command::Run(_));
    let result = defaults::add(cli, &arguments)
        .and_then(|(cli, defaults)| main_of(cli.command).map_err(|failure| defaults.explain(failure)));
    result.unwrap_or_else(|why| {
        failure::say(&why);
        ExitCode::from(if why.status == failure::FAILED && !runs { 1 } else { why.status })
    })
}

fn main_of(command: Command) -> failure::Result<ExitCode> {
    match command {
        Command::Run(args) => run::main(args),
        Command::Attach(args) => attach::main(&args),
        Command::Detach(args) => attach::detach::main(&args),
        Command::Guard(args) => guard::main(&args),
        Command::Park(args) => park::park(&args),
        Command::Unpark(args) => park::unpark(&args),
        Command::Set(args) => set::main(&args),
        Command::Swapoff(args) => swapoff::main(&args),
        Command::Stat(args) => stat_cmd::main(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::main(&args),
        Command::Exporter(args) => exporter::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Size(args) => farpage_bench::size::main(&args, |program| preload::did_not_start(program)),
        Command::Bench(args) => bench::main(&args),
        Command::BenchGuard => Ok(farpage_bench::compare::kernel::guard()),
    }
}

/// Options of other tools for what is `--ram` here.
const RAM_ELSEWHERE: [&str; 6] = ["--budget", "--limit", "--mem", "--memory-limit", "--max-memory", "--size"];

/// clap sees nothing like `--ram` in `-r` and `--rma`, which are what its name makes hands write, or in what others
/// call it.
fn suggest_ram(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return };
    let mut letters: Vec<char> = given.strip_prefix("--").unwrap_or_default().chars().collect();
    letters.sort_unstable();
    let is_meant = given == "-r" || letters == ['a', 'm', 'r'] || RAM_ELSEWHERE.contains(&given.as_str());
    if is_meant && error.kind() == ErrorKind::UnknownArgument && command_has_ram() {
        error.insert(ContextKind::SuggestedArg, ContextValue::String("--ram".into()));
        // It has what clap would have suggested.
        error.remove(ContextKind::Usage);
    }
}

/// The command that was given has this option.
fn command_has_ram() -> bool {
    let mut command = Cli::command();
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(word) else { break };
        command = next.clone();
    }
    command.get_arguments().any(|argument| argument.get_long() == Some("ram"))
}

/// The command line was meant for `run`, however wrong the rest is: 125 tells scripts that no program ran.
fn under_run() -> bool {
    std::env::args_os().skip(1).find(|a| !a.as_encoded_bytes().starts_with(b"-")).is_some_and(|a| a == "run")
}
