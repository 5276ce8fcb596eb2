//! `farpage bench`: measurements that a user can repeat.

mod cache;
pub mod compare;
pub mod io;
mod lru;
mod meter;
pub mod program;
pub mod readahead;
mod slots;

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
    /// Measure page I/O: swap_writepage and swap_readpage of each device, synchronous and queued
    #[command(after_help = io::EXAMPLES)]
    Io(io::IoArgs),
    /// The slot allocator against one lock for everything, and that with a slot cache
    #[command(after_help = slots::EXAMPLES)]
    Slots(slots::SlotsArgs),
    /// The swap table against a tree index with and without writeback tags
    Cache(cache::CacheArgs),
    /// Readahead: farpage's rule, the kernel's rules, none, and the kernel itself
    #[command(after_help = readahead::EXAMPLES)]
    Readahead(readahead::ReadaheadArgs),
    /// Adding pages to the lists: one by one, batched, spliced
    #[command(after_help = lru::EXAMPLES)]
    Lru(lru::LruArgs),
    /// Measure farpage against the kernel's own swap, with equal memory
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),
    /// A program of yours on the kernel's swap and under farpage, with equal memory
    #[command(after_help = program::EXAMPLES)]
    Program(program::ProgramArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// What the bench could not set up or measure.
pub fn main(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Io(args) => io::main(args),
        BenchCommand::Slots(args) => slots::main(args),
        BenchCommand::Cache(args) => cache::main(args),
        BenchCommand::Readahead(args) => readahead::main(args),
        BenchCommand::Lru(args) => lru::main(args),
        BenchCommand::Compare(args) => compare::main(args),
        BenchCommand::Program(args) => program::main(args),
    }
}
