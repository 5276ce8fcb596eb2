//! On which CPUs pager, writer and helpers run, and whether the pager should wait for the next fault without
//! sleeping. Called by the pager only; no lock.
//!
//! What costs in a virtual machine is an interrupt from one CPU to another, 10 us and more: to wake a thread there,
//! and, for a page that is moved, to have the CPU forget its translation. Where faults come from many threads, the
//! pager runs where the last one came from, and the writer anywhere. Where one thread causes all of them, there are two
//! ways:
//!
//! * *Spread*: the same. The writer uses the CPU of the thread that waits.
//! * *Colocated*: the writer has the pager's CPU, and so have helpers, which work while the thread does: on
//!   the thread's, they would be interrupted for what the pager moves. The thread sleeps while its fault is served, so
//!   that is when pages are moved out ([`crate::pager::reclaim`]); the writer would be the only other thread that
//!   runs, and would be interrupted and waited for at every page. The thread that is woken is put on an idle CPU, so on
//!   another than the pager's; to follow it there only makes it go back. And if its next fault usually comes soon, the
//!   pager looks for it for some microseconds instead of going to sleep ([`AdaptiveSpin`]), and stores pages meanwhile.
//!
//! Which one is faster depends on the program and on the machine, so both are tried ([`Trial`]).

use crate::cpus::ab_trial::Trial;
use farpage_base::sys::cpu;
use farpage_base::sys::proc::{Proc, cpu_of};
use farpage_base::sys::thread::{allowed_cpus, run_on, run_on_any};
use farpage_swap::score::Score;
use farpage_swap::tuning::{Controller, Controls};
use std::time::{Duration, Instant};

/// How often the pager looks where the faults come from.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// Looks in a row at which the same thread was the one that waited, for it to be taken for the only one.
const ALONE_AFTER: u32 = 4;

/// How long one way is tried. Long against a look, short against a program's phases.
const EPOCH: Duration = Duration::from_millis(32);
/// Seldom: the wrong way can take twice as long.
const TRY_OFTEN: u32 = 16;

/// Writer and helpers.
pub(crate) const OTHERS: usize = 5;

/// Where the engine's threads were put.
#[derive(Debug)]
pub struct CpuAffinity {
    proc: &'static Proc,
    looked: Instant,
    /// The CPU the pager was put on.
    pager: Option<usize>,
    /// The CPUs that writer and helpers were put on; `None`: any.
    others: [Option<usize>; OTHERS],
    last: Last,
    trial: Trial,
    apart: bool,
}

/// Which thread had the faults that were looked at last.
#[derive(Debug, Default)]
struct Last {
    tid: u32,
    looks: u32,
}

impl Last {
    /// Thread `tid` has a fault. Returns whether it seems to be the only one that has.
    fn sample(&mut self, tid: u32) -> bool {
        if tid == self.tid {
            self.looks = self.looks.saturating_add(1);
        } else {
            *self = Last { tid, looks: 1 };
        }
        self.looks >= ALONE_AFTER
    }
}

impl CpuAffinity {
    /// Nothing placed yet.
    pub fn new(proc: &'static Proc) -> CpuAffinity {
        let (looked, last) = (Instant::now(), Last::default());
        CpuAffinity {
            proc,
            looked,
            pager: None,
            others: [None; OTHERS],
            last,
            trial: Trial::new(EPOCH, TRY_OFTEN, looked),
            apart: false,
        }
    }

    /// One thread causes all faults, and pager and writer share a CPU.
    pub fn is_colocated(&self) -> bool {
        self.others[0].is_some()
    }

    /// As [`CpuAffinity::is_colocated`], and the thread runs on another CPU.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// A fault of thread `tid` was read by the calling pager, which has placed `pages` pages so far: decides every few
    /// milliseconds where it and `others` run: the writer and the helpers, 0 where there is none yet.
    pub fn sample(&mut self, controls: &Controls, tid: u32, others: [u32; OTHERS], pages: u64, now: Instant) {
        if now - self.looked < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let alone = self.last.sample(tid) && others[0] != 0;
        let colocated = alone && controls.decide(Controller::Colocate, self.trial.turn(pages, now));
        let Some(theirs) = cpu_of(self.proc, tid) else { return };
        let here = if colocated { self.others[0].unwrap_or_else(cpu::current) } else { theirs };
        if self.pager != Some(here) {
            self.pager = Some(here);
            run_on(0, here);
        }
        for (other, put) in others.into_iter().zip(&mut self.others).filter(|(other, _)| *other != 0) {
            match (*put, colocated) {
                (None, true) => run_on(other, here),
                (Some(_), false) => run_on_any(other, &allowed_cpus(tid)),
                _ => {}
            }
            *put = colocated.then_some(here);
        }
        self.apart = colocated && theirs != here;
    }
}

/// How long the pager looks for the next fault before it goes to sleep.
const LOOK_FOR: Duration = Duration::from_micros(30);

/// Whether to look for the next fault instead of sleeping: while that finds one often enough.
#[derive(Debug, Default)]
pub struct AdaptiveSpin {
    until: Option<Instant>,
    /// Rises when looking found a fault, falls when it did not.
    score: Score<MOST>,
}

/// The score's ends.
const MOST: i32 = 32;
/// A look in vain costs more than one that finds something gains.
const IN_VAIN: i32 = 4;

impl AdaptiveSpin {
    /// A fault was read; whether it was found by looking shows whether looking pays.
    pub fn fault(&mut self) {
        let gain = if self.until.take().is_some() { 1 } else { i32::from(self.score.get() < 0) };
        self.score.add(gain);
    }

    /// A fault was served, at `now`: from here on the next one may come.
    pub fn served(&mut self, controls: &Controls, now: Instant) {
        let own = if self.score.get() >= 0 { LOOK_FOR.as_micros() as u64 } else { 0 };
        let us = controls.value_for(Controller::Spin, own);
        self.until = (us > 0).then(|| now + Duration::from_micros(us));
    }

    /// Nothing is there yet: whether to look again.
    pub fn again(&mut self, now: Instant) -> bool {
        match self.until {
            Some(until) if now < until => true,
            Some(_) => {
                self.until = None;
                self.score.add(-IN_VAIN);
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_swap::tuning::Pins;

    #[test]
    fn a_thread_is_alone_after_some_looks_and_no_longer_at_the_first_of_another() {
        let mut last = Last::default();
        let seen: Vec<bool> = [7, 7, 7, 7, 7, 8, 7, 7, 7, 7].map(|tid| last.sample(tid)).into();
        assert_eq!(seen, [false, false, false, true, true, false, false, false, false, true]);
    }

    #[test]
    fn the_writer_is_brought_over_and_set_free_again() {
        let allowed = allowed_cpus(0);
        let (tx, rx) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            tx.send(farpage_base::sys::raw::gettid()).unwrap();
            let _ = wait.recv();
        });
        let writer_tid = rx.recv().unwrap();
        let main = farpage_base::sys::raw::gettid();
        // The "pager" is a thread of its own: it is moved about.
        let pager = std::thread::spawn(move || {
            let mut affinity = CpuAffinity::new(Box::leak(Box::new(Proc::open().unwrap())));
            let mut now = affinity.looked;
            let free = Controls::new(Pins::default());
            let look = |tid: u32| {
                now += LOOK_EVERY;
                affinity.sample(&free, tid, std::array::from_fn(|i| if i == 0 { writer_tid } else { 0 }), 0, now);
                (affinity.is_colocated(), allowed_cpus(writer_tid), allowed_cpus(0))
            };
            let tids = std::iter::repeat_n(writer_tid, ALONE_AFTER as usize).chain([main]);
            tids.map(look).collect::<Vec<_>>()
        });
        let seen = pager.join().unwrap();
        drop(done);
        writer.join().unwrap();
        let cpus = |mask: &[u64]| mask.iter().map(|w| w.count_ones()).sum::<u32>();
        let (colocated, writers, pagers) = seen[ALONE_AFTER as usize - 1];
        assert!(colocated && cpus(&writers) == 1 && writers == pagers);
        let (colocated, writers, _) = seen[ALONE_AFTER as usize];
        assert!(!colocated && writers == allowed);
    }

    #[test]
    fn looking_ends_where_faults_are_rare_and_begins_again_where_they_are_not() {
        let mut spin = AdaptiveSpin::default();
        let free = Controls::new(Pins::default());
        let mut now = Instant::now();
        let mut fault_after = |us: u64| {
            spin.served(&free, now);
            let mut looks = 0;
            for _ in 0..us {
                now += Duration::from_micros(1);
                looks += u64::from(spin.again(now));
            }
            spin.fault();
            looks
        };
        assert_eq!(fault_after(5), 5);
        (0..100).for_each(|_| assert_eq!(fault_after(20), 20));
        let wasted: u64 = (0..1000).map(|_| fault_after(1000)).sum();
        // Nine to lose what was gained, then one for four that sleep.
        assert!(wasted < 300 * LOOK_FOR.as_micros() as u64, "{wasted}");
        let found: u64 = (0..100).map(|_| fault_after(20)).sum();
        assert!(found > 60 * 20, "{found}");
    }
}
