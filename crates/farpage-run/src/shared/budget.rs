//! How many pages the process has, and how many it may have.
//!
//! The number that counts is the kernel's: resident anonymous pages (RssAnon), less what others pay for
//! ([`crate::budget::shared_pages`]). It is sampled by the monitor thread; in between, every engine thread that takes
//! pages from the kernel or gives some back adds to `grown`. The sum is the estimate all decisions use, so an error
//! lives until the next sample only.

use farpage_base::sys::proc::Shared;
use farpage_swap::tuning::{Controller, Controls};
use farpage_swap::watermarks::{Watermarks, excess};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Budget of one process, in pages.
#[derive(Debug)]
pub struct Budget {
    /// Held while claim and promise change: pager and monitor both change them ([`crate::budget::share`]).
    pub(crate) share: Mutex<()>,
    /// What was promised: of a tree's budget the part that this process has claimed ([`crate::budget::share`]).
    promised: AtomicI64,
    /// What it may still have while it gives memory back: at least what was promised.
    claimed: AtomicI64,
    /// What all processes of the tree may have together.
    whole: AtomicI64,
    /// The engine steers at less than was promised ([`Budget::headroom`]), and at this much less still, in sixteenths
    /// of a page, while the program has shown lately that it grows in bursts.
    overshoot_margin: AtomicI64,
    /// It stays as it is.
    margin_is_held: bool,
    /// What follows from these: [`Budget::headroom`]. Each fault asks for it several times.
    headroom: AtomicI64,
    /// Last sample minus `grown` at that time.
    base: AtomicI64,
    grown: AtomicI64,
    pool: AtomicI64,
    /// Pages that cannot be managed, as last looked up ([`crate::budget::unmanaged`]).
    unmanaged: AtomicI64,
    /// Pages that can, but could not be taken out when all others were.
    stuck: AtomicI64,
    /// Resident pages that others pay for ([`crate::budget::shared_pages`]).
    shared: AtomicI64,
    /// Those that others have, too.
    common: AtomicI64,
}

/// Where memory that cannot be taken out leaves less than this part of the budget for the rest, the budget gives way.
const FLOOR_PART: i64 = 4;
/// So many more pages than expected are no surprise.
const FEW: i64 = 16;
/// Least headroom, pages: a batch that leaves.
const HEADROOM_MIN: i64 = 64;

impl Budget {
    /// A budget of `promised` pages.
    pub fn new(promised: u64) -> Budget {
        let budget = Budget {
            share: Mutex::new(()),
            promised: AtomicI64::new(promised as i64),
            claimed: AtomicI64::new(promised as i64),
            whole: AtomicI64::new(promised as i64),
            headroom: AtomicI64::new(0),
            overshoot_margin: AtomicI64::new(0),
            margin_is_held: false,
            base: AtomicI64::new(0),
            grown: AtomicI64::new(0),
            pool: AtomicI64::new(0),
            unmanaged: AtomicI64::new(0),
            stuck: AtomicI64::new(0),
            shared: AtomicI64::new(0),
            common: AtomicI64::new(0),
        };
        budget.work_out_headroom();
        budget
    }

    /// Resident pages from which on memory is managed: near enough to the budget to leave smaller programs alone, far
    /// enough for the registration to finish before the budget is reached.
    pub fn activation(&self) -> i64 {
        let promised = self.promised();
        let room = (promised / 8).max(6 * 1024).min(promised / 2);
        promised - room
    }

    /// Holds the margin where `controls` says so.
    pub fn hold(&mut self, controls: &Controls) {
        if let Some(pages) = controls.pinned(Controller::Margin) {
            (self.overshoot_margin, self.margin_is_held) =
                (AtomicI64::new((pages as i64 * 16).min(self.promised())), true);
        }
    }

    /// Pages that the engine stays away from the budget because the program has outrun it.
    pub fn margin(&self) -> i64 {
        self.overshoot_margin.load(Relaxed) / 16
    }

    /// The pages that were promised.
    pub fn promised(&self) -> i64 {
        self.promised.load(Relaxed)
    }

    /// From now on it is so many. The monitor, and the pager where it is more.
    pub fn promise(&self, pages: i64) {
        self.promised.store(pages, Relaxed);
        self.claimed.fetch_max(pages, Relaxed);
        self.work_out_headroom();
    }

    /// The tree may have as much.
    pub fn whole_is(&self, pages: i64) {
        if self.whole.swap(pages, Relaxed) != pages {
            self.work_out_headroom();
        }
    }

    /// As much is claimed in the tree.
    pub fn claimed_is(&self, pages: i64) {
        self.claimed.store(pages, Relaxed);
    }

    /// The pages the engine steers at: less than was promised, unless memory that cannot be taken out leaves too little
    /// for the rest.
    pub fn limit(&self) -> i64 {
        self.kept().max(self.immovable() + self.promised() / FLOOR_PART)
    }

    fn kept(&self) -> i64 {
        self.promised() - self.headroom() - self.overshoot_margin.load(Relaxed) / 16
    }

    fn immovable(&self) -> i64 {
        self.unmanaged.load(Relaxed) + self.stuck.load(Relaxed)
    }

    /// Of the limit, what pages can be exchanged in.
    pub fn movable(&self) -> i64 {
        self.limit() - self.immovable()
    }

    /// Whether `unmanaged` pages would leave too little for the rest, or those known to be stuck do.
    pub fn is_crowded(&self, unmanaged: i64) -> bool {
        unmanaged + self.stuck.load(Relaxed) + self.promised() / FLOOR_PART > self.kept()
    }

    /// So many pages cannot be managed.
    pub fn unmanaged_is(&self, pages: i64) {
        self.unmanaged.store(pages, Relaxed);
    }

    /// Pages that cannot be managed.
    pub fn unmanaged(&self) -> i64 {
        self.unmanaged.load(Relaxed)
    }

    /// So many pages were found that could not be taken out, and no others.
    pub fn stuck_is(&self, pages: i64) {
        self.stuck.store(pages, Relaxed);
    }

    /// As many resident pages are others' too.
    pub fn shared_is(&self, pages: Shared) {
        self.shared.store(pages.paid_by_others, Relaxed);
        self.common.store(pages.all, Relaxed);
    }

    /// Resident pages that others have, too.
    pub fn common(&self) -> i64 {
        self.common.load(Relaxed)
    }

    /// Resident pages that others pay for.
    pub fn shared(&self) -> i64 {
        self.shared.load(Relaxed)
    }

    /// Whether pages that are others' too are so many that taking one out, which makes a copy first, frees nothing.
    pub fn shares_much(&self) -> bool {
        let shared = self.shared.load(Relaxed);
        shared > (self.total() + shared) / 16
    }

    /// Pages that could not be taken out.
    pub fn stuck(&self) -> i64 {
        self.stuck.load(Relaxed)
    }

    /// Pages between the limit and the promise, for growth that the engine learns of late; also the distance below the
    /// limit at which background reclaim starts. Processes of a tree seldom outgrow their parts in the same moment:
    /// together, n equal ones keep the root of n times as much as one with the whole budget would.
    pub fn headroom(&self) -> i64 {
        self.headroom.load(Relaxed)
    }

    fn work_out_headroom(&self) {
        // A small budget is outrun by a larger part of it: a program can fill some MiB before a thread looks.
        let of = |pages: i64| (pages / 64).clamp((pages / 16).min(256), 2048).max(pages / 128);
        let promised = self.promised();
        let whole = self.whole.load(Relaxed).max(promised).max(1);
        let part = of(whole) as f64 * (promised as f64 / whole as f64).sqrt();
        self.headroom.store((part as i64).min(of(promised)).max(HEADROOM_MIN.min(promised / 16)), Relaxed);
    }

    /// Value of the growth counter, to be read *before* a sample is taken.
    pub fn grown(&self) -> i64 {
        self.grown.load(Relaxed)
    }

    /// A sample of the kernel's number, and [`Budget::grown`] from just before it. Called every one to four
    /// milliseconds while memory is short, each while there is a margin; by one thread. Returns how many pages more
    /// there are than was estimated.
    pub fn sample(&self, pages: i64, grown_before: i64) -> i64 {
        let base = pages - grown_before;
        let unexpected = base - self.base.swap(base, Relaxed);
        let margin = self.overshoot_margin.load(Relaxed);
        let over = pages - self.claimed.load(Relaxed).max(self.limit());
        if self.margin_is_held {
            return unexpected;
        }
        // A program that once outran the engine will do so again; after about ten seconds it is trusted again.
        let next = if over > 0 { (margin + over * 16).min(self.promised()) } else { (margin - 1).max(0) };
        self.overshoot_margin.store(next, Relaxed);
        unexpected
    }

    /// Whether a sample with so many `unexpected` pages is a surprise; also while the program has outrun the engine
    /// lately, or does now.
    pub fn surprises(&self, unexpected: i64) -> bool {
        unexpected > FEW || self.margin() > 0 || self.over_limit() > 0
    }

    /// Pages taken from the kernel (or given back, negative).
    pub fn add(&self, pages: i64) {
        self.grown.fetch_add(pages, Relaxed);
    }

    /// The pool now has `pages`; its growth since the last call is accounted.
    pub fn pool_is(&self, pages: i64) {
        let before = self.pool.swap(pages, Relaxed);
        self.add(pages - before);
    }

    /// Estimate of resident anonymous pages now.
    pub fn total(&self) -> i64 {
        self.base.load(Relaxed) + self.grown()
    }

    /// How many pages may be taken from the kernel now.
    pub fn room(&self) -> i64 {
        self.limit() - self.total()
    }

    /// From when until when reclaim runs.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::of_program(self.headroom(), self.movable())
    }

    /// Background reclaim should run.
    pub fn pressure(&self) -> bool {
        self.watermarks().begins(self.room())
    }

    /// Pages above the limit.
    pub fn over_limit(&self) -> i64 {
        excess(self.room())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_growth_add_up() {
        let b = Budget::new(1 << 17);
        assert!(b.activation() > 1 << 16 && b.activation() < b.limit());
        let before = b.grown();
        b.add(10);
        b.sample(1000, before);
        assert_eq!(b.total(), 1010); // growth during a sample counts twice at worst, never not at all
        b.pool_is(5);
        b.pool_is(3);
        assert_eq!(b.total(), 1013);
        b.sample(1 << 17, b.grown());
        assert!(b.pressure() && b.over_limit() == (1 << 17) - b.limit());
    }

    #[test]
    fn members_together_keep_little_more_free_than_one() {
        let alone = Budget::new(25_000).headroom();
        assert_eq!(alone, 390);
        let member = Budget::new(5_000);
        assert_eq!(member.headroom(), 256, "alone");
        member.whole_is(25_000);
        assert_eq!(member.headroom(), 174, "the root of a fifth");
        let small = Budget::new(384);
        small.whole_is(25_000);
        assert_eq!(small.headroom(), 24, "a sixteenth");
        small.whole_is(0);
        assert_eq!(small.headroom(), 24);
        let lifted = Budget::new(1 << 50);
        assert!(lifted.headroom() > 0 && lifted.limit() > 0);
    }

    #[test]
    fn what_cannot_be_taken_out_leaves_the_rest_a_quarter() {
        let b = Budget::new(10_000);
        let limit = b.limit();
        assert!(!b.is_crowded(7_000) && b.is_crowded(9_000));
        b.unmanaged_is(7_000);
        assert_eq!((b.limit(), b.movable()), (limit, limit - 7_000));
        b.unmanaged_is(9_000);
        b.stuck_is(500);
        assert_eq!((b.limit(), b.movable(), b.is_crowded(0)), (12_000, 2_500, false));
        // What is above the promise for that reason makes no process cautious.
        b.sample(11_900, 0);
        b.unmanaged_is(0);
        b.stuck_is(9_000);
        assert!(b.limit() == 11_500 && b.is_crowded(0));
        b.stuck_is(0);
        assert_eq!(b.limit(), limit);
    }

    #[test]
    fn what_the_engine_did_not_know_of_is_a_surprise() {
        let b = Budget::new(10_000);
        b.sample(9_000, 0);
        b.add(5);
        let more = [9_010, 8_000, 8_100].map(|pages| b.sample(pages, b.grown()));
        assert_eq!(more, [5, -1_010, 100]);
        assert_eq!(more.map(|unexpected| b.surprises(unexpected)), [false, false, true]);
        b.sample(9_950, 0);
        assert!(b.surprises(0), "above the limit");
        b.sample(10_100, 0);
        b.sample(9_000, 0);
        assert!(b.surprises(0), "it was above the budget a moment ago");
    }

    #[test]
    fn a_burst_makes_cautious_for_a_while() {
        let b = Budget::new(10_000);
        let calm = b.limit();
        b.sample(10_100, 0);
        assert_eq!(b.limit(), calm - 100);
        (0..100).for_each(|_| _ = b.sample(10_100, 0));
        assert_eq!(b.limit(), calm - 10_000 / 16, "at most a sixteenth");
        (0..2000).for_each(|_| _ = b.sample(9_000, 0));
        assert!(b.limit() < calm, "not forgotten at once");
        (0..20_000).for_each(|_| _ = b.sample(9_000, 0));
        assert_eq!(b.limit(), calm);
    }
}
