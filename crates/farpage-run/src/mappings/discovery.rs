//! How the engine hears of new mappings and threads, the quickest way first:
//!
//! * A *note* ([`crate::shared::notice_ring`]) comes from the preload library, on the program's thread: memory is
//!   mapped, handed out by the allocator, or about to be filled by one call. If it is much, or was much since the last
//!   look ([`crate::shared::charge`]), the thread waits until it is registered.
//! * The monitor looks at `/proc/self/maps` when resident memory has grown by pages that were not handed out, or too
//!   much was left out.
//!
//! While the budget has room, memory that the program is given is left out: a fault that goes through the pager costs
//! several times what the kernel's own does, and to register a mapping and to follow its end as much as a dozen faults.
//!
//! Program threads run most of this file, without locks (see [`crate::shared::notice_ring`]); what the pager does with
//! the notes is in [`crate::pager::adoption`].

use crate::shared::charge::UNLIMITED;
use crate::shared::notice_ring::Note;
use crate::shared::state::Engine;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::mem::units::USER_END;
use farpage_base::sys::raw::{nr, syscall};
use farpage_base::sys::{cpu, futex};
use farpage_ipc::stat::Stat;
use farpage_ipc::tree;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long a program's thread waits at most for its mapping to be registered, or for a look. It is late then, not
/// wrong.
const ADOPTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// New memory of up to this part of the room is left to the kernel: should all of it be filled, there is room left.
const LEFT_OUT_PART: i64 = 2;

impl Engine {
    /// A thread was started whose control block is at `block` (an address in it, as `pthread_t` is). Called on a
    /// program thread.
    pub(crate) fn thread_started(&self, block: usize) {
        for _ in 0..10 {
            if self.stage.retired.load(SeqCst) || self.discovery.notes.post(Note::Thread(block)).is_some() {
                // From here on a program may need looking at sooner than its memory lets expect.
                if !self.is_active() && self.discovery.started.fetch_add(1, SeqCst) + 1 == cpu::count() {
                    self.ring();
                }
                return;
            }
            // A thousand threads at once: the thread that takes the notes is woken, and gets a moment.
            self.ring();
            futex::wait(&self.wakeups.never, 0, Some(1_000_000));
        }
    }

    /// Bytes of new memory that are so much that their owners should wait until they are managed.
    pub(crate) fn large(&self) -> usize {
        (self.budget.promised() / 256) as usize * PAGE_SIZE
    }

    /// Whether `bytes` that are about to be filled in one call reach the budget. Called on a program thread.
    pub fn must_be_managed(&self, bytes: usize) -> bool {
        self.is_active() && bytes >= self.large()
            || !self.stage.retired.load(SeqCst)
                && self.budget.total() + (bytes / PAGE_SIZE) as i64 > self.budget.activation()
    }

    /// As [`crate::lifecycle::program::handed_out`].
    pub(crate) fn handed_out(&self, start: usize, len: usize, mapped: bool) {
        if !self.is_active() {
            // More than the whole budget at once, and it may be filled in one call: sooner than a thread looks.
            if len as u64 > self.most_bytes() && self.fork.is_home() && !self.stage.retired.load(SeqCst) {
                return self.announce(start, len);
            }
            // A small piece takes a page that it is the first to reach into.
            if self.discovery.charges.charge(len.max(PAGE_SIZE) as u64) && self.fork.is_home() {
                match self.stage.retired.load(SeqCst) {
                    true => self.warn_retired(),
                    false => self.count_wait(|| self.wait_for_look()),
                }
            }
            return;
        }
        // It is the program's own. Who tells it is not held up, and would ring without end while the pager holds still.
        if self.is_excluded() {
            return;
        }
        // What an allocator has had for long is managed.
        if self.discovery.recent.covers(start, start.saturating_add(len)) {
            return;
        }
        // Above the budget, a thread that maps waits each time: while mappings change without a pause, the kernel lets
        // the pager take nothing out.
        let much = self.discovery.charges.charge(len.max(PAGE_SIZE) as u64) || mapped && self.budget.over_limit() > 0;
        // A child that was made unseen has no engine to wait for.
        let due = much && self.fork.is_home();
        match self.tell(start, len) {
            Some(ticket) if due => {
                self.wait_for_adoption(ticket);
            }
            Some(_) => {} // the next one that is due rings for all
            None => self.ring(),
        }
    }

    /// The budget is near, and there is no thread any more to manage memory.
    fn warn_retired(&self) {
        self.discovery.charges.allow(UNLIMITED);
        let text = "the program has given all its threads a seccomp filter, under which memory cannot be managed";
        warn_once_in_tree(WarningKind::NoEngine, &format!("{text}; this process goes on without a budget"));
    }

    /// Returns when the monitor has looked, or memory is managed.
    fn wait_for_look(&self) {
        let looks = &self.wakeups.monitor_looks;
        let (seen, since) = (looks.load(SeqCst), Instant::now());
        self.ring();
        while looks.load(SeqCst) == seen && !self.is_active() {
            let left = ADOPTION_WAIT_MAX.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            futex::wait(looks, seen, Some(left.as_nanos() as u64));
        }
    }

    /// The monitor has looked, and said what may be given until it does so again.
    pub(crate) fn publish_look(&self) {
        self.wakeups.monitor_looks.fetch_add(1, SeqCst);
        futex::wake_all(&self.wakeups.monitor_looks);
    }

    /// Whether `[start, end)` (bytes), which is new, need not be managed yet: with all that was left out since the
    /// monitor's last look at all mappings, it is a part of the room in the budget. Its first touches are the kernel's
    /// then, and often it is given back before it is looked for. Pager only.
    pub(crate) fn can_wait(&self, start: usize, end: usize) -> bool {
        if self.is_known(start, end) {
            return false;
        }
        self.discovery.left_out.fetch_add(((end - start) / PAGE_SIZE) as i64, SeqCst);
        let waits = !self.leaves_out_too_much();
        if !waits {
            self.ring_monitor();
        }
        waits
    }

    /// Whether what was left out is too much for the room that there is by now.
    pub(crate) fn leaves_out_too_much(&self) -> bool {
        let left_out = self.discovery.left_out.load(SeqCst);
        left_out > 0 && left_out * LEFT_OUT_PART > self.budget.room()
    }

    /// `len` bytes at `start` are a new mapping or about to be filled: returns when its pages are served by the engine,
    /// so that it grows by faults that can be made to wait; after a while in any case. Called on a program thread, also
    /// in signal handlers.
    pub fn announce(&self, start: usize, len: usize) {
        if let Some(ticket) = self.tell(start, len) {
            self.wait_for_adoption(ticket);
        }
    }

    /// Returns when the note with this ticket has been acted on.
    fn wait_for_adoption(&self, ticket: u32) {
        self.count_wait(|| {
            self.ring();
            let _ = self.discovery.notes.wait(ticket, ADOPTION_WAIT_MAX);
        });
    }

    /// Counts for how long the calling thread of the program waits.
    fn count_wait(&self, wait: impl FnOnce()) {
        let since = Instant::now();
        wait();
        let time = since.elapsed();
        Stat::add(&self.stat.alloc_wait_ns, time.as_nanos() as u64);
        tree::note_waited(time);
    }

    /// Notes that there is something new in the `len` bytes at `start`. `None`: no room for that, or no such memory
    /// (the kernel will say what is wrong with it).
    fn tell(&self, start: usize, len: usize) -> Option<u32> {
        let first = start & !(PAGE_SIZE - 1);
        let end = start.saturating_add(len).min(USER_END);
        if first == 0 || first >= end {
            return None;
        }
        self.discovery.notes.post(Note::Mapping(first, end))
    }

    /// What `MAP_POPULATE` does for the `len` bytes at `start`: whether it worked is not said there either.
    pub fn populate(&self, start: usize, len: usize) {
        const POPULATE_WRITE: usize = 23;
        // SAFETY: writes to no page; those that are not there come into being as they would at a touch.
        let _ = unsafe { syscall(nr::MADVISE, [start, len, POPULATE_WRITE, 0, 0, 0]) };
    }

    /// Before activation: notes that only matter later are taken; says whether one asks for activation. Monitor only.
    pub(crate) fn early_notes(&self) -> bool {
        while let Some(Note::Thread(block)) = self.discovery.notes.peek() {
            self.discovery.notes.take();
            self.pin_thread(block);
        }
        self.discovery.notes.finish();
        self.discovery.notes.peek().is_some()
    }
}
