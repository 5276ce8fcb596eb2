//! What `/proc` tells about this process: resident memory, threads. (Its mappings: [`super::maps`].)

use super::raw::{Errno, nr, syscall};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statat, statx};
use rustix::io::pread;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// `/proc` in the engine's descriptor table. One number for all callers: what is behind it is exchanged when the
/// program leaves its root directory.
static HELD: Proc = Proc(AtomicI32::new(-1));

/// The number of `/proc` in the engine's descriptor table, for [`Proc::held`] and children; -1: none.
pub fn hold(number: RawFd) {
    HELD.0.store(number, Relaxed);
}

/// What was given to [`hold`].
pub fn held_number() -> RawFd {
    HELD.0.load(Relaxed)
}

/// So often a private file is tried: another thread that opens one may have ended the moment in which it could be.
const OPEN_TRIES: usize = 16;

/// An open `/proc`.
#[derive(Debug)]
pub struct Proc(AtomicI32);

impl Proc {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// Not mounted, or no descriptors left.
    pub fn open() -> Result<Proc, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, "/proc", flags, Mode::empty()).map(Proc::from_fd)
    }

    /// Mounts one that has no place: no way leads up from it. It shows processes that the caller may look into, and
    /// nothing else.
    ///
    /// # Errors
    /// As the system calls: it takes the right to mount.
    pub fn mount() -> Result<Proc, Errno> {
        const CLOEXEC: usize = 1;
        const SET_STRING: usize = 1;
        const CREATE: usize = 6;
        const NO_SUID_DEV_EXEC: usize = 2 | 4 | 8;
        let call = |number: i64, args: [usize; 6]| {
            // SAFETY: the strings end with a zero and are alive; a filesystem is made that has no place.
            unsafe { syscall(number as u32, args) }
        };
        // SAFETY: what the two calls return is new, and has no other owner.
        let own = |fd: usize| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let made = own(call(libc::SYS_fsopen, [c"proc".as_ptr().addr(), CLOEXEC, 0, 0, 0, 0])?);
        let number = made.as_raw_fd() as usize;
        for (key, value) in [(c"hidepid", c"ptraceable"), (c"subset", c"pid")] {
            call(libc::SYS_fsconfig, [number, SET_STRING, key.as_ptr().addr(), value.as_ptr().addr(), 0, 0])?;
        }
        call(libc::SYS_fsconfig, [number, CREATE, 0, 0, 0, 0])?;
        call(libc::SYS_fsmount, [number, CLOEXEC, NO_SUID_DEV_EXEC, 0, 0, 0]).map(|fd| Proc::from_fd(own(fd)))
    }

    /// Whether it tells of this process: not every directory of this name does.
    pub fn tells(&self) -> bool {
        const PROC_SUPER_MAGIC: i64 = 0x9fa0;
        rustix::fs::fstatfs(self).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
            && statat(self, "self/task", AtFlags::empty()).is_ok()
    }

    /// Whether no way leads up from it.
    pub fn is_top(&self) -> bool {
        let place = |path: &str| {
            let stat = statx(self, path, AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
            Some((stat.stx_ino, stat.stx_mnt_id))
        };
        place("..").is_some_and(|up| Some(up) == place("."))
    }

    /// Keeps it for the engine ([`Proc::held`]).
    pub fn hold(self) {
        hold(self.0.swap(-1, Relaxed));
    }

    /// From now on the engine holds this one, for all that have the other.
    ///
    /// # Errors
    /// There is no other.
    pub fn hold_instead(&self) -> Result<(), Errno> {
        replace(held_number(), self.as_fd())
    }

    /// The one that the engine has held since its start, on a thread with the engine's descriptor table.
    ///
    /// # Errors
    /// None is held.
    pub fn held() -> Result<&'static Proc, Errno> {
        if held_number() >= 0 { Ok(&HELD) } else { Err(Errno::BADF) }
    }

    /// Takes an open directory over.
    pub fn from_fd(fd: OwnedFd) -> Proc {
        Proc(AtomicI32::new(fd.into_raw_fd()))
    }

    /// Opens a file of this process that every process may read, for example `thread-self/statm`. What is said of
    /// memory is asked of the calling thread: of a first thread that has ended (`self`) the kernel says nothing.
    ///
    /// # Errors
    /// As openat.
    pub fn file(&self, path: &str) -> Result<OwnedFd, Errno> {
        openat(self, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens a file of this process that only its owner may read: `thread-self/pagemap`, `thread-self/mem`. Those
    /// of a process that must not be dumped belong to root: one that has given its privileges up, or whose program may
    /// only be executed, cannot open its own. It may say that it can be dumped, though; so it does for this moment.
    /// Engines open all that they need of these at their start, because there are no such moments later.
    ///
    /// # Errors
    /// As openat.
    pub fn private_file(&self, path: &str) -> Result<OwnedFd, Errno> {
        const GET_DUMPABLE: usize = 3;
        const SET_DUMPABLE: usize = 4;
        // SAFETY: about which processes may look at this one; touches no memory.
        let dumpable = |call, to| unsafe { syscall(nr::PRCTL, [call, to, 0, 0, 0, 0]) };
        let mut file = self.file(path);
        for _ in 0..OPEN_TRIES {
            if !matches!(file, Err(Errno::ACCESS)) {
                break;
            }
            let says_so = dumpable(GET_DUMPABLE, 0)? != 1;
            if says_so {
                dumpable(SET_DUMPABLE, 1)?;
            }
            file = self.file(path);
            if says_so {
                // What it was, or 2, which means the same without root and cannot be set.
                dumpable(SET_DUMPABLE, 0)?;
            }
        }
        file
    }
}

impl Proc {
    /// Threads of this process, the caller's included; 1 where that cannot be read.
    pub fn threads(&self) -> usize {
        self.counted().unwrap_or(0).max(1)
    }

    fn counted(&self) -> Option<usize> {
        // A directory for each, which names its parent.
        let links = statat(self, "self/task", AtFlags::empty()).ok()?.st_nlink as usize;
        Some(links.saturating_sub(2))
    }
}

impl AsFd for Proc {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // Where none is held, a number that is none either.
        let number = Some(self.0.load(Relaxed)).filter(|number| *number >= 0).unwrap_or(RawFd::MAX);
        // SAFETY: open until this is dropped, or as long as the engine's threads are.
        unsafe { BorrowedFd::borrow_raw(number) }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if let number @ 0.. = *self.0.get_mut() {
            // SAFETY: taken over in `from_fd`, and not given away since.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// An open file of the calling thread's table once more, for reading, in the same manner. With the engine's `/proc`.
///
/// # Errors
/// As openat: the caller may not read it by its mode.
pub fn for_reading(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: only asked how it was opened.
    let opened = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(number) })?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | opened & OFlags::DIRECT;
    openat(Proc::held()?, format!("thread-self/fd/{number}"), flags, Mode::empty())
}

/// What the calling thread's table has under `number` is `other` from now on, for all that use the number.
///
/// # Errors
/// As dup3; the number is not open.
pub fn replace(number: RawFd, other: BorrowedFd<'_>) -> Result<(), Errno> {
    const CLOEXEC: usize = 0o2_000_000;
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is the engine's, and its users expect it to change.
    unsafe { syscall(nr::DUP3, [other.as_raw_fd() as usize, number as usize, CLOEXEC, 0, 0, 0]) }.map(drop)
}

/// What a process has, and what its mappings let it have, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Resident anonymous memory: statm's resident minus file and shared memory pages.
    pub resident: u64,
    /// Private mappings that may be written, filled or not, and stacks as far as they have grown.
    pub data: u64,
    /// Resident memory of files, and shared memory.
    pub others: u64,
}

impl Reach {
    /// The larger one: what was written is not always still writable.
    pub fn bytes(self) -> u64 {
        self.resident.max(self.data)
    }
}

/// What `/proc/self/statm` says.
///
/// # Errors
/// As pread; `INVAL` if the text is not as expected.
pub fn reach(statm: &OwnedFd) -> Result<Reach, Errno> {
    let mut buf = [0u8; 128];
    let n = pread(statm, &mut buf, 0)?;
    // Size, resident, shared, text, lib, data.
    let mut words = buf[..n].split(|b| *b == b' ').map(number);
    let (resident, shared, data) = (words.nth(1).flatten(), words.next().flatten(), words.nth(2).flatten());
    match (resident, shared, data) {
        (Some(r), Some(s), Some(d)) => {
            let page = farpage_swap::PAGE_SIZE as u64;
            Ok(Reach { resident: r.saturating_sub(s) * page, data: d * page, others: s * page })
        }
        _ => Err(Errno::INVAL),
    }
}

/// A whole text file of the system. (`std::fs` looks functions of libc up by name the first time, with storage of the
/// calling thread.)
///
/// # Errors
/// As open and read; `INVAL`: no text.
pub fn text(path: &str) -> Result<String, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut bytes, mut part) = (Vec::new(), [0u8; 1024]);
    loop {
        match rustix::io::read(&file, &mut part)? {
            0 => return String::from_utf8(bytes).map_err(|_| Errno::INVAL),
            n => bytes.extend_from_slice(&part[..n]),
        }
    }
}

/// Resident shared memory in pages (of memfds, tmpfs, shared anonymous mappings), of `/proc/self/status`.
///
/// # Errors
/// As pread; `INVAL` if the text has no such line.
pub fn rss_shared_pages(status: &OwnedFd) -> Result<u64, Errno> {
    let mut buf = [0u8; 4096];
    let n = pread(status, &mut buf, 0)?;
    let mut lines = buf[..n].split(|b| *b == b'\n');
    let kib = lines.find_map(|line| line.strip_prefix(b"RssShmem:"));
    let kib = kib.and_then(|text| number(text.trim_ascii().strip_suffix(b" kB")?));
    kib.map(|kib| kib * 1024 / farpage_swap::PAGE_SIZE as u64).ok_or(Errno::INVAL)
}

/// Resident anonymous memory of this process that others have, too, pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    /// What others pay for, in proportion.
    pub paid_by_others: i64,
    /// All of it.
    pub all: i64,
}

/// What of this process's anonymous memory others have, too, by `smaps_rollup`. Takes the kernel some microseconds for
/// each MiB.
///
/// # Errors
/// As openat and pread; `INVAL` if the text is not as expected.
pub fn shared_anonymous_pages(proc: &Proc) -> Result<Shared, Errno> {
    let file = proc.file("thread-self/smaps_rollup")?;
    let mut buf = [0u8; 2048];
    let n = pread(&file, &mut buf, 0)?;
    let kib = |name: &[u8]| kib_of(&buf[..n], name);
    let pages = |kib: u64| kib as i64 * 1024 / farpage_swap::PAGE_SIZE as i64;
    match (kib(b"Anonymous:"), kib(b"Pss_Anon:"), kib(b"Private_Dirty:")) {
        (Some(resident), Some(share), Some(own)) => Ok(Shared {
            paid_by_others: pages(resident.saturating_sub(share)),
            // Its own pages of files are among them, too, but a program writes few.
            all: pages(resident.saturating_sub(own)),
        }),
        _ => Err(Errno::INVAL),
    }
}

/// Faults of this process's other threads so far that read nothing. A monitor that has slept has some itself.
pub fn minor_faults() -> u64 {
    const PROCESS: usize = 0;
    const THREAD: usize = 1;
    // Written here, so that the calls have no fault in between.
    let mut usage = [0u64; 18];
    let mut faults_of = |who| {
        // SAFETY: the kernel fills a struct of this size (144 bytes).
        let done = unsafe { syscall(nr::GETRUSAGE, [who, usage.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        // Two times, then nine numbers, of which this is the fifth.
        if done.is_ok() { usage[4 + 4] } else { 0 }
    };
    let own = faults_of(THREAD);
    faults_of(PROCESS).saturating_sub(own)
}

/// A file of another process, its beginning, read into `buf`. No allocation.
fn read_of(pid: u32, name: impl std::fmt::Display, buf: &mut [u8]) -> Option<&[u8]> {
    let mut path = [0u8; 48];
    let mut cursor = std::io::Cursor::new(&mut path[..]);
    std::io::Write::write_fmt(&mut cursor, format_args!("/proc/{pid}/{name}\0")).ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let n = pread(&file, &mut *buf, 0).ok()?;
    Some(&buf[..n])
}

/// Resident anonymous pages of another process, 0 if it has no memory any more; `None`: it is gone, or may not be read.
pub fn pages_of(pid: u32) -> Option<u64> {
    let mut buf = [0u8; 128];
    let mut words = read_of(pid, "statm", &mut buf)?.split(|b| *b == b' ').map(number);
    let (resident, shared) = (words.nth(1)??, words.next()??);
    Some(resident.saturating_sub(shared))
}

/// Anonymous pages that another process pays for, those that it shares by its part; `None`: it is gone, or may not be
/// looked into. Takes the kernel a walk through its page tables.
pub fn anonymous_share_of(pid: u32) -> Option<u64> {
    let mut buf = [0u8; 2048];
    kib_of(read_of(pid, "smaps_rollup", &mut buf)?, b"Pss_Anon:").map(|kib| kib * 1024 / farpage_swap::PAGE_SIZE as u64)
}

/// What a line of `/proc/PID/smaps_rollup` says.
fn kib_of(text: &[u8], name: &[u8]) -> Option<u64> {
    let text = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name))?;
    number(text.trim_ascii().strip_suffix(b" kB")?)
}

/// The name of another process; zeros where there is none.
pub fn name_of(pid: u32) -> [u8; 16] {
    let (mut name, mut buf) = ([0; 16], [0u8; 32]);
    if let Some(text) = read_of(pid, "comm", &mut buf).and_then(|text| text.strip_suffix(b"\n")) {
        let len = text.len().min(name.len());
        name[..len].copy_from_slice(&text[..len]);
    }
    name
}

/// Whether a process has become another program than the one of process `pid`, and counts processes as that one does;
/// false where that is not to be seen.
pub fn is_other_program(pid: u32, process: u32) -> bool {
    both_have("exe", pid, process).is_some_and(|(one, other)| one != other) && counts_processes_alike(pid, process)
}

/// Whether two processes are in one pid namespace; false where that is not to be seen.
pub fn counts_processes_alike(pid: u32, process: u32) -> bool {
    both_have("ns/pid", pid, process).is_some_and(|(one, other)| one == other)
}

/// Whether two processes have the same memory, as after vfork; true also where that is not to be seen and they have as
/// much.
pub fn shares_memory(pid: u32, process: u32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: only compares what the kernel has of two processes.
    match unsafe { syscall(nr::KCMP, [pid as usize, process as usize, KCMP_VM, 0, 0, 0]) } {
        Ok(order) => order == 0,
        Err(_) => pages_of(pid) == pages_of(process),
    }
}

/// Which file of this name each of two processes has: device and inode.
fn both_have(name: &str, pid: u32, process: u32) -> Option<((u64, u64), (u64, u64))> {
    let file = |pid: u32| {
        let mut path = [0u8; 48];
        let mut cursor = std::io::Cursor::new(&mut path[..]);
        std::io::Write::write_fmt(&mut cursor, format_args!("/proc/{pid}/{name}\0")).ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
    };
    file(pid).zip(file(process))
}

/// Calls `each` with the process ids of the children of a thread of a process, as far as they fit a page.
pub fn children_of(pid: u32, thread: u32, each: impl FnMut(u32)) {
    let mut buf = [0u8; 4096];
    let Some(text) = read_of(pid, format_args!("task/{thread}/children"), &mut buf) else { return };
    // Each number ends with a space; what is behind the last one was cut off.
    let whole = text.iter().rposition(|b| *b == b' ').map_or(&[][..], |end| &text[..end]);
    whole.split(|b| *b == b' ').filter_map(number).map(|pid| pid as u32).for_each(each);
}

/// Whether a child of this process has ended, or was stopped, and its status is there to be fetched.
pub fn has_ended_child() -> bool {
    let mut info = [0u64; 16];
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    let args = [libc::P_ALL as usize, 0, info.as_mut_ptr() as usize, how as usize, 0, 0];
    // SAFETY: the kernel fills a siginfo_t (128 bytes), and leaves the status where it is.
    unsafe { syscall(libc::SYS_waitid as u32, args) }.is_ok_and(|_| info[0] != 0)
}

/// When a process began, microseconds since the system did, rounded to what the kernel tells (10 ms).
pub fn started_us_of(pid: u32) -> Option<u64> {
    let mut buf = [0u8; 512];
    let text = read_of(pid, "stat", &mut buf)?;
    // After the name, which may have anything in it: the state is the third field, this the 22nd.
    let rest = &text[text.iter().rposition(|b| *b == b')')? + 2..];
    number(rest.split(|b| *b == b' ').nth(19)?).map(|ticks| ticks * 10_000)
}

fn number(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for &b in text {
        value = value.checked_mul(10)?.checked_add(u64::from(b.checked_sub(b'0')?))?;
    }
    (!text.is_empty()).then_some(value)
}

/// Reads the beginning of `/proc/self/task/TID/NAME`; how much. No allocation: a fork may be copying the process.
fn of_thread(proc: &Proc, tid: u32, name: &str, text: &mut [u8]) -> Option<usize> {
    use std::io::Write;
    let mut path = [0u8; 48];
    let mut rest = &mut path[..];
    write!(rest, "self/task/{tid}/{name}").ok()?;
    let len = 48 - rest.len();
    let fd = openat(proc, &path[..len], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::io::read(&fd, text).ok()
}

/// The exit status of this process's first thread, if that has ended, and whether others are left: not counted are the
/// kernel's own, which do I/O, and those with one of these `names`. `None`: it has not ended, or that cannot be read.
pub fn end_of_first_thread(proc: &Proc, names: &[&[u8]]) -> Option<(u8, bool)> {
    const EXIT_CODE: usize = 52;
    const FLAGS: usize = 9;
    const IO_WORKER: u64 = 0x10;
    let mut text = [0u8; 512];
    let n = rustix::io::read(&proc.file("self/stat").ok()?, &mut text).ok()?;
    let stat = text[..n].trim_ascii_end();
    let has_ended = |stat: &[u8]| state_at(stat).is_some_and(|at| matches!(stat[at], b'Z' | b'X'));
    let code = stat_field(stat, EXIT_CODE).filter(|_| has_ended(stat))?;
    let mut known = 0;
    listed_threads(proc, |tid| {
        let Some(n) = of_thread(proc, tid, "stat", &mut text) else { return };
        let stat = &text[..n];
        let name = stat.splitn(2, |b| *b == b'(').nth(1).unwrap_or_default();
        let name = &name[..name.iter().rposition(|b| *b == b')').unwrap_or(0)];
        let is_worker = stat_field(stat, FLAGS).is_some_and(|flags| flags & IO_WORKER != 0);
        known += usize::from(has_ended(stat) || is_worker || names.contains(&name));
    })
    .ok()?;
    // Counted last: one that could not be read, or that was begun since by one that has ended since, is among them.
    Some(((code >> 8) as u8, proc.counted()? != known))
}

/// Whether thread `tid` of this process sleeps in the futex system call. `None`: that cannot be read.
pub fn waits_for_futex(proc: &Proc, tid: u32) -> Option<bool> {
    let mut text = [0u8; 8];
    let n = of_thread(proc, tid, "syscall", &mut text)?;
    Some(text[..n].starts_with(b"202 "))
}

/// Of the text of a `stat` file: where field 3 is, the state, which comes behind the thread's name.
fn state_at(stat: &[u8]) -> Option<usize> {
    // The name, in parentheses, may contain anything.
    let end = stat.iter().rposition(|b| *b == b')')?;
    (end + 2 < stat.len()).then_some(end + 2)
}

/// Field `n` of such a text, a number, from 3 on.
fn stat_field(stat: &[u8], n: usize) -> Option<u64> {
    number(stat[state_at(stat)?..].split(|b| *b == b' ').nth(n - 3)?)
}

/// The CPU on which thread `tid` of this process ran last.
pub fn cpu_of(proc: &Proc, tid: u32) -> Option<usize> {
    let mut text = [0u8; 512];
    let n = of_thread(proc, tid, "stat", &mut text)?;
    stat_field(&text[..n], 39).map(|cpu| cpu as usize)
}

/// Where the stack of this process's first thread began: above are its arguments and its environment, which others read
/// in `/proc`.
pub fn stack_start(proc: &Proc) -> Option<usize> {
    // Of the calling thread, because the first one may have ended.
    let fd = openat(proc, "thread-self/stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 512];
    let n = rustix::io::read(&fd, &mut text).ok()?;
    stat_field(&text[..n], 28).map(|at| at as usize).filter(|at| *at > 0)
}

/// Whether thread `tid` (as `/proc` lists it) of this process has a CPU, or waits for nothing else.
pub fn is_running(proc: &Proc, tid: u32) -> bool {
    state(proc, tid) == Some(b'R')
}

/// Whether thread `tid` waits in the kernel until what it has done to its mappings was read from a userfaultfd. Where
/// the kernel does not name places: whether it waits where no signal wakes it. `None`: there is no such thread.
pub fn waits_to_be_read(proc: &Proc, tid: u32) -> Option<bool> {
    let mut text = [0u8; 64];
    match of_thread(proc, tid, "wchan", &mut text) {
        // `userfaultfd_event_wait_completion`, or its caller. A thread that waits for a page is in `handle_userfault`.
        Some(n) if n > 1 => Some(text[..n].windows(11).any(|part| part == b"userfaultfd")),
        _ => state(proc, tid).map(|state| state == b'D'),
    }
}

fn state(proc: &Proc, tid: u32) -> Option<u8> {
    let mut text = [0u8; 512];
    of_thread(proc, tid, "stat", &mut text).and_then(|n| Some(text[state_at(&text[..n])?]))
}

/// The CPU time that thread `tid` of this process has had. `None`: there is no such thread.
pub fn cpu_time(tid: u32) -> Option<Duration> {
    // The kernel's name for the scheduler's clock of one thread: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED.
    let clock = !(tid as usize) << 3 | 4 | 2;
    let mut time = [0u64; 2];
    // SAFETY: the call fills the two words, seconds and nanoseconds.
    unsafe { syscall(nr::CLOCK_GETTIME, [clock, std::ptr::from_mut(&mut time) as usize, 0, 0, 0, 0]) }.ok()?;
    Some(Duration::new(time[0], time[1] as u32))
}

/// A thread of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// As `/proc` names it: in the pid namespace that this was mounted for, which the process may have left.
    pub listed: u32,
    /// As system calls of this process name it.
    pub tid: u32,
}

/// Whether `/proc` names threads in another pid namespace than the calling thread's.
fn is_foreign(proc: &Proc) -> bool {
    let mut target = [0u8; 64];
    let own = super::raw::gettid();
    let n = rustix::fs::readlinkat_raw(proc, "thread-self", &mut target[..]).unwrap_or(0);
    let last = target[..n].rsplit(|b| *b == b'/').next().and_then(number);
    last.is_some_and(|tid| tid != u64::from(own))
}

/// What system calls call the thread that `/proc` lists as `listed`.
fn own_number(proc: &Proc, listed: u32) -> Option<u32> {
    let mut text = [0u8; 2048];
    let n = of_thread(proc, listed, "status", &mut text)?;
    let line = text[..n].split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"))?;
    // From the namespace of `/proc` to the thread's own.
    line.rsplit(|b| *b == b'\t').next().and_then(number).map(|tid| tid as u32)
}

/// Calls `each` with every thread of this process.
///
/// # Errors
/// As opening and reading `/proc/self/task`.
pub fn threads(proc: &Proc, mut each: impl FnMut(Thread)) -> Result<(), Errno> {
    let foreign = is_foreign(proc);
    listed_threads(proc, |listed| {
        if let Some(tid) = if foreign { own_number(proc, listed) } else { Some(listed) } {
            each(Thread { listed, tid });
        }
    })
}

/// The same with their numbers as `/proc` lists them.
fn listed_threads(proc: &Proc, mut each: impl FnMut(u32)) -> Result<(), Errno> {
    let dir = openat(proc, "self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buf = [const { std::mem::MaybeUninit::<u8>::uninit() }; 2048];
    let mut iter = rustix::fs::RawDir::new(dir, &mut buf);
    while let Some(entry) = iter.next() {
        if let Some(listed) = number(entry?.file_name().to_bytes()) {
            each(listed as u32);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process() {
        let proc = Proc::open().unwrap();
        let has = reach(&proc.file("thread-self/statm").unwrap()).unwrap();
        assert!(has.resident > 10 << 12 && has.others > 10 << 12 && has.bytes() >= has.resident);
        assert!(rss_shared_pages(&proc.file("thread-self/status").unwrap()).unwrap() <= has.others >> 12);
        let (stop, before) = (std::sync::Barrier::new(4), proc.threads());
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| stop.wait())));
            // Other tests start and end threads, too.
            assert!(before >= 1 && (0..100).any(|_| proc.threads() >= 4));
            stop.wait();
        });
        let own = super::super::raw::gettid();
        let stack = stack_start(&proc).unwrap();
        assert!(stack.is_multiple_of(16) && stack < 1 << 47);
        assert!(cpu_of(&proc, own).is_some() && is_running(&proc, own));
        assert_eq!((waits_for_futex(&proc, own), waits_for_futex(&proc, 0x0fff_ffff)), (Some(false), None));
        assert_eq!((waits_to_be_read(&proc, own), waits_to_be_read(&proc, 0x0fff_ffff)), (Some(false), None));
        let time = cpu_time(own).unwrap();
        assert!(time > Duration::ZERO);
        while cpu_time(own).unwrap() == time {}
        assert!(cpu_time(0x0fff_ffff).is_none() && !is_running(&proc, 0x0fff_ffff));
        let here = Thread { listed: own, tid: own };
        let (name, mut children) = (name_of(std::process::id()), Vec::new());
        assert!(name[0] != 0 && name_of(0x0fff_ffff) == [0; 16]);
        children_of(std::process::id(), std::process::id(), |pid| children.push(pid));
        assert!(!is_other_program(std::process::id(), std::process::id()));
        assert!(!children.contains(&std::process::id()) && !children.contains(&0));
        assert!(!is_foreign(&proc) && own_number(&proc, own) == Some(own));
        let mut listed = false;
        threads(&proc, |thread| listed |= thread == here).unwrap();
        assert!(listed);
    }
}
