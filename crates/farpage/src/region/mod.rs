//! Explicit regions: memory larger than its budget, asked for instead of adopted.
//!
//! ```no_run
//! use farpage::region::{Advice, Pager};
//! let pager = Pager::builder().budget(64 << 20).build()?;
//! let mut region = pager.region(1 << 30)?;
//! region[12345] = 1;
//! region.advise(0..1 << 20, Advice::Sequential)?;
//! let numbers: &mut [f64] = region.view_mut();
//! numbers[0] = 0.5;
//! # Ok::<(), farpage::region::Error>(())
//! ```
//!
//! Regions have nothing to do with the engine that `farpage run` starts, and need no privilege: a [`Pager`] is a
//! userfaultfd, frames, devices and threads of its own, and there can be several in a process. By default the thread
//! that touches an absent page brings it in itself, in a SIGBUS handler ([`FaultMode::Signal`]):
//!
//! * A *system call* that is given an absent page of a region fails with `EFAULT`, because the kernel cannot run the
//!   handler in the middle of a call. With [`Builder::system_calls`] libc's calls work: they are looked at before the
//!   kernel sees them. [`Region::pin`] makes a range resident and keeps it so. In [`FaultMode::Thread`] calls simply
//!   work.
//! * The handler is installed when the first pager is built, and passes every other SIGBUS on to the program's. Threads
//!   that touch regions must not block SIGBUS, and a handler that is installed later must call [`signal::handle`]
//!   first. With [`Builder::system_calls`] farpage sees to both: libc's calls change only what the program reads back,
//!   and what its handler gets.
//! * A region cannot be a thread's stack.
//! * Handlers of the program may touch regions.
//! * A forked child does not have the regions: touching one there is a SIGSEGV; see [`Builder::inherit`].
//!
//! | module | what it owns |
//! | --- | --- |
//! | `handle`, `error` | what a program holds; [`Error`] |
//! | `builder`, `owner` | how a pager is made; its threads, from start to end |
//! | `pager_core` | what they share; memory account; discarding; the locks |
//! | `word`, `space`, `lists` | a page's word and lock; addresses; which page goes next |
//! | `places` | which regions there are, and which of their pages have words |
//! | `fault`, `signal`, `thread_mode` | serving a fault, and the two ways to hear of one |
//! | `blocked_threads` | threads that block the signal when a pager is made |
//! | `registry` | the living pagers, for the handler |
//! | `pin`, `syscalls` | pages that stay; what system calls need of them |
//! | `swap_in` | bringing pages in from devices |
//! | `readahead`, `prefetch` | which pages come in with one that is missing; reading ahead in another thread |
//! | `fork`, `gate` | forks: children without regions, or with a copy; no thread is inside meanwhile |
//! | `write_protect_policy` | whether what comes in is written |
//! | `alloc` | frames and room for pages that come in |
//! | `division` | how much of the budget compressed pages get |
//! | `reclaim`, `evict`, `store` | what goes when; taking pages out; finding or making their copies |
//! | `stat`, `publish` | the page with the counters, which `farpage stat` reads |
//! | `stats` | what of it a program can ask for |

mod alloc;
mod blocked_threads;
mod builder;
mod division;
pub(crate) mod error;
mod evict;
mod fault;
mod fork;
mod gate;
mod handle;
mod lists;
mod owner;
mod pager_core;
mod pin;
mod places;
mod prefetch;
mod publish;
mod readahead;
mod reclaim;
mod registry;
pub mod signal;
mod space;
mod stat;
mod stats;
mod store;
mod swap_in;
mod syscalls;
mod thread_mode;
mod view;
mod word;
mod write_protect_policy;

#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use error::{BUDGET_MAX, BUDGET_MIN, Error};
pub use farpage_swap::readahead::{Rule as ReadaheadRule, Tuning as ReadaheadTuning};
pub use handle::{Advice, Pager, Pin, Region};
pub use owner::FaultMode;
pub use readahead::ReadaheadStats;
pub use rustix::io::Errno;
pub use stats::Stats;
pub use view::Plain;

#[doc(inline)]
pub use farpage_base::sys::uffd::OpenError;
#[doc(inline)]
pub use farpage_device::{DeviceError, LoadError};
