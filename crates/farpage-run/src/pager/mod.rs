//! The pager thread: the only thread that changes the program's address space.
//!
//! It reads the userfaultfd, applies events ([`crate::pager::apply_event`]), serves faults
//! ([`crate::pager::fault`]), moves cold pages out ([`crate::pager::reclaim`]) and adopts new mappings
//! ([`crate::pager::register`]). Order matters: of a batch of messages the events are applied first, because
//! the thread that caused an event goes on as soon as it was read; a fault read with it must not bring back what the
//! event discarded. While an event is unread the kernel refuses to move or copy (EAGAIN), so a fault served without
//! having seen an event was served before it.

pub(crate) mod adoption;
mod apply_event;
pub(crate) mod bring_in;
pub(crate) mod changes;
pub(crate) mod cx;
pub mod fault;
mod fault_threads;
pub(crate) mod fill;
pub(crate) mod first_touch;
mod let_go;
pub(crate) mod lot;
pub mod marks;
mod messages;
mod move_out;
mod moved;
mod pace;
pub mod poison;
pub(crate) mod prefetch;
pub mod readahead;
pub mod reclaim;
mod refault;
pub(crate) mod register;
pub(crate) mod relocated;
pub mod robust;
mod scans;
pub mod start;
pub mod state;
pub(crate) mod swap_in;
pub mod trace;
pub(crate) mod transit;
mod turn;
mod unpark;
