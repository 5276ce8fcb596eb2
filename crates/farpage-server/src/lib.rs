//! Pages on other machines: servers, and the connections to them.
//!
//! ```text
//!   device --> PageStore (nbd, redis) --> exchange (asks, and waits)   --> link (connections) --> wire
//!                                    '--> in_flight (asks, and looks)  ------'
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`page_store`] | pages by number on a server, as a device sees them |
//! | [`areas`] | which process has which part of a server's space |
//! | [`opening`] | how a connection begins |
//! | [`wire`] | one connection, and how long an answer may take |
//! | [`link`] | the connections to one server; when it is out of reach, when it is back, when it is given up |
//! | [`request`] | what a server is asked for, and what comes back; requests whose answers are waited for |
//! | [`in_flight`] | a connection on which reads are in flight while their thread does something else |
//! | [`nbd`] | exports of NBD servers |
//! | [`redis`] | the memory of a Redis or Valkey server |
//!
//! An engine that swaps over a network in the kernel can wait for itself: it needs memory to send, while it makes
//! memory free. This one cannot. It is no part of the kernel's reclaim, and what it sends lies in memory that it never
//! manages.

pub mod areas;
mod condition;
pub mod in_flight;
pub mod link;
pub mod nbd;
pub mod opening;
pub mod page_store;
pub mod redis;
pub mod request;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod wire;

pub use page_store::{OutgoingPage, PageStore, PageStores, Seal};
pub use request::{BATCH_MAX, RemoteRequest, Transferred};

/// For how long something on a server belongs to a process that is not heard of.
#[derive(Debug, Clone, Copy)]
pub struct HolderLease {
    /// Its process says so often that it is there, milliseconds.
    pub look_ms: i64,
    /// A process that has not been heard of for so long is gone, milliseconds.
    pub end_ms: i64,
}

impl HolderLease {
    /// Everywhere but in tests.
    pub const USUAL: HolderLease = HolderLease { look_ms: 5000, end_ms: 60_000 };
}
