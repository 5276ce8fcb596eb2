//! Fork: the child gets the right bytes in every swapped-out page, whichever process of the family dies first.
//!
//! The engine's whole state (words, frames, compressed pool, device tables) is ordinary private memory, so a fork
//! copies it like everything else. What has to be done is to make the copy a *good* one, and to start a new engine in
//! the child before the program can touch anything. Parent and child share nothing afterwards except swap files, whose
//! slots are frozen until the child is gone (a *lease*, [`farpage_device::file`]).
//!
//! ```text
//!  forking thread                      engine threads                 child
//!  reserve: a channel, threads ----->  monitor: what the child will need
//!  prepare: gates closed  ---------->  writer, monitor wait
//!           asks for a pause  ------>  pager applies all events, holds still
//!  libc takes its locks     (pages that it or a lock's holder needs are placed and noted)
//!  fork ------------------------------------------------------------> copy of a quiet engine
//!  parent: resume  ---------------->   lease; events that were pending
//!          gates open                  they go into the channel ->  child: new userfaultfd, mappings registered
//!                                                                     they are applied, threads started, go on
//! ```
//! They are sent because another thread's munmap or mremap may have changed the mappings just before the copy
//! while its event was still unread: the child then compares its own mappings with what it inherited.
//!
//! No `UFFD_FEATURE_EVENT_FORK`: that needs CAP_SYS_PTRACE, and the copy makes it unnecessary. But where the child
//! could make no userfaultfds, it has them by that ([`crate::shared::given_uffds`]). The price: a child made without
//! libc knowing has no engine and reads zeros. What goes round `fork()` through another function of libc is caught in
//! the preload library.
//!
//! | file | what |
//! | --- | --- |
//! | `reserve` | what the child will need is had before, or the fork fails |
//! | `channel` | how the child's engine comes by descriptors of the parent's |
//! | `protocol` | what its threads tell each other: data |
//! | `handlers` | what libc calls in the forking thread, before and after |
//! | `pause` | the pager's part: holding still, and helping the forking thread to get to the system call |
//! | `late_fills` | what it did to that end |
//! | `huge` | no huge pages in a child before its engine runs |
//! | `pending_events` | changes of mappings that were pending at the copy |
//! | [`crate::fork::restart`] | the engine's second start |

pub(crate) mod huge;
mod pause;
mod pending_events;
pub(crate) mod reserve;
pub mod restart;

pub use reserve::{release, reserve};
