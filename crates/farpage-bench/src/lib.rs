//! Measurements for users: commands of `farpage bench`. Those for who works on farpage are the command `farpage-bench`
//! (`src/main.rs`), which uses some of this.

pub mod anonymous;
pub mod compare;
mod destination;
pub mod program;
pub mod tree;

use farpage_command::{failure, output, progress};
