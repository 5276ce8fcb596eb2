//! How long an idle CPU takes to wake up: what a thread waits that another one has just given its page.

use farpage_base::sys::pm_qos::LatencyRequest;
use farpage_base::sys::thread::{allowed_cpus, run_on};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{park, scope, sleep};
use std::time::{Duration, Instant};

/// From one thread's wake-up call to the other's first instruction, on different CPUs, medians.
#[derive(Debug, Clone)]
pub struct WakeUp {
    /// As the machine is; `None`: this process may use one CPU only.
    pub plain: Option<Duration>,
    /// While idle CPUs are kept from sleeping; or why they cannot be.
    pub awake: Result<Option<Duration>, Errno>,
}

impl WakeUp {
    /// Measures both: some 20 ms.
    pub fn measure() -> WakeUp {
        let plain = median();
        let awake = LatencyRequest::open().map(|request| {
            request.set(true);
            median()
        });
        WakeUp { plain, awake }
    }
}

fn median() -> Option<Duration> {
    const TIMES: usize = 21;
    let mask = allowed_cpus(0);
    let mut cpus = (0..mask.len() * 64).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1);
    let (here, there) = (cpus.next()?, cpus.next()?);
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64;
    // When the sleeper last woke up.
    let awake = AtomicU64::new(0);
    let mut times = [0u64; TIMES];
    // Threads of their own, because their CPUs stay chosen.
    scope(|s| {
        let sleeper = s.spawn(|| {
            run_on(0, there);
            for _ in 0..TIMES {
                let before = awake.load(SeqCst);
                while awake.load(SeqCst) == before {
                    park();
                    awake.store(now(), SeqCst);
                }
            }
        });
        let (awake, times) = (&awake, &mut times);
        s.spawn(move || {
            run_on(0, here);
            for time in times {
                // Long enough to fall asleep.
                sleep(Duration::from_micros(400));
                let (seen, called) = (awake.load(SeqCst), now());
                sleeper.thread().unpark();
                while awake.load(SeqCst) == seen {
                    std::hint::spin_loop();
                }
                *time = awake.load(SeqCst).saturating_sub(called);
            }
        });
    });
    times.sort_unstable();
    Some(Duration::from_nanos(times[TIMES / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_where_there_are_two_cpus() {
        let two = farpage_base::sys::cpu::count() > 1;
        let took = WakeUp::measure();
        assert_eq!(took.plain.is_some(), two);
        assert!(took.awake.is_err() || took.awake.unwrap().is_some() == two);
        assert!(took.plain.is_none_or(|time| time > Duration::ZERO));
    }
}
