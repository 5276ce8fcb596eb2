//! Pagers: configuration, making, numbers.

use crate::status::{done, fail, fp_status, fp_status::*, of};
use engine::SwapSpec;
use engine::region::{BUDGET_MIN, FaultMode, Pager, Stats};
use std::ffi::{CStr, c_char};

/// Smallest budget of a pager, bytes.
pub const FP_BUDGET_MIN: u64 = 4 << 20;
const _: () = assert!(FP_BUDGET_MIN == BUDGET_MIN);

/// A RAM budget, swap devices, and the threads that keep regions within it.
pub struct fp_pager {
    pub(crate) pager: Pager,
}

/// What serves a fault.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum fp_fault_mode {
    /// The thread that has it, in a SIGBUS handler: fastest, works without privilege. A system call that is given
    /// memory that is not present fails with EFAULT: see system_calls of fp_config, and fp_region_pin.
    FP_FAULT_SIGNAL = 0,
    /// A thread of the pager: system calls simply work. Needs a full userfaultfd (root, or /dev/userfaultfd).
    FP_FAULT_THREAD = 1,
}

/// How a pager shall be. Set by fp_config_init, then changed as wanted.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fp_config {
    /// sizeof(fp_config) of the program; set by fp_config_init.
    pub size: usize,
    /// RAM for everything: pages of regions, swap cache, compressed pool, tables. Bytes; default 1 GiB.
    pub budget_bytes: u64,
    /// Swap devices in order, separated by ';', as for farpage run --swap: "zram,alg=zstd;file:/var/tmp,size=4G".
    /// NULL: compressed RAM, then a file in /var/tmp.
    pub swap: *const c_char,
    /// A fp_fault_mode; default FP_FAULT_SIGNAL.
    pub fault_mode: u32,
    /// Pages read ahead at most when accesses are in order; 1: none; 0: the default, 128.
    pub readahead_pages: u32,
    /// Threads that take pages out; 0: the default, one per CPU, at most 4.
    pub reclaim_threads: u32,
    /// 1: a child of fork has the pager and a copy of its regions too (not with FP_FAULT_THREAD); its budget is one of
    /// its own. 0, the default: touching a region in a child is a SIGSEGV.
    pub inherit: u32,
    /// 1: the bytes that come back are compared with those that left, by a checksum of each page; a difference ends the
    /// process with a message. 0: the default.
    pub verify: u32,
    /// 1: system calls of libc work on region memory that is not present, with FP_FAULT_SIGNAL too: libc's text is
    /// changed in this process, once, so that its calls are looked at before the kernel sees them. 0, the default: they
    /// fail with EFAULT. Not for what a device does after the call has returned: see fp_region_pin. And libc's calls
    /// neither block SIGBUS nor replace its handler: what the program sets it reads back, and its handler gets what is
    /// no region's.
    pub system_calls: u32,
}

macro_rules! make {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Numbers of a pager. Bytes where the name says so, else pages or counts since it was made.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        pub struct fp_stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl From<&Stats> for fp_stats {
            fn from(stats: &Stats) -> fp_stats {
                fp_stats { $($name: stats.$name,)+ }
            }
        }
    };
}

// The header has it from the same list: see tests/header.rs.
engine::pager_stats!(make);

/// Sets all members to their defaults.
///
/// FP_ERR_NULL: config is NULL.
///
/// Requires: `config` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_config_init(config: *mut fp_config) -> fp_status {
    if config.is_null() {
        return fail(FP_ERR_NULL, "fp_config_init: config is NULL");
    }
    let defaults = fp_config {
        size: size_of::<fp_config>(),
        budget_bytes: 1 << 30,
        swap: std::ptr::null(),
        fault_mode: fp_fault_mode::FP_FAULT_SIGNAL as u32,
        readahead_pages: 0,
        reclaim_threads: 0,
        inherit: 0,
        verify: 0,
        system_calls: 0,
    };
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { config.write(defaults) };
    FP_OK
}

/// Makes a pager and starts its threads. config: how; NULL: the defaults. *pager: the new pager, to be given to
/// fp_pager_free; NULL on failure. A text in config is not used after the call.
///
/// The first pager with FP_FAULT_SIGNAL installs a SIGBUS handler for the process; SIGBUS of others goes on to the
/// program's handler. Threads that touch regions need some KiB of stack, and must not block SIGBUS, to which
/// system_calls of fp_config sees.
///
/// FP_ERR_NULL, FP_ERR_CONFIG, FP_ERR_BUDGET, FP_ERR_USERFAULTFD, FP_ERR_DEVICE, FP_ERR_TOO_MANY_PAGERS,
/// FP_ERR_SYSTEM_CALLS, FP_ERR_OS (no address space, no threads).
///
/// Requires: `config` is NULL or has at least the `size` that it says; its texts end in NUL. `pager` is NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_pager_new(config: *const fp_config, pager: *mut *mut fp_pager) -> fp_status {
    if pager.is_null() {
        return fail(FP_ERR_NULL, "fp_pager_new: pager is NULL");
    }
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { pager.write(std::ptr::null_mut()) };
    // SAFETY: caller's promise about config.
    match unsafe { build(config) } {
        Ok(new) => {
            // SAFETY: as above.
            unsafe { pager.write(Box::into_raw(Box::new(fp_pager { pager: new }))) };
            FP_OK
        }
        Err(status) => status,
    }
}

/// # Safety
/// As for [`fp_pager_new`].
unsafe fn build(config: *const fp_config) -> Result<Pager, fp_status> {
    let mut builder = Pager::builder();
    if config.is_null() {
        return builder.build().map_err(|e| of(&e));
    }
    let refused = |message: &str| Err(fail(FP_ERR_CONFIG, message));
    // SAFETY: the first member is there in every version of the structure.
    let size = unsafe { (&raw const (*config).size).read() };
    if size != size_of::<fp_config>() {
        return refused(&format!("fp_config: a size of {size} is not known: use fp_config_init"));
    }
    // SAFETY: of this version, by its size.
    let config = unsafe { config.read() };
    builder = builder.budget(config.budget_bytes);
    if !config.swap.is_null() {
        // SAFETY: ends in NUL (caller's promise).
        let Ok(text) = unsafe { CStr::from_ptr(config.swap) }.to_str() else {
            return refused("fp_config: swap is not UTF-8");
        };
        let devices: Result<Vec<_>, _> = text.split(';').filter(|spec| !spec.is_empty()).map(SwapSpec::parse).collect();
        match devices {
            Ok(devices) if !devices.is_empty() => builder = builder.swap(devices),
            Ok(_) => return Err(fail(FP_ERR_DEVICE, "fp_config: swap names no device")),
            Err(error) => return Err(fail(FP_ERR_DEVICE, &error.to_string())),
        }
    }
    builder = match config.fault_mode {
        mode if mode == fp_fault_mode::FP_FAULT_SIGNAL as u32 => builder.fault_mode(FaultMode::Signal),
        mode if mode == fp_fault_mode::FP_FAULT_THREAD as u32 => builder.fault_mode(FaultMode::Thread),
        other => return refused(&format!("fp_config: there is no fault mode {other}")),
    };
    builder = match config.inherit {
        0 => builder,
        1 => builder.inherit(true),
        other => return refused(&format!("fp_config: inherit is 0 or 1, not {other}")),
    };
    builder = match config.verify {
        verify @ (0 | 1) => builder.verify(verify == 1),
        other => return refused(&format!("fp_config: verify is 0 or 1, not {other}")),
    };
    builder = match config.system_calls {
        work @ (0 | 1) => builder.system_calls(work == 1),
        other => return refused(&format!("fp_config: system_calls is 0 or 1, not {other}")),
    };
    if config.readahead_pages > 0 {
        builder = builder.readahead(config.readahead_pages);
    }
    if config.reclaim_threads > 0 {
        builder = builder.reclaim_threads(config.reclaim_threads as usize);
    }
    builder.build().map_err(|e| of(&e))
}

/// Gives a pager back. Regions of it stay usable until they are freed; what the pager holds goes with the last of them.
/// NULL: nothing happens.
///
/// Requires: `pager` is NULL or from `fp_pager_new`, not freed before, and not in use by another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_pager_free(pager: *mut fp_pager) {
    if !pager.is_null() {
        // SAFETY: made by fp_pager_new (caller's promise).
        drop(unsafe { Box::from_raw(pager) });
    }
}

/// Changes the budget, bytes. A smaller one is reached by and by. Any thread.
///
/// FP_ERR_NULL, FP_ERR_BUDGET, FP_ERR_FORKED.
///
/// Requires: `pager` is NULL or a living pager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_pager_resize_budget(pager: *const fp_pager, bytes: u64) -> fp_status {
    // SAFETY: caller's promise.
    match unsafe { pager.as_ref() } {
        Some(pager) => done(pager.pager.resize_budget(bytes)),
        None => fail(FP_ERR_NULL, "fp_pager_resize_budget: pager is NULL"),
    }
}

/// Numbers of the pager, now. stats: where they go; size: sizeof(fp_stats) of the program; members that this library
/// does not know become 0. Any thread.
///
/// FP_ERR_NULL, FP_ERR_FORKED.
///
/// Requires: `pager` is NULL or a living pager; `stats` is NULL or has `size` bytes that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_pager_stats(pager: *const fp_pager, stats: *mut fp_stats, size: usize) -> fp_status {
    // SAFETY: caller's promise.
    let (Some(pager), false) = (unsafe { pager.as_ref() }, stats.is_null()) else {
        return fail(FP_ERR_NULL, "fp_pager_stats: pager or stats is NULL");
    };
    let s = match pager.pager.stats() {
        Ok(s) => s,
        Err(error) => return done(Err(error)),
    };
    let ours = fp_stats::from(&s);
    let known = size.min(size_of::<fp_stats>());
    // SAFETY: stats has `size` bytes (caller's promise); ours has `known`.
    unsafe {
        stats.cast::<u8>().write_bytes(0, size);
        stats.cast::<u8>().copy_from_nonoverlapping((&raw const ours).cast::<u8>(), known);
    }
    FP_OK
}
