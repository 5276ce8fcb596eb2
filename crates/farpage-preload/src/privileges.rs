//! Functions by which a program gives privileges up, or changes them. What they change belongs to threads; libc sees to
//! it that all the program's threads are alike where that is to be, and does not know the engine's. So these tell the
//! engine (`run/privileges.rs`), and return when its threads have followed.
//!
//! The same as system calls through `syscall()`: [`follow_call`]. What the program writes as an instruction of its own
//! the engine finds after a while. Left out is what can be taken back at any time without a privilege (`setfsuid`).

use crate::call::{call, interposed};
use crate::own::Answer;
use farpage_base::sys::raw;
use farpage_run::lifecycle::start;
use farpage_run::shared::state::{Engine, engine};
use std::ffi::{c_char, c_int, c_long, c_void};

interposed! {
    fn setuid(uid: libc::uid_t) -> c_int = followed(call!(setuid(uid)));
    fn setgid(gid: libc::gid_t) -> c_int = followed(call!(setgid(gid)));
    fn seteuid(uid: libc::uid_t) -> c_int = followed(call!(seteuid(uid)));
    fn setegid(gid: libc::gid_t) -> c_int = followed(call!(setegid(gid)));
    fn setreuid(real_id: libc::uid_t, effective: libc::uid_t) -> c_int = followed(call!(setreuid(real_id, effective)));
    fn setregid(real_id: libc::gid_t, effective: libc::gid_t) -> c_int = followed(call!(setregid(real_id, effective)));
    fn setresuid(real_id: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int =
        followed(call!(setresuid(real_id, effective, saved)));
    fn setresgid(real_id: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int =
        followed(call!(setresgid(real_id, effective, saved)));
    fn setgroups(count: usize, groups: *const libc::gid_t) -> c_int = followed(call!(setgroups(count, groups)));
    fn initgroups(user: *const c_char, group: libc::gid_t) -> c_int = followed(call!(initgroups(user, group)));
    fn chroot(path: *const c_char) -> c_int = followed(call!(chroot(path)));
    fn capset(header: *mut c_void, data: *const c_void) -> c_int = followed_if_main(call!(capset(header, data)));
    fn unshare(flags: c_int) -> c_int = followed_if_main(call!(unshare(flags)));
    fn setns(fd: c_int, kind: c_int) -> c_int = followed_if_main(call!(setns(fd, kind)));
    /// In C the later arguments may be missing: they are passed on as they come.
    fn prctl(option: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int =
        prctl_with(option, [b, c], || call!(prctl(option, b, c, d, e)), |result| *result == 0);
}

/// All threads of the program have changed, if this is 0: so has the main thread.
fn followed(result: c_int) -> c_int {
    if result == 0 {
        tell_engine(Engine::follow);
    }
    result
}

/// The calling thread has changed, if this is 0: only what the main thread has changed for itself is followed.
fn followed_if_main(result: c_int) -> c_int {
    if is_main() { followed(result) } else { result }
}

fn is_main() -> bool {
    raw::gettid() == std::process::id()
}

/// Tells the engine, if there is one or its first thread is there. `errno` stays what it was.
fn tell_engine(what: impl FnOnce(&Engine)) {
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
        start::before_filter(is_main(), false);
    }
    let result = call();
    match option {
        libc::PR_SET_SECUREBITS if is_done(&result) && is_main() => {
            tell_engine(|e| e.follow_securebits(argument as u32))
        }
        libc::PR_CAPBSET_DROP | libc::PR_CAP_AMBIENT | libc::PR_SET_NO_NEW_PRIVS if is_done(&result) && is_main() => {
            tell_engine(Engine::follow);
        }
        _ => {}
    }
    result
}

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
        (libc::SYS_seccomp, [SET_MODE_STRICT, ..]) => _ = start::before_filter(is_main(), false),
        (libc::SYS_seccomp, [SET_MODE_FILTER, flags, rest @ ..])
            if rest[0] != 0 && start::before_filter(is_main(), flags & TSYNC != 0) =>
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
    if follows && is_done(&result) && is_main() {
        tell_engine(Engine::follow);
    }
    result
}
