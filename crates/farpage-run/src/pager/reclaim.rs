//! Taking cold pages out of the program: the pager's half of reclaim.
//!
//! `shrink` moves the oldest active pages into frames, in runs of neighbours (a run costs a sixth of its pages one by
//! one). A moved page is stable: no thread can write it any more, so a writer may store it whenever it likes.

use crate::pager::cx::SCRATCH_PAGES;
use crate::pager::fault::ZERO_MAX_TIGHT;
use crate::pager::state::Pager;
use crate::shared::page_table::{Node, State};
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::sys::maps::Rights;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::{EVICT_BATCH, in_runs};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Pages that a fault stores for itself at least, and that wait for a file at most.
const WRITE_MIN: usize = 8;

/// Rounds of reclaim for one fault; each of them makes some room, mostly enough.
const ROUNDS_MAX: usize = 64;

/// Slots freed in one go whose pages are in the program, too.
const SLOTS_A_TURN: usize = 256;

/// Once nothing but pages that others have, too, could be taken out, such pages are, for so long.
const UNSHARES_FOR: Duration = Duration::from_millis(250);

/// While a record is made of what the program touches, such a part of the budget is mapped at most: what is mapped is
/// not seen.
const RECORDED_PART: i64 = 8;

/// Pages that stay in the program whatever happens: with fewer, threads that need some pages at the same time would
/// take them from each other for ever. Where memory that cannot be taken out fills the budget, it gives way.
const RESIDENT_MIN: usize = 64;

/// Which pages go.
#[derive(Clone, Copy)]
enum Oldest {
    /// Those whose turn it is.
    InTurn,
    /// Those that proved hot.
    Hot,
}

impl Pager {
    /// The first step of a fault: sees to it that there is room for a new page, if the page at `vpn` needs one, and for
    /// as many as were zero-filled for the last first touch, if this is one. May reclaim, and so may change the state
    /// of any page; nothing after it in a fault does.
    ///
    /// What was reserved is not kept from others. If somebody else takes it, the fault waits, and is reserved for anew.
    pub(crate) fn reserve(&mut self, vpn: Vpn) {
        let e = self.cx.e;
        self.cx.granted = 0;
        self.cx.prefetch.reap(self.cx.e);
        let state = e.table.node(vpn).map_or(State::None, |node| e.table.state(node));
        let want = match state {
            State::Cached(_) | State::Writeback(_) => return, // it has a frame
            State::Swapped(_) if self.cx.prefetch.is_on_its_way(vpn) => return, // it will be reserved for when it is here
            State::None => self.zero_window.clamp(1, ZERO_MAX_TIGHT) as usize,
            State::Mapped(_) | State::Swapped(_) => 1,
        };
        if self.cx.room() < want && e.conf.debug_evict_all && !matches!(state, State::Swapped(_)) {
            self.evict_all();
        }
        for _ in 0..ROUNDS_MAX {
            let before = self.cx.room();
            if before >= want || self.cx.granted > 0 {
                return;
            }
            if !self.reclaim_now(vpn, want) {
                if !self.gives_back(1) {
                    self.cx.granted = 1;
                }
                return;
            }
            if self.cx.room() <= before && before > 0 {
                return; // no more is to be had
            }
        }
    }

    /// Keeps the swap cache filled and the writer busy while there is pressure. Returns whether anything was done.
    pub(crate) fn balance(&mut self) -> bool {
        let e = self.cx.e;
        let sees_less = e.records() && lock(&e.lru).active_len() > (e.budget.movable() / RECORDED_PART) as usize;
        if sees_less && self.shrink(EVICT_BATCH) > 0 {
            e.wake_writer();
            return true;
        }
        if !e.budget.pressure() || e.asks_for_more() && !e.budget.pressure() {
            return false;
        }
        if e.budget.over_limit() == 0 && e.is_being_given() {
            return false;
        }
        if e.slots_wanted.load(Relaxed) {
            self.reclaim_slots();
        }
        let (cached, behind) = {
            let lru = lock(&e.lru);
            (lru.cached_len(), lru.is_behind())
        };
        if cached > 0 && e.level().is_short() {
            e.wake_writer();
        }
        let made_room = self.keep_room();
        // Where the program waits for it, seldom and in large batches: the first page moved costs as much as the
        // others.
        let placed = self.cx.filled - self.filled_before;
        let due = !self.affinity.is_colocated() || placed >= EVICT_BATCH as u64 / 2 || cached < EVICT_BATCH / 4;
        if !behind && (!due || cached >= e.cached_target()) {
            return made_room;
        }
        self.filled_before = self.cx.filled;
        let moved = self.shrink(EVICT_BATCH) > 0;
        let keeps = !moved && e.budget.over_limit() > 0 && self.keeps_shared();
        moved || keeps && self.shrink_past_stuck().is_ok() || made_room
    }

    /// The devices are full: frees slots whose page is in the program, too; it will have to be stored anew. How many.
    /// (The kernel frees such slots where it looks for free ones, once more than half of all are used.)
    fn reclaim_slots(&mut self) -> usize {
        let e = self.cx.e;
        let mut entries = Vec::with_capacity(SLOTS_A_TURN);
        e.table.take_clean_slots(&mut self.slot_hand, SLOTS_A_TURN, &mut entries);
        entries.iter().for_each(|entry| e.free_entry(Some(*entry)));
        e.slots_wanted.store(false, Relaxed);
        e.wake_writer();
        entries.len()
    }

    /// Gives frames back to the kernel that nobody needs, so that there is room for pages that are to come in.
    fn keep_room(&self) -> bool {
        let few = self.cx.room() < SCRATCH_PAGES && self.cx.e.frames.worthless_count() >= SCRATCH_PAGES;
        few && store::release_unused(self.cx.e) > 0
    }

    /// What the writer does, a page of it, while the next fault is awaited. Not where the page could have to wait for
    /// others to go on to a file.
    pub(crate) fn store_a_little(&self) {
        if store::wanted(self.cx.e) && !self.cx.e.space.pool_over_share() {
            store::write_some(self.cx.e, 1, 1);
        }
    }

    /// Room for `want` pages is needed now, the first of them `vpn`, and the budget is used up: reclaims in this
    /// thread. As long as what was promised is not at stake, what it gives back is granted to the fault that waits.
    /// False: it is at stake, or nothing can be reclaimed, or a change of mappings has to be read first.
    pub(crate) fn reclaim_now(&mut self, vpn: Vpn, want: usize) -> bool {
        let e = self.cx.e;
        if self.gives_back(want) || self.cx.prefetch.drop_one(self.cx.e, Some(vpn)) || e.takes_what_is_given() {
            return true;
        }
        Stat::add(&e.stat.allocstall, 1);
        e.stat.events.note(EventKind::Reclaim, 0, 0);
        // Pages that refused in a whole round, in which none could be moved.
        let mut vain = None;
        for _ in 0..64 {
            // Nothing can be moved or placed before that has been read: the fault is served later.
            if self.cx.changing() {
                return false;
            }
            // While this thread is busy the program goes on to touch what it has mapped meanwhile.
            self.adopt_news();
            while lock(&e.lru).active_len() < EVICT_BATCH && self.scan_step() {}
            let few = {
                let lru = lock(&e.lru);
                lru.cached_len() < 16 || lru.is_behind()
            };
            if few && vain.is_some() {
                self.shrink(EVICT_BATCH);
            } else if few {
                vain = self.shrink_past_stuck().err();
            }
            let batch = want.clamp(WRITE_MIN, EVICT_BATCH);
            let (freed, refused) = store::write_some(e, batch, WRITE_MIN);
            if self.gives_back(want) {
                return true;
            }
            if refused {
                if self.reclaim_slots() == 0 {
                    return false;
                }
                continue;
            }
            if freed == 0 {
                if e.frames.worthless_count() > 0 && self.gives_back(1) {
                    return true;
                }
                if vain.is_some_and(|refused| self.is_nothing_left(refused)) {
                    return false;
                }
                // Everything cached is in the writer's hands, or the pages left cannot be moved just now.
                self.cx.sleep(Some(100_000));
            }
        }
        false
    }

    /// If there are frames that nobody needs for what is missing to `want` pages of room, gives them back. True: there
    /// is room, or some pages are granted.
    pub(crate) fn gives_back(&mut self, want: usize) -> bool {
        let e = self.cx.e;
        // Where much is too much, many at a time.
        let at_stake = e.budget.over_limit() > e.budget.watermarks().low;
        let want = if at_stake { want.max(EVICT_BATCH) } else { want };
        if self.cx.room() + e.frames.worthless_count() < want {
            return false;
        }
        let released = store::release_unused(e);
        if e.budget.over_limit() <= e.budget.watermarks().low {
            self.cx.granted = released.min(want);
        }
        self.cx.granted > 0 || self.cx.room() > 0
    }

    /// After a round in which `refused` pages could not be moved and none could: whether nobody has a page that could
    /// become a frame. Then to wait is of no use, and the budget gives way.
    fn is_nothing_left(&self, refused: usize) -> bool {
        let e = self.cx.e;
        let (mapped, cached, ahead) = {
            let lru = lock(&e.lru);
            (lru.active_len(), lru.cached_len(), lru.ahead_len())
        };
        // Not only the pages that were tried before something else ended the round: a change of mappings, a fork.
        let all = refused + RESIDENT_MIN + lock(&e.pinned).len() >= mapped;
        // Frames that are in use and have no page that waits for its first touch are a writer's.
        if !all || cached > 0 || e.frames.in_use() > ahead {
            return false;
        }
        if refused > 0 {
            e.budget.stuck_is(refused as i64);
        }
        true
    }

    /// [`Pager::shrink`], on past pages that cannot be moved. If there are no others, those that other processes have,
    /// too, are taken out as well.
    ///
    /// # Errors
    /// As [`Pager::shrink_round`].
    fn shrink_past_stuck(&mut self) -> Result<(), usize> {
        let round = self.shrink_round();
        // Not where it has given up for a fork, or for want of a frame.
        if round.is_err_and(|refused| refused > 0) && self.keeps_shared() {
            self.unshares_until = Some(Instant::now() + UNSHARES_FOR);
            return self.shrink_round();
        }
        round
    }

    /// Whether pages that other processes have, too, stay in memory.
    fn keeps_shared(&self) -> bool {
        let e = self.cx.e;
        if !e.budget.shares_much() || self.unshares_until.is_some_and(|until| until >= Instant::now()) {
            return false;
        }
        // Unless what it has alone is not enough.
        let alone = lock(&e.lru).active_len() as i64 - e.budget.common();
        alone > e.budget.over_limit() + RESIDENT_MIN as i64
    }

    /// [`Pager::shrink`], once around the pages that have yet to prove hot, where
    /// such pages stay, then around the others.
    ///
    /// # Errors
    /// None was moved; how many could not be.
    fn shrink_round(&mut self) -> Result<(), usize> {
        let e = self.cx.e;
        let skipped = || e.stat.move_skipped.load(Relaxed);
        let first = skipped();
        let (cold, hot) = lock(&e.lru).active_lens();
        for (of, most) in [(Oldest::InTurn, cold), (Oldest::Hot, hot)] {
            let start = skipped();
            loop {
                let before = skipped();
                if self.shrink_some(of, EVICT_BATCH) > 0 {
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
    pub(crate) fn evict_all(&mut self) {
        while self.scan_step() {}
        while self.shrink(EVICT_BATCH) > 0 {}
    }

    /// Moves up to `want` of the oldest active pages into the swap cache. Returns how many.
    pub(crate) fn shrink(&mut self, want: usize) -> usize {
        self.shrink_some(Oldest::InTurn, want)
    }

    fn shrink_some(&mut self, of: Oldest, want: usize) -> usize {
        let e = self.cx.e;
        let mut oldest = [0; EVICT_BATCH];
        let target = e.cached_target();
        let n = {
            let mut lru = lock(&e.lru);
            let keep = if e.conf.debug_evict_all { 0 } else { RESIDENT_MIN };
            let spare = lru.active_len().saturating_sub(keep);
            let out = &mut oldest[..want.min(EVICT_BATCH).min(spare)];
            match of {
                Oldest::InTurn => lru.oldest_active(&e.table, target, out),
                Oldest::Hot => lru.oldest_hot(&e.table, out),
            }
        };
        // Held mutexes stay in, however long ago they were taken.
        let Some(robust) = (if n > 0 { self.robust_pages() } else { None }) else {
            lock(&e.lru).tried();
            return 0;
        };
        let stays = |pager: &Pager, vpn| pager.is_pinned(vpn) || robust.binary_search(&vpn).is_ok();
        let nodes = ordered(oldest.map(|n| (e.table.vpn(Node(n)), Node(n))), n);
        let batch = &nodes[..n];
        let mut moved = 0;
        let mut i = 0;
        while i < n {
            let vpn = e.table.vpn(batch[i]);
            if !self.is_mapped(batch[i]) {
                i += 1; // found gone while a neighbour was moved
                continue;
            }
            if stays(self, vpn) {
                lock(&e.lru).rotate(&e.table, batch[i]);
                i += 1;
                continue;
            }
            let mut len = 1;
            while i + len < n && e.table.vpn(batch[i + len]) == vpn + len {
                if stays(self, vpn + len) || !self.is_mapped(batch[i + len]) {
                    break;
                }
                len += 1;
            }
            match self.move_out(vpn, &batch[i..i + len]) {
                Some((done, used)) => {
                    moved += done;
                    i += used;
                }
                None => break,
            }
        }
        lock(&e.lru).tried();
        Stat::add(&e.stat.pgsteal_anon, moved as u64);
        if moved > 0 {
            e.stat.events.note(EventKind::Evict, 0, moved);
            // What was taken meanwhile comes back.
            let _ = self.robust_pages();
        }
        moved
    }

    fn is_mapped(&self, node: Node) -> bool {
        matches!(self.cx.e.table.state(node), State::Mapped(_))
    }

    fn is_pinned(&self, vpn: Vpn) -> bool {
        lock(&self.cx.e.pinned).contains(&vpn)
    }

    /// Moves the run of pages at `vpn` into frames as far as it goes. Returns pages moved and pages dealt with (a page
    /// that cannot be moved is dealt with too); `None`: stop, no frame or an event is pending.
    fn move_out(&mut self, vpn: Vpn, run: &[Node]) -> Option<(usize, usize)> {
        match self.of_one_kind(vpn, run.len()) {
            (n, true) => self.move_read_only_out(vpn, &run[..n]),
            (n, false) => self.move_writable_out(vpn, &run[..n]),
        }
    }

    /// The same for memory that may be written, if it may.
    pub(crate) fn move_writable_out(&mut self, vpn: Vpn, run: &[Node]) -> Option<(usize, usize)> {
        let e = self.cx.e;
        let (first, got) = self.cx.empty_frames(run.len())?;
        let src = vpn.addr();
        let mut unshared = false;
        let result = loop {
            // SAFETY: frames just taken are empty arena pages without references; src is the program's memory, into
            // which the engine holds no reference.
            let (bytes, result) = unsafe { self.cx.mm.move_pages(e.frames.addr(first), src, got * PAGE_SIZE, true) };
            let done = bytes / PAGE_SIZE;
            if done > 0 {
                self.now_cached(&run[..done], first);
                e.frames.put_empty(first + done, got - done);
                return Some((done, done));
            }
            if result == Err(UffdError::Present) {
                // The frame has a page although it should not: it goes back to the kernel with others.
                e.frames.put_spent(first, 1);
                e.frames.put_empty(first + 1, got - 1);
                return Some((0, 0));
            }
            if result != Err(UffdError::Busy) || unshared || !self.unshare(src) {
                break result;
            }
            unshared = true;
        };
        e.frames.put_empty(first, got);
        if result == Err(UffdError::Incompatible)
            && let whole = self.cx.in_one_mapping(vpn, got)
            && whole < got
        {
            return self.move_writable_out(vpn, &run[..whole]);
        }
        if result == Err(UffdError::Incompatible) && self.is_writable_code(src) && self.open_transit() {
            return self.move_code_out(vpn, run);
        }
        self.refused(vpn, run, result)
    }

    fn is_writable_code(&self, page: usize) -> bool {
        self.cx.mm.rights(page).is_some_and(Rights::is_writable_code)
    }

    /// Copy-on-write after a fork is one reason why a page is busy; if it is not (pinned for I/O), the next try says
    /// so.
    /// Pages that others have, too, stay as long as there are others: the copy would cost memory, and taking it out
    /// would free none.
    pub(crate) fn unshare(&self, page: usize) -> bool {
        if self.keeps_shared() {
            return false;
        }
        Stat::add(&self.cx.e.stat.cow_unshared, 1);
        self.cx.mm.unshare(page).is_ok()
    }

    /// The first page of the run was not moved. As [`Pager::move_out`].
    pub(crate) fn refused(&mut self, vpn: Vpn, run: &[Node], result: Result<(), UffdError>) -> Option<(usize, usize)> {
        let e = self.cx.e;
        let node = run[0];
        match result {
            Ok(()) | Err(UffdError::Retry | UffdError::Other(Errno::NOMEM)) => None,
            // No page, or a mark.
            Err(why @ (UffdError::Absent | UffdError::Other(Errno::FAULT))) => {
                self.resync(vpn);
                if self.is_mapped(node) {
                    // It has come back meanwhile, or is a lost one; leave it for a later round.
                    lock(&e.lru).rotate(&e.table, node);
                    Stat::add(&e.stat.move_skipped, u64::from(why != UffdError::Absent));
                }
                Some((0, run.len().min(self.still_gone(run))))
            }
            Err(UffdError::Busy | UffdError::Incompatible | UffdError::Present | UffdError::Other(_)) => {
                lock(&e.lru).rotate(&e.table, node);
                Stat::add(&e.stat.move_skipped, 1);
                Some((0, 1))
            }
        }
    }

    /// How many pages of the run, from its start, are not `Mapped` any more; at least one, so that the caller advances.
    fn still_gone(&self, run: &[Node]) -> usize {
        let gone = run.iter().take_while(|n| !matches!(self.cx.e.table.state(**n), State::Mapped(_))).count();
        gone.max(1)
    }

    /// The pages of the run are in frames from `first` on now.
    pub(crate) fn now_cached(&self, run: &[Node], first: FrameNo) {
        let e = self.cx.e;
        let mut lru = lock(&e.lru);
        for (node, f) in run.iter().zip(first.run(run.len())) {
            let entry = match e.table.state(*node) {
                State::Mapped(entry) => entry,
                _ => None,
            };
            e.frame_entries.set(f, entry);
            lru.cache(&e.table, *node, State::Cached(f));
        }
    }
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
