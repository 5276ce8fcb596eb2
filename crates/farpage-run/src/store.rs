//! Storing cached pages: the writer's half of reclaim.
//!
//! A writer takes the oldest cached page (`Cached -> Writeback`), looks at it (zero, unchanged, new), stores it, and
//! publishes the slot (`Writeback -> Swapped`). Pages for a file are collected and go out as one batch. If the page was
//! discarded by the program meanwhile, the last step fails and the slot is freed. A page whose store fails stays in the
//! swap cache: nothing is ever given up before its copy is complete. The memory of what has been stored goes back to
//! the kernel in runs of frames.

use crate::shared::address_space::AddressSpace;
use crate::shared::page_table::{Node, State};
use crate::shared::state::Engine;
use farpage_base::mem::arena::DISCARD_AREA_BYTES;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Page, Vpn};
use farpage_base::sys::raw::discard;
use farpage_device::content::Leaving;
use farpage_device::io::BATCH_MAX;
use farpage_device::{Entry, StoreError};
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;

/// Pages stored in memory per turn, between two looks at the fork gate, and pages of a batch for a file at least.
pub(crate) const WRITE_BATCH: usize = 32;
/// Pages taken over under one acquisition of the lists' lock. A fault on one waits until it is stored (some
/// microseconds a page), so not many; they are the oldest.
const TAKE: usize = 8;
/// Frames whose pages have been stored go back to the kernel when there are so many.
const RELEASE_MIN: usize = 128;
/// Frames emptied at once at most: what the discard area has room for.
const EMPTIED_MAX: usize = DISCARD_AREA_BYTES / PAGE_SIZE;
/// And so many runs of them.
const RUNS_MAX: usize = 64;

impl Engine {
    /// `--verify`: the bytes read back must be the bytes that were swapped out.
    pub(crate) fn verify(&self, vpn: Vpn, entry: Entry, page: &Page) {
        if !self.conf.verify {
            return;
        }
        self.space.verify(entry, page, &self.slots.key, vpn.addr());
        Stat::add(&self.stat.verified, 1);
    }

    /// `--verify`, for neighbouring pages from `vpn` on, whose bytes are at `base`.
    ///
    /// # Safety
    /// There are as many pages as entries, and no thread writes to them.
    pub(crate) unsafe fn verify_run(&self, vpn: Vpn, entries: &[Entry], base: usize) {
        for (i, entry) in entries.iter().enumerate() {
            // SAFETY: caller's promise.
            self.verify(vpn + i, *entry, unsafe { &*((base + i * PAGE_SIZE) as *const Page) });
        }
    }

    /// Frees the slot that belongs to frame `f`, if any.
    pub(crate) fn release_frame_entry(&self, f: FrameNo) {
        self.free_entry(self.slots.frame_entries.take(f));
    }
}

/// Frames are needed that writing frees.
pub(crate) fn wanted(e: &Engine) -> bool {
    (e.budget.pressure() || e.records()) && e.level().missing() > 0
}

/// Pages of a batch for a file when so many frames are missing: a batch costs one wait, so it grows with what is
/// missing, up to what one transfer takes. More only lets the fault that wants a page of it wait longer.
pub(crate) fn queued_batch(missing: usize) -> usize {
    missing.clamp(WRITE_BATCH, BATCH_MAX)
}

/// What [`store`] did with a page.
enum StoredAs {
    /// It is zero and needs no place.
    Zero,
    /// Its copy is here.
    At(Entry),
    /// It is for a queued device; this is its hash.
    Queued(u128),
}

/// A page that waits for its batch.
#[derive(Clone, Copy)]
struct QueuedPage {
    node: Node,
    frame: FrameNo,
    hash: u128,
}

/// Stores the oldest cached pages and frees their frames: until `want` have been stored in memory or `queue` (at most
/// [`BATCH_MAX`]) wait for a file. Returns the frames freed, and whether a device refused a page. Called by the writer
/// and, in direct reclaim, by the pager. A fault on a page in writeback waits, so what is stored in memory is published
/// page by page; only what a file takes waits for the others of its batch.
pub fn write_some(e: &Engine, want: usize, queue: usize) -> (usize, bool) {
    let (mut freed, mut refused) = (0, false);
    let mut waiting = [None::<QueuedPage>; BATCH_MAX];
    let mut n = 0;
    let mut taken = [(Node(0), FrameNo::default()); TAKE];
    let queue = queue.min(BATCH_MAX);
    while freed < want && n < queue && !refused {
        let room = (want - freed).min(queue - n).min(TAKE);
        let got = lock(&e.lru).take_for_writing(&e.table, &mut taken[..room]);
        for &(node, frame) in &taken[..got] {
            if refused {
                put_back(e, node, frame);
                continue;
            }
            match store(e, e.table.vpn(node), frame) {
                Ok(StoredAs::Zero) => publish(e, node, frame, None),
                Ok(StoredAs::At(entry)) => publish(e, node, frame, Some(entry)),
                Ok(StoredAs::Queued(hash)) => {
                    waiting[n] = Some(QueuedPage { node, frame, hash });
                    n += 1;
                    continue;
                }
                Err(error) => {
                    give_back(e, node, frame, &error);
                    refused = true;
                    continue;
                }
            }
            freed += 1;
        }
        if got < room {
            break; // there are no others yet
        }
    }
    let stored = store_queued(e, &waiting[..n]);
    e.account_pool();
    release_stored(e);
    (freed + stored, refused || stored < n)
}

/// Gives the memory of frames that are not needed back to the kernel; how many pages.
pub(crate) fn release_unused(e: &Engine) -> usize {
    release_spent(e) + release(e, e.frames.free_count(), |n| e.frames.take_free(n))
}

/// The same for what has been stored, once that is many pages: each run of neighbours, and the end of it all, are a
/// system call that interrupts other CPUs.
fn release_stored(e: &Engine) {
    if e.frames.spent_count() >= RELEASE_MIN {
        release_spent(e);
    }
}

fn release_spent(e: &Engine) -> usize {
    release(e, e.frames.spent_count(), |n| e.frames.take_spent(n))
}

/// Gives frames back, in the runs that `take` has; how many. `most` of them are tried. Those that cannot be given back
/// now stay spent.
fn release(e: &Engine, most: usize, take: impl Fn(usize) -> Option<(FrameNo, usize)>) -> usize {
    let (mut tried, mut released) = (0, 0);
    while tried < most {
        let before = tried;
        released += release_runs(e, |room| {
            let run = take(room.min(most - tried));
            tried += run.map_or(0, |(_, n)| n);
            run.map(|(first, n)| (first, n, n))
        });
        if tried == before {
            break;
        }
    }
    released
}

/// Finds or makes the copy of the page `vpn`, which is in `frame`.
fn store(e: &Engine, vpn: Vpn, frame: FrameNo) -> Result<StoredAs, StoreError> {
    // SAFETY: the frame is ours while its page is in writeback, and no thread writes to it.
    let page = unsafe { e.frames.page(frame) };
    let shared = e.slots.frame_entries.is_shared(frame);
    let old = e.slots.frame_entries.take(frame);
    let hash = match e.space.leaving(page, old, &e.slots.key, &e.slots.clean) {
        Leaving::Zero => {
            Stat::add(&e.stat.swpout_zero, 1);
            e.free_entry(old);
            return Ok(StoredAs::Zero);
        }
        Leaving::Same(old) => {
            Stat::add(&e.stat.swpout_clean, 1);
            e.space.promote(old, || Some(page));
            return Ok(StoredAs::At(old));
        }
        Leaving::New(hash) => hash,
    };
    e.free_entry(old);
    if e.heap.is_short() {
        return Err(StoreError::Full);
    }
    if shared && let Some(entry) = e.space.share(page, hash, vpn.number()) {
        Stat::add(&e.stat.swpout_shared, 1);
        return Ok(StoredAs::At(entry));
    }
    // A page that waits in the pool takes as much memory as its frame gives back: not where memory is missing.
    let short = e.budget.over_limit() * 2 > e.budget.headroom();
    let stored = if short { e.space.store_now(page, hash) } else { e.space.store_or_let_wait(page, hash) };
    let Some(entry) = stored? else { return Ok(StoredAs::Queued(hash)) };
    Stat::add(&e.stat.pswpout, 1);
    e.stat.events.note(EventKind::Store, 0, 1);
    Ok(StoredAs::At(entry))
}

/// Stores the pages that wait for a queued device, in one batch; how many were stored.
fn store_queued(e: &Engine, waiting: &[Option<QueuedPage>]) -> usize {
    let Some(first) = waiting.first().copied().flatten() else { return 0 };
    // SAFETY: as in `store`: the frames are ours while their pages are in writeback.
    let page_of = |w: QueuedPage| -> (&Page, u128) { (unsafe { e.frames.page(w.frame) }, w.hash) };
    let mut pages = [page_of(first); BATCH_MAX];
    for (page, w) in pages.iter_mut().zip(waiting.iter().flatten()) {
        *page = page_of(*w);
    }
    let mut out = [None; BATCH_MAX];
    let n = waiting.len().min(BATCH_MAX);
    let result = e.space.store_queued(&pages[..n], &mut out[..n]);
    let error = result.err().unwrap_or(StoreError::Full);
    let mut stored = 0;
    for (w, entry) in waiting.iter().flatten().zip(out) {
        match entry {
            Some(_) => {
                publish(e, w.node, w.frame, entry);
                stored += 1;
            }
            None => give_back(e, w.node, w.frame, &error),
        }
    }
    Stat::add(&e.stat.pswpout, stored as u64);
    e.stat.events.note(EventKind::Store, 0, stored);
    stored
}

/// The copy is complete: the page's word says so from now on, and the frame is spent.
fn publish(e: &Engine, node: Node, frame: FrameNo, stored: Option<Entry>) {
    let to = stored.map_or(State::None, State::Swapped);
    if let (Some(pages), Some(entry)) = (&e.slots.slot_pages, stored) {
        pages.stored(node.0, entry);
    }
    if !e.table.change(node, State::Writeback(frame), to) {
        e.free_entry(stored); // discarded by the program meanwhile
    }
    e.frames.put_spent(frame, 1);
}

/// The page could not be stored: it stays in the swap cache.
fn give_back(e: &Engine, node: Node, frame: FrameNo, error: &StoreError) {
    // Not full if there are slots that only wait to be freed, or that hold what is in the program, too: the next try
    // finds them.
    if matches!(error, StoreError::Full) && e.free_pending(usize::MAX) == 0 && !e.want_slots_reclaimed() {
        Stat::add(&e.stat.swap_full, 1);
        e.warn_full();
    }
    put_back(e, node, frame);
}

/// A page that was taken over for writing and is not stored is the next one again.
fn put_back(e: &Engine, node: Node, frame: FrameNo) {
    let mut lru = lock(&e.lru);
    if e.table.change(node, State::Writeback(frame), State::Cached(frame)) {
        lru.recache(&e.table, node, true);
    } else {
        drop(lru);
        e.release_frame_entry(frame);
        e.frames.put_spent(frame, 1);
    }
}

/// Gives the pages of `n` neighbouring frames back to the kernel. `resident`: how many of them are memory (the shared
/// zero page is not).
pub(crate) fn release_run(e: &Engine, first: FrameNo, n: usize, resident: usize) {
    if n > 0 {
        let mut run = Some((first, n, resident));
        release_runs(e, |_| run.take());
    }
}

/// Gives the pages of frames back to the kernel: moved into the discard area, from where they can be dropped without an
/// event, all at once. `next` returns runs of frames, as long as the room there that it is told: the first frame, how
/// many, and how many of their pages are memory. Returns how many pages were dropped. Frames that cannot be emptied
/// become spent ones.
fn release_runs(e: &Engine, mut next: impl FnMut(usize) -> Option<(FrameNo, usize, usize)>) -> usize {
    let discard_area = lock(&e.discard_area);
    let base = e.arena.discard_area.base;
    // Of each run the first frame, how many, and how many have been emptied.
    let mut runs = [(FrameNo::default(), 0, 0); RUNS_MAX];
    let (mut n, mut full, mut end, mut freed) = (0, 0, 0, 0);
    while n < RUNS_MAX
        && full < EMPTIED_MAX
        && let Some((first, len, resident)) = next(EMPTIED_MAX - full)
    {
        let mm = discard_area.as_ref().filter(|_| len <= EMPTIED_MAX - full);
        let moved = mm.map_or(0, |mm| empty(e, &**mm, first, len, base + full * PAGE_SIZE));
        runs[n] = (first, len, moved);
        // What is in the way of a move is dropped, too.
        end = EMPTIED_MAX.min(end.max(full + len));
        (n, full, freed) = (n + 1, full + moved, freed + moved.min(resident));
    }
    if end > 0 {
        // SAFETY: the area belongs to the holder of its lock; its userfaultfd reports no events.
        let _ = unsafe { discard(base as *mut _, end * PAGE_SIZE) };
    }
    drop(discard_area);
    e.budget.add(-(freed as i64));
    for &(first, len, moved) in &runs[..n] {
        e.frames.put_empty(first, moved);
        e.frames.put_spent(first + moved, len - moved);
    }
    full
}

/// Moves the pages of `n` neighbouring frames of the caller's to `to`, in the discard area; how many could be.
fn empty(e: &Engine, mm: &dyn AddressSpace, first: FrameNo, n: usize, to: usize) -> usize {
    let (mut done, mut unshared) = (0, usize::MAX);
    while done < n {
        let (dst, src) = (to + done * PAGE_SIZE, e.frames.addr(first) + done * PAGE_SIZE);
        // SAFETY: the frames are ours; the discard area belongs to the holder of its lock, who called.
        let moved = unsafe { mm.move_pages(dst, src, (n - done) * PAGE_SIZE, true) }.0 / PAGE_SIZE;
        done += moved;
        if moved == 0 && unshared == done {
            break;
        }
        if done < n && unshared != done {
            // A forked child has the next one, too: after one write it is ours alone.
            unshared = done;
            // SAFETY: the frame is owned here and has a page.
            unsafe { e.frames.unshare(first + done) };
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_for_a_file_grow_with_what_is_missing() {
        assert_eq!([0, 31, 40, 64, 5000].map(queued_batch), [32, 32, 40, 64, 64]);
    }
}
