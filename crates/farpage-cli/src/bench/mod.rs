//! `farpage bench`: measurements that a user can repeat.

pub mod compare;

use crate::failure::Result;
use clap::{Args, Subcommand};
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
    /// Measure farpage against the kernel's own swap, with equal memory
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// What the bench could not set up or measure.
pub fn main(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Compare(args) => compare::main(args),
    }
}
