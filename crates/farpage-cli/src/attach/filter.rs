//! Whether an engine can work under the seccomp filters of a process: containers' profiles let it, most filters that
//! programs give themselves do not, and some end the process for a call that they do not know.
//!
//! The filters are read from the process, given to children of ours, and each call that an engine makes is tried there,
//! with arguments that mean nothing. So the kernel says what it would do, and does it to a child that ends anyway.
//!
//! Caller: [`super`]. No locks.

use crate::failure::{Failure, Result, why};
use std::io;

/// Without these there is no engine.
#[rustfmt::skip]
const NEEDED: [i64; 40] = [
    libc::SYS_clone, libc::SYS_close, libc::SYS_clock_nanosleep, libc::SYS_dup, libc::SYS_fallocate, libc::SYS_fcntl,
    libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_ftruncate, libc::SYS_futex, libc::SYS_getdents64, libc::SYS_getpid,
    libc::SYS_getrandom, libc::SYS_get_robust_list, libc::SYS_gettid, libc::SYS_ioctl, libc::SYS_lseek,
    libc::SYS_madvise, libc::SYS_memfd_create, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap,
    libc::SYS_newfstatat, libc::SYS_openat, libc::SYS_pipe2, libc::SYS_poll, libc::SYS_ppoll, libc::SYS_prctl,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_prlimit64, libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_read,
    libc::SYS_readlinkat, libc::SYS_rt_sigprocmask, libc::SYS_sched_getaffinity, libc::SYS_sched_yield,
    libc::SYS_set_robust_list, libc::SYS_write,
];
/// These may be refused, with an error.
#[rustfmt::skip]
const WANTED: [i64; 45] = [
    libc::SYS_capget, libc::SYS_capset, libc::SYS_chdir, libc::SYS_clone3, libc::SYS_close_range, libc::SYS_connect,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_wait, libc::SYS_eventfd2, libc::SYS_fadvise64,
    libc::SYS_fchmod, libc::SYS_fsync, libc::SYS_futex_waitv, libc::SYS_getcpu, libc::SYS_getresgid,
    libc::SYS_getresuid, libc::SYS_getrusage, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup, libc::SYS_kcmp, libc::SYS_mincore, libc::SYS_mremap, libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd, libc::SYS_pidfd_open, libc::SYS_process_madvise, libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev, libc::SYS_readv, libc::SYS_recvmsg, libc::SYS_sched_getattr,
    libc::SYS_sched_setaffinity, libc::SYS_sched_setattr, libc::SYS_sendmsg, libc::SYS_setgroups, libc::SYS_setresgid,
    libc::SYS_setresuid, libc::SYS_socket, libc::SYS_socketpair, libc::SYS_statx, libc::SYS_unlinkat,
    libc::SYS_userfaultfd, libc::SYS_writev,
];

/// A filter, as the kernel has it.
pub type Filter = Vec<libc::sock_filter>;

/// What came of a call.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Tried {
    Allowed,
    Refused,
    Ended,
}

/// Looks whether an engine can work under these filters, the newest first; in words, why not.
///
/// # Errors
/// They cannot be tried.
pub fn obstacle(filters: &[Filter]) -> Result<Option<String>> {
    let failed = |error: io::Error| Failure::new(format!("cannot try its seccomp filter: {}", why(&error)));
    for (call, is_needed) in NEEDED.map(|call| (call, true)).into_iter().chain(WANTED.map(|call| (call, false))) {
        match attempt(filters, call).map_err(failed)? {
            Tried::Ended => return Ok(Some(format!("its seccomp filter ends who makes system call {call}"))),
            Tried::Refused if is_needed => {
                return Ok(Some(format!(
                    "its seccomp filter refuses system call {call}, without which no engine works"
                )));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Makes a call in a child that has the filters.
fn attempt(filters: &[Filter], call: i64) -> io::Result<Tried> {
    const NO_FILTER: i32 = 3;
    // SAFETY: this process has one thread; the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            unsafe {
                let status = if install(filters) { i32::from(is_refused(call)) } else { NO_FILTER };
                libc::_exit(status);
            }
        }
        _ => {
            let mut status = 0;
            // SAFETY: a number of ours.
            while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
                (true, 0) => Ok(Tried::Allowed),
                (true, 1) => Ok(Tried::Refused),
                (true, _) => Err(io::ErrorKind::PermissionDenied.into()),
                _ => Ok(Tried::Ended),
            }
        }
    }
}

/// Whether the kernel, or a filter, says that a call is not for this process.
unsafe fn is_refused(call: i64) -> bool {
    const NOTHING: i64 = -1;
    // SAFETY: caller's promise. Arguments of all ones name nothing; the second one is a length, or a number of waiters.
    let result = unsafe { libc::syscall(call, NOTHING, 1_i64, NOTHING, NOTHING, NOTHING, NOTHING) };
    let error = io::Error::last_os_error().raw_os_error();
    result == -1 && matches!(error, Some(libc::EPERM | libc::ENOSYS | libc::EACCES))
}

/// Gives this process the filters, the oldest first.
unsafe fn install(filters: &[Filter]) -> bool {
    // SAFETY: a switch.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return false;
    }
    filters.iter().rev().all(|filter| {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program is read during the call.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;

    fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    /// Does `otherwise` for the call, and allows the rest.
    fn filter(call: i64, otherwise: u32) -> Filter {
        vec![
            step(LOAD, 0, 0, 0),
            step(IF_EQUAL, 0, 1, call as u32),
            step(RETURN, 0, 0, otherwise),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]
    }

    #[test]
    fn a_filter_is_tried_before_it_is_met() {
        let refuses = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let of = |call, action| obstacle(&[filter(call, action)]).unwrap();
        assert_eq!(obstacle(&[]).unwrap(), None);
        assert_eq!(of(libc::SYS_userfaultfd, refuses), None);
        assert_eq!(of(libc::SYS_reboot, libc::SECCOMP_RET_KILL_PROCESS), None);
        assert!(of(libc::SYS_ioctl, refuses).unwrap().contains("refuses system call 16"));
        for ends in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_KILL_THREAD, libc::SECCOMP_RET_TRAP] {
            assert!(of(libc::SYS_userfaultfd, ends).unwrap().contains("ends who makes system call 323"));
        }
        // All of several.
        let both = [filter(libc::SYS_reboot, refuses), filter(libc::SYS_ioctl, refuses)];
        assert!(obstacle(&both).unwrap().is_some());
    }
}
