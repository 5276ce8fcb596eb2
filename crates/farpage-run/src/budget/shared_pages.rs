//! What a process pays for, of the pages that it shares with the process it was forked from, and with those that were
//! forked from it.
//!
//! After a fork both have all pages, and each is there once. The kernel counts them for both (RssAnon), so adding up
//! would double a tree at the moment of a fork; and a write that makes a page one's own does not show in that number.
//! What adds up is the *proportional* share (PSS), which takes the kernel a walk through the page tables. So it is
//! asked for now and then, and between that it is estimated: a page that was made one's own was a fault that neither
//! the engine served nor resident memory grew by.
//!
//! A child pays for nothing at first: many end or become another program at once. Its parent pays for all until the
//! child has lived for a while and measures. What the child takes over then, it tells its parent, so that at every
//! moment one of them pays ([`SharedPages::begun`], [`SharedPages::taken_over`]), and what they are promised changes
//! hands with it. If the parent measured before its child, no process would pay for the child's part, and the parent
//! would fill it.
//!
//! Owner and caller: the monitor. No locks.

use farpage_base::sys::cpu;
use farpage_base::sys::proc::{Shared, minor_faults};
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Time between two measurements: as many times the CPU time of one...
const COST: u32 = 50;
/// ... and at least so much, which is doubled each time that nothing has changed...
const BETWEEN: Duration = Duration::from_millis(50);
/// ... up to this: idle workers of a server are to cost nothing, and still see that others have ended.
const BETWEEN_MAX: Duration = Duration::from_millis(800);
/// So long a parent waits for a child that was forked to measure. Mostly there is no such child any more.
const CHILD_PAYS: Duration = Duration::from_millis(200);
/// So many faults are no change.
const FEW: u64 = 16;
/// Less than this part of resident memory is not worth counting: the others have gone, or have pages of their own by
/// now.
const PART: i64 = 64;

/// See the module header. Pages.
#[derive(Debug, Default)]
pub struct SharedPages {
    /// Another process may have the same pages.
    related: bool,
    /// What others have, too, and counters, at the last measurement.
    shared: Shared,
    resident: i64,
    minor: u64,
    served: u64,
    next: Option<Instant>,
    between: Duration,
    /// Since when a measurement has been put off because of forks.
    put_off: Option<Instant>,
    /// Its parent pays for all until this process measures; then, what it pays for itself.
    is_new: bool,
    begun: i64,
}

impl SharedPages {
    /// Of a process that was forked when its parent had `pages`.
    pub fn of_child(pages: i64) -> SharedPages {
        let shared = Shared { paid_by_others: pages, all: pages };
        SharedPages { related: pages > 0, shared, resident: pages, minor: minor_faults(), ..SharedPages::default() }
    }

    /// Of a process that was forked just now: its parent pays for all, until it measures.
    pub fn of_new_child(pages: i64) -> SharedPages {
        let next = Some(Instant::now() + BETWEEN);
        SharedPages { next, between: BETWEEN, is_new: true, ..SharedPages::of_child(pages) }
    }

    /// Others may have the same pages.
    pub fn is_related(&self) -> bool {
        self.related
    }

    /// Whether it is time for a measurement.
    pub fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// A child was forked. Until it has lived for a while, this process pays for what it did; but not if that could be
    /// why its memory begins to be `managed`.
    pub fn forked(&mut self, managed: bool) {
        let now = Instant::now();
        if !self.related {
            *self = SharedPages { related: true, between: BETWEEN, ..SharedPages::default() };
        }
        if managed {
            let until = *self.put_off.get_or_insert(now) + CHILD_PAYS;
            self.next = Some(self.next.map_or(until, |next| next.max(until)));
        }
    }

    /// Of `resident` pages, those that others have, too. `served`: faults that the engine has served so far.
    pub fn shared(&mut self, resident: i64, served: u64, measure: impl FnOnce() -> Result<Shared, Errno>) -> Shared {
        if !self.related {
            return Shared::default();
        }
        if self.is_due() {
            let now = Instant::now();
            // On a busy machine a measurement takes longer and costs the same.
            let before = cpu::own_time();
            let Ok(shared) = measure() else {
                self.related = false;
                return Shared::default();
            };
            let took = cpu::own_time() - before;
            if std::mem::take(&mut self.is_new) {
                self.begun = (self.estimate(resident, served).paid_by_others - shared.paid_by_others).max(0);
            }
            let minor = minor_faults();
            self.between = self.pause(shared, minor, resident);
            self.next = Some(now + (took * COST).max(self.between));
            self.put_off = None;
            (self.shared, self.resident) = (shared, resident);
            (self.minor, self.served) = (minor, served);
            self.related = shared.paid_by_others > resident / PART;
        }
        self.estimate(resident, served)
    }

    /// Pages that this process has begun to pay for, once: its parent does no more.
    pub fn begun(&mut self) -> i64 {
        std::mem::take(&mut self.begun)
    }

    /// Children have begun to pay for so many of the `resident` pages (negative: have ended that paid for so many). How
    /// many of them this process has paid for (negative: pays for again).
    pub fn taken_over(&mut self, pages: i64, resident: i64) -> i64 {
        let others = self.shared.paid_by_others;
        let taken = if self.related { pages.clamp(-others.max(0), (resident - others).max(0)) } else { 0 };
        self.shared.paid_by_others += taken;
        self.shared.all = self.shared.all.max(self.shared.paid_by_others);
        taken
    }

    /// What others have, too, by the last measurement and the counters.
    fn estimate(&self, resident: i64, served: u64) -> Shared {
        let own = self.unshared(resident, minor_faults(), served);
        let less = |pages: i64| pages.saturating_sub(own).clamp(0, resident);
        Shared { paid_by_others: less(self.shared.paid_by_others), all: less(self.shared.all) }
    }

    /// How long until the next measurement, after this one.
    fn pause(&self, now: Shared, minor: u64, resident: i64) -> Duration {
        let differs = (now.paid_by_others - self.shared.paid_by_others).abs() > resident / PART;
        let is_busy = minor.saturating_sub(self.minor) > FEW;
        if differs || is_busy { BETWEEN } else { (2 * self.between).clamp(BETWEEN, BETWEEN_MAX) }
    }

    /// Pages that were made this process's own since the last measurement.
    fn unshared(&self, resident: i64, minor: u64, served: u64) -> i64 {
        let grown = (resident - self.resident).max(0) as u64;
        let others = (served - self.served.min(served)).max(grown);
        minor.saturating_sub(self.minor).saturating_sub(others) as i64
    }
}

/// Bytes as pages.
pub(crate) fn pages(bytes: u64) -> i64 {
    (bytes / PAGE_SIZE as u64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_nobody_served_and_nothing_grew_by_made_a_page_its_own() {
        let shared = Shared { paid_by_others: 500, all: 1000 };
        let pages =
            SharedPages { related: true, shared, resident: 1000, minor: 50, served: 7, ..SharedPages::default() };
        assert_eq!(pages.unshared(1000, 50, 7), 0);
        assert_eq!(pages.unshared(1000, 150, 7), 100);
        assert_eq!(pages.unshared(1100, 150, 7), 0, "it has grown by as many");
        assert_eq!(pages.unshared(1000, 150, 107), 0, "the engine has served as many");
    }

    #[test]
    fn what_does_not_change_is_measured_seldom() {
        let shared = |pages| Shared { paid_by_others: pages, all: 2 * pages };
        let mut pages = SharedPages { shared: shared(500), minor: 50, ..SharedPages::default() };
        for ms in [50, 100, 200, 400, 800, 800] {
            pages.between = pages.pause(shared(505), 55, 1000);
            assert_eq!(pages.between, Duration::from_millis(ms));
        }
        assert_eq!(pages.pause(shared(400), 55, 1000), BETWEEN, "others have pages of their own");
        assert_eq!(pages.pause(shared(500), 150, 1000), BETWEEN, "this process has some");
    }

    #[test]
    fn at_every_moment_one_pays() {
        let all = 80_000;
        let later = Some(Instant::now() + Duration::from_secs(3600));
        let no_look = || -> Result<Shared, Errno> { panic!("not yet") };
        // More faults were served each time than this process has had, so none of them made a page its own.
        let mut times = 0;
        let mut served = || {
            times += 1;
            times << 40
        };
        let mut parent = SharedPages::default();
        parent.forked(true);
        parent.next = later;
        let mut children: Vec<SharedPages> = (0..4).map(|_| SharedPages::of_new_child(all)).collect();
        let mut pays = all;
        for (i, child) in children.iter_mut().enumerate() {
            child.next = later;
            assert_eq!(all - parent.shared(all, served(), no_look).paid_by_others, pays);
            assert_eq!(child.shared(all, served(), no_look).paid_by_others, all);
            assert_eq!(child.begun(), 0);
            // It has lived for a while; so far i others and the parent have all pages.
            child.next = None;
            let part = all / (i as i64 + 2);
            let paid = Shared { paid_by_others: all - part, all };
            assert_eq!(child.shared(all, served(), || Ok(paid)).paid_by_others, all - part);
            let begun = child.begun();
            assert_eq!((begun, child.begun()), (part, 0), "once");
            let taken = parent.taken_over(begun, all);
            assert_eq!(taken, begun.min(pays), "no more than it pays for");
            pays -= taken;
        }
        assert_eq!((pays, all - parent.shared(all, served(), no_look).paid_by_others), (0, 0));
        // Children end: what they paid for is the parent's again, and no more than there is.
        assert_eq!(parent.taken_over(-1_000, all), -1_000);
        assert_eq!(parent.shared(all, served(), no_look).paid_by_others, all - 1_000);
        assert_eq!(parent.taken_over(-2 * all, all), 1_000 - all);
        // One that shares nothing has nothing that could be taken over: its pages were told to another process.
        assert_eq!(SharedPages::default().taken_over(5_000, all), 0);
    }

    #[test]
    fn a_process_that_forks_all_the_time_measures_now_and_then() {
        let mut parent = SharedPages::default();
        parent.forked(true);
        let since = parent.put_off;
        (0..3).for_each(|_| parent.forked(true));
        assert_eq!((parent.put_off, parent.next), (since, since.map(|since| since + CHILD_PAYS)));
        parent.next = None;
        parent.shared(1000, 0, || Ok(Shared { paid_by_others: 500, all: 1000 }));
        assert!(parent.put_off.is_none() && parent.is_related());
        parent.next = None;
        parent.shared(1000, 0, || Err(Errno::ACCESS));
        assert!(!parent.is_related(), "it cannot be read");
    }
}
