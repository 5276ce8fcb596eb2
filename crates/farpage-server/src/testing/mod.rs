//! Servers for tests.

pub mod nbd;
pub mod redis;
