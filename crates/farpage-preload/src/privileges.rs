//! Functions by which a program gives privileges up, or changes them. What they change belongs to threads; libc sees to
//! it that all the program's threads are alike where that is to be, and does not know the engine's. So these tell the
//! engine (`run/privileges.rs`), and return when its threads have followed.
//!
//! The same as system calls through `syscall()`: [`follow_call`]. What the program writes as an instruction of its own
//! the engine finds after a while. Left out is what can be taken back at any time without a privilege (`setfsuid`).

use crate::interpose::{found, next, no_such_function};
use farpage::internals::run::start;
use farpage::internals::run::state::{Engine, engine};
use farpage::internals::sys::raw;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Defines functions with a result of -1 on failure, each of which calls libc's and tells the engine if that has
/// changed something: for `all` threads of the program, or for the calling `one`.
macro_rules! followed {
    ($($whom:ident $name:ident($($argument:ident: $type:ty),*) as $place:ident, $text:literal;)*) => {
        $(static $place: AtomicUsize = AtomicUsize::new(0);)*

        /// Looks the functions up. By the initialiser: later, a signal handler may ask.
        pub fn find() {
            $($place.store(next($text), Relaxed);)*
            PRCTL.store(next(c"prctl"), Relaxed);
        }

        $(
            /// As libc's; see the module header.
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                let real = found(&$place, $text);
                if real == 0 {
                    no_such_function();
                    return -1;
                }
                // SAFETY: libc's function of this name has this type.
                let real: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(real) };
                // SAFETY: caller's promise.
                let result = unsafe { real($($argument),*) };
                if result == 0 && $whom() {
                    told(Engine::follow);
                }
                result
            }
        )*
    };
}

followed! {
    all setuid(uid: libc::uid_t) as SETUID, c"setuid";
    all setgid(gid: libc::gid_t) as SETGID, c"setgid";
    all seteuid(uid: libc::uid_t) as SETEUID, c"seteuid";
    all setegid(gid: libc::gid_t) as SETEGID, c"setegid";
    all setreuid(real_id: libc::uid_t, effective: libc::uid_t) as SETREUID, c"setreuid";
    all setregid(real_id: libc::gid_t, effective: libc::gid_t) as SETREGID, c"setregid";
    all setresuid(real_id: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) as SETRESUID, c"setresuid";
    all setresgid(real_id: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) as SETRESGID, c"setresgid";
    all setgroups(count: usize, groups: *const libc::gid_t) as SETGROUPS, c"setgroups";
    all initgroups(user: *const c_char, group: libc::gid_t) as INITGROUPS, c"initgroups";
    one capset(header: *mut c_void, data: *const c_void) as CAPSET, c"capset";
    all chroot(path: *const c_char) as CHROOT, c"chroot";
    one unshare(flags: c_int) as UNSHARE, c"unshare";
    one setns(fd: c_int, kind: c_int) as SETNS, c"setns";
}

static PRCTL: AtomicUsize = AtomicUsize::new(0);

/// Tells the engine, if there is one or its first thread is there. `errno` stays what it was.
fn told(what: impl FnOnce(&Engine)) {
    if let Some(engine) = engine().or_else(start::engine_that_dozes) {
        // SAFETY: the calling thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { *errno };
        what(engine);
        // SAFETY: as above.
        unsafe { *errno = before };
    }
}

/// What changes all threads changes the main thread.
fn all() -> bool {
    true
}

/// Only what the main thread has changed for itself is followed.
fn one() -> bool {
    raw::gettid() == std::process::id()
}

/// What `prctl(option, argument, filter)` means for the engine, before and after it. Without a filter the program only
/// asks whether the kernel knows them, and may have to have one thread still.
fn prctl_with<R>(
    option: c_int,
    [argument, filter]: [usize; 2],
    call: impl FnOnce() -> R,
    is_done: impl Fn(&R) -> bool,
) -> R {
    const FILTER: usize = libc::SECCOMP_MODE_FILTER as usize;
    if option == libc::PR_SET_SECCOMP && !(argument == FILTER && filter == 0) {
        start::before_filter(one(), false);
    }
    let result = call();
    match option {
        libc::PR_SET_SECUREBITS if is_done(&result) && one() => told(|e| e.follow_securebits(argument as u32)),
        libc::PR_CAPBSET_DROP | libc::PR_CAP_AMBIENT | libc::PR_SET_NO_NEW_PRIVS if is_done(&result) && one() => {
            told(Engine::follow);
        }
        _ => {}
    }
    result
}

/// As libc's; see the module header. In C the later arguments may be missing: they are passed on as they come.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int {
    let real = found(&PRCTL, c"prctl");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name takes its arguments where integers are passed.
    let real: unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    prctl_with(option, [b, c], || unsafe { real(option, b, c, d, e) }, |result| *result == 0)
}

type Answer = Result<usize, raw::Errno>;

/// Makes a system call that came through `syscall()`, and what the engine has to do along with it.
pub fn follow_call(number: c_long, args: [usize; 6], call: impl FnOnce([usize; 6]) -> Answer) -> Answer {
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    const TSYNC: usize = libc::SECCOMP_FILTER_FLAG_TSYNC as usize;
    let is_done = |answer: &Answer| *answer == Ok(0);
    match (number, args) {
        (libc::SYS_prctl, [option, argument, filter, ..]) => {
            return prctl_with(option as c_int, [argument, filter], || call(args), is_done);
        }
        (libc::SYS_seccomp, [SET_MODE_STRICT, ..]) => {
            start::before_filter(one(), false);
        }
        (libc::SYS_seccomp, [SET_MODE_FILTER, flags, rest @ ..])
            if rest[0] != 0 && start::before_filter(one(), flags & TSYNC != 0) =>
        {
            let [c, d, e, f] = rest;
            return call([SET_MODE_FILTER, flags & !TSYNC, c, d, e, f]);
        }
        _ => {}
    }
    let result = call(args);
    let follows = matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_capset
            | libc::SYS_chroot
            | libc::SYS_pivot_root
            | libc::SYS_unshare
            | libc::SYS_setns
    );
    if follows && is_done(&result) && one() {
        told(Engine::follow);
    }
    result
}
