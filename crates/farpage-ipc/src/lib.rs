//! What the processes of farpage tell each other, and in which form: an engine is told its configuration ([`conf`]),
//! shows its counters ([`stat`]), and shares one budget with the other processes of its tree ([`tree`]).

pub mod conf;
pub mod stat;
pub mod tree;
