//! What the commands share: how they fail, what they write, and how they say what they are doing.
//!
//! Callers: `farpage`, `farpage-bench`. The only state is the line of [`progress`].

pub mod failure;
pub mod machine;
pub mod output;
pub mod process;
pub mod progress;
