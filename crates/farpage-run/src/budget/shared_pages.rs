//! What a process pays for, of the pages that it shares with the process it was forked from, and with those that were
//! forked from it.
//!
//! After a fork both have all pages, and each is there once. The kernel counts them for both (RssAnon), so adding up
//! would double a tree at the moment of a fork; and a write that makes a page one's own does not show in that number.
//! What adds up is the *proportional* share (PSS), which takes the kernel a walk through the page tables. So it is
//! asked for now and then, and between that it is estimated: a page that was made one's own was a fault that neither
//! the engine served nor resident memory grew by.
//!
//! A child pays for nothing at first: many end or become another program at once. So its parent goes on paying for all
//! until the child has lived for a while and measures, which it tells its parent ([`Member::child_pays`]), and that its
//! own. If the parent measured first, no process would pay for the child's part meanwhile, and the parent would fill
//! it. What they are promised changes hands with what they pay for ([`SharedPages::moved`]).
//!
//! Owner and caller: the monitor. No locks.

use farpage_base::sys::cpu;
use farpage_base::sys::proc::{Proc, Shared, minor_faults, shared_anonymous_pages};
use farpage_ipc::tree::Member;
use farpage_swap::PAGE_SIZE;
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
    /// How many children had measured by then.
    children: u32,
    /// Its parent, and whether that pays for all until this process measures.
    parent: Option<&'static Member>,
    is_new: bool,
    /// See [`SharedPages::moved`].
    moved: i64,
}

impl SharedPages {
    /// Of a process that was forked when its parent had `pages`.
    pub fn of_child(pages: i64) -> SharedPages {
        let shared = Shared { paid_by_others: pages, all: pages };
        SharedPages { related: pages > 0, shared, resident: pages, minor: minor_faults(), ..SharedPages::default() }
    }

    /// Of a process that `parent` has forked just now: that pays for all, until both measure.
    pub fn of_new_child(pages: i64, parent: Option<&'static Member>) -> SharedPages {
        let next = Some(Instant::now() + BETWEEN);
        SharedPages { next, between: BETWEEN, parent, is_new: true, ..SharedPages::of_child(pages) }
    }

    /// Others may have the same pages.
    pub fn is_related(&self) -> bool {
        self.related
    }

    /// A child was forked. Until it has lived for a while, this process pays for what it did; but not if that could be
    /// why its memory begins to be `managed`.
    pub fn forked(&mut self, managed: bool) {
        let now = Instant::now();
        if !self.related {
            *self = SharedPages { related: true, between: BETWEEN, children: self.children, ..SharedPages::default() };
        }
        if managed {
            let until = *self.put_off.get_or_insert(now) + CHILD_PAYS;
            self.next = Some(self.next.map_or(until, |next| next.max(until)));
        }
    }

    /// Of `resident` pages, those that others have, too. `served`: faults that the engine has served so far.
    /// `children`: children that have measured so far.
    pub fn shared(&mut self, proc: &Proc, resident: i64, served: u64, children: u32) -> Shared {
        let has_one_more = std::mem::replace(&mut self.children, children) != children;
        if !self.related {
            return Shared::default();
        }
        let now = Instant::now();
        if has_one_more || self.next.is_none_or(|next| now >= next) {
            // On a busy machine a measurement takes longer and costs the same.
            let before = cpu::own_time();
            let Ok(shared) = shared_anonymous_pages(proc) else {
                self.related = false;
                return Shared::default();
            };
            let took = cpu::own_time() - before;
            if has_one_more | std::mem::take(&mut self.is_new) {
                self.moved += self.estimate(resident, served).paid_by_others - shared.paid_by_others;
                self.parent.into_iter().for_each(Member::child_pays);
            }
            self.between = self.pause(shared, minor_faults(), resident);
            self.next = Some(now + (took * COST).max(self.between));
            self.put_off = None;
            (self.shared, self.resident) = (shared, resident);
            (self.minor, self.served) = (minor_faults(), served);
            self.related = shared.paid_by_others > resident / PART;
        }
        self.estimate(resident, served)
    }

    /// Pages that this process began to pay for because it has lived for a while, or (negative) that a child did, since
    /// this was asked last.
    pub fn moved(&mut self) -> i64 {
        std::mem::take(&mut self.moved)
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
    fn a_parent_pays_for_all_until_its_child_has_lived_for_a_while() {
        let nowhere =
            Proc::from_fd(rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap());
        let mut parent = SharedPages::default();
        assert_eq!(parent.shared(&nowhere, 1000, 0, 0).paid_by_others, 0);
        parent.forked(true);
        assert_eq!((parent.shared(&nowhere, 1000, 0, 0).paid_by_others, parent.is_related()), (0, true));
        let mut child = SharedPages::of_new_child(1000, None);
        // But for what the child has copied meanwhile (other tests have faults, too).
        assert!(child.shared(&nowhere, 1000, 0, 0).paid_by_others > 0 && child.is_related());
        // What is measured here cannot be read: so a measurement ends it.
        let since = parent.put_off;
        parent.forked(true);
        assert_eq!((parent.shared(&nowhere, 1000, 0, 0).paid_by_others, parent.put_off), (0, since));
        assert!(parent.is_related() && parent.next == since.map(|since| since + CHILD_PAYS), "not put off for ever");
        parent.shared(&nowhere, 1000, 0, 1);
        assert!(!parent.is_related(), "its child pays");
    }
}
