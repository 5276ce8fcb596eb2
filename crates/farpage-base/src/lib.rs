//! What everything else stands on: system calls ([`sys`]), and memory of the engine itself ([`mem`]).

pub mod mem;
pub mod sys;
