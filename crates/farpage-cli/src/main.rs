//! The command: run a program under a RAM budget, look at it, find out what works here.

mod args;
mod attach;
mod bench;
mod budget;
mod cgroup;
mod doctor;
mod early;
mod embedded;
mod exporter;
mod guard;
mod mappings;
mod metrics;
mod page;
#[cfg(all(test, feature = "top"))]
mod pages;
mod park;
mod preload;
mod report;
mod run;
mod set;
mod sim;
mod size;
mod stat_cmd;
#[cfg(feature = "top")]
mod top;
mod trees;
mod user;

use args::{Cli, Command};
use clap::Parser;
use farpage_command::{failure, output, process, progress};
use std::process::ExitCode;

fn main() -> ExitCode {
    early::restore_sigpipe();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            // "To pass it as a value, use --": that would make it the program.
            error.remove(clap::error::ContextKind::Suggested);
            let _ = error.print();
            return match (error.use_stderr(), under_run()) {
                (false, _) => ExitCode::SUCCESS,
                (true, true) => ExitCode::from(failure::FAILED),
                (true, false) => ExitCode::from(failure::USAGE),
            };
        }
    };
    let result = match cli.command {
        Command::Run(args) => run::main(args),
        Command::Attach(args) => attach::main(&args),
        Command::Guard(args) => guard::main(&args),
        Command::Park(args) => park::park(&args),
        Command::Unpark(args) => park::unpark(&args),
        Command::Set(args) => set::main(&args),
        Command::Stat(args) => stat_cmd::main(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::main(&args),
        Command::Exporter(args) => exporter::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::Size(args) => size::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::BenchWorkload { spec } => farpage_bench::compare::child::main(&spec),
        Command::BenchGuard => Ok(farpage_bench::compare::kernel::guard()),
    };
    result.unwrap_or_else(|failure| {
        failure::say(&failure);
        ExitCode::from(failure.status)
    })
}

/// The command line was meant for `run`, however wrong the rest is: 125 tells scripts that no program ran.
fn under_run() -> bool {
    std::env::args_os().skip(1).find(|a| !a.as_encoded_bytes().starts_with(b"-")).is_some_and(|a| a == "run")
}
