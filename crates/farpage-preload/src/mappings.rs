//! Functions of memory mappings that this library stands in front of, and why:
//!
//! * `mmap`, `mmap64`: a mapping can be filled before the engine hears of it: where it is much, its thread goes on when
//!   it is registered; private memory of `/dev/zero` becomes anonymous memory.
//! * `dlclose`, `mprotect`: tables of libraries that the pager has taken over, or is about to, stay where they are
//!   while it is at them.
//! * `mremap`, `mprotect`, `brk`, `sbrk`: while there is no engine: memory that can be filled without another word.
//! * `madvise`, `posix_madvise`, `process_madvise`: `MADV_POPULATE_*` fills memory in one call, in which it cannot be
//!   registered; pages given up with `MADV_FREE` stay, and the engine does not hear when they are used again, so they
//!   are discarded at once; nor does it hear of guards (`docs/dev/events.md`); a fork has to look for what is to be
//!   wiped.
//!
//! All do what libc's do, by calling them. Below the budget's reach they do nothing else but count.

use crate::call::{call, interposed};
use crate::late::slots::change_of_libraries;
use crate::own::{Answer, answer};
use farpage_base::sys::raw;
use farpage_base::sys::thread::is_engine_thread;
use farpage_run::dormant;
use farpage_run::lifecycle::program::handed_out;
use farpage_run::lifecycle::start;
use farpage_run::lifecycle::start::engine_for;
use farpage_run::shared::state::engine;
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, makedev};
use std::ffi::{c_int, c_uint, c_void};

/// `MADV_GUARD_INSTALL`, Linux 6.13.
const GUARD_INSTALL: c_int = 102;
/// What [`sbrk`] returns when it fails.
const SBRK_FAILED: *mut c_void = usize::MAX as *mut c_void;

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    mut addr: *mut c_void,
    len: usize,
    prot: c_int,
    mut flags: c_int,
    mut fd: c_int,
    mut offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: caller's promise.
    let map = |addr, flags, fd, offset| unsafe { call!(mmap(addr, len, prot, flags, fd, offset), libc::MAP_FAILED) };
    if is_private_zero(flags, fd) {
        // Anonymous memory by another name, if the kernel has nothing against it.
        addr = map(addr, flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED), fd, offset);
        if addr == libc::MAP_FAILED {
            return addr;
        }
        flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
        (fd, offset) = (-1, 0);
    }
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const LEFT_ALONE: c_int = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN | libc::MAP_LOCKED;
    let ours = flags & ANONYMOUS == ANONYMOUS && flags & LEFT_ALONE == 0 && prot & libc::PROT_WRITE != 0;
    let fills = ours && flags & libc::MAP_POPULATE != 0;
    let engine = if fills { engine_for(len) } else { engine() }.filter(|_| ours && !is_engine_thread());
    let populate = fills && engine.is_some_and(|e| e.must_be_managed(len));
    let flags = if populate { flags & !libc::MAP_POPULATE } else { flags };
    let at = map(addr, flags, fd, offset);
    if at == libc::MAP_FAILED {
        return at;
    }
    match engine.filter(|_| populate) {
        Some(engine) => {
            engine.announce(at as usize, len);
            engine.populate(at as usize, len);
        }
        None if ours => handed_out(at as usize, len, true),
        None if flags & libc::MAP_SHARED != 0 && prot & libc::PROT_WRITE != 0 => {
            start::shared(len, (flags & libc::MAP_ANONYMOUS == 0).then_some(fd));
        }
        None if flags & libc::MAP_PRIVATE != 0 && prot & libc::PROT_WRITE != 0 => reach_grows(len, flags),
        None => {}
    }
    at
}

/// Whether this would be a private mapping of `/dev/zero`.
fn is_private_zero(flags: c_int, fd: c_int) -> bool {
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE || flags & libc::MAP_ANONYMOUS != 0 || fd < 0 || is_engine_thread() {
        return false;
    }
    // SAFETY: used for one call, which says so if it is not open.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    found.is_ok_and(|found| {
        let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
        is_device && found.st_rdev == makedev(1, 5)
    })
}

/// `len` bytes more can be written that are no ordinary anonymous memory. What grows downwards does so without a word.
fn reach_grows(len: usize, flags: c_int) {
    start::handed_out(if flags & libc::MAP_GROWSDOWN != 0 { usize::MAX / 2 } else { len });
}

interposed! {
    /// The two are one on x86-64.
    fn mmap64(addr: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: libc::off_t) -> *mut c_void =
        mmap(addr, len, prot, flags, fd, offset);
    /// (It is variadic there, which makes no difference to a function that is called on x86-64.)
    fn mremap(old: *mut c_void, old_len: usize, len: usize, flags: c_int, new: *mut c_void) -> *mut c_void = {
        let at = call!(mremap(old, old_len, len, flags, new), libc::MAP_FAILED);
        if at != libc::MAP_FAILED && len > old_len {
            start::handed_out(len - old_len);
        }
        at
    };
    fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int = {
        let change = if prot & libc::PROT_WRITE != 0 { change_of_libraries() } else { None };
        let result = call!(mprotect(addr, len, prot));
        drop(change);
        if result == 0 && prot & libc::PROT_WRITE != 0 {
            start::handed_out(len);
        }
        result
    };
    fn dlclose(handle: *mut c_void) -> c_int = {
        let _change = change_of_libraries();
        call!(dlclose(handle))
    };
    /// By how much memory grows is not said.
    fn brk(end: *mut c_void) -> c_int = {
        let result = call!(brk(end));
        if result == 0 {
            start::grown();
        }
        result
    };
    fn sbrk(by: isize) -> *mut c_void = {
        let at = call!(sbrk(by), SBRK_FAILED);
        if by > 0 && at != SBRK_FAILED {
            start::handed_out(by as usize);
        }
        at
    };
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int = {
        before_advice(addr as usize, len, advice);
        let result = really_advise(addr, len, advice);
        if result == 0 {
            after_advice(addr, len, advice);
        }
        result
    };
    /// The kernel is given all advice but the one of this value, which is nothing here.
    fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int = {
        let result = call!(posix_madvise(addr, len, advice), libc::ENOSYS);
        if result == 0 && advice != libc::POSIX_MADV_DONTNEED {
            after_advice(addr, len, advice);
        }
        result
    };
    fn process_madvise(pidfd: c_int, ranges: *const libc::iovec, n: usize, advice: c_int, flags: c_uint) -> isize = {
        let args = [pidfd as usize, ranges as usize, n, advice as usize, flags as usize, 0];
        answer(advise_ranges(args, || raw::syscall(libc::SYS_process_madvise as u32, args)))
    };
}

/// `process_madvise`, made by `call`.
///
/// # Safety
/// As for the system call with these arguments.
pub unsafe fn advise_ranges(args: [usize; 6], call: impl FnOnce() -> Answer) -> Answer {
    let bytes = call()?;
    let advice = args[3] as c_int;
    let mut left = bytes;
    for i in 0..args[2] {
        if left == 0 {
            break;
        }
        // SAFETY: the kernel has read so many of them.
        let range = unsafe { *(args[1] as *const libc::iovec).add(i) };
        let len = range.iov_len.min(left);
        left -= len;
        // What changes anything here is refused for another process.
        // SAFETY: caller's promise.
        unsafe { after_advice(range.iov_base, len, advice) };
    }
    Ok(bytes)
}

/// # Safety
/// As libc's `madvise`.
unsafe fn really_advise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { call!(madvise(addr, len, advice)) }
}

/// The kernel is to be given this advice.
fn before_advice(addr: usize, len: usize, advice: c_int) {
    let populate = matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE);
    if populate && let Some(engine) = engine_for(len).filter(|e| e.must_be_managed(len)) {
        engine.announce(addr, len);
    }
}

/// The kernel has accepted this advice for all of this memory of ours.
///
/// # Safety
/// As libc's `madvise`.
unsafe fn after_advice(addr: *mut c_void, len: usize, advice: c_int) {
    if advice == libc::MADV_WIPEONFORK {
        dormant::has_wipeonfork();
    }
    let Some(engine) = engine().filter(|engine| engine.is_active()) else { return };
    // SAFETY: the caller has given the content up; a write of another thread during the call may be lost in either
    // case.
    let again = |advice| _ = unsafe { really_advise(addr, len, advice) };
    match advice {
        libc::MADV_FREE => again(libc::MADV_DONTNEED),
        GUARD_INSTALL => engine.guarded(|| _ = [libc::MADV_DONTNEED, GUARD_INSTALL].map(again)),
        _ => {}
    }
}
