//! Makes the engine of a process in its arena: the only file that knows all of its parts.
//!
//! Caller: [`crate::monitor`], on the engine's first thread. No locks: no other thread has the engine yet.

use crate::budget::share;
use crate::dormant::{CHARGES, StartPlan, arena};
use crate::pager::start::FRAMES_BYTES_MIN;
use crate::shared::board::Board;
use crate::shared::budget::Budget;
use crate::shared::following::Following;
use crate::shared::lru::Lru;
use crate::shared::managed_cache::Recent;
use crate::shared::notice_ring::Notes;
use crate::shared::page_table::{PageTable, TABLE_BYTES};
use crate::shared::protocol::Fork;
use crate::shared::stacks::{MONITOR, STACK_LEN, STACKS};
use crate::shared::start_error::StartError;
use crate::shared::state::{Discovery, Engine, ProgramMemory, Slots, Stage, Wakeups, engine};
use crate::shared::uffd_device;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::mem::arena::DISCARD_AREA_BYTES;
use farpage_base::mem::frame::Frames;
use farpage_base::mem::open::STEP;
use farpage_base::sys::message::{message_fmt, set_last_words};
use farpage_base::sys::raw::gettid;
use farpage_codec::page_hash::ContentKey;
use farpage_device::frame_entries::FrameEntries;
use farpage_device::shared::SharedCopies;
use farpage_device::slot_pages::SlotPages;
use farpage_device::space::SwapSpace;
use farpage_ipc::stat::{Event, Events, StatPage};
use farpage_ipc::tree;
use farpage_swap::PAGE_SIZE;
use farpage_swap::clean_slots::CleanSlotPolicy;
use farpage_swap::pool_share::LoadTimes;
use farpage_swap::tuning::{Controller, Controls};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering};

const HEAP_BYTES: usize = 4 << 30;

const POOL_BYTES_MAX: usize = 64 << 30;

/// Frames hold what has just been taken out; more than this is never needed at once.
const FRAMES_BYTES_MAX: usize = 64 << 30;

const STACK_BYTES: usize = STACKS * (STACK_LEN + PAGE_SIZE);

/// Bytes of the arena's parts for a budget of `ram` bytes: heap, page table, pool, shared pages, stacks, frames.
pub(crate) fn arena_sizes(ram: u64) -> [usize; 6] {
    let shared = SharedCopies::bytes(ram);
    let ram = ram as usize;
    let frames = (ram / 4).clamp(FRAMES_BYTES_MIN, FRAMES_BYTES_MAX) / STEP * STEP;
    [HEAP_BYTES, TABLE_BYTES, (ram + ram / 4).min(POOL_BYTES_MAX), shared, STACK_BYTES, frames]
}

/// Bytes of memory that an engine has mapped when it manages something. With less commit left, or a lower limit on
/// address space or data (`RLIMIT_AS`, `RLIMIT_DATA`), none can start. What it keeps of pages that are out is mapped
/// later.
pub fn start_bytes() -> u64 {
    (STACK_BYTES + DISCARD_AREA_BYTES + FRAMES_BYTES_MIN + 6 * STEP) as u64
}

/// Makes the engine in its arena, as planned. On its first thread.
///
/// # Errors
/// One line that says what failed and what to do.
pub(crate) fn build(plan: &'static StartPlan) -> Result<&'static Engine, StartError> {
    let arena = arena(plan)?;
    let left_in_heap = plan.heap.used_bytes();
    let conf = plan.conf.clone();
    // SAFETY: the part was made for the table alone; a child's is as fresh, since its parent's engine
    // managed nothing.
    let table = unsafe { PageTable::new(arena.table) };
    let controls = Controls::new(conf.tune.clone());
    if tree::is_without_place() {
        tree::joining::fork_child(); // others may have ended since
    }
    let claimed = tree::segment().map(|_| tree::mine().map_or(0, |mine| mine.claim.held()).max(share::FLOOR as u64));
    let mut budget = Budget::new(claimed.unwrap_or(conf.ram.div_ceil(PAGE_SIZE as u64)));
    budget.hold(&controls);
    let mut lru = Lru::new((conf.ram / PAGE_SIZE as u64) as usize);
    if conf.trace.is_some() {
        lru.set.keep_in_turn();
    }
    if let Some(parts) = controls.pinned(Controller::Stage) {
        lru.set.hold_stage(parts as u32);
    }
    let (space, left_out) = SwapSpace::of_program(&conf, plan.swap(), arena.pool, arena.shared)?;
    if let Some(promote) = controls.pinned(Controller::Promotion) {
        space.hold_promotion(promote != 0);
    }
    space.share_sizes(tree::grow_file);
    space.share_areas(tree::export_owners);
    left_out.iter().for_each(|why| warn_once_in_tree(WarningKind::NoDevice, why));
    let key = ContentKey::random();
    space.check_contents(key);
    // SAFETY: as above.
    let frames = unsafe { Frames::closed(arena.frames) };
    let frame_entries = FrameEntries::new(frames.len());
    let stat = StatPage::of_engine(plan.stat());
    set_last_words(say_last_events);
    stat.budget_bytes.store(conf.ram, Ordering::Relaxed); // until the monitor's first look
    let engine = Box::new(Engine {
        arena,
        table,
        frames,
        slots: Slots {
            frame_entries,
            slot_pages: SlotPages::are_wanted(conf.readahead, space.any_rotational()).then(SlotPages::new),
            pending_frees: Mutex::default(),
            key,
            clean: CleanSlotPolicy::default(),
            load_times: LoadTimes::default(),
        },
        lru: Mutex::new(lru),
        space,
        budget,
        stat,
        heap: plan.heap,
        left_in_heap,
        memory: ProgramMemory { exclude: plan.exclude.clone(), ..ProgramMemory::default() },
        discovery: Discovery {
            notes: Notes::default(),
            recent: Recent::default(),
            charges: &CHARGES,
            candidates: Mutex::default(),
            relocated: Mutex::default(),
            left_out: AtomicI64::new(0),
            started: AtomicUsize::new(0),
        },
        discard_area: Mutex::new(None),
        helpers: Board::default(),
        wakeups: Wakeups { kick_fd: AtomicI32::new(-1), ..Wakeups::default() },
        following: Following::default(),
        fork: Fork::default(),
        stage: Stage::default(),
        controls,
        conf,
    });
    let engine: &'static Engine = Box::leak(engine);
    uffd_device::set_number(plan.uffd());
    engine.following.begin(MONITOR);
    engine.fork.own_here();
    engine.fork.set_monitor(gettid());
    Ok(engine)
}

/// Events that [`say_last_events`] has room for.
const LAST_EVENTS: usize = 12;

/// What the engine did last, in one line: for [`fatal`](farpage_base::sys::message::fatal).
pub fn say_last_events() {
    struct LastEvents<'a>(&'a Events);
    impl std::fmt::Display for LastEvents<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let mut result = Ok(());
            self.0.last(LAST_EVENTS, |Event { kind, us, vpn, pages }| {
                let address = vpn << farpage_swap::PAGE_SHIFT;
                result = result.and_then(|()| write!(f, " {us} {} {address:x}+{pages},", kind.name()));
            });
            result
        }
    }
    if let Some(e) = engine() {
        message_fmt(format_args!("last events (time in us, first page, pages):{}", LastEvents(&e.stat.events)));
    }
}
