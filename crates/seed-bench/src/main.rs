//! `farpage-bench`: measurements of farpage and of its parts, for work on them. Those for users are `farpage bench`.

mod cache;
mod io;
mod lru;
mod meter;
mod readahead;
mod sim;
mod slots;

use clap::{Parser, Subcommand};
use farpage_bench::{compare, tree};
use farpage_command::{failure, output, progress};
use std::process::ExitCode;

/// Counts, for `io`.
#[global_allocator]
static ALLOCATOR: farpage_base::mem::count::Counting = farpage_base::mem::count::Counting;

/// Measure farpage and its parts
#[derive(Debug, Parser)]
#[command(name = "farpage-bench", version)]
struct Cli {
    /// What to measure.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Patterns of access on the kernel's swap and under farpage, with equal memory
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),
    /// Programs of several processes (make, Python's workers, pipes) on the kernel's swap and under one budget
    #[command(after_help = tree::EXAMPLES)]
    Tree(tree::TreeArgs),
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
    /// Which page goes: run page traces through the policy and through others
    #[command(after_help = sim::EXAMPLES)]
    Sim(sim::SimArgs),
    /// Adding pages to the lists: one by one, batched, spliced
    #[command(after_help = lru::EXAMPLES)]
    Lru(lru::LruArgs),
    /// A workload process of `compare`
    #[command(hide = true)]
    BenchWorkload {
        /// What it is to do, JSON
        spec: String,
    },
    /// The load of `readahead`
    #[command(hide = true)]
    BenchReadaheadLoad {
        /// What it is to do, JSON
        spec: String,
    },
    /// Cleans up behind all of them
    #[command(hide = true)]
    BenchGuard,
}

fn main() -> ExitCode {
    // SAFETY: sets a default disposition; no handler is involved. A closed pipe ends this as any other command.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let result = match Cli::parse().command {
        Command::Compare(args) => compare::main(&args),
        Command::Tree(args) => tree::main(&args),
        Command::BenchWorkload { spec } => compare::child::main(&spec),
        Command::Io(args) => io::main(&args),
        Command::Slots(args) => slots::main(&args),
        Command::Cache(args) => cache::main(&args),
        Command::Readahead(args) => readahead::main(&args),
        Command::Lru(args) => lru::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::BenchReadaheadLoad { spec } => readahead::load::main(&spec),
        Command::BenchGuard => Ok(compare::kernel::guard()),
    };
    result.unwrap_or_else(|why| {
        failure::say(&why);
        ExitCode::from(if why.status == failure::FAILED { 1 } else { why.status })
    })
}
