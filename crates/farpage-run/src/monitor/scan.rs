//! What the monitor finds in the process: mappings that are not managed yet, blocks of threads, memory that cannot be
//! managed. Takes the locks of the lists, of what is managed and of the candidates, one at a time.

use crate::budget::unmanaged::{UnknownPages, Unmanaged};
use crate::mappings::manageable::{adoptable_parts, is_worth_managing, large_in_all};
use crate::mappings::relocated::Relocated;
use crate::shared::state::Engine;
use farpage_base::mem::give_back;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::control_blocks;
use farpage_base::sys::maps::{Kind, mappings};
use farpage_base::sys::proc::Proc;
use farpage_swap::PAGE_SIZE;
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between two looks at all mappings at least so long, and so many times as long as one takes.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_TIMES: u32 = 20;
/// Between two looks at all threads.
const PIN_PAUSE: Duration = Duration::from_millis(20);

/// What the last looks have found.
pub(super) struct Scan {
    maps: OwnedFd,
    buffer: Vec<u8>,
    /// Pages that were not accounted for after the last look at the mappings.
    unmanaged: i64,
    scanned: Instant,
    /// How long to wait after that, unless there is a reason to look.
    pause: Duration,
    /// Resident pages at that time.
    scanned_rss: i64,
    pinned: Instant,
    /// What cannot be managed, and what the program is told of it.
    others: Unmanaged,
    /// Tables of libraries that the pager can take over.
    relocated: Relocated,
}

impl Scan {
    pub(super) fn new(proc: &Proc, now: Instant) -> Result<Scan, rustix::io::Errno> {
        Ok(Scan {
            maps: proc.file("thread-self/maps")?,
            buffer: Vec::new(),
            unmanaged: 0,
            scanned: now,
            pause: PAUSE,
            scanned_rss: 0,
            pinned: now,
            others: Unmanaged::new(proc),
            relocated: Relocated::new(proc),
        })
    }

    /// Before the first look.
    pub(super) fn begin(&mut self) {
        // Present, unless the process rests: a page fault of the monitor's may wait behind threads that map memory,
        // just when that must be noticed.
        self.buffer = vec![1; 32 * 1024];
    }

    /// The process rests.
    pub(super) fn rest(&mut self) {
        give_back(&mut self.buffer);
    }

    /// When the threads were last looked at, if it is time for another look.
    pub(super) fn pin_due(&self) -> Option<Instant> {
        Some(self.pinned).filter(|pinned| pinned.elapsed() > PIN_PAUSE)
    }

    /// Shared memory is worth a word.
    pub(super) fn look_at_shared(&mut self, e: &Engine, proc: &Proc) {
        self.others.look_at_shared(e, proc, &self.maps, &mut self.buffer);
    }

    /// Looks for new mappings when resident memory has grown by pages that the engine did not hand out.
    pub(super) fn look_after(&mut self, e: &Engine, rss: i64) {
        let now = Instant::now();
        let pool = (e.space.pool_bytes() / PAGE_SIZE as u64) as i64;
        let known = lock(&e.lru).active_len() as i64 + e.frames.present_count() as i64 + pool;
        let unmanaged = rss - known - (e.table.bytes() / PAGE_SIZE) as i64;
        let step = (e.budget.promised() / 1024).max(32) + e.discovery.left_out.load(Relaxed);
        let overdue = e.budget.pressure() && now - self.scanned > self.pause && rss != self.scanned_rss;
        if unmanaged > self.unmanaged + step || overdue || e.leaves_out_too_much() {
            self.find_mappings(e);
            self.unmanaged = unmanaged;
            (self.scanned, self.scanned_rss) = (now, rss);
            self.pause = PAUSE.max(now.elapsed() * PAUSE_TIMES);
        } else {
            self.unmanaged = self.unmanaged.min(unmanaged);
        }
        self.relocated.look(e, unmanaged, &self.maps, &mut self.buffer);
        let pages = UnknownPages { rss, unknown: unmanaged, leaves_soon: self.relocated.is_expecting() };
        self.others.look(e, pages, &self.maps, &mut self.buffer);
    }

    /// Hands mappings that are not managed yet to the pager.
    pub(super) fn find_mappings(&mut self, e: &Engine) {
        e.discovery.left_out.store(0, Relaxed);
        let (mut parts, mut small) = (Vec::new(), Vec::new());
        let result = mappings(&self.maps, &mut self.buffer, |m, _| {
            if is_worth_managing(e, m) {
                adoptable_parts(e, m.start, m.end, &mut parts);
            } else if m.adoptable() && m.kind != Kind::Stack {
                adoptable_parts(e, m.start, m.end, &mut small);
            }
        });
        if result.is_err() {
            return;
        }
        let managed = lock(&e.memory.managed);
        let unmanaged = |parts: &[(usize, usize)]| -> Vec<(usize, usize)> {
            let gaps = parts.iter().flat_map(|(start, end)| managed.gaps(Vpn::of(*start), Vpn::of(*end)));
            gaps.map(|(s, t)| (s.addr(), t.addr())).collect()
        };
        let (mut found, small) = (unmanaged(&parts), unmanaged(&small));
        drop(managed);
        if small.iter().map(|(start, end)| end - start).sum::<usize>() > large_in_all(e) {
            found.extend(small);
        }
        // Where most can be filled while registering waits for the lock of the address space, first.
        found.sort_by_key(|(start, end)| std::cmp::Reverse(end - start));
        if !found.is_empty() {
            lock(&e.discovery.candidates).append(&mut found);
            e.kick_pager();
        }
    }

    /// Notes where the control blocks of the program's threads are: the kernel writes to them when a thread has
    /// already begun to exit, and does not wait for a page then.
    pub(super) fn pin_threads(&mut self, e: &Engine, proc: &Proc) {
        // A thread that ends in this moment is simply missed.
        let _ = control_blocks::of_threads(proc, |head| e.pin_thread(head));
        self.pinned = Instant::now();
    }
}
