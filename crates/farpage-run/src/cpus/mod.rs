//! On which CPUs the engine's threads run, and whether these may sleep.

pub(crate) mod ab_trial;
pub(crate) mod affinity;
pub mod cpu_latency;
