//! `farpage bench`: measurements that a user can repeat. What they do is in the crate `farpage-bench`.

use crate::failure::Result;
use clap::{Args, Subcommand};
use farpage_bench::program;
use std::process::ExitCode;

/// `farpage bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Compare a program of yours, or a suite, on the kernel's swap and under farpage, with equal memory
    #[command(after_help = program::EXAMPLES)]
    Program(program::ProgramArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// What the bench could not set up or measure.
pub fn main(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Program(args) => program::main(args),
    }
}
