//! Taking cold pages out of the program: the pager's half of reclaim.
//!
//! `shrink` moves the oldest active pages into frames, in runs of neighbours (a run costs a sixth of its pages one by
//! one). A moved page is stable: no thread can write it any more, so a writer may store it whenever it likes.

use crate::budget::share;
use crate::pager::cx::{Cx, SCRATCH_PAGES};
use crate::pager::move_out::{MoveOut, resident_min};
use crate::pager::register::Adoption;
use crate::pager::robust::lists::RobustLists;
use crate::shared::page_table::{Node, State};
use crate::shared::state::{Engine, SwapCache};
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::workingset::{EVICT_BATCH, in_runs};
use std::sync::atomic::Ordering::Relaxed;

/// Pages that a fault stores for itself at least, and that wait for a file at most.
const WRITE_MIN: usize = 8;

/// Rounds of reclaim for one fault; each of them makes some room, mostly enough.
const ROUNDS_MAX: usize = 64;

/// Slots freed in one go whose pages are in the program, too.
const SLOTS_A_TURN: usize = 256;

/// While a record is made of what the program touches, such a part of the budget is mapped at most: what is mapped is
/// not seen.
const RECORDED_PART: i64 = 8;

/// Fewer pages do not tell whether they go one by one.
const SCATTERED_OF: usize = 8;

/// Which pages go.
#[derive(Clone, Copy)]
enum Oldest {
    /// Those that are next.
    InTurn,
    /// Those that proved hot.
    Hot,
}

/// When pages leave the program. A page that is moved alone interrupts each CPU on which a thread of the process runs,
/// and that costs ten times as much as the move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Whenever there is something to do.
    Any,
    /// Before the fault of the only thread that has some is served. The writer has the pager's CPU.
    OneWaits,
    /// Before the faults of several are served, unless the writer holds its gate.
    SomeWait,
    /// After them: what cannot wait.
    SomeRun,
}

impl Moment {
    /// Whether it comes before faults are served of which there are `waiting`.
    pub(crate) fn is_before(self, waiting: usize) -> bool {
        match self {
            Moment::Any | Moment::SomeRun => false,
            Moment::OneWaits => waiting > 0,
            Moment::SomeWait => waiting > 1,
        }
    }

    /// What it is once they are served.
    pub(crate) fn after(self) -> Moment {
        if self == Moment::SomeWait { Moment::SomeRun } else { self }
    }

    /// Pages that have to be missing in the swap cache. The first page moved costs as much as the others, so seldom and
    /// in large batches.
    fn batch(self) -> usize {
        match self {
            Moment::Any => 1,
            Moment::OneWaits => EVICT_BATCH / 2,
            Moment::SomeWait => EVICT_BATCH,
            Moment::SomeRun => 2 * EVICT_BATCH,
        }
    }
}

/// When pages go, and which.
pub(crate) struct Reclaim {
    /// The pages of the last large batch mostly went one by one.
    scattered: bool,
    /// Where the search for clean copies goes on.
    slot_hand: u32,
    move_out: MoveOut,
    /// Mutexes whose owners' death is to be told.
    pub(crate) robust: RobustLists,
}

impl Reclaim {
    pub(crate) fn new(robust: RobustLists) -> Reclaim {
        Reclaim { scattered: false, slot_hand: 0, move_out: MoveOut::new(), robust }
    }

    /// The first step of a fault: sees to it that there is room for a new page, if the page at `vpn` needs one, and for
    /// `zeros` of them, if it has never been touched. May reclaim, and so may change the state
    /// of any page; nothing after it in a fault does.
    ///
    /// What was reserved is not kept from others. If another fault takes it, this one waits, and is reserved for anew.
    pub(crate) fn reserve(&mut self, cx: &mut Cx, adoption: &mut Adoption, vpn: Vpn, zeros: usize) {
        let e = cx.e;
        cx.granted = 0;
        cx.prefetch.reap(cx.e);
        let state = e.table.node(vpn).map_or(State::None, |node| e.table.state(node));
        let want = match state {
            State::Cached(_) | State::Writeback(_) => return, // it has a frame
            State::Swapped(_) if cx.prefetch.is_on_its_way(vpn) => return, // it will be reserved for when it is here
            State::None => zeros,
            State::Mapped(_) | State::Swapped(_) => 1,
        };
        if cx.room() < want && e.conf.debug_evict_all && !matches!(state, State::Swapped(_)) {
            self.evict_all(cx, adoption);
        }
        for _ in 0..ROUNDS_MAX {
            let before = cx.room();
            if before >= want || cx.granted > 0 {
                return;
            }
            if !self.reclaim_now(cx, adoption, vpn, want) {
                if !gives_back(cx, 1) {
                    cx.granted = 1;
                }
                return;
            }
            if cx.room() <= before && before > 0 {
                return; // no more is to be had
            }
        }
    }

    /// When pages are to leave; `colocated`: pager and writer share a CPU.
    pub(crate) fn moment(&self, cx: &Cx, colocated: bool) -> Moment {
        match () {
            () if colocated => Moment::OneWaits,
            () if self.scattered && cx.prefetch.concurrency.is_there() => Moment::SomeWait,
            () => Moment::Any,
        }
    }

    /// Keeps the swap cache filled and the writer busy while there is pressure. Returns whether anything was done.
    pub(crate) fn balance(&mut self, cx: &mut Cx, moment: Moment) -> bool {
        let e = cx.e;
        let sees_less = e.records() && lock(&e.lru).active_len() > (e.budget.movable() / RECORDED_PART) as usize;
        if sees_less && self.shrink(cx, EVICT_BATCH) > 0 {
            e.wake_writer();
            return true;
        }
        if !e.budget.pressure() || share::asks_for_more(e) && !e.budget.pressure() {
            return false;
        }
        if e.wakeups.slots_wanted.load(Relaxed) {
            self.reclaim_slots(cx);
        }
        let SwapCache { cached, target, is_behind } = e.swap_cache();
        let missing = target.saturating_sub(cached);
        let few = missing > 0 && cached < EVICT_BATCH / 4;
        let due = few || missing >= moment.batch().min(target / 2).max(1) || missing > 0 && is_at_stake(e);
        let writes = moment == Moment::SomeWait && !few && e.fork.gates.writer.is_held();
        let made_room = keep_room(cx);
        let moves = !writes && (is_behind || due);
        let moved = moves && self.shrink(cx, EVICT_BATCH) > 0;
        // Only now, and not before the faults are served: while it runs, what is moved interrupts its CPU.
        if moment != Moment::SomeWait && (cached > 0 || moved) && e.level().is_short() {
            e.wake_writer();
        }
        if !moves {
            return made_room;
        }
        let keeps = !moved && e.budget.over_limit() > 0 && self.move_out.keeps_shared(cx.e);
        moved || keeps && self.shrink_past_stuck(cx).is_ok() || made_room
    }

    /// The devices are full: frees slots whose page is in the program, too; it will have to be stored anew. How many.
    /// (The kernel frees such slots where it looks for free ones, once more than half of all are used.)
    fn reclaim_slots(&mut self, cx: &Cx) -> usize {
        let e = cx.e;
        let mut entries = Vec::with_capacity(SLOTS_A_TURN);
        e.table.take_clean_slots(&mut self.slot_hand, SLOTS_A_TURN, &mut entries);
        entries.iter().for_each(|entry| e.free_entry(Some(*entry)));
        e.wakeups.slots_wanted.store(false, Relaxed);
        e.wake_writer();
        entries.len()
    }

    /// Room for `want` pages is needed now, the first of them `vpn`, and the budget is used up: reclaims in this
    /// thread. As long as what was promised is not at stake, what it gives back is granted to the fault that waits.
    /// False: it is at stake, or nothing can be reclaimed, or a change of mappings has to be read first.
    fn reclaim_now(&mut self, cx: &mut Cx, adoption: &mut Adoption, vpn: Vpn, want: usize) -> bool {
        let e = cx.e;
        if gives_back(cx, want) || cx.prefetch.drop_one(cx.e, Some(vpn)) {
            return true;
        }
        Stat::add(&e.stat.allocstall, 1);
        e.stat.events.note(EventKind::Reclaim, 0, 0);
        // Pages that refused in a whole round, in which none could be moved.
        let mut vain = None;
        for _ in 0..64 {
            // Nothing can be moved or placed before that has been read: the fault is served later.
            if cx.changing() {
                return false;
            }
            // While this thread is busy the program goes on to touch what it has mapped meanwhile.
            adoption.adopt_news(cx);
            while lock(&e.lru).active_len() < EVICT_BATCH && adoption.scan_step(cx, &mut self.robust) {}
            let few = {
                let lru = lock(&e.lru);
                lru.cached_len() < 16 || lru.is_behind()
            };
            if few && vain.is_some() {
                self.shrink(cx, EVICT_BATCH);
            } else if few {
                vain = self.shrink_past_stuck(cx).err();
            }
            let batch = want.clamp(WRITE_MIN, EVICT_BATCH);
            let (freed, refused) = store::write_some(e, batch, WRITE_MIN);
            if gives_back(cx, want) {
                return true;
            }
            if refused {
                if self.reclaim_slots(cx) == 0 {
                    return false;
                }
                continue;
            }
            if freed == 0 {
                if e.frames.worthless_count() > 0 && gives_back(cx, 1) {
                    return true;
                }
                if vain.is_some_and(|refused| is_nothing_left(cx, refused)) {
                    return false;
                }
                // Everything cached is in the writer's hands, or the pages left cannot be moved just now.
                cx.sleep(Some(100_000));
            }
        }
        false
    }

    /// [`Reclaim::shrink`], on past pages that cannot be moved. If there are no others, those that other processes
    /// have, too, are taken out as well.
    ///
    /// # Errors
    /// As [`Reclaim::shrink_round`].
    fn shrink_past_stuck(&mut self, cx: &mut Cx) -> Result<(), usize> {
        let round = self.shrink_round(cx);
        // Not where it has given up for a fork, or for want of a frame.
        if round.is_err_and(|refused| refused > 0) && self.move_out.keeps_shared(cx.e) {
            self.move_out.unshare_for_a_while();
            return self.shrink_round(cx);
        }
        round
    }

    /// [`Reclaim::shrink`], once around the pages that have yet to prove hot, where
    /// such pages stay, then around the others.
    ///
    /// # Errors
    /// None was moved; how many could not be.
    fn shrink_round(&mut self, cx: &mut Cx) -> Result<(), usize> {
        let e = cx.e;
        let skipped = || e.stat.move_skipped.load(Relaxed);
        let first = skipped();
        let (cold, hot) = lock(&e.lru).set.mapped_lens();
        for (of, most) in [(Oldest::InTurn, cold), (Oldest::Hot, hot)] {
            let start = skipped();
            loop {
                let before = skipped();
                if self.shrink_some(cx, of, EVICT_BATCH) > 0 {
                    return Ok(());
                }
                if e.fork.wanted() {
                    return Err(0);
                }
                if skipped() == before || skipped() - start >= u64::from(most) {
                    break;
                }
            }
        }
        Err((skipped() - first) as usize)
    }

    /// All that can be taken out of the program is.
    fn evict_all(&mut self, cx: &mut Cx, adoption: &mut Adoption) {
        while adoption.scan_step(cx, &mut self.robust) {}
        while self.shrink(cx, EVICT_BATCH) > 0 {}
    }

    /// Moves up to `want` of the oldest active pages into the swap cache. Returns how many.
    fn shrink(&mut self, cx: &mut Cx, want: usize) -> usize {
        self.shrink_some(cx, Oldest::InTurn, want)
    }

    fn shrink_some(&mut self, cx: &mut Cx, of: Oldest, want: usize) -> usize {
        let e = cx.e;
        let mut oldest = [0; EVICT_BATCH];
        let target = e.swap_cache().target;
        // Those that never go are on the lists, too.
        let stay = resident_min(e) + lock(&e.memory.pinned).len();
        let n = {
            let mut lru = lock(&e.lru);
            let keep = if e.conf.debug_evict_all { 0 } else { stay };
            let spare = lru.active_len().saturating_sub(keep);
            let out = &mut oldest[..want.min(EVICT_BATCH).min(spare)];
            match of {
                Oldest::InTurn => lru.oldest_active(&e.table, target, out),
                Oldest::Hot => lru.set.oldest_of_main(&e.table, out),
            }
        };
        // However long ago they were touched: mutexes that are held, and blocks of new threads.
        let Some(held) = (if n > 0 { self.robust.held_pages(cx) } else { None }) else {
            lock(&e.lru).tried();
            return 0;
        };
        let stays = |vpn| lock(&e.memory.pinned).contains(&vpn) || held.binary_search(&vpn).is_ok();
        let nodes = ordered(oldest.map(|n| (e.table.vpn(Node(n)), Node(n))), n);
        let batch = &nodes[..n];
        let (mut moved, mut runs) = (0, 0);
        let mut i = 0;
        while i < n {
            let vpn = e.table.vpn(batch[i]);
            if !cx.is_mapped(batch[i]) {
                i += 1; // found gone while a neighbour was moved
                continue;
            }
            if stays(vpn) {
                lock(&e.lru).rotate(&e.table, batch[i]);
                i += 1;
                continue;
            }
            let mut len = 1;
            while i + len < n && e.table.vpn(batch[i + len]) == vpn + len {
                if stays(vpn + len) || !cx.is_mapped(batch[i + len]) {
                    break;
                }
                len += 1;
            }
            match self.move_out.move_out(cx, vpn, &batch[i..i + len]) {
                Some((done, used)) => {
                    (moved, runs) = (moved + done, runs + usize::from(done > 0));
                    i += used;
                }
                None => break,
            }
        }
        lock(&e.lru).tried();
        Stat::add(&e.stat.pgsteal_anon, moved as u64);
        if moved > 0 {
            if moved >= SCATTERED_OF {
                self.scattered = runs * 2 > moved;
            }
            e.stat.events.note(EventKind::Evict, 0, moved);
            // What was taken meanwhile comes back.
            let _ = self.robust.held_pages(cx);
        }
        moved
    }
}

/// Gives frames back to the kernel that are not needed, so that there is room for pages that are to come in.
fn keep_room(cx: &Cx) -> bool {
    let few = cx.room() < SCRATCH_PAGES && cx.e.frames.worthless_count() >= SCRATCH_PAGES;
    few && store::release_unused(cx.e) > 0
}

/// What the writer does, a page of it, while the next fault is awaited. Not where the page could have to wait for
/// others to go on to a file.
pub(crate) fn store_a_little(cx: &Cx) {
    if store::wanted(cx.e) && !cx.e.space.pool_over_share() {
        store::write_some(cx.e, 1, 1);
    }
}

/// Memory is so far above the limit that what was promised is at stake.
fn is_at_stake(e: &Engine) -> bool {
    e.budget.over_limit() > e.budget.watermarks().low
}

/// If there are frames that are not needed for what is missing to `want` pages of room, gives them back. True: there
/// is room, or some pages are granted.
pub(crate) fn gives_back(cx: &mut Cx, want: usize) -> bool {
    let e = cx.e;
    // Where much is too much, many at a time.
    let want = if is_at_stake(e) { want.max(EVICT_BATCH) } else { want };
    if cx.room() + e.frames.worthless_count() < want {
        return false;
    }
    let released = store::release_unused(e);
    if !is_at_stake(e) {
        cx.granted = released.min(want);
    }
    cx.granted > 0 || cx.room() > 0
}

/// After a round in which `refused` pages could not be moved and none could: whether there is no page that could
/// become a frame. Then to wait is of no use, and the budget gives way.
fn is_nothing_left(cx: &Cx, refused: usize) -> bool {
    let e = cx.e;
    let (mapped, cached, ahead) = {
        let lru = lock(&e.lru);
        (lru.active_len(), lru.cached_len(), lru.set.ahead() as usize)
    };
    // Not only the pages that were tried before something else ended the round: a change of mappings, a fork.
    let all = refused + resident_min(e) + lock(&e.memory.pinned).len() >= mapped;
    // Frames that are in use and have no page that waits for its first touch are a writer's.
    if !all || cached > 0 || e.frames.in_use() > ahead {
        return false;
    }
    if refused > 0 {
        e.budget.stuck_is(refused as i64);
    }
    true
}

/// The first `n` pages, the oldest first, in the order in which they are to go.
fn ordered(pages: [(Vpn, Node); EVICT_BATCH], n: usize) -> [Node; EVICT_BATCH] {
    let mut age = 0..;
    let mut placed = pages.map(|(vpn, node)| (vpn.number(), age.next().unwrap_or(0), node));
    in_runs(&mut placed[..n]);
    placed.map(|(_, _, node)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_together_and_the_rest_in_its_order() {
        let mut pages = [(Vpn::default(), Node(0)); EVICT_BATCH];
        let ages = [70, 30, 8, 71, 50, 29, 31, 9, 69];
        pages.iter_mut().zip(ages).for_each(|(page, number)| *page = (Vpn::new(number), Node(number as u32)));
        let order = |n: usize| ordered(pages, n)[..n].iter().map(|n| n.0).collect::<Vec<_>>();
        assert_eq!(order(9), [69, 70, 71, 29, 30, 31, 8, 9, 50]);
        assert_eq!(order(4), [70, 71, 30, 8]);
        assert_eq!(order(0), []);
    }
}
