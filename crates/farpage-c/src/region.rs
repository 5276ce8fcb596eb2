//! Regions: memory, advice, pins, and what a SIGBUS handler of the program calls.

use crate::pager::fp_pager;
use crate::status::{done, fail, fp_status, fp_status::*, of};
use engine::region::{Advice, Pin, Region, signal};
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Memory of a pager.
pub struct fp_region {
    region: Region,
    data: *mut c_void,
    len: usize,
}

/// A range that is kept resident.
pub struct fp_pin {
    _pin: Pin,
}

/// How a range will be used.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum fp_advice {
    /// Nothing is known: farpage looks at the faults.
    FP_NORMAL = 0,
    /// In ascending order: read ahead at once.
    FP_SEQUENTIAL = 1,
    /// In no order: do not read ahead.
    FP_RANDOM = 2,
    /// Soon: brought in now, as fp_region_prefetch.
    FP_WILLNEED = 3,
    /// Not any more: the content is dropped, and reads as zeros. Whole pages inside of the range only, and not those
    /// that are pinned.
    FP_DONTNEED = 4,
}

/// New memory of `bytes` bytes, all zero. *region: the new region, to be given to fp_region_free; NULL on failure.
///
/// FP_ERR_NULL, FP_ERR_ZERO_SIZE, FP_ERR_TOO_LARGE, FP_ERR_FORKED, FP_ERR_OS (no memory, too many mappings).
///
/// Requires: `pager` is NULL or a living pager; `region` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_new(pager: *const fp_pager, bytes: usize, region: *mut *mut fp_region) -> fp_status {
    // SAFETY: caller's promise.
    let (Some(pager), false) = (unsafe { pager.as_ref() }, region.is_null()) else {
        return fail(FP_ERR_NULL, "fp_region_new: pager or region is NULL");
    };
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { region.write(std::ptr::null_mut()) };
    match pager.pager.region(bytes) {
        Ok(mut new) => {
            let data = new.as_mut_ptr().cast();
            let new = fp_region { region: new, data, len: bytes };
            // SAFETY: as above.
            unsafe { region.write(Box::into_raw(Box::new(new))) };
            FP_OK
        }
        Err(error) => of(&error),
    }
}

/// Gives a region back: its content is lost. No thread may use its memory any more: one that does ends the process with
/// SIGSEGV or SIGBUS, as after munmap. The memory stays while parts of it are pinned. NULL: nothing happens.
///
/// Requires: `region` is NULL or from `fp_region_new`, not freed before, and not in use by another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_free(region: *mut fp_region) {
    if !region.is_null() {
        // SAFETY: made by fp_region_new (caller's promise).
        drop(unsafe { Box::from_raw(region) });
    }
}

/// The region's first byte, at a page boundary; NULL for NULL. The memory can be read and written like any other,
/// except by system calls in FP_FAULT_SIGNAL, see fp_region_pin.
///
/// Requires: `region` is NULL or a living region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_data(region: *const fp_region) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { region.as_ref() }.map_or(std::ptr::null_mut(), |r| r.data)
}

/// Bytes of the region; 0 for NULL.
///
/// Requires: `region` is NULL or a living region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_size(region: *const fp_region) -> usize {
    // SAFETY: caller's promise.
    unsafe { region.as_ref() }.map_or(0, |r| r.len)
}

/// Advice (a fp_advice) on `len` bytes from `offset` on. Any thread.
///
/// FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_ADVICE, FP_ERR_FORKED, FP_ERR_UNREADABLE (FP_WILLNEED only).
///
/// Requires: `region` is NULL or a living region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_advise(
    region: *const fp_region,
    offset: usize,
    len: usize,
    advice: c_int,
) -> fp_status {
    let known = [
        (fp_advice::FP_NORMAL, Advice::Normal),
        (fp_advice::FP_SEQUENTIAL, Advice::Sequential),
        (fp_advice::FP_RANDOM, Advice::Random),
        (fp_advice::FP_WILLNEED, Advice::WillNeed),
        (fp_advice::FP_DONTNEED, Advice::DontNeed),
    ];
    let Some((_, advice)) = known.into_iter().find(|(code, _)| *code as c_int == advice) else {
        return fail(FP_ERR_ADVICE, &format!("fp_region_advise: there is no advice {advice}"));
    };
    // SAFETY: caller's promise.
    match unsafe { range(region, offset, len) } {
        Ok((region, range)) => done(region.advise(range, advice)),
        Err(status) => status,
    }
}

/// Brings `len` bytes from `offset` on in, as far as the budget allows, before it returns. Any thread.
///
/// FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_FORKED, FP_ERR_UNREADABLE.
///
/// Requires: `region` is NULL or a living region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_prefetch(region: *const fp_region, offset: usize, len: usize) -> fp_status {
    // SAFETY: caller's promise.
    match unsafe { range(region, offset, len) } {
        Ok((region, range)) => done(region.prefetch(range)),
        Err(status) => status,
    }
}

/// Makes `len` bytes from `offset` on resident, and keeps them so until fp_unpin. System calls work on pinned memory;
/// in FP_FAULT_SIGNAL they fail with EFAULT on memory that is not present, because the kernel cannot run the handler in
/// the middle of a call. *pin: to be given to fp_unpin; NULL on failure, and nothing is pinned then. Any thread.
///
/// FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_PIN_LIMIT, FP_ERR_FORKED, FP_ERR_UNREADABLE, FP_ERR_OS (the kernel does not make
/// it writable).
///
/// Requires: `region` is NULL or a living region; `pin` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_region_pin(
    region: *const fp_region,
    offset: usize,
    len: usize,
    pin: *mut *mut fp_pin,
) -> fp_status {
    if pin.is_null() {
        return fail(FP_ERR_NULL, "fp_region_pin: pin is NULL");
    }
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { pin.write(std::ptr::null_mut()) };
    // SAFETY: caller's promise.
    let (region, range) = match unsafe { range(region, offset, len) } {
        Ok(both) => both,
        Err(status) => return status,
    };
    match region.pin(range) {
        Ok(new) => {
            // SAFETY: as above.
            unsafe { pin.write(Box::into_raw(Box::new(fp_pin { _pin: new }))) };
            FP_OK
        }
        Err(error) => of(&error),
    }
}

/// Ends a pin. A region that was freed meanwhile goes with its last pin. NULL: nothing happens. Any thread.
///
/// Requires: `pin` is NULL or from `fp_region_pin`, not ended before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_unpin(pin: *mut fp_pin) {
    if !pin.is_null() {
        // SAFETY: made by fp_region_pin (caller's promise).
        drop(unsafe { Box::from_raw(pin) });
    }
}

/// For programs that install a SIGBUS handler after the first pager was made, without system_calls of fp_config: serves
/// the fault, if it is one of a region; then the handler returns. false: it is not, and is the program's own. info and
/// context: the handler's own arguments (siginfo_t *, ucontext_t *; SA_SIGINFO). The handler must block all signals
/// whose handlers touch regions, and must not have SA_ONSTACK unless that stack has 64 KiB. Async-signal-safe.
///
/// Requires: `info` and `context` are NULL or what the kernel gave to a SIGBUS handler that is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_handle_sigbus(info: *mut c_void, context: *mut c_void) -> bool {
    // SAFETY: caller's promise.
    !info.is_null() && !context.is_null() && unsafe { signal::handle(info.cast(), context) }
}

/// Requires: `region` is NULL or a living region; it lives as long as the result is used.
unsafe fn range<'a>(
    region: *const fp_region,
    offset: usize,
    len: usize,
) -> Result<(&'a Region, Range<usize>), fp_status> {
    // SAFETY: caller's promise.
    let Some(region) = (unsafe { region.as_ref() }) else {
        return Err(fail(FP_ERR_NULL, "region is NULL"));
    };
    match offset.checked_add(len) {
        Some(end) => Ok((&region.region, offset..end)),
        None => {
            let message = format!("{len} bytes from {offset} on do not lie in a region of {} bytes", region.len);
            Err(fail(FP_ERR_RANGE, &message))
        }
    }
}
