//! `farpage bench`: measurements that a user can repeat. What they do is in the crate `farpage-bench`.

use crate::failure::Result;
use crate::stat_cmd::find;
use clap::{Args, Subcommand};
use farpage_bench::{compare, program, tree};
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
    /// A program of yours on the kernel's swap and under farpage, with equal memory
    #[command(after_help = program::EXAMPLES)]
    Program(program::ProgramArgs),
    /// Programs of several processes (make, Python's workers, pipes) on the kernel's swap and under one budget
    #[command(after_help = tree::EXAMPLES)]
    Tree(tree::TreeArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// What the bench could not set up or measure.
pub fn main(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Compare(args) => compare::main(args, counter),
        BenchCommand::Program(args) => program::main(args),
        BenchCommand::Tree(args) => tree::main(args),
    }
}

/// A number of the engine in process `pid`.
fn counter(pid: u32, name: &str) -> Option<u64> {
    Some(find::process(pid).ok()?.engine()?.get(name))
}
