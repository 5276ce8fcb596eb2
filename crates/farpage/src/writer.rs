//! Storing cached pages: the writer's half of reclaim.
//!
//! A writer takes the oldest cached page (`Cached -> Writeback`), looks at it (zero, unchanged, new), stores it, and
//! publishes the slot (`Writeback -> Swapped`). If the page was discarded by the program meanwhile, the last step
//! fails and the slot is freed. A page whose store fails stays in the swap cache: nothing is ever given up before its
//! copy is complete.

use crate::PAGE_SIZE;
use crate::content::is_zero;
use crate::device::{Entry, StoreError};
use crate::engine::{Engine, lock};
use crate::page_table::{FrameNo, Node, State};
use crate::stat::Stat;
use crate::sys::futex;
use crate::sys::thread::settle;
use rustix::mm::{Advice, madvise};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Pages stored per turn, between two looks at the fork gate.
const BATCH: usize = 8;

pub(crate) extern "C" fn main(engine: usize) -> ! {
    settle(b"farpage-writer");
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    loop {
        let seen = e.wakeups.writer.load(Acquire);
        e.fork.pass_gate();
        e.fork.writer_gate.lock();
        let mut worked = false;
        if wanted(e) {
            worked = write_some(e, BATCH).0 > 0;
        }
        if e.space.pool_over_share() {
            worked |= e.space.writeback(32) > 0;
            e.account_pool();
        }
        // Before the gate opens: a fork behind it must not copy a lock that is held.
        let low = lock(&e.lru).cached_len() < e.cached_target() / 2;
        e.fork.writer_gate.unlock();
        if worked {
            if e.wakeups.pager_waits.load(Acquire) {
                e.kick_pager();
            }
            if low {
                e.kick_pager();
            }
        } else {
            futex::wait(&e.wakeups.writer, seen, Some(20_000_000));
        }
    }
}

fn wanted(e: &Engine) -> bool {
    e.budget.pressure() && (e.frames.free_count() < e.free_target() || e.budget.excess() > 0)
}

/// Where a page's content is after [`store`]; `None`: it is zero and needs no place.
type Stored = Option<Entry>;

/// Stores up to `want` of the oldest cached pages and frees their frames; while the process is above its limit, frames
/// go back to the kernel. Returns the frames freed, and whether a device refused a page. Called by
/// the writer and, in direct reclaim, by the pager. One page at a time: a page in writeback makes a fault on it wait.
pub fn write_some(e: &Engine, want: usize) -> (usize, bool) {
    let (mut freed, mut refused) = (0, false);
    while freed < want {
        let Some((node, frame)) = lock(&e.lru).take_for_writing(&e.table) else { break };
        match store(e, frame) {
            Ok(stored) => publish(e, node, frame, stored),
            Err(error) => {
                give_back(e, node, frame, &error);
                refused = true;
                break;
            }
        }
        freed += 1;
    }
    e.account_pool();
    (freed, refused)
}

/// Finds or makes the copy of the page in `frame`.
fn store(e: &Engine, frame: FrameNo) -> Result<Stored, StoreError> {
    // SAFETY: the frame is ours while its page is in writeback, and nobody writes to it.
    let page = unsafe { e.frame(frame) };
    let old = Entry::from_raw(e.frame_entry[frame as usize].load(Relaxed));
    if is_zero(page) {
        Stat::add(&e.stat.swpout_zero, 1);
        e.release_frame_entry(frame);
        return Ok(None);
    }
    let hash = e.key.hash(page);
    if let Some(old) = old {
        let unchanged = e.space.check(old) == Some(hash);
        e.clean.note(unchanged);
        if unchanged {
            e.frame_entry[frame as usize].store(0, Relaxed);
            Stat::add(&e.stat.swpout_clean, 1);
            e.space.promote(old, page);
            return Ok(Some(old));
        }
        e.release_frame_entry(frame);
    }
    let entry = e.space.store(page, hash)?;
    Stat::add(&e.stat.pswpout, 1);
    Ok(Some(entry))
}

/// The copy is complete: the page's word says so from now on, and the frame is free.
fn publish(e: &Engine, node: Node, frame: FrameNo, stored: Stored) {
    let to = stored.map_or(State::None, State::Swapped);
    if !e.table.change(node, State::Writeback(frame), to) {
        e.free_entry(stored); // discarded by the program meanwhile
    }
    // The pool has grown for this page, so some frames must go back; one is left for a fault that waits, until the
    // promise itself is at stake.
    let excess = e.budget.excess();
    if excess > 0 && (e.frames.free_count() > 0 || excess > e.budget.gap()) {
        release(e, frame);
    } else {
        e.frames.put_free(frame, 1);
    }
}

/// The page could not be stored: it stays in the swap cache.
fn give_back(e: &Engine, node: Node, frame: FrameNo, error: &StoreError) {
    if matches!(error, StoreError::Full) {
        Stat::add(&e.stat.swap_full, 1);
        e.warn_full();
    }
    let mut lru = lock(&e.lru);
    if e.table.change(node, State::Writeback(frame), State::Cached(frame)) {
        lru.recache(&e.table, node, true);
    } else {
        drop(lru);
        e.release_frame_entry(frame);
        e.frames.put_free(frame, 1);
    }
}

/// Gives a frame's page back to the kernel: moved into the trash part, from where it can be dropped without an event.
fn release(e: &Engine, frame: FrameNo) {
    let trash = lock(&e.trash);
    let Some(uffd) = trash.as_ref() else {
        e.frames.put_free(frame, 1);
        return;
    };
    let base = e.arena.trash.base;
    let src = e.frames.addr(frame);
    let mut result = Err(crate::sys::uffd::Refused::Busy);
    for _ in 0..2 {
        // SAFETY: the frame is ours; the trash part belongs to the holder of its lock.
        result = unsafe { uffd.move_pages(base, src, PAGE_SIZE, true) }.1;
        if result.is_ok() {
            break;
        }
        // SAFETY: the frame is owned here and has a page.
        unsafe { e.unshare_frame(frame) };
    }
    if result.is_err() {
        e.frames.put_free(frame, 1);
        return;
    }
    // SAFETY: nobody else uses the trash part; its userfaultfd reports no events.
    let _ = unsafe { madvise(base as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) };
    drop(trash);
    e.frames.put_empty(frame, 1);
    e.budget.add(-1);
}
