//! An allocator for libraries that let their user choose one, as numpy does: large blocks are regions.
//!
//! The functions have the shape that such libraries ask for (numpy's NEP 49: a context first, and a size for `free`).
//! A program that makes and frees blocks of one size all the time, as arithmetic on arrays does, would pay for a new
//! region and for a fault on each of its pages every time. So the last ones that were freed are kept as they are, up to
//! a sixteenth of the budget, and the next block of the same size is one of them.
//!
//! Which blocks are regions is kept in one table. Its lock is a leaf: nothing is called under it but the engine's heap.
//! It is held during forks, so that a child can use it.

use crate::pager::fp_pager;
use crate::status::{fail, fp_status, fp_status::*, of};
use engine::PAGE_SIZE;
use engine::region::{Pager, Region};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Blocks of memory: large ones are regions of a pager, small ones the program's malloc's.
pub struct fp_allocator {
    /// Blocks of so many bytes and more are regions.
    min_bytes: usize,
}

/// All allocators and their blocks. One lock, so that forks have one to hold.
static TABLE: Mutex<Option<Table>> = Mutex::new(None);

#[derive(Default)]
struct Table {
    /// What allocators have, by the allocator's address, until fp_allocator_free.
    sources: HashMap<usize, Source>,
    /// The blocks that are regions, by their address.
    blocks: HashMap<usize, Block>,
}

/// Where an allocator's blocks come from.
struct Source {
    pager: Pager,
    /// Blocks that were freed, the last one at the end. Their content is of no worth, and not zero.
    spares: VecDeque<Region>,
    spare_bytes: usize,
    /// Most bytes of them.
    spare_max: usize,
}

struct Block {
    /// The memory; goes with this.
    region: Region,
    /// As many as were asked for.
    bytes: usize,
    /// The allocator's address.
    source: usize,
}

/// Of the budget, what freed blocks may hold.
const SPARE_PART: u64 = 16;

thread_local! {
    /// The table's lock, of a thread that forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Option<Table>>>> = const { RefCell::new(None) };
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with the table.
fn with<T>(what: impl FnOnce(&mut Table) -> T) -> T {
    what(lock().get_or_insert_default())
}

extern "C" fn before_fork() {
    let guard = lock();
    // A thread that ends has no place for it, and forks without.
    let _ = FORKING.try_with(|place| *place.borrow_mut() = Some(guard));
}

extern "C" fn after_fork() {
    let _ = FORKING.try_with(|place| place.borrow_mut().take());
}

/// Makes an allocator: blocks of `min_bytes` bytes and more become regions of `pager`. *allocator: the new one, to be
/// given to fp_allocator_free; NULL on failure.
///
/// FP_ERR_NULL, FP_ERR_OS.
///
/// Requires: `pager` is NULL or a living pager; `allocator` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_allocator_new(
    pager: *const fp_pager,
    min_bytes: usize,
    allocator: *mut *mut fp_allocator,
) -> fp_status {
    static FORKS: OnceLock<c_int> = OnceLock::new();
    // SAFETY: caller's promise.
    let (Some(pager), false) = (unsafe { pager.as_ref() }, allocator.is_null()) else {
        return fail(FP_ERR_NULL, "fp_allocator_new: pager or allocator is NULL");
    };
    // SAFETY: the functions are there as long as the process; libfarpage.so is never unloaded (a pager has threads).
    let followed =
        FORKS.get_or_init(|| unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) });
    if *followed != 0 {
        return fail(FP_ERR_OS, "cannot follow forks: out of memory");
    }
    let new = Box::into_raw(Box::new(fp_allocator { min_bytes: min_bytes.max(1) }));
    let budget = pager.pager.stats().map_or(0, |stats| stats.budget_bytes);
    let spare_max = usize::try_from(budget / SPARE_PART).unwrap_or(0);
    let source = Source { pager: pager.pager.clone(), spares: VecDeque::new(), spare_bytes: 0, spare_max };
    with(|table| table.sources.insert(new as usize, source));
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { allocator.write(new) };
    FP_OK
}

/// Ends an allocator: it makes no regions any more, all its later blocks are malloc's. Those that it has made stay
/// usable, and can be given to its functions for ever; the pager stays as long as there are any. NULL: nothing happens.
///
/// Requires: `allocator` is NULL or from `fp_allocator_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_allocator_free(allocator: *mut fp_allocator) {
    // Its one word is not freed: its blocks name it when they go. The pager goes here, without the
    // lock.
    drop(with(|table| table.sources.remove(&(allocator as usize))));
}

/// A block of `bytes` bytes; NULL if there is none: fp_last_error says why. Any thread.
///
/// Requires: `context` is a fp_allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_malloc(context: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    match unsafe { large(context, bytes, false) } {
        Some(block) => block,
        // SAFETY: no conditions.
        None => unsafe { libc::malloc(bytes) },
    }
}

/// The same for `count` times `bytes` bytes, all zero.
///
/// Requires: `context` is a fp_allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_calloc(context: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    // A product that is too large is malloc's matter, which refuses it.
    let all = count.checked_mul(bytes).unwrap_or(0);
    // SAFETY: caller's promise.
    match unsafe { large(context, all, true) } {
        Some(block) => block,
        // SAFETY: no conditions.
        None => unsafe { libc::calloc(count, bytes) },
    }
}

/// A block of `bytes` bytes that begins with what `block` has, which is freed; NULL if there is none, and `block`
/// stays.
///
/// Requires: `context` is a fp_allocator; `block` is NULL or one of its blocks, or of malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_realloc(context: *mut c_void, block: *mut c_void, bytes: usize) -> *mut c_void {
    let old = region_bytes(block);
    // SAFETY: caller's promise.
    let Some(new) = (unsafe { large(context, bytes, false) }) else {
        let Some(old) = old else {
            // SAFETY: NULL or malloc's, as it is no region.
            return unsafe { libc::realloc(block, bytes) };
        };
        // SAFETY: no conditions.
        let new = unsafe { libc::malloc(bytes.max(1)) };
        // SAFETY: as below.
        return unsafe { moved(context, block, old.min(bytes), new) };
    };
    // SAFETY: NULL or malloc's, as it is no region.
    let old = old.unwrap_or_else(|| if block.is_null() { 0 } else { unsafe { libc::malloc_usable_size(block) } });
    // SAFETY: both have so many bytes; the new one is NULL, or no part of the old one.
    unsafe { moved(context, block, old.min(bytes), new) }
}

/// Gives a block back. NULL: nothing happens. The size is not looked at. The last blocks that were given back, up to a
/// sixteenth of the budget that the pager had when the allocator was made, are kept for later ones of the same size.
///
/// Requires: `context` is a fp_allocator; `block` is NULL or one of its blocks, or of malloc, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_free(context: *mut c_void, block: *mut c_void, bytes: usize) {
    let _for_the_shape = (context, bytes);
    if may_be_region(block) {
        let gone = with(|table| {
            let block = table.blocks.remove(&(block as usize))?;
            Some(match table.sources.get_mut(&block.source) {
                Some(source) => source.keep(block.region),
                None => vec![block.region],
            })
        });
        if gone.is_some() {
            return; // regions that are not kept go here, without the lock
        }
    }
    // SAFETY: NULL or malloc's, as it is no region.
    unsafe { libc::free(block) }
}

impl Source {
    /// Keeps a freed region; those that go instead.
    fn keep(&mut self, region: Region) -> Vec<Region> {
        // A forked child that has not the pager's regions can only let go of them.
        if region.len() > self.spare_max || !self.pager.is_here() {
            return vec![region];
        }
        self.spare_bytes += region.len();
        self.spares.push_back(region);
        let mut gone = Vec::new();
        while self.spare_bytes > self.spare_max {
            let Some(oldest) = self.spares.pop_front() else { break };
            self.spare_bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }

    /// A freed region of so many bytes.
    fn take(&mut self, bytes: usize) -> Option<Region> {
        let at = self.spares.iter().rposition(|spare| spare.len() == bytes).filter(|_| self.pager.is_here())?;
        self.spare_bytes -= bytes;
        self.spares.remove(at)
    }
}

/// Regions begin at a page; malloc's blocks hardly ever do.
fn may_be_region(block: *mut c_void) -> bool {
    !block.is_null() && (block as usize).is_multiple_of(PAGE_SIZE)
}

/// The bytes that were asked for, of a block that is a region.
fn region_bytes(block: *mut c_void) -> Option<usize> {
    if !may_be_region(block) {
        return None;
    }
    with(|table| table.blocks.get(&(block as usize)).map(|block| block.bytes))
}

/// A region as a block (NULL if there can be none); None if a block of this size is malloc's. `zeros`: it must be zero.
///
/// # Safety
/// `context` is a fp_allocator.
unsafe fn large(context: *mut c_void, bytes: usize, zeros: bool) -> Option<*mut c_void> {
    // SAFETY: caller's promise.
    let allocator = unsafe { &*context.cast::<fp_allocator>() };
    if bytes < allocator.min_bytes {
        return None;
    }
    let source = context as usize;
    let (pager, spare) = with(|table| {
        let source = table.sources.get_mut(&source)?;
        Some((source.pager.clone(), (!zeros).then(|| source.take(bytes)).flatten()))
    })?;
    match spare.map_or_else(|| pager.region(bytes), Ok) {
        Ok(mut region) => {
            let data = region.as_mut_ptr();
            with(|table| table.blocks.insert(data as usize, Block { region, bytes, source }));
            Some(data.cast())
        }
        Err(error) => {
            of(&error);
            Some(std::ptr::null_mut())
        }
    }
}

/// Copies the first `bytes` of a block to a new one and frees it; nothing if the new one is NULL.
///
/// # Safety
/// Both have so many bytes and do not overlap; the old one may be freed.
unsafe fn moved(context: *mut c_void, old: *mut c_void, bytes: usize, new: *mut c_void) -> *mut c_void {
    if !new.is_null() && !old.is_null() {
        // SAFETY: caller's promise.
        unsafe {
            new.cast::<u8>().copy_from_nonoverlapping(old.cast(), bytes);
            fp_free(context, old, bytes);
        }
    }
    new
}
