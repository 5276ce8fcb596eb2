//! The monitor's part in its process's tree: what the process says of itself and is given, and the neighbours that it
//! looks after, because they cannot. The words in the tree's segment are [`farpage_ipc::tree`]'s. No locks.

use crate::budget::share::{self, TreeLook, TreeShare};
use crate::budget::shared_pages::{SharedPages, pages};
use crate::dormant::unwatched;
use crate::shared::state::Engine;
use crate::shared::warn_once::{self, WarningKind, warn_once_in_tree};
use farpage_base::mem::lock::lock;
use farpage_base::sys::clock::now_us;
use farpage_base::sys::proc::{Proc, name_of, shared_anonymous_pages, threads};
use farpage_base::sys::raw::gettid;
use farpage_base::sys::robust;
use farpage_ipc::conf::size;
use farpage_ipc::tree::excess::{self, Excess};
use farpage_ipc::tree::{self, MemberKind, Segment, strangers, sums};
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Children that say nothing are looked for at most so often, of so many threads.
const CHILDREN: Duration = Duration::from_millis(100);
const CHILDREN_THREADS: u32 = 64;
/// A program that waits for most of so long a time is told.
const LONG: Duration = Duration::from_secs(30);

/// The process among those of its tree, if it has one.
pub(super) struct Membership {
    /// What of the tree's budget is this process's.
    pub(super) share: Option<TreeShare>,
    /// Pages that it has together with other processes.
    pub(super) shared_pages: SharedPages,
    /// [`tree::Segment::taken_over_from`], as of the last look, and what has not left this process's part yet.
    taken_over: i64,
    taken: i64,
    /// Forks so far.
    forks: u64,
    /// When it last looked for children that say nothing.
    children: Instant,
}

/// What children have taken over that live now.
fn taken_over(share: Option<&TreeShare>) -> i64 {
    share.map_or(0, |tree| tree.segment.taken_over_from(tree.mine)) as i64 // clamped sums fit
}

impl Membership {
    /// Takes this thread's part. `is_child`: of a process with an engine; `resident`: pages.
    pub(super) fn new(e: &Engine, is_child: bool, resident: i64, now: Instant) -> Membership {
        let shared_pages = match is_child {
            true => SharedPages::of_new_child(resident),
            false => SharedPages::of_child(unwatched::forked_with() as i64),
        };
        let share = tree_share(e, is_child);
        let taken_over = taken_over(share.as_ref());
        Membership { share, shared_pages, taken_over, taken: 0, forks: 0, children: now }
    }

    /// Of `rss` pages those that other processes pay for are left out.
    pub(super) fn own_pages(&mut self, e: &Engine, proc: &Proc, rss: i64) -> i64 {
        e.space.look_for_writer(|| e.fork.is_orphaned());
        let forks = e.stat.forks.load(Relaxed);
        if std::mem::replace(&mut self.forks, forks) != forks {
            self.shared_pages.forked(e.is_active());
        }
        // Also while it shares nothing: what is known once must not count as new later.
        let now = taken_over(self.share.as_ref());
        let new = now - std::mem::replace(&mut self.taken_over, now);
        // What it pays for again it asks for, as for any other memory.
        self.taken += self.shared_pages.taken_over(new, rss).max(0);
        let shared = self.shared_pages.shared(rss, e.stat.pgfault.load(Relaxed), || shared_anonymous_pages(proc));
        let begun = self.shared_pages.begun();
        if let Some(tree) = self.share.as_ref().filter(|_| begun > 0) {
            share::follow_payment(tree.mine, &e.budget, begun);
            tree.segment.takes_over(tree.mine, begun as u64);
        }
        e.budget.shared_is(shared);
        rss - shared.paid_by_others + pages(e.space.shared_bytes())
    }

    /// Says in the tree what this process has, asks for more and gives. Whether it gives. Now and then, looks after
    /// those that cannot.
    pub(super) fn look(&mut self, e: &Engine, proc: &Proc, used: i64) -> bool {
        let Some(tree) = &mut self.share else { return false };
        // After the sample, which no longer counts them.
        share::follow_payment(tree.mine, &e.budget, -std::mem::take(&mut self.taken));
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        tree.mine.swapped.store(e.table.swapped_pages());
        tree.mine.shared.store(e.budget.shared().max(0) as u64);
        tree.mine.stalls.store(load(&e.stat.allocstall), Relaxed);
        tree.segment.header.sums.add(e.stat);
        say_that_it_waits(tree.segment);
        let clock = tree.depart(load(&e.stat.pgsteal_anon));
        // What is found when memory begins to be managed was last in use when the process last was.
        let came = if e.is_active() { clock } else { tree.busy_at() };
        let next_seen = {
            let mut lru = lock(&e.lru);
            lru.set.tick(came as u32);
            lru.set.next_seen()
        };
        let seen = TreeLook {
            used: used.max(e.budget.total()),
            major: load(&e.stat.pgmajfault),
            read: load(&e.stat.pswpin),
            next_seen,
            faults: load(&e.stat.pgfault),
            managed: e.is_active(),
            most: e.most_pages(),
            engine: e.engine_pages(),
        };
        let gives = tree.look(&e.budget, seen);
        if std::mem::take(&mut tree.unparks) {
            e.wakeups.unparks.store(true, SeqCst);
            e.kick_pager();
        }
        self.find_children(proc);
        gives
    }

    /// Now and then: looks for children of which the tree does not know, and at strangers.
    fn find_children(&mut self, proc: &Proc) {
        let (Some(tree), now) = (&self.share, Instant::now()) else { return };
        if now - self.children > CHILDREN {
            self.children = now;
            let mut left = CHILDREN_THREADS;
            // What cannot be read now is read the next time.
            let _ = threads(proc, |thread| {
                if left > 0 {
                    strangers::find_own_children(tree.segment, tree.mine, thread.listed);
                    left -= 1;
                }
            });
        }
        look_after_strangers(tree.segment);
    }

    /// The process begins to rest for `most`: how long until the next look.
    pub(super) fn begin_to_rest(&self, most: Duration) -> Duration {
        self.share.as_ref().map_or(most, |tree| tree.rests(self.looks_at_relatives().unwrap_or(most).min(most)))
    }

    /// When the process has to look again because what it shares may have become its own, also by what others do.
    fn looks_at_relatives(&self) -> Option<Duration> {
        let segment = self.share.as_ref().filter(|_| self.shared_pages.is_related())?.segment;
        pause_of_relatives(segment.free(), segment.budget(), segment.living().count())
    }

    /// How long the process may go on resting for `most`: what others do is to be seen. `None`: not at all.
    pub(super) fn rests(&self, most: Duration) -> Option<Duration> {
        let Some(tree) = &self.share else { return Some(most) };
        // One that shares pages with it, and one that has more than there is.
        let relatives = self.looks_at_relatives();
        if relatives.is_some() && (self.shared_pages.is_due() || taken_over(Some(tree)) != self.taken_over) {
            return None;
        }
        if strangers::are_left_to(tree.segment, tree.mine) {
            look_after_strangers(tree.segment);
        }
        if tree.has_donor() {
            return None;
        }
        Some(tree.rests(relatives.unwrap_or(most).min(most)))
    }

    /// The process belongs to no tree any more.
    pub(super) fn leave_tree(&mut self, e: &Engine) {
        if let Some(tree) = self.share.take() {
            tree.segment.header.sums.add(e.stat);
        }
        robust::forget();
        tree::forget();
    }

    /// This thread ends, and the process goes on: others look whether it is still there.
    pub(super) fn leave(&mut self) {
        if let Some(tree) = self.share.take() {
            robust::forget();
            tree.mine.is_left_to_others(std::process::id());
        }
    }
}

/// Where little is free, a resting process with shared pages looks so often, the less often the more processes there
/// are; else like any other.
fn pause_of_relatives(free: u64, budget: u64, processes: usize) -> Option<Duration> {
    const ALL_AT_ONCE: usize = 16;
    (free < budget / 8).then(|| strangers::LOOK * processes.div_ceil(ALL_AT_ONCE).max(1) as u32)
}

/// Takes this thread's part in the tree: the kernel marks the place when the process ends.
fn tree_share(e: &Engine, is_child: bool) -> Option<TreeShare> {
    if is_child && tree::segment().is_some() {
        tree::joining::fork_child();
        e.budget.promise(share::FLOOR);
        e.budget.sample(0, e.budget.grown());
    }
    if tree::is_without_place() {
        let (most, has) = (tree::MEMBERS, size::format(share::FLOOR as u64 * PAGE_SIZE as u64));
        let text = format!(
            "more than {most} processes run: each one beyond that has a budget of {has} of its own, and is slow; \
             `farpage run` for such a part of them gives it a tree of its own"
        );
        warn_once_in_tree(WarningKind::NoPlace, &text);
    }
    let (segment, mine) = (tree::segment()?, tree::mine()?);
    if is_child {
        mine.claim.add(share::FLOOR as u64);
    }
    mine.set_kind(MemberKind::Watched);
    // Where that is refused, others find out by the process id.
    if robust::mark_at_end(&mine.claim.owner).is_ok() {
        mine.claim.owner.store(gettid(), SeqCst);
    }
    // What devices have counted so far, a forked child's too, was counted by the parent.
    e.space.usage().publish(e.stat);
    sums::begin(e.stat);
    Some(TreeShare::new(segment, mine))
}

/// Says once in a tree, as soon as it is so, that it has waited for most of so long a time: else a job that crawls
/// looks like one that hangs.
fn say_that_it_waits(segment: &Segment) {
    let sums = &segment.header.sums;
    let Some((waiting, period)) = sums.waiting_of_period(now_us(), LONG) else { return };
    if let Some(advice) = waiting.advice(&format!("the last {:.0} s", period.as_secs_f64())) {
        let largest = segment.header.largest.in_words().filter(|_| segment.header.has_several()).unwrap_or_default();
        warn_once_in_tree(WarningKind::Waits, &format!("{advice}{largest}; farpage top shows it, -q nothing"));
    }
}

/// Says once in a tree that it has more than its budget, and will have, also without its `strangers`: these have
/// words of their own.
fn say_what_exceeds(segment: &Segment, strangers: u64) {
    // Memory that cannot be swapped out is told more exactly, and sooner.
    if [WarningKind::Exceeded, WarningKind::Stuck].into_iter().any(warn_once::is_said) {
        return;
    }
    let is_more = |excess: &Excess| excess.pages.saturating_sub(strangers) > segment.budget();
    let Some(excess) = excess::look(segment).filter(is_more) else { return };
    let name = name_of(excess.largest);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default().escape_ascii();
    let bytes = |pages: u64| size::format(pages * PAGE_SIZE as u64);
    let text = format!(
        "{} processes have {} of the budget of {}, and none can give more; the largest is process {} ({name}): give \
         them more with --ram, or start fewer at the same time",
        excess.processes,
        bytes(excess.pages),
        bytes(segment.budget()),
        excess.largest
    );
    warn_once_in_tree(WarningKind::Exceeded, &text);
}

/// Looks after processes without the library, if no process has just done so; says once in a tree that they have more
/// than a tenth of its budget.
fn look_after_strangers(segment: &Segment) {
    let Some(held) = strangers::sweep(segment) else { return };
    say_what_exceeds(segment, held.pages);
    if !held.much || warn_once::is_said(WarningKind::Strangers) {
        return;
    }
    let (has, of) = (held.pages * PAGE_SIZE as u64, segment.budget() * PAGE_SIZE as u64);
    let text = format!(
        "programs that cannot load farpage's library (static, with more rights, or forked by a system call \
         instruction) have {} of the budget of {}, and cannot be swapped out; the largest is process {}: the others \
         make room",
        size::format(has),
        size::format(of),
        held.largest
    );
    warn_once_in_tree(WarningKind::Strangers, &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_are_looked_at_where_little_is_free() {
        assert_eq!(pause_of_relatives(200, 1000, 3), None);
        assert_eq!(pause_of_relatives(100, 1000, 3), Some(strangers::LOOK));
        assert_eq!(pause_of_relatives(0, 1000, 200), Some(13 * strangers::LOOK));
    }
}
