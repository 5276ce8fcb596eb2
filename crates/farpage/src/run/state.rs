//! One process's engine: what its threads share, how it starts (when: [`crate::run::dormant`]), how it becomes active.
//!
//! | thread | does | may touch |
//! | --- | --- | --- |
//! | monitor | makes the engine; samples resident memory, activates, finds new mappings | never the program's memory |
//! | pager | reads userfaultfd; the *only* one that changes the program's address space | words, both lists |
//! | writer | hashes, compresses and stores cached pages | frames, words by compare-and-swap |
//! | reader | decompresses windows before the program comes to them; started when first wanted | frames of those windows |
//! | opener | opens perf's events at the start, and ends | nothing |
//!
//! Why one pager: events (munmap, mremap, madvise) must be applied before a fault that was read with them, and a page
//! must not be moved between an event's reading and its application. One thread has that by construction.
//!
//! Lock order: `managed`, `lru`, frame pool, devices; heap innermost. No lock is held while the program's memory is
//! touched or a device waits (the devices' own rules: [`crate::swap`]).

use crate::PAGE_SIZE;
use crate::conf::Conf;
use crate::mem::arena::Arena;
use crate::mem::frame::Frames;
use crate::mem::heap::Heap;
use crate::mm::page_hash::ContentKey;
use crate::mm::pool_share::{LoadTimes, PoolShare};
use crate::run::budget::Budget;
use crate::run::budget::charge::Charges;
use crate::run::dormant::{CHARGES, Plan};
use crate::run::fork::Fork;
use crate::run::lru::Lru;
use crate::run::mappings::managed_cache::Recent;
use crate::run::mappings::notice_ring::Notes;
use crate::run::page_table::{PageTable, TABLE_BYTES, Vpn};
use crate::run::pager::readahead::SlotPages;
use crate::run::privileges::Following;
use crate::run::threads::decompressor::Reader;
use crate::run::told::{self, Kind, warn_once_in_tree};
use crate::stat::{Stat, StatPage};
use crate::swap::space::SwapSpace;
use crate::sys::futex;
use crate::sys::perf::MappingEvents;
use crate::sys::raw::{ErrnoText, fatal, gettid};
use crate::sys::thread::{STACK_BYTES, Stack, Start, spawn};
use crate::sys::uffd::Uffd;
use farpage_swap::range::RangeSet;
use rustix::fd::BorrowedFd;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks a mutex; a panic elsewhere does not matter, because a panic ends the process.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    /// The pager waits for frames: whoever frees some kicks it.
    pub pager_waits: AtomicBool,
    /// Counts requests to the writer.
    pub writer: AtomicU32,
    /// The writer's thread id, 0 before it runs.
    pub writer_tid: AtomicU32,
    /// Counts requests to the monitor.
    pub monitor: AtomicU32,
    /// Counts the monitor's looks before activation; 0: it has not begun.
    pub monitor_looks: AtomicU32,
    /// Nobody wakes this word: to wait for it is to sleep.
    pub never: AtomicU32,
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
    /// Per frame in use: the slot that may hold the same bytes (raw entry, 0: none). Belongs to whoever owns the frame.
    pub frame_entry: Box<[AtomicU64]>,
    /// The lists.
    pub lru: Mutex<Lru>,
    /// The page of each slot, where pages are read ahead in slot order.
    pub slot_pages: Option<SlotPages>,
    /// Swap devices.
    pub space: SwapSpace,
    /// Slots of pages that the program discarded, to be freed.
    pub dead: Mutex<Vec<crate::swap::Entry>>,
    /// Pages allowed and had.
    pub budget: Budget,
    /// Hash key.
    pub key: ContentKey,
    /// Counters.
    pub stat: &'static Stat,
    /// The heap, for its size.
    heap: &'static Heap,
    /// Address ranges never adopted (bytes): memory the engine's own code uses.
    pub exclude: Vec<(usize, usize)>,
    /// Pages registered with the pager's userfaultfd.
    pub managed: Mutex<RangeSet>,
    /// Ranges (bytes) that the monitor found and the pager shall register.
    pub candidates: Mutex<Vec<(usize, usize)>>,
    /// What program threads tell.
    pub notes: Notes,
    /// What they need not tell.
    pub recent: Recent,
    /// What they were given since somebody looked.
    pub charges: &'static Charges,
    /// The program has asked for memory that its children have without content.
    pub wipes: AtomicBool,
    /// Address of the page in which the first thread's stack began; that and what is above stays. 0: not known.
    pub stack_top: AtomicUsize,
    /// Threads that the program has started, before activation.
    pub started: AtomicUsize,
    /// The kernel's news of mappings, on their way to the pager ([`crate::run::mappings::discovery`]).
    pub events: AtomicPtr<MappingEvents>,
    /// Pages never taken out: thread control blocks, also of threads that have ended and whose stacks libc keeps (it
    /// touches them in a forked child before anybody else runs).
    pub pinned: Mutex<BTreeSet<Vpn>>,
    /// Pages that could not be read back and are marked so in the kernel: no zeros may be put there ([`crate::run::pager::poison`]).
    pub lost: Mutex<BTreeSet<Vpn>>,
    /// The userfaultfd of the trash part; also the lock of that part.
    pub trash: Mutex<Option<Uffd>>,
    /// Windows that are decompressed in advance.
    pub reader: Reader,
    /// Threads sleep and wake here.
    pub wakeups: Wakeups,
    /// What they hold.
    pub following: Following,
    /// Fork protocol.
    pub fork: Fork,
    /// Memory is managed from now on.
    pub active: AtomicBool,
    /// ... or never ([`crate::run::mappings::let_go`]).
    pub(crate) alone: AtomicBool,
    /// It cannot be managed here.
    pub(crate) hopeless: AtomicBool,
    /// The monitor has ended, or is to, because memory is not managed yet ([`Engine::retire`]).
    pub(crate) retired: AtomicBool,
    /// What a load takes.
    pub load_times: LoadTimes,
    /// Whether keeping clean copies pays.
    pub clean: crate::run::pager::reclaim::CleanBalance,
    /// Slots are to be freed whose pages are in the program, too.
    pub copies_wanted: AtomicBool,
    /// See [`Engine::device`].
    pub(crate) uffd_device: AtomicI32,
}

/// Tables that take more than this part of the budget are worth a word.
const META_PART: u64 = 4;
const HEAP_BYTES: usize = 4 << 30;
const POOL_BYTES_MAX: usize = 64 << 30;
/// Frames hold what has just been taken out; more than this is never needed at once.
const FRAMES_BYTES_MAX: usize = 64 << 30;
/// Stacks, by index: monitor, pager, writer, opener, reader.
pub(crate) const STACKS: usize = 5;
/// Index of the monitor's stack.
pub const MONITOR: usize = 0;
/// Index of the pager's stack.
pub const PAGER: usize = 1;
/// Index of the writer's stack.
pub const WRITER: usize = 2;
/// Index of the opener's stack.
pub const OPENER: usize = 3;
/// Index of the reader's stack.
pub const READER: usize = 4;

/// Bytes of the arena's parts for a budget of `ram` bytes: heap, page table, pool, stacks, frames.
pub(crate) fn arena_sizes(ram: u64) -> [usize; 5] {
    let ram = ram as usize;
    let frames = (ram / 4).clamp(2048 * PAGE_SIZE, FRAMES_BYTES_MAX);
    let stacks = STACKS * (STACK_LEN + PAGE_SIZE);
    [HEAP_BYTES, TABLE_BYTES, (ram + ram / 4).min(POOL_BYTES_MAX), stacks, frames]
}

/// Bytes of address space that an engine with a budget of `ram` bytes reserves: with a lower limit on it (`RLIMIT_AS`) none
/// can start. Hardly any of it is ever touched.
pub fn address_space_bytes(ram: u64) -> u64 {
    Arena::bytes(arena_sizes(ram)) as u64
}

/// Bytes of memory that can be written at the start of an engine with a budget of `ram` bytes: with less commit left, or a lower
/// limit on data (`RLIMIT_DATA`), none can start. What the engine keeps of pages that are out is opened later.
pub fn commit_bytes(ram: u64) -> u64 {
    let [.., stacks, frames] = arena_sizes(ram);
    (stacks + frames + 8 * crate::mem::open::STEP) as u64
}

/// Bytes of an engine thread's memory.
const STACK_LEN: usize = STACK_BYTES + PAGE_SIZE;

/// Memory of the engine thread with this index.
fn stack(arena: &Arena, index: usize) -> Stack {
    Stack { base: arena.stacks.base + index * (STACK_LEN + PAGE_SIZE), len: STACK_LEN }
}

/// Starts the engine's first thread, which makes the engine. On a program thread; the new thread has a copy of its descriptors.
///
/// # Errors
/// The errno of clone.
pub(crate) fn spawn_first(plan: &'static Plan, arena: &Arena) -> Result<(), rustix::io::Errno> {
    let arg = std::ptr::from_ref(plan) as usize;
    let name = crate::stat::THREAD_NAME.as_bytes();
    let start = Start { entry: crate::run::threads::monitor::first, arg, name, share_files: false };
    // SAFETY: the monitor's place in the stacks part; there is no other engine in this process. The entry keeps the rules for
    // engine threads.
    unsafe { spawn(stack(arena, 0), &start) }.map(drop)
}

/// This process's engine is shown to the program's threads.
pub(crate) fn show_engine(engine: &'static Engine) {
    ENGINE.store(std::ptr::from_ref(engine).cast_mut(), Ordering::Release);
}

/// In a child: what was the parent's engine is nothing here.
pub(crate) fn forget_engine() {
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
}

impl Engine {
    /// Makes the engine in its arena, as planned. On its first thread.
    ///
    /// # Errors
    /// One line that says what failed and what to do.
    pub(crate) fn build(plan: &'static Plan) -> Result<&'static Engine, String> {
        let arena = crate::run::dormant::arena(plan)?;
        let conf = plan.conf.clone();
        // SAFETY: the part was made for the table and for nobody else; a child's is as fresh, since its parent's engine managed nothing.
        let table = unsafe { PageTable::new(arena.table) };
        let budget = Budget::new(conf.ram.div_ceil(PAGE_SIZE as u64));
        let pool_limit = PoolShare::initial_limit(conf.ram);
        let (space, left_out) = SwapSpace::of_program(&conf, plan.swap(), arena.pool, pool_limit)?;
        left_out.iter().for_each(|why| warn_once_in_tree(Kind::NoDevice, why));
        let key = ContentKey::random();
        space.check_contents(key);
        let frames = Frames::new(arena.frames);
        // SAFETY: all zero bits are such a word. Not written here: a large budget would cost memory that is never used.
        let frame_entry = unsafe { Box::<[AtomicU64]>::new_zeroed_slice(frames.len()).assume_init() };
        let stat = StatPage::of_engine(plan.stat());
        stat.budget_bytes.store(conf.ram, Ordering::Relaxed);
        let engine = Box::new(Engine {
            arena,
            table,
            frames,
            frame_entry,
            slot_pages: SlotPages::new(conf.readahead, space.any_rotational()),
            lru: Mutex::new(Lru::new(budget.promised() as usize)),
            space,
            dead: Mutex::new(Vec::new()),
            budget,
            key,
            stat,
            heap: plan.heap,
            exclude: plan.exclude.clone(),
            managed: Mutex::new(RangeSet::new()),
            candidates: Mutex::new(Vec::new()),
            notes: Notes::default(),
            recent: Recent::default(),
            charges: &CHARGES,
            wipes: AtomicBool::new(false),
            stack_top: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            events: AtomicPtr::new(std::ptr::null_mut()),
            pinned: Mutex::new(BTreeSet::new()),
            lost: Mutex::new(BTreeSet::new()),
            trash: Mutex::new(None),
            reader: Reader::default(),
            wakeups: Wakeups { kick_fd: AtomicI32::new(-1), ..Wakeups::default() },
            following: Following::default(),
            fork: Fork::default(),
            active: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            hopeless: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            load_times: LoadTimes::default(),
            clean: crate::run::pager::reclaim::CleanBalance::default(),
            copies_wanted: AtomicBool::new(false),
            uffd_device: AtomicI32::new(plan.uffd()),
            conf,
        });
        let engine: &'static Engine = Box::leak(engine);
        engine.following.begin(MONITOR);
        engine.fork.settle_here();
        engine.fork.set_monitor(gettid());
        Ok(engine)
    }

    /// In a forked child: starts the first engine thread again, which gets a descriptor table of its own: a copy of the caller's.
    ///
    /// # Errors
    /// One line.
    pub fn spawn_monitor(&'static self) -> Result<(), String> {
        let name = crate::stat::THREAD_NAME.as_bytes();
        self.fork.settle_here();
        let tid = self
            .spawn_patiently(MONITOR, crate::run::threads::monitor::main, name, false)
            .map_err(|e| format!("cannot start an engine thread: {}", ErrnoText::from(e)))?;
        // Known before anybody can fork: a fork fetches descriptors from this thread's table.
        self.fork.set_monitor(tid);
        Ok(())
    }

    /// Starts an engine thread on stack `index`. Except for the monitor's, called on an engine thread, whose descriptor
    /// table is shared.
    ///
    /// # Errors
    /// The errno of clone.
    pub fn spawn(
        &'static self,
        index: usize,
        entry: extern "C" fn(usize) -> !,
        name: &'static [u8],
        share_files: bool,
    ) -> Result<u32, rustix::io::Errno> {
        let stack = stack(&self.arena, index);
        let arg = std::ptr::from_ref(self) as usize;
        self.following.begin(index);
        // SAFETY: each index has memory of its own in the stacks part; a thread that used it before was the parent's
        // and does not exist in this process. The entries keep the rules for engine threads.
        unsafe { spawn(stack, &Start { entry, arg, name, share_files }) }.inspect_err(|_| self.following.end(index))
    }

    /// The same in a forked child: room for its threads was made before ([`crate::run::fork::reserve`]), but others may be quicker, so a
    /// limit that is reached is waited for.
    ///
    /// # Errors
    /// As [`Engine::spawn`].
    pub fn spawn_patiently(
        &'static self,
        index: usize,
        entry: extern "C" fn(usize) -> !,
        name: &'static [u8],
        share_files: bool,
    ) -> Result<u32, rustix::io::Errno> {
        let patience = if self.fork.is_restart() { Duration::from_secs(10) } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            match self.spawn(index, entry, name, share_files) {
                Err(rustix::io::Errno::AGAIN) if since.elapsed() < patience => {
                    futex::wait(&self.wakeups.never, 0, Some(1_000_000));
                }
                done => return done,
            }
        }
    }

    /// Wakes the pager from its sleep.
    pub fn kick_pager(&self) {
        let fd = self.wakeups.kick_fd.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: the eventfd stays open as long as the process; see `pager`.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Wakes the writer.
    pub fn wake_writer(&self) {
        self.wakeups.writer.fetch_add(1, Ordering::Release);
        futex::wake_one(&self.wakeups.writer);
    }

    /// Free frames the writer keeps in store.
    pub fn free_target(&self) -> usize {
        (self.budget.movable() as usize / 128).clamp(64, 1024)
    }

    /// Pages kept in the swap cache under pressure, the second chance: as many as the policy finds worth it, but enough
    /// for the writer's batches, and not more than a sixteenth of the budget: here a minor fault costs the way to the pager
    /// and back, which is most of what a load from the pool costs.
    pub fn cached_target(&self) -> usize {
        let most = (self.frames.len() / 8 * 5).min(self.budget.movable() as usize / 16);
        lock(&self.lru).cached_target(most).clamp(128.min(most), most)
    }

    /// Never takes out the pages of the thread control block at `block` (an address in it, as `pthread_t` is, or the
    /// head of the thread's robust list). Engine threads only.
    pub fn pin_thread(&self, block: usize) {
        let mut pinned = lock(&self.pinned);
        for at in [block.saturating_sub(0x400), block + 0xb00] {
            pinned.insert((at / PAGE_SIZE) as u64);
        }
    }

    /// Frees a slot, if there is one.
    pub fn free_entry(&self, entry: Option<crate::swap::Entry>) {
        if let Some(e) = entry {
            self.space.free(e);
        }
    }

    /// Has the writer free these slots when it comes to it; `entries` is empty afterwards.
    pub fn free_later(&self, entries: &mut Vec<crate::swap::Entry>) {
        if !entries.is_empty() {
            lock(&self.dead).append(entries);
            self.wake_writer();
        }
    }

    /// Frees up to `max` of the slots that [`Engine::free_later`] was given; how many.
    pub fn free_dead(&self, max: usize) -> usize {
        let mut freed = 0;
        while freed < max {
            // One at a time: the pager must not wait for the lock while a device frees.
            let Some(entry) = lock(&self.dead).pop() else { break };
            self.space.free(entry);
            freed += 1;
        }
        if freed > 0 {
            self.account_pool();
        }
        freed
    }

    /// The devices are full: has the pager free slots of which the page is in the program, too. False: there are none.
    pub fn want_copies(&self) -> bool {
        self.clean.note_full();
        let any = self.table.copies() > 0;
        if any && !self.copies_wanted.swap(true, Ordering::AcqRel) {
            self.kick_pager();
        }
        any
    }

    /// Brings the pool's size into the budget.
    pub fn account_pool(&self) {
        self.budget.pool_is((self.space.pool_bytes() / PAGE_SIZE as u64) as i64);
    }

    /// Says once that memory can no longer be swapped out.
    pub fn warn_full(&self) {
        let text = "all swap devices are full: the program goes on above its budget; give it more with --swap";
        warn_once_in_tree(Kind::Full, text);
    }

    /// Refreshes the levels of the statistics page. `rss` is the last sample, pages.
    pub fn publish_levels(&self, rss: i64) {
        let page = PAGE_SIZE as u64;
        let s = self.stat;
        let set = |level: &AtomicU64, v: u64| level.store(v, Ordering::Relaxed);
        let rss = rss.max(0) as u64 * page;
        set(&s.rss_anon_bytes, rss);
        s.rss_anon_peak_bytes.fetch_max(rss, Ordering::Relaxed);
        if rss > self.conf.ram + self.conf.ram / 20 {
            Stat::add(&s.over_budget_samples, 1);
        }
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        set(&s.active, 1);
        let (active, hot, cached) = {
            let lru = lock(&self.lru);
            (lru.active_len() as u64, lru.hot_len() as u64, (lru.cached_len() + lru.ahead_len()) as u64)
        };
        set(&s.resident_bytes, active * page);
        set(&s.hot_bytes, hot * page);
        set(&s.cached_bytes, cached * page);
        set(&s.free_frames_bytes, self.frames.free_count() as u64 * page);
        set(&s.unmanaged_bytes, self.budget.unmanaged() as u64 * page);
        set(&s.managed_bytes, lock(&self.managed).pages() * page);
        let meta = (self.table.bytes() + self.heap.used_bytes()) as u64;
        set(&s.meta_bytes, meta);
        if meta > self.conf.ram / META_PART && !told::is_said(Kind::SpreadThin) {
            let (meta, of) = (crate::conf::size::format(meta), crate::conf::size::format(self.conf.ram));
            let text = format!(
                "the program's memory is spread thin: tables take {meta} of the budget of {of}; a larger --ram leaves more for it"
            );
            warn_once_in_tree(Kind::SpreadThin, &text);
        }
        set(&s.swapped_bytes, self.table.swapped_pages() * page);
        s.publish_usage(&self.space.usage());
    }
}

/// A state in which the engine cannot go on: says so and ends the process.
pub fn give_up(what: &str, error: impl Into<ErrnoText>) -> ! {
    fatal(&format!("{what}: {}", error.into()))
}
