//! What the commands share: how they fail, and what they write.
//!
//! Callers: `farpage`, `farpage-bench`. No state, no locks.

pub mod failure;
pub mod output;
