//! What the commands share: how they fail, what they write, and how they say what they are doing.
//!
//! Callers: `farpage`, `farpage-bench`. The only state is the line of [`progress`].

pub mod failure;
pub mod output;
pub mod progress;
