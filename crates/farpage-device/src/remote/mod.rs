//! Devices on other machines: what they have in common.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`areas`] | which process has which part of a server's space |
//! | [`opening`] | how a connection begins |
//! | [`wire`] | one connection, and how long an answer may take |
//! | [`link`] | the connections to one server; when it is out of reach, when it is back, when it is given up |
//! | [`conversation`] | a connection on which reads are in flight |
//! | [`nbd`] | exports of NBD servers |
//! | [`page_store`] | pages by number on a server, as a file device sees them |
//!
//! An engine that swaps over a network in the kernel can wait for itself: it needs memory to send, while it makes memory
//! free. This one cannot. It is no part of the kernel's reclaim, and what it sends lies in memory that it never manages.

pub mod areas;
pub mod conversation;
pub mod link;
pub mod nbd;
pub mod opening;
pub mod page_store;
#[cfg(test)]
mod tests;
pub mod wire;

/// For how long something on a server is whose it is.
#[derive(Debug, Clone, Copy)]
pub struct HolderLease {
    /// Who has it says so this often, milliseconds.
    pub look_ms: i64,
    /// Who has not been heard of for so long is gone, milliseconds.
    pub end_ms: i64,
}

impl HolderLease {
    /// Everywhere but in tests.
    pub const USUAL: HolderLease = HolderLease { look_ms: 5000, end_ms: 60_000 };
}
