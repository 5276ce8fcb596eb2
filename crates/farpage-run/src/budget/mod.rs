//! How many pages the process may have, and what becomes of them: its part of its tree's budget, when memory begins to
//! be managed, and what cannot be. The number itself is data of all ([`crate::shared::budget`]).

pub(crate) mod activation;
pub mod park;
pub(crate) mod share;
pub(crate) mod shared_pages;
pub(crate) mod time_slices;
pub(crate) mod unmanaged;
