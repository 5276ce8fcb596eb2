//! How the pager waits: on which CPU, awake or asleep, and for how long.
//!
//! Caller: the pager's loop. No locks.

use crate::cpus::affinity::{AdaptiveSpin, CpuAffinity, OTHERS};
use crate::cpus::cpu_latency::CpuLatency;
use crate::shared::state::Engine;
use farpage_base::sys::proc::Proc;
use farpage_ipc::stat::Stat;
use std::time::{Duration, Instant};

/// How long the pager sleeps at most: where a forking thread cannot kick it, that waits for so long...
const NAP_MAX: Duration = Duration::from_millis(20);
/// ... and after so many turns without anything to do, for [`REST`].
const IDLE_TURNS: u32 = 100;
const REST: Duration = Duration::from_secs(5);

/// See the module documentation.
pub(crate) struct Pace {
    affinity: CpuAffinity,
    spin: AdaptiveSpin,
    cpu_latency: CpuLatency,
    /// Turns without anything to do, one after the other.
    idle_turns: u32,
}

impl Pace {
    pub(crate) fn new(e: &Engine, proc: &'static Proc) -> Pace {
        Pace {
            affinity: CpuAffinity::new(proc),
            spin: AdaptiveSpin::default(),
            cpu_latency: CpuLatency::new(e.conf.idle_poll, Instant::now()),
            idle_turns: 0,
        }
    }

    /// Whether the pager shares a CPU with the program.
    pub(crate) fn is_colocated(&self) -> bool {
        self.affinity.is_colocated()
    }

    /// Messages with a fault of thread `tid` were read at `now`; `filled`: pages placed so far.
    pub(crate) fn fault(&mut self, e: &Engine, tid: u32, others: [u32; OTHERS], filled: u64, now: Instant) {
        self.affinity.sample(&e.controls, tid, others, filled, now);
        self.spin.fault();
    }

    /// What was read has been done.
    pub(crate) fn served(&mut self, e: &Engine) {
        if self.affinity.is_apart() {
            self.spin.served(&e.controls, Instant::now());
        }
    }

    /// Whether the pager looks again without sleeping.
    pub(crate) fn looks_again(&mut self) -> bool {
        self.spin.again(Instant::now())
    }

    /// Whether the next sleep is the first long one.
    pub(crate) fn begins_to_rest(&self) -> bool {
        self.idle_turns == IDLE_TURNS
    }

    /// A turn without anything to do; how long to sleep.
    pub(crate) fn idle(&mut self) -> Duration {
        let most = if self.idle_turns < IDLE_TURNS { NAP_MAX } else { REST };
        self.idle_turns = self.idle_turns.saturating_add(1);
        self.cpu_latency.sleep(most)
    }

    /// Something was done.
    pub(crate) fn is_busy(&mut self) {
        self.idle_turns = 0;
    }

    /// `messages` have come by `now`: decides whether idle CPUs may sleep.
    pub(crate) fn stay_awake(&mut self, e: &Engine, messages: usize, now: Instant) {
        let time = self.cpu_latency.count(&e.controls, messages as u32, now);
        if !time.is_zero() {
            Stat::add(&e.stat.idle_poll_ns, time.as_nanos() as u64);
        }
    }
}
