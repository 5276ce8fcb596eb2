//! What `/proc` tells about this process: resident memory, mappings, threads.

use super::raw::{Errno, nr, syscall};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::pread;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// `/proc` in the engine's descriptor table, or -1.
static HELD: AtomicI32 = AtomicI32::new(-1);

/// The number of `/proc` in the engine's descriptor table, for [`held`] and children; -1: none.
pub fn hold(number: RawFd) {
    HELD.store(number, Relaxed);
}

/// What was given to [`hold`].
pub fn held_number() -> RawFd {
    HELD.load(Relaxed)
}

/// Calls `f` with the `/proc` that the engine has held since its start, on a thread with the engine's descriptor table.
///
/// # Errors
/// Those of `f`; `BADF`: none is held.
pub fn held<R>(f: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>) -> Result<R, Errno> {
    match held_number() {
        number @ 0.. => {
            // SAFETY: open as long as the engine's threads are.
            f(unsafe { BorrowedFd::borrow_raw(number) })
        }
        _ => Err(Errno::BADF),
    }
}

/// An open `/proc`, kept so that a program that changes its root directory does not cut the engine off.
#[derive(Debug)]
pub struct Proc(OwnedFd);

impl Proc {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// Not mounted, or no descriptors left.
    pub fn open() -> Result<Proc, Errno> {
        rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(Proc)
    }

    /// Keeps it for the engine ([`held`]).
    pub fn hold(self) {
        hold(self.0.into_raw_fd());
    }

    /// The one that is held, once more.
    ///
    /// # Errors
    /// None is held; no descriptors left.
    pub fn held() -> Result<Proc, Errno> {
        held(|proc| rustix::io::fcntl_dupfd_cloexec(proc, 0)).map(Proc)
    }

    /// The same, once more.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn try_clone(&self) -> Result<Proc, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0).map(Proc)
    }

    /// Opens a file of this process, for example `self/statm`.
    ///
    /// The files of a process that must not be dumped belong to root: one that has given its privileges up, or whose program
    /// may only be executed, cannot open all of its own. It may say that it can be dumped, though; so it does for this moment.
    ///
    /// # Errors
    /// As openat.
    pub fn file(&self, path: &str) -> Result<OwnedFd, Errno> {
        let open = || openat(&self.0, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        match open() {
            Err(Errno::ACCESS) => {}
            other => return other,
        }
        const GET_DUMPABLE: usize = 3;
        const SET_DUMPABLE: usize = 4;
        // SAFETY: about who may look at the process; touches no memory.
        let dumpable = |call, to| unsafe { syscall(nr::PRCTL, [call, to, 0, 0, 0, 0]) };
        if dumpable(GET_DUMPABLE, 0)? == 1 {
            return Err(Errno::ACCESS);
        }
        dumpable(SET_DUMPABLE, 1)?;
        let file = open();
        // What it was, or 2, which means as much for whoever is not root and cannot be said.
        dumpable(SET_DUMPABLE, 0)?;
        file
    }
}

impl Proc {
    /// Threads of this process, the caller's included; 1 where that cannot be read.
    pub fn threads(&self) -> usize {
        // A directory for each, which names its parent.
        let links = statat(&self.0, "self/task", AtFlags::empty()).map_or(0, |stat| stat.st_nlink as usize);
        links.saturating_sub(2).max(1)
    }
}

impl AsFd for Proc {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a process has, and what its mappings let it have, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Resident anonymous memory: statm's resident minus file and shared memory pages.
    pub resident: u64,
    /// Private mappings that may be written, filled or not, and stacks as far as they have grown.
    pub data: u64,
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
            let page = crate::PAGE_SIZE as u64;
            Ok(Reach { resident: r.saturating_sub(s) * page, data: d * page })
        }
        _ => Err(Errno::INVAL),
    }
}

/// Resident anonymous memory in pages.
///
/// # Errors
/// As [`reach`].
pub fn rss_anon_pages(statm: &OwnedFd) -> Result<u64, Errno> {
    Ok(reach(statm)?.resident / crate::PAGE_SIZE as u64)
}

/// A whole text file of the system. (`std::fs` looks functions of libc up by name the first time, with storage of the calling thread.)
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

fn number(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for &b in text {
        value = value.checked_mul(10)?.checked_add(u64::from(b.checked_sub(b'0')?))?;
    }
    (!text.is_empty()).then_some(value)
}

fn hex(text: &[u8]) -> Option<usize> {
    let mut value = 0usize;
    for &b in text {
        let digit = (b as char).to_digit(16)?;
        value = value.checked_mul(16)? + digit as usize;
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

/// Whether thread `tid` of this process sleeps in the futex system call. `None`: that cannot be read.
pub fn waits_for_futex(proc: &Proc, tid: u32) -> Option<bool> {
    let mut text = [0u8; 8];
    let n = of_thread(proc, tid, "syscall", &mut text)?;
    Some(text[..n].starts_with(b"202 "))
}

/// What `/proc/self/task/TID/stat` says behind the thread's name: the state, field 3, comes first.
fn stat_of(proc: &Proc, tid: u32, text: &mut [u8; 512]) -> Option<(usize, usize)> {
    let n = of_thread(proc, tid, "stat", text)?;
    // The name, in parentheses, may contain anything.
    let end = text[..n].iter().rposition(|b| *b == b')')?;
    (end + 2 < n).then_some((end + 2, n))
}

/// The CPU on which thread `tid` of this process ran last.
pub fn cpu_of(proc: &Proc, tid: u32) -> Option<usize> {
    let mut text = [0u8; 512];
    let (start, end) = stat_of(proc, tid, &mut text)?;
    number(text[start..end].split(|b| *b == b' ').nth(39 - 3)?).map(|cpu| cpu as usize)
}

/// Whether thread `tid` (as `/proc` lists it) of this process has a CPU, or waits for nothing else.
pub fn is_running(proc: &Proc, tid: u32) -> bool {
    let mut text = [0u8; 512];
    stat_of(proc, tid, &mut text).is_some_and(|(state, _)| text[state] == b'R')
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

/// One line of `/proc/self/maps` as far as adoption cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// First byte behind.
    pub end: usize,
    /// Anonymous memory without code. Access rights do not matter: they may change while the mapping is registered,
    /// and a mapping of which only a part is registered is two mappings for mremap.
    pub adoptable: bool,
}

/// Calls `each` for every mapping, in address order. `buf` is scratch memory, at least 8 KiB.
///
/// # Errors
/// As pread.
pub fn mappings(maps: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(Mapping)) -> Result<(), Errno> {
    lines(maps, buf, |line| {
        if let Some(m) = parse_line(line) {
            each(m);
        }
    })
}

/// Calls `each(start, end)`, in bytes, for every mapping that a child has without its pages (`MADV_WIPEONFORK`). `smaps` walks
/// all page tables. `buf` is scratch memory, at least 8 KiB.
///
/// # Errors
/// As pread.
pub fn wiped_mappings(smaps: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(usize, usize)) -> Result<(), Errno> {
    let mut current = None;
    lines(smaps, buf, |line| match line.strip_prefix(b"VmFlags:") {
        Some(flags) if flags.split(|b| *b == b' ').any(|flag| flag == b"wf") => {
            if let Some((start, end)) = current.take() {
                each(start, end);
            }
        }
        Some(_) => current = None,
        // Of all lines only a mapping's first has such a word in front.
        None => current = line.split(|b| *b == b' ').next().and_then(range).or(current),
    })
}

fn range(text: &[u8]) -> Option<(usize, usize)> {
    let mut bounds = text.split(|b| *b == b'-');
    Some((hex(bounds.next()?)?, hex(bounds.next()?)?))
}

fn lines(file: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let (mut offset, mut held) = (0u64, 0usize);
    loop {
        let n = pread(file, &mut buf[held..], offset)?;
        if n == 0 {
            return Ok(());
        }
        offset += n as u64;
        held += n;
        let mut at = 0;
        while let Some(len) = buf[at..held].iter().position(|b| *b == b'\n') {
            each(&buf[at..at + len]);
            at += len + 1;
        }
        buf.copy_within(at..held, 0);
        held -= at;
        if held == buf.len() {
            held = 0; // a line longer than the buffer: a file name, which is of no interest
        }
    }
}

/// What the kernel says about one mapping.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);
/// Look for the next mapping if none covers the address.
const OR_NEXT: u64 = 0x10;

impl Query {
    fn ask(maps: &OwnedFd, addr: usize, flags: u64, name: &mut [u8]) -> Result<Query, Errno> {
        const PROCMAP_QUERY: usize = (3 << 30) | (size_of::<Query>() << 16) | ((b'f' as usize) << 8) | 17;
        let mut query = Query { size: size_of::<Query>() as u64, flags, addr: addr as u64, ..Query::default() };
        if !name.is_empty() {
            (query.name_size, query.name) = (name.len() as u32, name.as_mut_ptr() as u64);
        }
        let fd = rustix::fd::AsRawFd::as_raw_fd(maps) as usize;
        // SAFETY: query and name are alive; the kernel writes to both within their sizes.
        unsafe { syscall(nr::IOCTL, [fd, PROCMAP_QUERY, std::ptr::from_mut(&mut query) as usize, 0, 0, 0]) }?;
        Ok(query)
    }
}

/// The mapping that covers `addr` right now, or else the next one; `None`: there is none behind it.
///
/// # Errors
/// `NOTTY`: the kernel (before 6.11) cannot be asked this.
pub fn mapping_from(maps: &OwnedFd, addr: usize) -> Result<Option<Mapping>, Errno> {
    const EXECUTABLE: u64 = 4;
    const SHARED: u64 = 8;
    let mut name = [0u8; 32];
    let (query, plain) = match Query::ask(maps, addr, OR_NEXT, &mut name) {
        Ok(query) => {
            let name = &name[..(query.name_size as usize).min(name.len())];
            let plain = name.is_empty() || name.starts_with(b"[heap]") || name.starts_with(b"[anon:");
            (query, plain)
        }
        Err(Errno::NAMETOOLONG) => (Query::ask(maps, addr, OR_NEXT, &mut [])?, false), // a file
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let adoptable = query.inode == 0 && query.vma_flags & (EXECUTABLE | SHARED) == 0 && plain;
    Ok(Some(Mapping { start: query.start as usize, end: query.end as usize, adoptable }))
}

/// Whether something is mapped at `addr`; yes where the kernel does not say (before 6.11).
pub fn is_mapped(maps: &OwnedFd, addr: usize) -> bool {
    !matches!(Query::ask(maps, addr, 0, &mut []), Err(Errno::NOENT))
}

/// How far a mapping that ends at `end` could grow in place: where the next one starts.
pub fn free_until(maps: &OwnedFd, end: usize) -> usize {
    Query::ask(maps, end, OR_NEXT, &mut []).map_or(end, |next| (next.start as usize).max(end))
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let (start, end) = range(fields.next()?)?;
    let perms = fields.next()?;
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or(b"");
    let anonymous =
        perms.ends_with(b"p") && inode == b"0" && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"));
    Some(Mapping { start, end, adoptable: anonymous && perms.get(2) == Some(&b'-') })
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
    let dir = openat(proc, "self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buf = [const { std::mem::MaybeUninit::<u8>::uninit() }; 2048];
    let mut iter = rustix::fs::RawDir::new(dir, &mut buf);
    while let Some(entry) = iter.next() {
        let Some(listed) = number(entry?.file_name().to_bytes()).map(|tid| tid as u32) else { continue };
        if let Some(tid) = if foreign { own_number(proc, listed) } else { Some(listed) } {
            each(Thread { listed, tid });
        }
    }
    Ok(())
}

/// Calls `each` with the address of every thread's control block (the page that libc and the kernel touch when a
/// thread ends or the process forks), found through the kernel's record of its robust futex list.
///
/// # Errors
/// As [`threads`].
pub fn thread_blocks(proc: &Proc, mut each: impl FnMut(usize)) -> Result<(), Errno> {
    threads(proc, |Thread { tid, .. }| {
        let (mut head, mut len) = (0usize, 0usize);
        let args =
            [tid as usize, std::ptr::from_mut(&mut head) as usize, std::ptr::from_mut(&mut len) as usize, 0, 0, 0];
        // SAFETY: the call fills the two words.
        if unsafe { syscall(nr::GET_ROBUST_LIST, args) }.is_ok() && head != 0 {
            each(head);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"7f0c9c000000-7f0c9c021000 rw-p 00000000 00:00 0 ";
        assert_eq!(parse_line(line), Some(Mapping { start: 0x7f0c9c000000, end: 0x7f0c9c021000, adoptable: true }));
        assert!(parse_line(b"5581-5582 rw-p 00000000 00:00 0                          [heap]").unwrap().adoptable);
        assert!(parse_line(b"1000-2000 r--p 00000000 00:00 0 ").unwrap().adoptable);
        for no in [
            &b"1000-2000 rw-p 00000000 08:01 1234 /usr/lib/x"[..],
            b"1000-2000 rw-s 00000000 00:00 0",
            b"1000-2000 r-xp 00000000 00:00 0",
            b"1000-2000 rw-p 00000000 00:00 0 [stack]",
            b"1000-2000 r--p 00000000 00:00 0 [vvar]",
            b"1000-2000 rwxp 00000000 00:00 0",
        ] {
            assert!(!parse_line(no).unwrap().adoptable, "{}", String::from_utf8_lossy(no));
        }
    }

    #[test]
    fn mappings_that_a_fork_wipes() {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let smaps = Proc::open().unwrap().file("self/smaps").unwrap();
        let all = || {
            let mut found = Vec::new();
            wiped_mappings(&smaps, &mut vec![0; 8192], |start, end| found.push((start, end))).unwrap();
            found
        };
        // SAFETY: new memory, of which the two pages in the middle are given advice; gone at the end, unused.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), 4 << 12, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            madvise(base.byte_add(1 << 12), 2 << 12, Advice::LinuxWipeOnFork).unwrap();
            let at = base as usize;
            assert!(all().contains(&(at + (1 << 12), at + (3 << 12))), "{:x?}", all());
            munmap(base, 4 << 12).unwrap();
            assert!(!all().iter().any(|(start, _)| (at..at + (4 << 12)).contains(start)));
        }
    }

    #[test]
    fn own_process() {
        let proc = Proc::open().unwrap();
        assert!(rss_anon_pages(&proc.file("self/statm").unwrap()).unwrap() > 10);
        let (stop, before) = (std::sync::Barrier::new(4), proc.threads());
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| stop.wait())));
            // Other tests start and end threads, too.
            assert!(before >= 1 && (0..100).any(|_| proc.threads() >= 4));
            stop.wait();
        });
        let (mut n, mut last, mut found) = (0, 0, false);
        let here = std::ptr::from_ref(&last) as usize;
        mappings(&proc.file("self/maps").unwrap(), &mut vec![0; 8192], |m| {
            assert!(m.start >= last && m.end > m.start);
            found |= (m.start..m.end).contains(&here);
            last = m.end;
            n += 1;
        })
        .unwrap();
        assert!(n > 5 && found);
        let own = super::super::raw::gettid();
        assert!(cpu_of(&proc, own).is_some() && is_running(&proc, own));
        assert_eq!((waits_for_futex(&proc, own), waits_for_futex(&proc, 0x0fff_ffff)), (Some(false), None));
        let time = cpu_time(own).unwrap();
        assert!(time > Duration::ZERO);
        while cpu_time(own).unwrap() == time {}
        assert!(cpu_time(0x0fff_ffff).is_none() && !is_running(&proc, 0x0fff_ffff));
        let page = vec![1u8; 1 << 20];
        let maps = proc.file("self/maps").unwrap();
        let Mapping { start, end, adoptable } = mapping_from(&maps, page.as_ptr() as usize).unwrap().unwrap();
        assert!(adoptable && start <= page.as_ptr() as usize && end >= page.as_ptr() as usize + page.len());
        let code = mapping_from(&maps, own_process as *const () as usize).unwrap().unwrap();
        assert!(!code.adoptable, "a file");
        assert!(mapping_from(&maps, 0).unwrap().unwrap().start > 0, "the first mapping");
        let next = free_until(&proc.file("self/maps").unwrap(), end);
        assert!(next >= end && next < 1 << 47);
        let here = Thread { listed: own, tid: own };
        assert!(!is_foreign(&proc) && own_number(&proc, own) == Some(own));
        let mut listed = false;
        threads(&proc, |thread| listed |= thread == here).unwrap();
        assert!(listed);
        let mut blocks = 0;
        thread_blocks(&proc, |_| blocks += 1).unwrap();
        assert!(blocks >= 1);
    }
}
