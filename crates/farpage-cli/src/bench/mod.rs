//! `farpage bench`: measurements of the parts, on this machine.

mod cache;
mod meter;
mod slots;

use crate::failure::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The slot allocator against one lock for everything, and that with a slot cache
    #[command(after_help = slots::EXAMPLES)]
    Slots(slots::SlotsArgs),
    /// The swap table against a tree index with and without writeback tags
    Cache(cache::CacheArgs),
}

/// Runs the subcommand.
pub fn main(command: &BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Slots(args) => slots::main(args),
        BenchCommand::Cache(args) => cache::main(args),
    }
}
