//! The functions of libc that this library stands in front of, and why:
//!
//! | function | why |
//! | --- | --- |
//! | `pthread_create` | the new thread's control block must stay in memory: kernel and libc write to it at moments when they cannot wait for a page (thread exit, fork) |
//! | `mmap`, `mmap64` | a mapping can be filled before anybody hears of it: where it is much, its thread goes on when it is registered; private memory of `/dev/zero` becomes anonymous memory |
//! | `dlclose`, `mprotect` | tables of libraries that the pager has taken over, or is about to, stay where they are while it is at them |
//! | `mremap`, `mprotect`, `brk`, `sbrk` | while there is no engine: memory that can be filled without another word |
//! | `madvise`, `posix_madvise`, `process_madvise` | `MADV_POPULATE_*` fills memory in one call, in which it cannot be registered; pages given up with `MADV_FREE` stay, and nobody hears when they are used again, so they are discarded at once; nobody hears of guards either (`docs/dev/events.md`); a fork has to look for what is to be wiped |
//! | `pthread_mutexattr_setrobust`, `.._np` | the kernel does not wait for a page either when it marks what a thread held that has ended |
//!
//! All do what libc's do, by calling them. Below the budget's reach they do nothing else but count. On engine threads
//! they make the system call: libc's function may be another library's ([`crate::own`]).

use crate::forks::answer;
use crate::late::slots::{is_late, take_over_new, what_the_program_calls};
use crate::own::on_engine_threads;
use farpage::internals::run::dormant;
use farpage::internals::run::mappings::library_guard::ProgramChange;
use farpage::internals::run::pager::robust;
use farpage::internals::run::program::{handed_out, thread_started};
use farpage::internals::run::start;
use farpage::internals::run::start::engine_for;
use farpage::internals::run::state::engine;
use farpage::internals::sys::raw;
use farpage::internals::sys::thread::is_engine_thread;
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, makedev};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// libc's functions (or those of another preloaded library), found by the initialiser.
pub struct Real {
    pthread_create: AtomicUsize,
    mmap: AtomicUsize,
    mremap: AtomicUsize,
    mprotect: AtomicUsize,
    dlclose: AtomicUsize,
    brk: AtomicUsize,
    sbrk: AtomicUsize,
    madvise: AtomicUsize,
    posix_madvise: AtomicUsize,
    setrobust: AtomicUsize,
    setrobust_np: AtomicUsize,
}

static REAL: Real = Real {
    pthread_create: AtomicUsize::new(0),
    mmap: AtomicUsize::new(0),
    mremap: AtomicUsize::new(0),
    mprotect: AtomicUsize::new(0),
    dlclose: AtomicUsize::new(0),
    brk: AtomicUsize::new(0),
    sbrk: AtomicUsize::new(0),
    madvise: AtomicUsize::new(0),
    posix_madvise: AtomicUsize::new(0),
    setrobust: AtomicUsize::new(0),
    setrobust_np: AtomicUsize::new(0),
};

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
/// `MADV_GUARD_INSTALL`, Linux 6.13.
const GUARD_INSTALL: c_int = 102;

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// libc's function (or another preloaded library's); 0: there is none. A library that came later is behind all others,
/// and not where the program looks: what the program finds is not ours.
pub fn next(name: &CStr) -> usize {
    if is_late() {
        return what_the_program_calls(name);
    }
    // SAFETY: a lookup by name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// Looks the functions up. By the initialiser: later, the looking up might itself need memory from the caller.
pub fn find() {
    REAL.pthread_create.store(next(c"pthread_create"), Relaxed);
    REAL.mmap.store(next(c"mmap"), Relaxed);
    REAL.mremap.store(next(c"mremap"), Relaxed);
    REAL.mprotect.store(next(c"mprotect"), Relaxed);
    REAL.dlclose.store(next(c"dlclose"), Relaxed);
    REAL.brk.store(next(c"brk"), Relaxed);
    REAL.sbrk.store(next(c"sbrk"), Relaxed);
    REAL.madvise.store(next(c"madvise"), Relaxed);
    REAL.posix_madvise.store(next(c"posix_madvise"), Relaxed);
    REAL.setrobust.store(next(c"pthread_mutexattr_setrobust"), Relaxed);
    REAL.setrobust_np.store(next(c"pthread_mutexattr_setrobust_np"), Relaxed);
}

/// The function at `place`; libraries that are initialised before this one call before [`find`]. Never another
/// library's on an engine thread.
pub fn found(place: &AtomicUsize, name: &CStr) -> usize {
    match place.load(Relaxed) {
        _ if is_engine_thread() => on_engine_threads(name),
        0 => next(name),
        at => at,
    }
}

/// What a caller finds in `errno` when there is nothing to call.
pub fn no_such_function() {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    arg: *mut c_void,
) -> c_int {
    let real = found(&REAL.pthread_create, c"pthread_create");
    if real == 0 {
        return libc::EAGAIN;
    }
    // SAFETY: libc's function of this name has this type.
    let real: PthreadCreate = unsafe { std::mem::transmute(real) };
    take_over_new();
    // SAFETY: caller's promise.
    let stack = unsafe { stack_bytes(attr) };
    // SAFETY: caller's promise.
    let result = unsafe { real(thread, attr, start, arg) };
    if result == 0 {
        // SAFETY: set by a successful call; with glibc the handle is the address of the control block.
        thread_started(unsafe { *thread } as usize, stack);
    }
    result
}

/// Bytes of the stack of a thread that is started with these attributes; null: the usual ones.
///
/// # Safety
/// As for `pthread_create`.
unsafe fn stack_bytes(attr: *const libc::pthread_attr_t) -> usize {
    let mut size = 0;
    // SAFETY: caller's promise, or attributes that live as long as they are used, and that are zero first.
    unsafe {
        let mut usual: libc::pthread_attr_t = std::mem::zeroed();
        let attr = if attr.is_null() && libc::pthread_attr_init(&mut usual) == 0 { &raw const usual } else { attr };
        if !attr.is_null() {
            libc::pthread_attr_getstacksize(attr, &mut size);
        }
    }
    size
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let real = found(&REAL.mmap, c"mmap");
    if real == 0 {
        no_such_function();
        return libc::MAP_FAILED;
    }
    // SAFETY: libc's function of this name has this type.
    let real: Mmap = unsafe { std::mem::transmute(real) };
    let (mut addr, mut flags, mut fd, mut offset) = (addr, flags, fd, offset);
    if is_private_zero(flags, fd) {
        // Anonymous memory by another name, if the kernel has nothing against it.
        // SAFETY: caller's promise.
        addr = unsafe { real(addr, len, prot, flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED), fd, offset) };
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
    // SAFETY: caller's promise.
    let at = unsafe { real(addr, len, prot, flags, fd, offset) };
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

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: caller's promise; the two are one on x86-64.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// As libc's; see the module header. (It is variadic there, which makes no difference to whoever is called on x86-64.)
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let real = found(&REAL.mremap, c"mremap");
    if real == 0 {
        no_such_function();
        return libc::MAP_FAILED;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(old, old_len, len, flags, new) };
    if at != libc::MAP_FAILED && len > old_len {
        start::handed_out(len - old_len);
    }
    at
}

/// As libc's; for who ends without its finalisers.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    leave(status)
}

fn leave(status: c_int) -> ! {
    farpage::internals::run::ended::end_at_once();
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { raw::syscall(libc::SYS_exit_group as u32, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// As libc's; another name of the same.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    leave(status)
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let real = found(&REAL.mprotect, c"mprotect");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int = unsafe { std::mem::transmute(real) };
    let change = if prot & libc::PROT_WRITE != 0 { change_of_libraries() } else { None };
    // SAFETY: caller's promise.
    let result = unsafe { real(addr, len, prot) };
    drop(change);
    if result == 0 && prot & libc::PROT_WRITE != 0 {
        start::handed_out(len);
    }
    result
}

/// Libraries may change from now on, until this is dropped. `None`: nobody minds.
pub fn change_of_libraries() -> Option<ProgramChange> {
    let minds = !is_engine_thread() && engine().is_some_and(|e| e.is_active() && e.fork.is_home());
    minds.then(ProgramChange::begin)
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let real = found(&REAL.dlclose, c"dlclose");
    if real == 0 {
        return -1; // nothing can have been opened
    }
    // SAFETY: the loader's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(real) };
    let _change = change_of_libraries();
    // SAFETY: caller's promise.
    unsafe { real(handle) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    let real = found(&REAL.brk, c"brk");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let result = unsafe { real(end) };
    // By how much is not said.
    if result == 0 {
        start::grown();
    }
    result
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(by: isize) -> *mut c_void {
    let real = found(&REAL.sbrk, c"sbrk");
    if real == 0 {
        no_such_function();
        return usize::MAX as *mut c_void;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(isize) -> *mut c_void = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(by) };
    if by > 0 && at as usize != usize::MAX {
        start::handed_out(by as usize);
    }
    at
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    before_advice(addr as usize, len, advice);
    // SAFETY: caller's promise.
    let result = unsafe { real_madvise(addr, len, advice) };
    if result == 0 {
        // SAFETY: caller's promise.
        unsafe { after_advice(addr, len, advice) };
    }
    result
}

/// As libc's; see the module header. The kernel is given all advice but the one of this value, which is nothing here.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let real = found(&REAL.posix_madvise, c"posix_madvise");
    if real == 0 {
        return libc::ENOSYS;
    }
    // SAFETY: libc's function of this name has this type.
    let real: Madvise = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let result = unsafe { real(addr, len, advice) };
    if result == 0 && advice != libc::POSIX_MADV_DONTNEED {
        // SAFETY: caller's promise.
        unsafe { after_advice(addr, len, advice) };
    }
    result
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    n: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let args = [pidfd as usize, ranges as usize, n, advice as usize, flags as usize, 0];
    // SAFETY: caller's promise.
    unsafe { advise_ranges(args, || raw::syscall(libc::SYS_process_madvise as u32, args)) }
        .map_or_else(|error| answer(Err(error)) as isize, |bytes| bytes as isize)
}

/// `process_madvise`, made by `call`.
///
/// # Safety
/// As for the system call with these arguments.
pub unsafe fn advise_ranges(
    args: [usize; 6],
    call: impl FnOnce() -> Result<usize, raw::Errno>,
) -> Result<usize, raw::Errno> {
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
/// As libc's.
unsafe fn real_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let real = found(&REAL.madvise, c"madvise");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: Madvise = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { real(addr, len, advice) }
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
        dormant::wipes();
    }
    let Some(engine) = engine().filter(|engine| engine.is_active()) else { return };
    // SAFETY: the caller has given the content up; a write of another thread during the call may be lost in either
    // case.
    let again = |advice| _ = unsafe { real_madvise(addr, len, advice) };
    match advice {
        libc::MADV_FREE => again(libc::MADV_DONTNEED),
        GUARD_INSTALL => engine.guarded(|| _ = [libc::MADV_DONTNEED, GUARD_INSTALL].map(again)),
        _ => {}
    }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutexattr_setrobust(attr: *mut libc::pthread_mutexattr_t, kind: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { set_robust(found(&REAL.setrobust, c"pthread_mutexattr_setrobust"), attr, kind) }
}

/// The same by its older name.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutexattr_setrobust_np(attr: *mut libc::pthread_mutexattr_t, kind: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { set_robust(found(&REAL.setrobust_np, c"pthread_mutexattr_setrobust_np"), attr, kind) }
}

/// # Safety
/// As libc's function at `real`.
unsafe fn set_robust(real: usize, attr: *mut libc::pthread_mutexattr_t, kind: c_int) -> c_int {
    if real == 0 {
        return libc::ENOSYS;
    }
    if kind != libc::PTHREAD_MUTEX_STALLED {
        robust::used();
    }
    // SAFETY: libc's functions of these names have this type.
    let real: unsafe extern "C" fn(*mut libc::pthread_mutexattr_t, c_int) -> c_int =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { real(attr, kind) }
}
