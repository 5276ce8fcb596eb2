//! One process's engine: what its threads share, and how they are woken. Data, below all that use it; it spawns no
//! thread by itself. What makes it: [`crate::monitor::build`]; when: [`crate::lifecycle::start`]; when it becomes
//! active: [`crate::monitor`].
//!
//! The threads, what each may touch, and why there is one pager: docs/dev/architecture.md. Locks: docs/dev/locking.md.

use crate::shared::address_space::AddressSpace;
use crate::shared::board::Board;
use crate::shared::budget::Budget;
use crate::shared::charge::Charges;
use crate::shared::following::Following;
use crate::shared::lru::Lru;
use crate::shared::managed_cache::Recent;
use crate::shared::notice_ring::Notes;
use crate::shared::page_table::PageTable;
use crate::shared::protocol::Fork;
use crate::shared::stacks::stack;
use crate::shared::uffd_device;
use crate::shared::warn_once::{self, WarningKind, warn_once_in_tree};
use farpage_base::mem::arena::Arena;
use farpage_base::mem::frame::Frames;
use farpage_base::mem::heap::Heap;
use farpage_base::mem::lock::lock;
use farpage_base::mem::open::was_refused;
use farpage_base::mem::page_ranges::PageRanges;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::futex;
use farpage_base::sys::message::fatal;
use farpage_base::sys::raw::{ErrnoText, nr, syscall};
use farpage_base::sys::thread::{Start, spawn};
use farpage_codec::page_hash::ContentKey;
use farpage_device::frame_entries::FrameEntries;
use farpage_device::slot_pages::SlotPages;
use farpage_device::space::SwapSpace;
use farpage_ipc::conf::Conf;
use farpage_ipc::stat::Stat;
use farpage_ipc::tree::{self, Segment};
use farpage_swap::PAGE_SIZE;
use farpage_swap::pool_share::LoadTimes;
use farpage_swap::tuning::{Controller, Controls};
use farpage_swap::watermarks::Level;
use farpage_swap::workingset::STAGE_PART;
use rustix::fd::BorrowedFd;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());

/// The process's engine, once started.
pub fn engine() -> Option<&'static Engine> {
    // SAFETY: the pointer is null or a leaked box, never freed.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// Wake-up words and descriptors of the engine's threads.
#[derive(Debug, Default)]
pub struct Wakeups {
    /// The pager's eventfd in the engine's descriptor table, or -1.
    pub kick_fd: AtomicI32,
    /// The pager waits for frames: the thread that frees some kicks it.
    pub pager_waits: AtomicBool,
    /// Counts requests to the writer.
    pub writer: AtomicU32,
    /// The writer's thread id, 0 before it runs.
    pub writer_tid: AtomicU32,
    /// The pager's thread id, 0 before it runs.
    pub pager_tid: AtomicU32,
    /// Counts requests to the monitor.
    pub monitor: AtomicU32,
    /// The process is idle, and the monitor sleeps for long: the thread that sees it do something wakes it.
    pub monitor_rests: AtomicBool,
    /// Counts the monitor's looks before activation; 0: it has not begun.
    pub monitor_looks: AtomicU32,
    /// What is out is to come in, as far as there is room, before it is wanted.
    pub(crate) unparks: AtomicBool,
    /// Slots are to be freed whose pages are in the program, too.
    pub slots_wanted: AtomicBool,
    /// No thread wakes this word: to wait for it is to sleep.
    pub never: AtomicU32,
}

/// The swap cache under pressure: the second chance.
#[derive(Clone, Copy)]
pub struct SwapCache {
    /// Pages in it that no writer stores yet.
    pub cached: usize,
    /// As many as the policy finds worth it.
    pub target: usize,
    /// See [`Lru::is_behind`].
    pub is_behind: bool,
}

/// What was heard of new memory and is not acted on yet ([`crate::mappings::discovery`]).
pub struct Discovery {
    /// What program threads tell.
    pub notes: Notes,
    /// What they need not tell.
    pub recent: Recent,
    /// What they were given since the last look.
    pub charges: &'static Charges,
    /// Ranges (bytes) that the monitor found and the pager shall register.
    pub candidates: Mutex<Vec<(usize, usize)>>,
    /// Ranges (bytes) of libraries that the monitor found and the pager shall take over.
    pub relocated: Mutex<Vec<(usize, usize)>>,
    /// Pages that the program was given since the monitor's last look at all mappings, and that stayed without
    /// management ([`crate::mappings::discovery`]).
    pub left_out: AtomicI64,
    /// Threads that the program has started, before activation.
    pub started: AtomicUsize,
}

/// What is known of the program's memory.
#[derive(Default)]
pub struct ProgramMemory {
    /// Pages registered with the pager's userfaultfd.
    pub managed: Mutex<PageRanges>,
    /// Taken over from libraries: managed, and not to be written ([`crate::pager::relocated`]).
    pub read_only: Mutex<PageRanges>,
    /// Address ranges never adopted (bytes): memory the engine's own code uses.
    pub exclude: Vec<(usize, usize)>,
    /// Address of the page in which the first thread's stack began; that and what is above stays. 0: not known.
    pub stack_top: AtomicUsize,
    /// Pages never taken out: thread control blocks, also of threads that have ended and whose stacks libc keeps (it
    /// touches them in a forked child before any other code runs).
    pub pinned: Mutex<BTreeSet<Vpn>>,
    /// There are, or were, marks in page tables ([`crate::pager::marks`]).
    pub marked: AtomicBool,
    /// Threads that are making guards.
    pub guarding: AtomicU32,
    /// The program has asked for memory that its children have without content.
    pub has_wipeonfork: AtomicBool,
}

/// How far the engine has come.
#[derive(Debug, Default)]
pub struct Stage {
    /// Memory is managed from now on.
    pub active: AtomicBool,
    /// ... or never ([`crate::mappings::requests`]).
    pub(crate) excluded: AtomicBool,
    /// ... or not any more: it is being brought in ([`crate::monitor`]'s `detach`).
    pub(crate) detaching: AtomicBool,
    /// All of it is there, and none is managed: what the pager says of [`Engine::is_excluded`].
    pub(crate) let_go: AtomicBool,
    /// The engine has ended, or its last threads are about to.
    pub(crate) detached: AtomicBool,
    /// It cannot be managed here.
    pub(crate) activation_failed: AtomicBool,
    /// The monitor has ended, or is to, because memory is not managed yet ([`Engine::retire`]).
    pub(crate) retired: AtomicBool,
}

/// What is known of slots, besides the words of their pages.
pub struct Slots {
    /// The slot that may hold the same bytes, for each frame in use. Belongs to the owner of the frame.
    pub frame_entries: FrameEntries,
    /// The page of each slot, where pages are read ahead in slot order.
    pub slot_pages: Option<SlotPages>,
    /// Slots of pages that the program discarded, to be freed.
    pub pending_frees: Mutex<Vec<farpage_device::Entry>>,
    /// Hash key.
    pub key: ContentKey,
    /// Whether keeping clean copies pays.
    pub clean: farpage_swap::clean_slots::CleanSlotPolicy,
    /// What a load takes.
    pub load_times: LoadTimes,
}

/// Everything the engine's threads share.
pub struct Engine {
    /// As given.
    pub conf: Conf,
    /// Own address space.
    pub arena: Arena,
    /// Page words.
    pub table: PageTable,
    /// Frames.
    pub frames: Frames,
    /// The lists.
    pub lru: Mutex<Lru>,
    /// Swap devices.
    pub space: SwapSpace,
    /// Pages allowed and had.
    pub budget: Budget,
    /// Counters.
    pub stat: &'static Stat,
    /// The heap, for its size, and what earlier engines of this process have left in it, bytes.
    pub(crate) heap: &'static Heap,
    pub(crate) left_in_heap: usize,
    /// The userfaultfd of the discard area; also the lock of that part.
    pub(crate) discard_area: Mutex<Option<Box<dyn AddressSpace>>>,
    /// Pages that are loaded by other threads than the pager.
    pub helpers: Board,
    /// Threads sleep and wake here.
    pub wakeups: Wakeups,
    /// What they hold.
    pub following: Following,
    /// Fork protocol.
    pub fork: Fork,
    /// The feedback controllers, and what they are held at.
    pub controls: Controls,
    /// What was heard of new memory.
    pub discovery: Discovery,
    /// What is known of the program's memory.
    pub memory: ProgramMemory,
    /// Whether it is managed.
    pub stage: Stage,
    /// Slots of pages, besides their words.
    pub slots: Slots,
}

/// Tables that take more than this part of the budget are worth a word.
const META_PART: u64 = 4;

/// This process's engine is shown to the program's threads.
pub(crate) fn show_engine(engine: &'static Engine) {
    ENGINE.store(std::ptr::from_ref(engine).cast_mut(), Ordering::Release);
}

/// In a child: what was the parent's engine is nothing here.
pub(crate) fn forget_engine() {
    uffd_device::forget();
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
}

/// The pages that a thread control block is on, `block` being an address in it: as `pthread_t` is, or the head of the
/// thread's robust list.
pub(crate) fn block_pages(block: usize) -> [Vpn; 2] {
    [block.saturating_sub(0x400), block.saturating_add(0xb00)].map(Vpn::of)
}

impl Engine {
    /// Starts an engine thread on stack `index` (`arg` is mostly [`Engine::address`]). Except for the monitor's, called
    /// on an engine thread, whose descriptor table is shared.
    ///
    /// # Errors
    /// The errno of clone.
    pub fn spawn(&'static self, index: usize, start: &Start) -> Result<u32, rustix::io::Errno> {
        let stack = stack(&self.arena, index);
        self.following.begin(index);
        // SAFETY: each index has memory of its own in the stacks part; a thread that used it before was the parent's
        // and does not exist in this process. The entries keep the rules for engine threads.
        unsafe { spawn(stack, start) }.inspect_err(|_| self.following.end(index))
    }

    /// The same in a forked child: room for its threads was made before ([`crate::fork::reserve`]), but others may
    /// be quicker, so a limit that is reached is waited for.
    ///
    /// # Errors
    /// As [`Engine::spawn`].
    pub fn spawn_patiently(&'static self, index: usize, start: &Start) -> Result<u32, rustix::io::Errno> {
        let patience = if self.fork.is_restart() { Duration::from_secs(10) } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            match self.spawn(index, start) {
                Err(rustix::io::Errno::AGAIN) if since.elapsed() < patience => {
                    futex::wait(&self.wakeups.never, 0, Some(1_000_000));
                }
                done => return done,
            }
        }
    }

    /// What most threads are given: their `arg` is the engine's address.
    pub fn address(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether memory is managed.
    pub fn is_active(&self) -> bool {
        self.stage.active.load(Ordering::SeqCst)
    }

    /// Whether something in `[start, end)` (bytes) is managed.
    pub(crate) fn is_known(&self, start: usize, end: usize) -> bool {
        lock(&self.memory.managed).meets(Vpn::of(start), Vpn::of(end))
    }

    /// Wakes the pager from its sleep.
    pub fn kick_pager(&self) {
        let fd = self.wakeups.kick_fd.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: the eventfd stays open as long as an engine thread runs that kicks (see `pager`, `monitor`).
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Wakes the thread that takes the notes.
    pub(crate) fn ring(&self) {
        const DONTNEED: usize = 4;
        if self.is_active() {
            // The eventfd of the pager is in a descriptor table that program threads do not have. A change of
            // registered memory is news for the pager too; there is never a page at this address.
            let doorbell = self.arena.doorbell;
            // SAFETY: discards nothing.
            let _ = unsafe { syscall(nr::MADVISE, [doorbell.base, PAGE_SIZE, DONTNEED, 0, 0, 0]) };
        } else {
            self.wakeups.monitor.fetch_add(1, Ordering::SeqCst);
            futex::wake_one(&self.wakeups.monitor);
        }
    }

    /// Wakes the monitor, wherever it waits.
    pub(crate) fn ring_monitor(&self) {
        self.fork.gates.ring();
        self.wakeups.monitor.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.wakeups.monitor);
        if self.fork.child.is_late.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Wakes the writer.
    pub fn wake_writer(&self) {
        self.wakeups.writer.fetch_add(1, Ordering::Release);
        futex::wake_one(&self.wakeups.writer);
    }

    /// What there is of room and frames, and what there should be: what may be taken from the kernel is as good as a
    /// frame that can be given back to it. Takes the frames' lock.
    pub fn level(&self) -> Level {
        let room = self.budget.room();
        self.budget.watermarks().at(room, self.frames.worthless_count() + room.max(0) as usize)
    }

    /// A record is made of what the program touches ([`crate::pager::trace`]).
    pub fn records(&self) -> bool {
        self.conf.trace.is_some()
    }

    /// The swap cache, as it is and as it should be.
    pub fn swap_cache(&self) -> SwapCache {
        let most = self.frames.len() / 8 * 5;
        let most = if self.records() { most } else { most.min(self.budget.movable() as usize / STAGE_PART as usize) };
        let lru = lock(&self.lru);
        SwapCache { cached: lru.cached_len(), target: lru.cached_target(most), is_behind: lru.is_behind() }
    }

    /// Never takes out the pages of the thread control block at `block` (an address in it, as `pthread_t` is, or the
    /// head of the thread's robust list). Engine threads only.
    pub fn pin_thread(&self, block: usize) {
        lock(&self.memory.pinned).extend(block_pages(block));
    }

    /// Frees a slot, if there is one.
    pub fn free_entry(&self, entry: Option<farpage_device::Entry>) {
        if let Some(e) = entry {
            self.space.free(e);
        }
    }

    /// Has the writer free these slots when it comes to it; `entries` is empty afterwards.
    pub fn free_later(&self, entries: &mut Vec<farpage_device::Entry>) {
        if !entries.is_empty() {
            lock(&self.slots.pending_frees).append(entries);
            self.wake_writer();
        }
    }

    /// Frees up to `max` of the slots that [`Engine::free_later`] was given; how many.
    pub fn free_pending(&self, max: usize) -> usize {
        let mut freed = 0;
        while freed < max {
            // One at a time: the pager must not wait for the lock while a device frees.
            let Some(entry) = lock(&self.slots.pending_frees).pop() else { break };
            self.space.free(entry);
            freed += 1;
        }
        if freed > 0 {
            self.account_pool();
        }
        freed
    }

    /// The devices are full: has the pager free slots of which the page is in the program, too. False: there are none.
    pub fn want_slots_reclaimed(&self) -> bool {
        self.slots.clean.note_full();
        let any = self.table.copies() > 0;
        if any && !self.wakeups.slots_wanted.swap(true, Ordering::AcqRel) {
            self.kick_pager();
        }
        any
    }

    /// Brings the pool's size into the budget.
    pub fn account_pool(&self) {
        let bytes = self.space.pool_bytes() + self.space.shared_bytes();
        self.budget.pool_is((bytes / PAGE_SIZE as u64) as i64);
    }

    /// Says once that memory can no longer be swapped out.
    pub fn warn_full(&self) {
        let text = match (was_refused(), self.space.without_directory()) {
            (true, _) => {
                "a limit on address space or data (ulimit -v, -d; setrlimit) leaves farpage no room for more pages: \
                     the program goes on above its budget; --ram limits its memory without one"
            }
            (false, true) => {
                "a forked child has no swap file, because the program has left the directory for it (by chroot, or as \
                     another user), and other swap devices are full: it goes on above its budget; --swap zram, or a \
                     larger --ram, gives it more"
            }
            (false, false) => {
                "all swap devices are full: the program goes on above its budget; give it more with --swap"
            }
        };
        warn_once_in_tree(WarningKind::Full, text);
    }

    /// Refreshes the levels of the statistics page. `rss` is the last sample, pages.
    pub fn publish_levels(&self, rss: i64) {
        let page = PAGE_SIZE as u64;
        let s = self.stat;
        let set = |level: &AtomicU64, v: u64| level.store(v, Ordering::Relaxed);
        let rss = rss.max(0) as u64 * page;
        set(&s.rss_anon_bytes, rss);
        s.rss_anon_peak_bytes.fetch_max(rss, Ordering::Relaxed);
        let most = self.most_bytes();
        set(&s.budget_bytes, most);
        if rss > most + most / 20 {
            Stat::add(&s.over_budget_samples, 1);
        }
        self.controls.publish(&s.tuning, &s.tuning_held);
        if !self.stage.active.load(Ordering::Relaxed) {
            return;
        }
        set(&s.active, 1);
        let (active, hot, cached) = {
            let lru = lock(&self.lru);
            self.controls.value_for(Controller::Stage, lru.set.stage_parts().into());
            (u64::from(lru.set.mapped()), u64::from(lru.set.hot()), u64::from(lru.set.cached() + lru.set.ahead()))
        };
        set(&s.resident_bytes, active * page);
        set(&s.hot_bytes, hot * page);
        set(&s.cached_bytes, cached * page);
        set(&s.free_frames_bytes, self.frames.worthless_count() as u64 * page);
        set(&s.unmanaged_bytes, self.budget.unmanaged() as u64 * page);
        set(&s.managed_bytes, lock(&self.memory.managed).pages() * page);
        let meta = self.meta_bytes();
        set(&s.meta_bytes, meta);
        let meta = meta.saturating_sub(self.left_in_heap as u64);
        if meta > most / META_PART && !warn_once::is_said(WarningKind::SpreadThin) {
            let (meta, of) = (farpage_ipc::conf::size::format(meta), farpage_ipc::conf::size::format(most));
            let text = format!(
                "the program's memory is spread thin: tables take {meta} of the budget of {of}; a larger --ram \
                 leaves more for it"
            );
            warn_once_in_tree(WarningKind::SpreadThin, &text);
        }
        set(&s.swapped_bytes, self.table.swapped_pages() * page);
        self.space.usage().publish(s);
        self.controls.value_for(Controller::Margin, self.budget.margin().max(0) as u64);
        if let Some(pays) = self.space.promotion_pays() {
            self.controls.decide(Controller::Promotion, pays);
        }
    }

    fn meta_bytes(&self) -> u64 {
        (self.table.bytes() + self.heap.used_bytes()) as u64
    }

    /// Pages that the engine needs when all others are out: tables, and compressed pages where they cannot go on. Of
    /// these, others pay for the same part as of all that the process has.
    pub(crate) fn engine_pages(&self) -> i64 {
        let (page, s) = (PAGE_SIZE as u64, self.stat);
        let load = |level: &AtomicU64| level.load(Ordering::Relaxed);
        let in_program = load(&s.resident_bytes) + load(&s.cached_bytes);
        let all = (in_program + load(&s.pool_bytes)) / page;
        let own = all.saturating_sub(self.budget.shared().max(0) as u64);
        let held = load(&s.pool_orig_bytes) + load(&s.same_filled_pages) * page;
        // Not what cannot leave, and of some there are copies already.
        let more = in_program.saturating_sub(self.budget.stuck().max(0) as u64 * page);
        let more = more.min((in_program + load(&s.swapped_bytes)).saturating_sub(held));
        let pool = self.space.least_budget(held, more) / page * own / all.max(1);
        (pool + (self.meta_bytes() + self.space.shared_bytes()) / page) as i64
    }

    /// The most that this process may have, whatever its tree has.
    pub(crate) fn most_pages(&self) -> i64 {
        let alone = self.conf.ram / PAGE_SIZE as u64;
        tree::segment().map_or(alone, Segment::most_of_one) as i64
    }

    /// The same in bytes: what is told of the budget, which `farpage set` may have changed since the start.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_pages() as u64 * PAGE_SIZE as u64
    }
}

/// A state in which the engine cannot go on: says so and ends the process.
pub fn give_up(what: &str, error: impl Into<ErrnoText>) -> ! {
    fatal(&format!("{what}: {}", error.into()))
}
