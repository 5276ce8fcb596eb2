//! What the arguments of each system call of x86-64 point to: the manual pages' prototypes, as rules.
//!
//! Only what the kernel reads or writes counts, not what is merely named (`madvise`). A rule may say more than a call
//! reads: what is not memory of ours is left alone, and what is, is brought in for nothing.
//!
//! Callers: [`crate::patch`], [`crate::parts`]. It calls nothing.

use Access::{Both, In, Out};
use Len::{Args, Bits, Bytes, Path, Sets, Some4K, U32At};
use linux_raw_sys::general as n;

/// Numbers below this one have a rule.
pub const CLASSES: usize = 512;

/// What the kernel does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The kernel reads it.
    In,
    /// The kernel writes it.
    Out,
    /// Both.
    Both,
}

impl Access {
    /// Whether it is written.
    pub fn writes(self) -> bool {
        self != In
    }
}

/// How long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Len {
    /// So many bytes.
    Bytes(u32),
    /// The argument's number, times so many bytes.
    Args(u8, u32),
    /// As the 32 bits say that this argument points to.
    U32At(u8),
    /// As many bits as the argument says, in whole words.
    Bits(u8),
    /// Sets of as many descriptors as the first argument says.
    Sets,
    /// A string that ends with a zero, at most 4096 bytes.
    Path,
    /// Not known: the rest of it, up to 4096 bytes.
    Some4K,
}

/// An argument that points somewhere: its index, how long that is, and what is done there.
pub type Pointer = (u8, Len, Access);

/// A call whose arguments point to pointers, or that is made in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Vectors: index of the array, of its length; what is done with the buffers.
    Vector(u8, u8, Access),
    /// Two of them: `process_vm_readv`, `process_vm_writev`; what is done with the local one.
    TwoVectors(Access),
    /// `sendmsg`, `recvmsg`: a `msghdr` in the second argument.
    Message(Access),
    /// `sendmmsg`, `recvmmsg`: an array of them.
    Messages(Access),
    /// `pselect6`: the last argument points to a pointer to a set of signals.
    Pselect,
    /// `rt_sigprocmask`.
    Mask,
    /// `rt_sigaction`.
    Action,
    /// It waits with a set of signals blocked: index of the set.
    Waits(u8),
    /// `io_submit`: an array of pointers to structures.
    Iocbs,
    /// `futex_waitv`: an array of structures with addresses.
    Futexes,
    /// `process_madvise`: an array whose buffers are not touched.
    Ranges,
    /// `clone3`: a structure with addresses.
    Clone3,
    /// `execve`, `execveat`: index of the first of two arrays of strings.
    Exec(u8),
}

/// What is known of a call.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Arguments that point somewhere.
    pub pointers: &'static [Pointer],
    /// What else.
    pub special: Option<Special>,
    /// It does not return where it was made, or twice: it is made in its place, by libc's own instruction.
    pub in_place: bool,
    /// It reads or writes a stream of bytes by argument 1, of which argument 2 is the length: it can be made in
    /// pieces.
    pub stream: bool,
    /// What argument points to is not known to the end: what looks like a pointer there is brought in if the call
    /// fails.
    pub open: bool,
}

/// A rule in eight bits, for the code at the sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// There are pointers behind pointers.
    pub const NESTED: u8 = 0x80;

    /// The bits: argument `i` points somewhere; [`Class::NESTED`].
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether argument `arg` points somewhere.
    pub fn points(self, arg: usize) -> bool {
        self.0 & 1 << arg != 0
    }

    /// There are pointers behind pointers.
    pub fn is_nested(self) -> bool {
        self.0 & Class::NESTED != 0
    }

    /// Anything points somewhere.
    pub fn matters(self) -> bool {
        self.0 != 0
    }
}

/// The class of a call; numbers without a rule may do anything with any argument.
pub fn class(nr: u32) -> Class {
    let rule = rule(nr);
    let mut bits = 0;
    for (arg, _, _) in rule.pointers {
        bits |= 1 << arg;
    }
    let first = |special| match special {
        Special::Vector(array, ..) => 1 << array,
        Special::TwoVectors(_) => 1 << 1 | 1 << 3,
        Special::Message(_) | Special::Messages(_) | Special::Ranges => 1 << 1,
        Special::Pselect => 1 << 5,
        Special::Iocbs => 1 << 2,
        Special::Futexes | Special::Clone3 => 1 << 0,
        Special::Exec(array) => 1 << array | 1 << (array + 1),
        Special::Mask | Special::Action | Special::Waits(_) => 0,
    };
    if let Some(special) = rule.special {
        bits |= first(special);
        let is_flat = matches!(special, Special::Ranges);
        bits |= if is_flat { 0 } else { Class::NESTED };
    }
    Class(bits)
}

const fn plain(pointers: &'static [Pointer]) -> Rule {
    Rule { pointers, special: None, in_place: false, stream: false, open: false }
}

const fn stream(pointers: &'static [Pointer]) -> Rule {
    Rule { stream: true, ..plain(pointers) }
}

const fn open(pointers: &'static [Pointer]) -> Rule {
    Rule { open: true, ..plain(pointers) }
}

const fn special(special: Special, pointers: &'static [Pointer]) -> Rule {
    Rule { special: Some(special), ..plain(pointers) }
}

const fn in_place(rule: Rule) -> Rule {
    Rule { in_place: true, ..rule }
}

/// Sizes of the kernel's structures, bytes.
const STAT: Len = Bytes(144);
const TIMESPEC: Len = Bytes(16);
const SIGSET: Len = Bytes(8);
const RUSAGE: Len = Bytes(144);
const SIGINFO: Len = Bytes(128);
const ITIMER: Len = Bytes(32);

/// The rule for a call.
#[rustfmt::skip]
pub fn rule(nr: u32) -> Rule {
    match nr {
        // Streams of bytes.
        n::__NR_read | n::__NR_pread64 => stream(&[(1, Args(2, 1), Out)]),
        n::__NR_write | n::__NR_pwrite64 => stream(&[(1, Args(2, 1), In)]),
        n::__NR_sendto => stream(&[(1, Args(2, 1), In), (4, Args(5, 1), In)]),
        n::__NR_recvfrom => stream(&[(1, Args(2, 1), Out), (4, U32At(5), Out), (5, Bytes(4), Both)]),
        n::__NR_readv | n::__NR_preadv | n::__NR_preadv2 => special(Special::Vector(1, 2, Out), &[]),
        n::__NR_writev | n::__NR_pwritev | n::__NR_pwritev2 => special(Special::Vector(1, 2, In), &[]),
        n::__NR_vmsplice => special(Special::Vector(1, 2, Both), &[]),
        n::__NR_process_vm_readv => special(Special::TwoVectors(Out), &[]),
        n::__NR_process_vm_writev => special(Special::TwoVectors(In), &[]),
        n::__NR_sendmsg => special(Special::Message(In), &[]),
        n::__NR_recvmsg => special(Special::Message(Out), &[]),
        n::__NR_sendmmsg => special(Special::Messages(In), &[]),
        n::__NR_recvmmsg => special(Special::Messages(Out), &[(4, TIMESPEC, Both)]),
        n::__NR_getdents | n::__NR_getdents64 => plain(&[(1, Args(2, 1), Out)]),
        n::__NR_getrandom => plain(&[(0, Args(1, 1), Out)]),
        n::__NR_sendfile => plain(&[(2, Bytes(8), Both)]),
        n::__NR_copy_file_range | n::__NR_splice => plain(&[(1, Bytes(8), Both), (3, Bytes(8), Both)]),

        // Files by name.
        n::__NR_open | n::__NR_access | n::__NR_truncate | n::__NR_chdir | n::__NR_mkdir | n::__NR_rmdir
        | n::__NR_creat | n::__NR_unlink | n::__NR_chmod | n::__NR_chown | n::__NR_lchown | n::__NR_mknod
        | n::__NR_uselib | n::__NR_chroot | n::__NR_acct | n::__NR_umount2 | n::__NR_swapon | n::__NR_swapoff
        | n::__NR_mq_unlink | n::__NR_memfd_create | n::__NR_fsopen | n::__NR_delete_module => plain(&[(0, Path, In)]),
        n::__NR_rename | n::__NR_link | n::__NR_symlink | n::__NR_pivot_root | n::__NR_removexattr
        | n::__NR_lremovexattr => plain(&[(0, Path, In), (1, Path, In)]),
        n::__NR_openat | n::__NR_mkdirat | n::__NR_mknodat | n::__NR_fchownat | n::__NR_unlinkat | n::__NR_fchmodat
        | n::__NR_fchmodat2 | n::__NR_faccessat | n::__NR_faccessat2 | n::__NR_inotify_add_watch | n::__NR_finit_module
        | n::__NR_open_tree | n::__NR_fspick | n::__NR_fremovexattr => plain(&[(1, Path, In)]),
        n::__NR_renameat | n::__NR_renameat2 | n::__NR_linkat | n::__NR_move_mount =>
            plain(&[(1, Path, In), (3, Path, In)]),
        n::__NR_symlinkat => plain(&[(0, Path, In), (2, Path, In)]),
        n::__NR_openat2 => plain(&[(1, Path, In), (2, Args(3, 1), In)]),
        n::__NR_mount_setattr => plain(&[(1, Path, In), (3, Args(4, 1), In)]),
        n::__NR_stat | n::__NR_lstat => plain(&[(0, Path, In), (1, STAT, Out)]),
        n::__NR_fstat => plain(&[(1, STAT, Out)]),
        n::__NR_newfstatat => plain(&[(1, Path, In), (2, STAT, Out)]),
        n::__NR_statx => plain(&[(1, Path, In), (4, Bytes(256), Out)]),
        n::__NR_statfs => plain(&[(0, Path, In), (1, Bytes(120), Out)]),
        n::__NR_fstatfs => plain(&[(1, Bytes(120), Out)]),
        n::__NR_sysfs => open(&[(1, Some4K, Both), (2, Some4K, Both)]),
        n::__NR_lookup_dcookie => plain(&[(1, Args(2, 1), Out)]),
        n::__NR_ustat => plain(&[(1, Bytes(32), Out)]),
        n::__NR_readlink => plain(&[(0, Path, In), (1, Args(2, 1), Out)]),
        n::__NR_readlinkat => plain(&[(1, Path, In), (2, Args(3, 1), Out)]),
        n::__NR_getcwd => plain(&[(0, Args(1, 1), Out)]),
        n::__NR_utime => plain(&[(0, Path, In), (1, Bytes(16), In)]),
        n::__NR_utimes => plain(&[(0, Path, In), (1, Bytes(32), In)]),
        n::__NR_futimesat | n::__NR_utimensat => plain(&[(1, Path, In), (2, Bytes(32), In)]),
        n::__NR_setxattr | n::__NR_lsetxattr => plain(&[(0, Path, In), (1, Path, In), (2, Args(3, 1), In)]),
        n::__NR_fsetxattr => plain(&[(1, Path, In), (2, Args(3, 1), In)]),
        n::__NR_getxattr | n::__NR_lgetxattr => plain(&[(0, Path, In), (1, Path, In), (2, Args(3, 1), Out)]),
        n::__NR_fgetxattr => plain(&[(1, Path, In), (2, Args(3, 1), Out)]),
        n::__NR_listxattr | n::__NR_llistxattr => plain(&[(0, Path, In), (1, Args(2, 1), Out)]),
        n::__NR_flistxattr => plain(&[(1, Args(2, 1), Out)]),
        n::__NR_setxattrat | n::__NR_getxattrat => open(&[(1, Path, In), (3, Path, In), (4, Args(5, 1), Both)]),
        n::__NR_listxattrat => plain(&[(1, Path, In), (3, Args(4, 1), Out)]),
        n::__NR_removexattrat => plain(&[(1, Path, In), (3, Path, In)]),
        n::__NR_name_to_handle_at => plain(&[(1, Path, In), (2, Bytes(136), Both), (3, Bytes(8), Out)]),
        n::__NR_open_by_handle_at => plain(&[(1, Bytes(136), In)]),
        n::__NR_fanotify_mark => plain(&[(4, Path, In)]),
        n::__NR_cachestat => plain(&[(1, Bytes(16), In), (2, Bytes(40), Out)]),
        n::__NR_fcntl => open(&[(2, Bytes(32), Both)]),
        n::__NR_ioctl => open(&[(2, Some4K, Both)]),

        // File systems and modules.
        n::__NR_mount => plain(&[(0, Path, In), (1, Path, In), (2, Path, In), (4, Some4K, In)]),
        n::__NR_fsconfig => plain(&[(2, Path, In), (3, Some4K, In)]),
        n::__NR_quotactl => plain(&[(1, Path, In), (3, Some4K, Both)]),
        n::__NR_quotactl_fd => plain(&[(3, Some4K, Both)]),
        n::__NR_statmount => plain(&[(0, Bytes(32), In), (1, Args(2, 1), Out)]),
        n::__NR_listmount => plain(&[(0, Bytes(32), In), (1, Args(2, 8), Out)]),
        n::__NR_init_module => plain(&[(0, Args(1, 1), In), (2, Path, In)]),
        n::__NR_kexec_load => open(&[(2, Args(1, 32), In)]),
        n::__NR_kexec_file_load => plain(&[(3, Args(2, 1), In)]),

        // Waiting for descriptors.
        n::__NR_poll => plain(&[(0, Args(1, 8), Both)]),
        n::__NR_ppoll => special(Special::Waits(3), &[(0, Args(1, 8), Both), (2, TIMESPEC, Both), (3, SIGSET, In)]),
        n::__NR_select => plain(&[(1, Sets, Both), (2, Sets, Both), (3, Sets, Both), (4, TIMESPEC, Both)]),
        n::__NR_pselect6 =>
            special(Special::Pselect, &[(1, Sets, Both), (2, Sets, Both), (3, Sets, Both), (4, TIMESPEC, Both)]),
        n::__NR_epoll_wait => plain(&[(1, Args(2, 12), Out)]),
        n::__NR_epoll_pwait => special(Special::Waits(4), &[(1, Args(2, 12), Out), (4, SIGSET, In)]),
        n::__NR_epoll_pwait2 =>
            special(Special::Waits(4), &[(1, Args(2, 12), Out), (3, TIMESPEC, In), (4, SIGSET, In)]),
        n::__NR_epoll_ctl => plain(&[(3, Bytes(12), In)]),
        n::__NR_pipe | n::__NR_pipe2 => plain(&[(0, Bytes(8), Out)]),

        // Asynchronous I/O. What is under way when the call has returned is not held.
        n::__NR_io_setup => plain(&[(1, Bytes(8), Both)]),
        n::__NR_io_getevents => plain(&[(3, Args(2, 32), Out), (4, TIMESPEC, In)]),
        n::__NR_io_pgetevents => open(&[(3, Args(2, 32), Out), (4, TIMESPEC, In), (5, Bytes(16), In)]),
        n::__NR_io_submit => special(Special::Iocbs, &[]),
        n::__NR_io_cancel => plain(&[(1, Bytes(64), In), (2, Bytes(32), Out)]),
        n::__NR_io_uring_setup => plain(&[(1, Bytes(120), Both)]),
        n::__NR_io_uring_enter => open(&[(4, Args(5, 1), In)]),
        n::__NR_io_uring_register => open(&[(2, Some4K, Both)]),

        // Sockets.
        n::__NR_connect | n::__NR_bind => plain(&[(1, Args(2, 1), In)]),
        n::__NR_accept | n::__NR_accept4 | n::__NR_getsockname | n::__NR_getpeername =>
            plain(&[(1, U32At(2), Out), (2, Bytes(4), Both)]),
        n::__NR_socketpair => plain(&[(3, Bytes(8), Out)]),
        n::__NR_setsockopt => open(&[(3, Args(4, 1), In)]),
        n::__NR_getsockopt => open(&[(3, U32At(4), Both), (4, Bytes(4), Both)]),

        // Signals.
        n::__NR_rt_sigaction => special(Special::Action, &[(1, Bytes(32), In), (2, Bytes(32), Out)]),
        n::__NR_rt_sigprocmask => special(Special::Mask, &[(1, SIGSET, In), (2, SIGSET, Out)]),
        n::__NR_rt_sigpending => plain(&[(0, SIGSET, Out)]),
        n::__NR_rt_sigtimedwait => plain(&[(0, SIGSET, In), (1, SIGINFO, Out), (2, TIMESPEC, In)]),
        n::__NR_rt_sigqueueinfo | n::__NR_pidfd_send_signal => plain(&[(2, SIGINFO, In)]),
        n::__NR_rt_tgsigqueueinfo => plain(&[(3, SIGINFO, In)]),
        n::__NR_rt_sigsuspend => special(Special::Waits(0), &[(0, SIGSET, In)]),
        n::__NR_sigaltstack => plain(&[(0, Bytes(24), In), (1, Bytes(24), Out)]),
        n::__NR_signalfd | n::__NR_signalfd4 => plain(&[(1, Args(2, 1), In)]),

        // Time.
        n::__NR_nanosleep => plain(&[(0, TIMESPEC, In), (1, TIMESPEC, Out)]),
        n::__NR_clock_nanosleep => plain(&[(2, TIMESPEC, In), (3, TIMESPEC, Out)]),
        n::__NR_clock_gettime | n::__NR_clock_getres => plain(&[(1, TIMESPEC, Out)]),
        n::__NR_clock_settime => plain(&[(1, TIMESPEC, In)]),
        n::__NR_clock_adjtime => plain(&[(1, Bytes(208), Both)]),
        n::__NR_adjtimex => plain(&[(0, Bytes(208), Both)]),
        n::__NR_time => plain(&[(0, Bytes(8), Out)]),
        n::__NR_times => plain(&[(0, Bytes(32), Out)]),
        n::__NR_gettimeofday => plain(&[(0, Bytes(16), Out), (1, Bytes(8), Out)]),
        n::__NR_settimeofday => plain(&[(0, Bytes(16), In), (1, Bytes(8), In)]),
        n::__NR_getitimer => plain(&[(1, ITIMER, Out)]),
        n::__NR_setitimer => plain(&[(1, ITIMER, In), (2, ITIMER, Out)]),
        n::__NR_timer_create => plain(&[(1, Bytes(64), In), (2, Bytes(4), Out)]),
        n::__NR_timer_settime | n::__NR_timerfd_settime => plain(&[(2, ITIMER, In), (3, ITIMER, Out)]),
        n::__NR_timer_gettime | n::__NR_timerfd_gettime => plain(&[(1, ITIMER, Out)]),

        // Processes and threads.
        n::__NR_clone => in_place(plain(&[(2, Bytes(4), Out), (3, Bytes(4), Out)])),
        n::__NR_clone3 => in_place(special(Special::Clone3, &[(0, Args(1, 1), Both)])),
        n::__NR_execve => in_place(special(Special::Exec(1), &[(0, Path, In)])),
        n::__NR_execveat => in_place(special(Special::Exec(2), &[(1, Path, In)])),
        n::__NR_wait4 => plain(&[(1, Bytes(4), Out), (3, RUSAGE, Out)]),
        n::__NR_waitid => plain(&[(2, SIGINFO, Out), (4, RUSAGE, Out)]),
        n::__NR_getrusage => plain(&[(1, RUSAGE, Out)]),
        n::__NR_getrlimit => plain(&[(1, Bytes(16), Out)]),
        n::__NR_setrlimit => plain(&[(1, Bytes(16), In)]),
        n::__NR_prlimit64 => plain(&[(2, Bytes(16), In), (3, Bytes(16), Out)]),
        n::__NR_getgroups => plain(&[(1, Args(0, 4), Out)]),
        n::__NR_setgroups => plain(&[(1, Args(0, 4), In)]),
        n::__NR_getresuid | n::__NR_getresgid => plain(&[(0, Bytes(4), Out), (1, Bytes(4), Out), (2, Bytes(4), Out)]),
        n::__NR_capget => plain(&[(0, Bytes(8), Both), (1, Bytes(24), Out)]),
        n::__NR_capset => plain(&[(0, Bytes(8), Both), (1, Bytes(24), In)]),
        n::__NR_sched_setparam => plain(&[(1, Bytes(4), In)]),
        n::__NR_sched_getparam => plain(&[(1, Bytes(4), Out)]),
        n::__NR_sched_setscheduler => plain(&[(2, Bytes(4), In)]),
        n::__NR_sched_rr_get_interval => plain(&[(1, TIMESPEC, Out)]),
        n::__NR_sched_setaffinity => plain(&[(2, Args(1, 1), In)]),
        n::__NR_sched_getaffinity => plain(&[(2, Args(1, 1), Out)]),
        n::__NR_sched_setattr => plain(&[(1, Some4K, Both)]),
        n::__NR_sched_getattr => plain(&[(1, Args(2, 1), Out)]),
        n::__NR_getcpu => plain(&[(0, Bytes(4), Out), (1, Bytes(4), Out)]),
        n::__NR_get_robust_list => plain(&[(1, Bytes(8), Out), (2, Bytes(8), Out)]),
        n::__NR_ptrace => open(&[(2, Some4K, Both), (3, Some4K, Both)]),
        n::__NR_prctl => open(&[(1, Some4K, Both), (2, Some4K, Both), (3, Some4K, Both), (4, Some4K, Both)]),
        n::__NR_arch_prctl => plain(&[(1, Bytes(8), Both)]),
        n::__NR_modify_ldt => plain(&[(1, Args(2, 1), Both)]),
        n::__NR_set_thread_area | n::__NR_get_thread_area => plain(&[(0, Bytes(16), Both)]),
        n::__NR_seccomp => open(&[(2, Some4K, Both)]),
        n::__NR_bpf => open(&[(1, Args(2, 1), Both)]),
        n::__NR_perf_event_open => plain(&[(0, Some4K, Both)]),
        n::__NR_landlock_create_ruleset => plain(&[(0, Args(1, 1), In)]),
        n::__NR_landlock_add_rule => plain(&[(2, Bytes(16), In)]),
        n::__NR_lsm_get_self_attr => plain(&[(1, U32At(2), Out), (2, Bytes(4), Both)]),
        n::__NR_lsm_set_self_attr => plain(&[(1, Args(2, 1), In)]),
        n::__NR_lsm_list_modules => plain(&[(0, U32At(1), Out), (1, Bytes(4), Both)]),

        // Memory. Of most of these the addresses are only named.
        n::__NR_mincore => plain(&[(2, Some4K, Out)]),
        n::__NR_mbind => plain(&[(3, Bits(4), In)]),
        n::__NR_set_mempolicy => plain(&[(1, Bits(2), In)]),
        n::__NR_get_mempolicy => plain(&[(0, Bytes(4), Out), (1, Bits(2), Out)]),
        n::__NR_migrate_pages => plain(&[(2, Bits(1), In), (3, Bits(1), In)]),
        n::__NR_move_pages => plain(&[(2, Args(1, 8), In), (3, Args(1, 4), In), (4, Args(1, 4), Out)]),
        n::__NR_process_madvise => special(Special::Ranges, &[(1, Args(2, 16), In)]),

        // Futexes.
        n::__NR_futex => plain(&[(0, Bytes(4), Both), (3, TIMESPEC, In), (4, Bytes(4), Both)]),
        n::__NR_futex_waitv => special(Special::Futexes, &[(0, Args(1, 24), In), (3, TIMESPEC, In)]),
        n::__NR_futex_wake => plain(&[(0, Bytes(4), Both)]),
        n::__NR_futex_wait => plain(&[(0, Bytes(4), Both), (4, TIMESPEC, In)]),
        n::__NR_futex_requeue => open(&[(0, Bytes(48), In)]),

        // Between processes.
        n::__NR_shmctl => plain(&[(2, Bytes(112), Both)]),
        n::__NR_semop => plain(&[(1, Args(2, 6), In)]),
        n::__NR_semtimedop => plain(&[(1, Args(2, 6), In), (3, TIMESPEC, In)]),
        n::__NR_semctl => plain(&[(3, Some4K, Both)]),
        n::__NR_msgsnd => plain(&[(1, Some4K, In)]),
        n::__NR_msgrcv => plain(&[(1, Some4K, Out)]),
        n::__NR_msgctl => plain(&[(2, Bytes(120), Both)]),
        n::__NR_mq_open => plain(&[(0, Path, In), (3, Bytes(64), In)]),
        n::__NR_mq_timedsend => plain(&[(1, Args(2, 1), In), (4, TIMESPEC, In)]),
        n::__NR_mq_timedreceive => plain(&[(1, Args(2, 1), Out), (3, Bytes(4), Out), (4, TIMESPEC, In)]),
        n::__NR_mq_notify => plain(&[(1, Bytes(64), In)]),
        n::__NR_mq_getsetattr => plain(&[(1, Bytes(64), In), (2, Bytes(64), Out)]),
        n::__NR_add_key => plain(&[(0, Path, In), (1, Path, In), (2, Args(3, 1), In)]),
        n::__NR_request_key => plain(&[(0, Path, In), (1, Path, In), (2, Path, In)]),
        n::__NR_keyctl => open(&[(1, Some4K, Both), (2, Some4K, Both), (3, Some4K, Both), (4, Some4K, Both)]),

        // The machine.
        n::__NR_uname => plain(&[(0, Bytes(390), Out)]),
        n::__NR_sysinfo => plain(&[(0, Bytes(112), Out)]),
        n::__NR_syslog => plain(&[(1, Args(2, 1), Out)]),
        n::__NR_sethostname | n::__NR_setdomainname => plain(&[(0, Args(1, 1), In)]),

        _ if points_nowhere(nr) => plain(&[]),
        // A call of a newer kernel.
        _ => open(&[
            (0, Some4K, Both), (1, Some4K, Both), (2, Some4K, Both),
            (3, Some4K, Both), (4, Some4K, Both), (5, Some4K, Both),
        ]),
    }
}

/// Calls that neither read nor write memory of the program, as far as this kernel's are known.
fn points_nowhere(nr: u32) -> bool {
    nr <= n::__NR_rseq || (n::__NR_pidfd_send_signal..=n::__NR_removexattrat).contains(&nr)
}
