//! The engine's own seccomp filter, for its threads in a program that has confined itself.
//!
//! The program's filter is made for what the program does: the engine could do nothing under it. But a thread without
//! one, in an address space that the confined program can write, would be a way out. So there is one for what the
//! engine does once it runs: page I/O by descriptors that are open, userfaultfd, futexes, `/proc`. What is refused: to
//! execute, to make processes, to send signals to others, to trace, to connect to anything but itself, to make or write
//! files that have a name; and every call that is not on the list. What stays allowed, even if the program has refused
//! it to itself: to open files for reading.
//!
//! (Not from the start on: a thread with another filter than the program's keeps the program from giving all its
//! threads one at once, `SECCOMP_FILTER_FLAG_TSYNC`.)

use super::raw::{Errno, nr, syscall};

/// One instruction of a filter, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
/// EPERM.
const REFUSE: u32 = 0x0005_0001;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const X86_64: u32 = 0xc000_003e;

/// Calls that are allowed whatever they are about.
const FREE: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_io_uring_enter,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_lseek,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_sendmsg,
    libc::SYS_get_robust_list,
    libc::SYS_getrusage,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getcpu,
    libc::SYS_getrlimit,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
    // To give up more.
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prctl,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Room for all steps.
const STEPS: usize = 320;

/// That the bits of argument `at` under `mask` are these.
struct If {
    at: u32,
    mask: u32,
    is: u32,
}

struct Filter {
    steps: [Instruction; STEPS],
    len: usize,
}

impl Filter {
    fn step(&mut self, code: u16, k: u32) {
        self.jump(code, k, 0, 0);
    }

    fn jump(&mut self, code: u16, k: u32, yes: u8, no: u8) {
        if let Some(step) = self.steps.get_mut(self.len) {
            *step = Instruction { code, yes, no, k };
        }
        self.len += 1;
    }

    /// Allows a call if all of this holds of its arguments. There may be several for one call.
    fn allow(&mut self, call: i64, conditions: &[If]) {
        const EACH: usize = 3;
        let len = EACH * conditions.len() + 1;
        let back = if conditions.is_empty() { 0 } else { 1 };
        self.jump(IF_EQUAL, call as u32, 0, (len + back) as u8);
        for (i, condition) in conditions.iter().enumerate() {
            self.step(LOAD, ARGUMENTS + 8 * condition.at);
            self.step(AND, condition.mask);
            self.jump(IF_EQUAL, condition.is, 0, (len - EACH * (i + 1)) as u8);
        }
        self.step(RETURN, ALLOW);
        if back == 1 {
            self.step(LOAD, NUMBER);
        }
    }
}

/// The filter for threads of process `pid`.
fn filter(pid: u32) -> Filter {
    let whole = |at, is| If { at, mask: u32::MAX, is };
    let mut filter = Filter { steps: [Instruction { code: RETURN, yes: 0, no: 0, k: REFUSE }; STEPS], len: 0 };
    // A call by another convention has other numbers.
    filter.step(LOAD, ARCHITECTURE);
    filter.jump(IF_EQUAL, X86_64, 1, 0);
    filter.step(RETURN, REFUSE);
    filter.step(LOAD, NUMBER);
    // Of userfaultfd, of pagemap and maps, of block devices.
    for family in [0xaa, u32::from(b'f'), u32::from(b'$'), 0x12] {
        filter.allow(libc::SYS_ioctl, &[If { at: 1, mask: 0xff00, is: family << 8 }]);
    }
    filter.allow(libc::SYS_ioctl, &[whole(1, libc::FIONBIO as u32)]);
    for call in FREE {
        filter.allow(*call, &[]);
    }
    // Files for reading, and those for pages, which cannot get a name later.
    const NO_DIRECTORY: u32 = !libc::O_DIRECTORY as u32;
    const CHANGES: u32 =
        (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u32 | libc::O_TMPFILE as u32 & NO_DIRECTORY;
    const UNNAMED: u32 = (libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL) as u32;
    filter.allow(libc::SYS_openat, &[If { at: 2, mask: CHANGES, is: 0 }]);
    filter.allow(libc::SYS_openat, &[If { at: 2, mask: CHANGES | UNNAMED, is: UNNAMED }]);
    let thread = libc::CLONE_THREAD as u32;
    filter.allow(libc::SYS_clone, &[If { at: 0, mask: thread, is: thread }]);
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        filter.allow(call, &[whole(0, pid)]);
    }
    // Whether a process of the tree is still there.
    filter.allow(libc::SYS_kill, &[whole(1, 0)]);
    // Of a memfd: what forked processes have together.
    filter.allow(libc::SYS_fchmod, &[whole(1, 0o400)]);
    // Standard error, for messages.
    filter.allow(libc::SYS_pidfd_open, &[whole(0, pid), whole(1, 0)]);
    filter.allow(libc::SYS_pidfd_getfd, &[whole(1, libc::STDERR_FILENO as u32), whole(2, 0)]);
    filter.allow(libc::SYS_prlimit64, &[whole(0, 0)]);
    // A child's descriptors wait in a socket (`run/shared/channel.rs`). One end of it may be passed over a connection
    // within the process, by an abstract name of the kernel's choice: of this length.
    let local = || [whole(0, libc::AF_UNIX as u32), If { at: 1, mask: 0xf, is: libc::SOCK_SEQPACKET as u32 }];
    filter.allow(libc::SYS_socketpair, &local());
    filter.allow(libc::SYS_socket, &local());
    filter.allow(libc::SYS_connect, &[whole(2, 8)]);
    filter.allow(libc::SYS_getsockopt, &[whole(1, libc::SOL_SOCKET as u32), whole(2, libc::SO_PEERCRED as u32)]);
    filter.step(RETURN, REFUSE);
    filter
}

/// Gives the calling thread the filter, unless it has one already.
///
/// # Errors
/// The kernel refuses it.
pub fn confine() -> Result<(), Errno> {
    const PR_GET_SECCOMP: usize = 21;
    const PR_SET_SECCOMP: usize = 22;
    const MODE_FILTER: usize = 2;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    #[repr(C)]
    struct Program {
        len: u16,
        steps: *const Instruction,
    }
    // SAFETY: reads and changes what belongs to the calling thread; the filter is alive during the call.
    let prctl = |option, a, b| unsafe { syscall(nr::PRCTL, [option, a, b, 0, 0, 0]) };
    // A refusal of this is a filter.
    if prctl(PR_GET_SECCOMP, 0, 0) != Ok(0) {
        return Ok(());
    }
    let filter = filter(rustix::process::getpid().as_raw_nonzero().get() as u32);
    let program = Program { len: filter.len as u16, steps: filter.steps.as_ptr() };
    let set = || prctl(PR_SET_SECCOMP, MODE_FILTER, &raw const program as usize);
    set().or_else(|_| {
        // Only root may do without. It means nothing else to a thread that never executes anything.
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0)?;
        set()
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says of a call.
    fn verdict(pid: u32, number: i64, arguments: [u32; 3]) -> u32 {
        let filter = filter(pid);
        assert!(filter.len <= STEPS);
        let (mut a, mut at) = (0, 0);
        loop {
            let step = filter.steps[at];
            at += 1;
            match step.code {
                LOAD if step.k == NUMBER => a = number as u32,
                LOAD if step.k == ARCHITECTURE => a = X86_64,
                LOAD => a = arguments[((step.k - ARGUMENTS) / 8) as usize],
                AND => a &= step.k,
                IF_EQUAL => at += usize::from(if a == step.k { step.yes } else { step.no }),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn what_the_engine_does_is_allowed_and_nothing_else() {
        let allowed = |call, arguments| verdict(7, call, arguments) == ALLOW;
        for call in FREE {
            assert!(allowed(*call, [1, 2, 3]), "{call}");
        }
        for call in
            [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_open, libc::SYS_io_uring_setup, 9999]
        {
            assert!(!allowed(call, [7, 0, 0]), "{call}");
        }
        let uffdio_copy = 0xc028_aa03;
        assert!(allowed(libc::SYS_ioctl, [3, uffdio_copy, 0]) && allowed(libc::SYS_ioctl, [3, 0x5421, 0]));
        assert!(!allowed(libc::SYS_ioctl, [3, 0x5412, 0]), "TIOCSTI");
        let open = |flags: i32| allowed(libc::SYS_openat, [3, 0, flags as u32]);
        assert!(open(libc::O_CLOEXEC) && open(libc::O_PATH | libc::O_DIRECTORY));
        assert!(open(libc::O_RDWR | libc::O_CLOEXEC | libc::O_EXCL | libc::O_TMPFILE));
        for flags in [libc::O_WRONLY, libc::O_CREAT, libc::O_TRUNC, libc::O_RDWR | libc::O_TMPFILE] {
            assert!(!open(flags), "{flags:o}");
        }
        assert!(allowed(libc::SYS_clone, [0x50f00, 0, 0]) && !allowed(libc::SYS_clone, [17, 0, 0]));
        assert!(allowed(libc::SYS_tgkill, [7, 8, 6]) && !allowed(libc::SYS_kill, [8, 9, 0]));
        assert!(allowed(libc::SYS_socket, [1, 5 | 0o2000000, 0]) && !allowed(libc::SYS_socket, [2, 5, 0]));
        assert!(!allowed(libc::SYS_socket, [1, 1, 0]) && !allowed(libc::SYS_connect, [3, 0, 110]));
        assert!(allowed(libc::SYS_socketpair, [1, 5 | 0o2000000, 0]) && !allowed(libc::SYS_socketpair, [1, 1, 0]));
        assert!(allowed(libc::SYS_getsockopt, [3, 1, 17]) && !allowed(libc::SYS_getsockopt, [3, 1, 18]));
        assert!(allowed(libc::SYS_pidfd_open, [7, 0, 0]) && !allowed(libc::SYS_pidfd_open, [8, 0o200, 0]));
        assert!(allowed(libc::SYS_pidfd_getfd, [3, 2, 0]) && !allowed(libc::SYS_pidfd_getfd, [3, 4, 0]));
    }

    #[test]
    fn a_thread_can_be_confined() {
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                confine().unwrap();
                confine().unwrap();
                std::fs::File::options().append(true).open("/dev/null").unwrap_err().raw_os_error()
            });
            assert_eq!(refused.join().unwrap(), Some(libc::EPERM));
        });
        assert!(std::fs::File::options().append(true).open("/dev/null").is_ok(), "others are not");
    }
}
