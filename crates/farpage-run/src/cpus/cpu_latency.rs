//! Whether idle CPUs are kept from sleeping. Called by the pager only; no lock.
//!
//! A thread that waits for its page leaves its CPU idle, and a CPU that sleeps is slow to wake: some microseconds on
//! real ones, twenty and more in a virtual machine, where sleeping is an exit to the host and waking an interrupt from
//! it. That is longer than all the rest of a fault. So while faults come one after the other, CPUs are asked not to
//! sleep ([`farpage_base::sys::pm_qos`]). What it costs is the idle time of *all* CPUs, so [`Idle::Auto`] leaves it on
//! large machines.

use farpage_base::sys::pm_qos::{LatencyRequest, cpus_online};
use farpage_ipc::conf::Idle;
use farpage_swap::tuning::{Controller, Controls};
use std::time::{Duration, Instant};

/// Whether CPUs would be kept awake as `idle` says, here and for this user.
pub fn is_possible(idle: Idle) -> bool {
    request(idle).is_some()
}

/// What can be requested, if anything.
fn request(idle: Idle) -> Option<LatencyRequest> {
    let allowed = match idle {
        Idle::Never => false,
        Idle::Always => true,
        Idle::Auto => cpus_online().is_ok_and(|cpus| cpus <= Idle::CPUS_MAX),
    };
    allowed.then(LatencyRequest::open)?.ok()
}

/// Faults are counted over this time.
const WINDOW: Duration = Duration::from_millis(8);
/// Faults in it from which CPUs are kept awake: 4000 a second, so that at least a twentieth of the time is won.
const MANY: u32 = 32;
/// Faults in it below which they may sleep again.
const FEW: u32 = 8;

/// What is asked of the kernel, and why.
#[derive(Debug)]
pub struct CpuLatency {
    wanted: Idle,
    /// `None`: not asked for yet, or it cannot be had.
    request: Option<LatencyRequest>,
    /// CPUs are kept awake.
    held: bool,
    begun: Instant,
    faults: u32,
}

impl CpuLatency {
    /// Nothing asked for yet.
    pub fn new(wanted: Idle, now: Instant) -> CpuLatency {
        CpuLatency { wanted, request: None, held: false, begun: now, faults: 0 }
    }

    /// How long the pager may sleep, `most` at most: CPUs that are kept awake are let go soon after the last fault.
    pub fn sleep(&self, most: Duration) -> Duration {
        if self.held { WINDOW } else { most }
    }

    /// `faults` more were read at `now` (none: the pager has woken up, or is about to sleep). Returns for how long CPUs
    /// have been kept awake since the last answer that was not zero.
    pub fn count(&mut self, controls: &Controls, faults: u32, now: Instant) -> Duration {
        self.faults += faults;
        let time = now - self.begun;
        if time < WINDOW {
            return Duration::ZERO;
        }
        // In a longer time, more are as few.
        let windows = time.as_nanos() / WINDOW.as_nanos();
        let rate = u128::from(self.faults) / windows;
        (self.begun, self.faults) = (now, 0);
        let held = self.held;
        let own = if held { rate >= FEW.into() } else { rate >= MANY.into() };
        let keep = controls.decide(Controller::IdleCpus, own);
        if held && !keep {
            self.set(false);
        } else if !held && keep {
            self.open();
            self.set(true);
        }
        if held { time } else { Duration::ZERO }
    }

    fn open(&mut self) {
        if self.request.is_none() {
            self.request = request(self.wanted);
            // Asked once.
            self.wanted = Idle::Never;
        }
    }

    fn set(&mut self, on: bool) {
        if let Some(request) = &self.request {
            request.set(on);
            self.held = on;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_swap::tuning::Pins;

    /// Counts `n` faults in each of `windows` windows; returns for how many of them CPUs were awake.
    fn feed(latency: &mut CpuLatency, now: &mut Instant, n: u32, windows: u32) -> u32 {
        let mut time = Duration::ZERO;
        let free = Controls::new(Pins::default());
        for _ in 0..windows {
            *now += WINDOW;
            time += latency.count(&free, n, *now);
        }
        (time.as_nanos() / WINDOW.as_nanos()) as u32
    }

    #[test]
    fn held_while_faults_are_many_and_not_for_long_after() {
        let mut now = Instant::now();
        let mut latency = CpuLatency::new(Idle::Never, now);
        // In place of the kernel's device, any file that takes four bytes.
        latency.request = Some(LatencyRequest::to_nowhere());
        assert_eq!(feed(&mut latency, &mut now, MANY - 1, 50), 0);
        assert_eq!(feed(&mut latency, &mut now, MANY, 3), 2, "from the first window on");
        assert_eq!(feed(&mut latency, &mut now, FEW, 50), 50, "fewer, but not few");
        assert_eq!(feed(&mut latency, &mut now, FEW - 1, 5), 1, "to the end of the first");
        // One look after a long sleep ends it.
        feed(&mut latency, &mut now, MANY, 1);
        assert!(latency.held);
        now += WINDOW * 10;
        assert_eq!(feed(&mut latency, &mut now, MANY, 1), 11);
        assert!(!latency.held);
    }

    #[test]
    fn never_and_machines_that_are_too_large_are_left_alone() {
        let mut now = Instant::now();
        let mut latency = CpuLatency::new(Idle::Never, now);
        assert_eq!(feed(&mut latency, &mut now, 1000, 5), 0);
        assert!(latency.request.is_none());
        for (text, idle) in [("auto", Idle::Auto), ("always", Idle::Always), ("never", Idle::Never)] {
            assert_eq!(Idle::parse(text), Some(idle));
        }
        assert_eq!(Idle::parse("sometimes"), None);
    }
}
