//! System calls by number, for the few that rustix does not wrap.

pub use rustix::io::Errno;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("farpage supports x86-64 only: engine threads and system calls are written for it");

/// Makes system call `nr` with six arguments.
///
/// # Errors
/// The kernel's errno.
///
/// # Safety
/// As for the system call: the arguments must be valid for it, and what it does must not break memory that safe code
/// relies on.
#[inline]
pub unsafe fn syscall(nr: u32, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let ret = unsafe { farpage_syscalls::raw(nr, &args) };
    if (-4095..0).contains(&ret) { Err(Errno::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// System call numbers used here (x86-64).
pub mod nr {
    /// `kcmp`
    pub const KCMP: u32 = 312;
    /// `close`
    pub const CLOSE: u32 = 3;
    /// `readv`
    pub const READV: u32 = 19;
    /// `sendmsg`
    pub const SENDMSG: u32 = 46;
    /// recvmsg(2).
    pub const RECVMSG: u32 = 47;
    /// `rt_sigaction`
    pub const RT_SIGACTION: u32 = 13;
    /// `rt_sigprocmask`
    pub const RT_SIGPROCMASK: u32 = 14;
    /// `ioctl`
    pub const IOCTL: u32 = 16;
    /// `preadv`, with the offset in one word
    pub const PREADV: u32 = 295;
    /// `pwritev`
    pub const PWRITEV: u32 = 296;
    /// `madvise`
    pub const MADVISE: u32 = 28;
    /// `rt_tgsigqueueinfo`
    pub const RT_TGSIGQUEUEINFO: u32 = 297;
    /// `sigaltstack`
    pub const SIGALTSTACK: u32 = 131;
    /// `rt_sigtimedwait`
    pub const RT_SIGTIMEDWAIT: u32 = 128;
    /// `capget`
    pub const CAPGET: u32 = 125;
    /// `capset`
    pub const CAPSET: u32 = 126;
    /// `setgroups`
    pub const SETGROUPS: u32 = 116;
    /// `setresuid`
    pub const SETRESUID: u32 = 117;
    /// `getresuid`
    pub const GETRESUID: u32 = 118;
    /// `setresgid`
    pub const SETRESGID: u32 = 119;
    /// `getresgid`
    pub const GETRESGID: u32 = 120;
    /// `setns`
    pub const SETNS: u32 = 308;
    /// `prctl`
    pub const PRCTL: u32 = 157;
    /// `fcntl`
    pub const FCNTL: u32 = 72;
    /// `futex`
    pub const FUTEX: u32 = 202;
    /// `sched_setaffinity`
    pub const SCHED_SETAFFINITY: u32 = 203;
    /// `sched_getaffinity`
    pub const SCHED_GETAFFINITY: u32 = 204;
    /// `clock_gettime`
    pub const CLOCK_GETTIME: u32 = 228;
    /// `exit_group`
    pub const EXIT_GROUP: u32 = 231;
    /// `tgkill`
    pub const TGKILL: u32 = 234;
    /// `get_robust_list`
    pub const GET_ROBUST_LIST: u32 = 274;
    /// set_robust_list
    pub const SET_ROBUST_LIST: u32 = 273;
    /// futex_waitv
    pub const FUTEX_WAITV: u32 = 449;
    /// getrusage
    pub const GETRUSAGE: u32 = 98;
    /// `exit`
    pub const EXIT: u32 = 60;
    /// `dup3`
    pub const DUP3: u32 = 292;
    /// `unshare`
    pub const UNSHARE: u32 = 272;
    /// `sched_setattr`
    pub const SCHED_SETATTR: u32 = 314;
    /// `getcpu`
    pub const GETCPU: u32 = 309;
    /// `sched_getattr`
    pub const SCHED_GETATTR: u32 = 315;
    /// `getrandom`
    pub const GETRANDOM: u32 = 318;
    /// `userfaultfd`
    pub const USERFAULTFD: u32 = 323;
    /// `openat`
    pub const OPENAT: u32 = 257;
    /// `pidfd_open`
    pub const PIDFD_OPEN: u32 = 434;
    /// `close_range`
    pub const CLOSE_RANGE: u32 = 436;
    /// `pidfd_getfd`
    pub const PIDFD_GETFD: u32 = 438;
}

/// An errno in words, without libc's tables: they want thread-local storage that engine threads do not have (a crash,
/// not an error), and are not for signal handlers. So `Errno` and `io::Error` themselves are never formatted there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrnoText(pub Errno);

/// For errors that have no words here.
const UNKNOWN: &str = "error";

impl ErrnoText {
    /// The error in lower case, without its number.
    pub fn words(self) -> &'static str {
        match self.0 {
            Errno::PERM => "operation not permitted",
            Errno::NOENT => "no such file or directory",
            Errno::IO => "input/output error",
            Errno::BADF => "bad file descriptor",
            Errno::ACCESS => "permission denied",
            Errno::NOTDIR => "not a directory",
            Errno::INVAL => "invalid argument",
            Errno::MFILE | Errno::NFILE => "too many open files",
            Errno::FBIG => "file too large",
            Errno::NOMEM => "cannot allocate memory",
            Errno::AGAIN => "resource temporarily unavailable",
            Errno::NOSPC => "no space left on device",
            Errno::ROFS => "read-only file system",
            Errno::DQUOT => "disk quota exceeded",
            Errno::OPNOTSUPP => "operation not supported",
            Errno::NXIO => "no such device or address",
            Errno::NOMEDIUM => "no medium found",
            Errno::PROTO => "protocol error",
            Errno::BADMSG => "bad message",
            Errno::CONNREFUSED => "connection refused",
            Errno::TIMEDOUT => "connection timed out",
            Errno::HOSTUNREACH => "no route to host",
            Errno::NETUNREACH => "network is unreachable",
            Errno::SHUTDOWN => "server is shutting down",
            Errno::NOSYS => "function not implemented",
            Errno::NODEV => "no such device",
            Errno::BUSY => "device or resource busy",
            Errno::NOTTY => "inappropriate ioctl for device",
            Errno::FAULT => "bad address",
            Errno::CONNRESET => "connection reset by peer",
            Errno::PIPE => "broken pipe",
            _ => UNKNOWN,
        }
    }
}

impl std::fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.words() {
            UNKNOWN => write!(f, "{UNKNOWN} {}", self.0.raw_os_error()),
            words => f.write_str(words),
        }
    }
}

impl From<Errno> for ErrnoText {
    fn from(errno: Errno) -> ErrnoText {
        ErrnoText(errno)
    }
}

impl From<std::io::Error> for ErrnoText {
    fn from(error: std::io::Error) -> ErrnoText {
        ErrnoText(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// Fills `bytes` (256 at most) with random bytes of the kernel.
///
/// # Errors
/// The kernel has none yet (early at boot), or refuses the call.
pub fn random_bytes(bytes: &mut [u8]) -> Result<(), Errno> {
    const NONBLOCK: usize = 1;
    // SAFETY: the kernel writes to `bytes`, within its length.
    let n = unsafe { syscall(nr::GETRANDOM, [bytes.as_mut_ptr() as usize, bytes.len(), NONBLOCK, 0, 0, 0]) }?;
    if n == bytes.len() { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Empties pages of anonymous memory, also if the program has locked them (`mlock`).
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// Their content is not needed.
pub unsafe fn discard(at: *mut std::ffi::c_void, len: usize) -> Result<(), Errno> {
    /// `MADV_DONTNEED` of locked memory too, Linux 5.18.
    const DONTNEED_LOCKED: i32 = 24;
    // SAFETY: caller's promise.
    let done = |how| unsafe { libc::madvise(at, len, how) } == 0;
    if done(libc::MADV_DONTNEED) || done(DONTNEED_LOCKED) {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// Whether there is a thread with this id in the calling process.
pub fn is_thread_here(tid: u32) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: no signal is sent.
    unsafe { syscall(nr::TGKILL, [pid, tid as usize, 0, 0, 0, 0]) }.is_ok()
}

/// The calling thread's id.
pub fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
