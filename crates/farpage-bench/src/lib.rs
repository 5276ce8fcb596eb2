//! Measurements for users: `farpage bench` and `farpage size`; page traces. Those of farpage's parts are the command
//! `seed-bench`.

pub mod anonymous;
mod commands;
pub mod compare;
mod destination;
pub mod program;
pub mod size;
pub mod trace;
pub mod tree;

use farpage_command::{failure, output, progress};
