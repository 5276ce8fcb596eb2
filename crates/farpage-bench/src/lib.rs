//! Measurements: `farpage bench` and `farpage size`, for users; `compare` and `tree` of the command `farpage-bench`
//! (crate `seed-bench`), which has those of farpage's parts, too; page traces.

pub mod anonymous;
mod commands;
pub mod compare;
mod destination;
pub mod program;
pub mod size;
pub mod trace;
pub mod tree;

use farpage_command::{failure, output, progress};
