//! What is the same in all runs of a comparison.

use clap::ValueEnum;

/// How farpage gets at the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A region of the library: the workload asks for its memory
    Region,
    /// `farpage run`: plain memory, adopted
    Run,
}

impl Mode {
    /// As it is named in options.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Region => "region",
            Mode::Run => "run",
        }
    }
}

/// What farpage is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// Anonymous memory, swap on compressed RAM
    Zram,
    /// Anonymous memory, a swap file
    File,
    /// A mapped file
    Mmap,
}

impl Against {
    /// As it is named in options.
    pub fn name(self) -> &'static str {
        match self {
            Against::Zram => "zram",
            Against::File => "file",
            Against::Mmap => "mmap",
        }
    }
}

/// The setting of all runs.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The kernel's limit, bytes.
    pub ram: u64,
    /// Data, bytes.
    pub data: u64,
    /// `run` or `region`.
    pub mode: Mode,
    /// What the kernel swaps to.
    pub against: Against,
    /// Rounds.
    pub rounds: u64,
    /// In words: the machine, and what is special about this measurement.
    pub notes: Vec<String>,
}
