//! Which memory of the program is managed: how its mappings are learnt, registered, and followed.

pub mod apply_event;
pub mod discovery;
pub(crate) mod event_order;
pub(crate) mod grace_period;
pub mod let_go;
pub mod library_guard;
pub mod managed_cache;
pub mod notice_ring;
pub mod register;
pub(crate) mod relocated;
