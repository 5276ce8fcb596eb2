//! Which memory of the program is managed: how its mappings are learnt, and in which order their changes are followed.
//! What the pager does about it is in [`crate::pager`].

pub mod discovery;
pub(crate) mod event_order;
pub(crate) mod grace_period;
pub mod library_guard;
pub(crate) mod manageable;
pub(crate) mod relocated;
pub mod requests;
pub mod thread_starts;
