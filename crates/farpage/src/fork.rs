//! Fork: the child gets the right bytes in every swapped-out page, whoever of the family dies first.
//!
//! The engine's whole state (words, frames, compressed pool, device tables) is ordinary private memory, so a fork
//! copies it like everything else. What has to be done is to make the copy a *good* one, and to start a new engine in
//! the child before the program can touch anything. Parent and child share nothing afterwards except swap files, whose
//! slots are frozen until the child is gone (a *lease*, [`crate::device::file`]).
//!
//! ```text
//!  forking thread                      engine threads                 child
//!  prepare: gates closed  ---------->  writer, monitor wait
//!           asks for a pause  ------>  pager applies all events, holds still
//!  libc takes its locks     (a fault of *this* thread is served, then the pager holds still again)
//!  fork ------------------------------------------------------------> copy of a quiet engine
//!  parent: resume  ---------------->   lease; events that were pending = the verdict
//!          verdict through a pipe --------------------------------->  child: new userfaultfd, mappings registered
//!          gates open                                                 verdict applied, threads started, go on
//! ```
//! The *verdict* exists because another thread's munmap or mremap may have changed the mappings just before the copy
//! while its event was still unread: the child then compares its own mappings with what it inherited.
//!
//! No `UFFD_FEATURE_EVENT_FORK`: that needs CAP_SYS_PTRACE in the program itself, and the copy makes it unnecessary.
//! The price: a child made by a raw `clone` system call, without libc's fork, has no engine and reads zeros.

use crate::PAGE_SIZE;
use crate::engine::{Engine, engine, lock};
use crate::pager::Pager;
use crate::sys::futex;
use crate::sys::raw::{Errno, fatal, gettid, message, nr, syscall};
use crate::sys::thread::ForkLock;
use crate::sys::uffd::Message;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

const RUNNING: u32 = 0;
const PAUSE_WANTED: u32 = 1;
const PAUSED: u32 = 2;
const RESUME_WANTED: u32 = 3;

/// Events a verdict can hold: one for each thread that changes mappings during the few hundred microseconds of a fork.
const VERDICT_MAX: usize = 128;

/// Changes of mappings that were pending when the process was copied.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    events: [[usize; 4]; VERDICT_MAX],
    n: usize,
    overflow: bool,
}

impl Verdict {
    const EMPTY: Verdict = Verdict { events: [[0; 4]; VERDICT_MAX], n: 0, overflow: false };

    fn note(&mut self, m: Message) {
        let record = match m {
            Message::Unmap { start, end } => [1, start, end, 0],
            Message::Remap { from, to, len } => [2, from, to, len],
            Message::Remove { start, end } => [3, start, end, 0],
            Message::Fault { .. } => return,
        };
        match self.events.get_mut(self.n) {
            Some(slot) => {
                *slot = record;
                self.n += 1;
            }
            None => self.overflow = true,
        }
    }

    /// The pending events in order.
    pub fn events(&self) -> impl Iterator<Item = Message> + '_ {
        self.events[..self.n].iter().map(|r| match r[0] {
            1 => Message::Unmap { start: r[1], end: r[2] },
            3 => Message::Remove { start: r[1], end: r[2] },
            _ => Message::Remap { from: r[1], to: r[2], len: r[3] },
        })
    }
}

/// What the forking thread keeps from prepare to the handlers after the fork.
#[derive(Default)]
struct Errand {
    /// Descriptors fetched from the engine's table: number there, number here.
    fetched: Vec<(RawFd, RawFd)>,
    verdict_read: RawFd,
    verdict_write: RawFd,
    lease_read: RawFd,
    lease_write: RawFd,
    active: bool,
}

/// Fork protocol of one engine.
pub struct Fork {
    /// One fork at a time.
    lock: ForkLock,
    /// Non-zero: writer and monitor wait at their gates.
    closed: AtomicU32,
    /// Held by the writer while it works.
    pub writer_gate: ForkLock,
    /// Held by the monitor while it works.
    pub monitor_gate: ForkLock,
    pager: AtomicU32,
    forker: AtomicU32,
    /// Descriptor of `/proc` in the engine's table.
    pub proc_fd: AtomicI32,
    monitor_tid: AtomicU32,
    errand: Mutex<Errand>,
    verdict: Mutex<Verdict>,
    /// Read ends of the lease pipes of children, with their lease, in the engine's table.
    leases: Mutex<Vec<(RawFd, u32)>>,
    /// Write ends of the lease pipes this process was given by its ancestors, in the engine's table.
    held: Mutex<Vec<RawFd>>,
    /// In a child: the engine was active and has to be started again before the program goes on.
    child_starts: AtomicBool,
    child_ready: AtomicU32,
    /// Stack pointer of the forking thread in its handler before the fork: lower addresses hold nothing of worth.
    stack: AtomicUsize,
    /// Non-zero while the pager serves faults during a pause: a copy made then is not good.
    settling: AtomicU32,
    pager_box: Mutex<Option<Box<Pager>>>,
}

impl Default for Fork {
    fn default() -> Fork {
        Fork {
            lock: ForkLock::default(),
            closed: AtomicU32::new(0),
            writer_gate: ForkLock::default(),
            monitor_gate: ForkLock::default(),
            pager: AtomicU32::new(RUNNING),
            forker: AtomicU32::new(0),
            proc_fd: AtomicI32::new(-1),
            monitor_tid: AtomicU32::new(0),
            errand: Mutex::new(Errand::default()),
            verdict: Mutex::new(Verdict::EMPTY),
            leases: Mutex::new(Vec::new()),
            held: Mutex::new(Vec::new()),
            child_starts: AtomicBool::new(false),
            child_ready: AtomicU32::new(0),
            stack: AtomicUsize::new(0),
            settling: AtomicU32::new(0),
            pager_box: Mutex::new(None),
        }
    }
}

impl Fork {
    /// Writer and monitor call this before they take their gates.
    pub fn pass_gate(&self) {
        loop {
            let closed = self.closed.load(SeqCst);
            if closed == 0 {
                return;
            }
            futex::wait(&self.closed, closed, None);
        }
    }

    /// A fork waits for the pager to hold still.
    pub fn wanted(&self) -> bool {
        self.pager.load(SeqCst) == PAUSE_WANTED
    }

    /// Leaves the pager's state for its thread.
    pub fn hand_over(&self, pager: Box<Pager>) {
        *lock(&self.pager_box) = Some(pager);
    }

    /// Address below which the stack of a child's thread holds nothing of worth.
    pub fn child_stack(&self) -> usize {
        self.stack.load(SeqCst)
    }

    /// Takes it.
    pub fn take_over(&self) -> Option<Box<Pager>> {
        lock(&self.pager_box).take()
    }

    /// Descriptors that the engine's table must keep for the fork protocol.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut keep = lock(&self.held).clone();
        keep.push(self.proc_fd.load(SeqCst));
        keep.retain(|fd| *fd >= 0);
        keep
    }

    /// The monitor's thread id: whose descriptor table is the engine's.
    pub fn set_monitor(&self, tid: u32) {
        self.monitor_tid.store(tid, SeqCst);
    }

    /// `/proc` as inherited from the parent, in a child.
    pub fn inherited_proc(&self) -> Option<OwnedFd> {
        let fd = self.proc_fd.load(SeqCst);
        // SAFETY: in a child the number was fetched for the new table; nobody else owns it.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Ends the leases of children that are gone. Monitor only.
    pub fn collect_leases(&self, e: &Engine) {
        lock(&self.leases).retain(|&(fd, lease)| {
            // SAFETY: open until closed below.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            let mut byte = [0u8; 1];
            // Nobody ever writes: end of file means that no process holds the other end any more.
            if rustix::io::read(borrowed, &mut byte) != Ok(0) {
                return true;
            }
            // SAFETY: ours, and forgotten here.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            e.space.end_lease(lease);
            false
        });
    }

    fn set_pager(&self, to: u32) {
        self.pager.store(to, SeqCst);
        futex::wake_all(&self.pager);
    }

    fn wait_pager(&self, until: u32) {
        loop {
            let now = self.pager.load(SeqCst);
            if now == until {
                return;
            }
            futex::wait(&self.pager, now, None);
        }
    }
}

unsafe extern "C" {
    /// libc's list of open streams (exported since glibc 2.2.5).
    static _IO_list_all: *const u8;
}

/// In a child, before any handler runs, libc resets the lock of every open stream. The streams are in the program's
/// heap: touched here, they are in memory when the process is copied.
fn touch_streams() {
    const CHAIN: usize = 104;
    const LOCK: usize = 136;
    // SAFETY: walking libc's own list as libc does, reading the public, stable layout of FILE. A stream closed by
    // another thread in this moment may leave the list; its memory stays mapped by malloc.
    unsafe {
        let mut stream = std::ptr::addr_of!(_IO_list_all).read();
        let mut n = 0;
        while !stream.is_null() && n < 100_000 {
            stream.read_volatile();
            let lock = stream.add(LOCK).cast::<*const u8>().read_volatile();
            if !lock.is_null() {
                lock.read_volatile();
            }
            stream = stream.add(CHAIN).cast::<*const u8>().read_volatile();
            n += 1;
        }
    }
}

/// The child runs on this thread's stack and thread-local storage before its engine starts. Returns the address below
/// which the stack holds nothing of worth.
#[inline(never)]
fn touch_stack() -> usize {
    const PAGE: usize = PAGE_SIZE;
    // A little deeper than here: libc's own calls in the child.
    let mut below = [0u8; 2 * PAGE];
    for page in below.chunks_mut(PAGE) {
        // SAFETY: a byte of the local array.
        unsafe { page.as_mut_ptr().write_volatile(1) };
    }
    let sp = below.as_ptr() as usize;
    let block = crate::sys::thread::thread_pointer();
    // A thread's stack ends at its control block; the main thread's is never adopted.
    let end = if (sp..sp + (64 << 20)).contains(&block) { block.min(sp + 256 * 1024) } else { sp };
    // SAFETY: returns an address in the calling thread's static storage, where libc's variables are.
    let errno = unsafe { libc::__errno_location() } as usize;
    for at in (sp..end).step_by(PAGE).chain([errno, block, block + 0x900]) {
        // SAFETY: between the stack pointer and the thread's control block, or the static thread-local storage next to
        // it, all of it mapped as long as the thread runs.
        unsafe { (at as *const u8).read_volatile() };
    }
    sp
}

/// libc calls this in the forking thread, before it takes its own locks.
pub extern "C" fn prepare() {
    let Some(e) = engine() else { return };
    let f = &e.fork;
    f.lock.lock();
    f.closed.store(1, SeqCst);
    f.writer_gate.lock();
    f.monitor_gate.lock();
    // The monitor cannot activate the engine any more: from here on this does not change.
    let active = e.active.load(SeqCst);
    if active {
        f.forker.store(gettid(), SeqCst);
        f.set_pager(PAUSE_WANTED);
        e.kick_pager_from_program();
        f.wait_pager(PAUSED);
        // From here to the copy nothing is taken out any more, so what is touched now stays in memory.
        touch_streams();
        f.stack.store(touch_stack(), SeqCst);
    }
    let mut errand =
        Errand { active, verdict_read: -1, verdict_write: -1, lease_read: -1, lease_write: -1, ..Errand::default() };
    let mut wanted: Vec<RawFd> = e.space.fds();
    wanted.extend(f.descriptors());
    wanted.push(e.inherited_uffd_number().load(SeqCst));
    wanted.retain(|fd| *fd >= 0);
    for fd in wanted {
        match fetch(f.monitor_tid.load(SeqCst), fd) {
            Ok(here) => errand.fetched.push((fd, here)),
            Err(error) => message(&format!("fork: descriptor {fd} cannot be passed to the child: {error}")),
        }
    }
    if active {
        for (read, write) in
            [(&mut errand.verdict_read, &mut errand.verdict_write), (&mut errand.lease_read, &mut errand.lease_write)]
        {
            match pipe_with(PipeFlags::CLOEXEC) {
                Ok((r, w)) => (*read, *write) = (r.into_raw_fd(), w.into_raw_fd()),
                Err(error) => message(&format!(
                    "fork: cannot make a pipe: {error}; swap file slots of the child are never reused"
                )),
            }
        }
    }
    *lock(&f.errand) = errand;
}

/// Copies descriptor `fd` of engine thread `tid`'s table into the calling thread's.
fn fetch(tid: u32, fd: RawFd) -> Result<RawFd, Errno> {
    const PIDFD_THREAD: usize = 0o200; // O_EXCL
    // SAFETY: both calls only make descriptors.
    let pidfd = unsafe { syscall(nr::PIDFD_OPEN, [tid as usize, PIDFD_THREAD, 0, 0, 0, 0]) };
    if let Ok(pidfd) = pidfd {
        // SAFETY: fresh descriptor, owned here.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) };
        // SAFETY: as above.
        return unsafe { syscall(nr::PIDFD_GETFD, [pidfd.as_raw_fd() as usize, fd as usize, 0, 0, 0, 0]) }
            .map(|n| n as RawFd);
    }
    // Kernels before 6.9 have no descriptors of threads: open the file again.
    let path = format!("/proc/self/task/{tid}/fd/{fd}");
    use rustix::fs::{Mode, OFlags, open};
    open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .or_else(|_| open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))
        .map(IntoRawFd::into_raw_fd)
}

fn close(fd: RawFd) {
    if fd >= 0 {
        // SAFETY: made by prepare and used by nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// libc calls this in the parent after the fork (also if it failed).
pub extern "C" fn parent() {
    let Some(e) = engine() else { return };
    let f = &e.fork;
    let errand = std::mem::take(&mut *lock(&f.errand));
    if errand.active {
        *lock(&f.verdict) = Verdict::EMPTY;
        // The pager needs our number of the lease pipe's read end; it fetches it from this thread's table.
        lock(&f.errand).lease_read = errand.lease_read;
        f.set_pager(RESUME_WANTED);
        e.kick_pager_from_program();
        f.wait_pager(RUNNING);
        *lock(&f.errand) = Errand::default();
        let verdict = *lock(&f.verdict);
        if errand.verdict_write >= 0 {
            send_verdict(errand.verdict_write, &verdict);
        }
    }
    for fd in [errand.verdict_read, errand.verdict_write, errand.lease_read, errand.lease_write] {
        if errand.active {
            close(fd);
        }
    }
    errand.fetched.iter().for_each(|(_, here)| close(*here));
    crate::stat::Stat::add(&e.stat.forks, 1);
    open_gates(f);
}

fn open_gates(f: &Fork) {
    f.closed.store(0, SeqCst);
    f.monitor_gate.unlock();
    f.writer_gate.unlock();
    futex::wake_all(&f.closed);
    f.lock.unlock();
}

fn send_verdict(fd: RawFd, verdict: &Verdict) {
    // SAFETY: a plain structure of integers, viewed as its bytes; the padding behind the flag is never read back.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(verdict).cast::<u8>(), size_of::<Verdict>()) };
    // SAFETY: open until the caller closes it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // Smaller than a pipe's buffer: written at once. If the child is gone already, nobody needs it; the signal that
    // this would raise must not reach the program.
    let _ = without_sigpipe(|| rustix::io::write(fd, bytes));
}

/// Runs `f` with SIGPIPE blocked and takes back one that `f` raised.
fn without_sigpipe<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: signal mask calls on local sets; the mask is restored.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut old);
        let result = f();
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if libc::sigismember(&old, libc::SIGPIPE) == 0 {
            libc::sigtimedwait(&set, std::ptr::null_mut(), &zero);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}

fn receive_verdict(fd: RawFd) -> Option<Verdict> {
    if fd < 0 {
        return None;
    }
    let mut bytes = [0u8; size_of::<Verdict>()];
    // SAFETY: ours until closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut n = 0;
    while n < bytes.len() {
        match rustix::io::read(fd, &mut bytes[n..]) {
            Ok(0) => return None, // the parent died: there was no verdict to wait for
            Ok(got) => n += got,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let word = |i: usize| usize::from_ne_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
    let mut verdict = Verdict::EMPTY;
    for (i, event) in verdict.events.iter_mut().enumerate() {
        *event = std::array::from_fn(|k| word(i * 4 + k));
    }
    verdict.n = word(VERDICT_MAX * 4).min(VERDICT_MAX);
    verdict.overflow = bytes[(VERDICT_MAX * 4 + 1) * 8] != 0;
    Some(verdict)
}

const _: () =
    assert!(std::mem::offset_of!(Verdict, events) == 0 && std::mem::offset_of!(Verdict, n) == VERDICT_MAX * 32);
const _: () = assert!(std::mem::offset_of!(Verdict, overflow) == VERDICT_MAX * 32 + 8);

/// libc calls this in the child, whose only thread is the one that forked.
pub extern "C" fn child() {
    let Some(e) = engine() else { return };
    let f = &e.fork;
    if f.settling.load(SeqCst) != 0 {
        fatal(
            "fork: the process was copied while another thread's fault was being served; nothing is lost in the parent",
        );
    }
    let errand = std::mem::take(&mut *lock(&f.errand));
    f.pager.store(RUNNING, SeqCst);
    // Numbers in the parent's engine table mean nothing here: they are replaced or forgotten, never closed.
    let here = |fd: RawFd| errand.fetched.iter().find(|(old, _)| *old == fd).map_or(-1, |(_, new)| *new);
    e.space.fork_child(&errand.fetched);
    let device = e.inherited_uffd_number();
    device.store(here(device.load(SeqCst)), SeqCst);
    f.proc_fd.store(here(f.proc_fd.load(SeqCst)), SeqCst);
    lock(&f.leases).clear();
    {
        let mut held = lock(&f.held);
        held.iter_mut().for_each(|fd| *fd = here(*fd));
        held.push(errand.lease_write);
        held.retain(|fd| *fd >= 0);
    }
    std::mem::forget(lock(&e.trash).take());
    e.wakeups.kick_fd.store(-1, SeqCst);
    crate::stat::StatPage::renew(e.stat, e.conf.ram);
    if errand.active {
        close(errand.verdict_write);
        close(errand.lease_read);
        *lock(&f.verdict) = receive_verdict(errand.verdict_read).unwrap_or(Verdict::EMPTY);
        close(errand.verdict_read);
        e.active.store(false, SeqCst);
        f.child_ready.store(0, SeqCst);
        f.child_starts.store(true, SeqCst);
    }
    open_gates(f);
    if let Err(why) = e.spawn_monitor() {
        fatal(&format!("in a forked child: {why}"));
    }
    // The engine has its own copies now.
    errand.fetched.iter().for_each(|(_, here)| close(*here));
    crate::stat::StatPage::close_descriptor();
    if errand.active {
        close(errand.lease_write);
        while f.child_ready.load(SeqCst) == 0 {
            futex::wait(&f.child_ready, 0, None);
        }
    }
}

impl Fork {
    /// In a child, on its monitor thread, before anything else: makes the inherited state work again.
    pub fn child_start(&self, proc: &crate::sys::proc::Proc, e: &'static Engine) {
        if !self.child_starts.swap(false, SeqCst) {
            return;
        }
        if let Err(why) = e.activate_child(proc, &lock(&self.verdict)) {
            fatal(&format!("in a forked child, whose swapped-out memory would be lost: {why}"));
        }
        self.child_ready.store(1, SeqCst);
        futex::wake_all(&self.child_ready);
    }
}

impl Verdict {
    /// More was pending than could be noted.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }
}

impl Engine {
    /// Kicks the pager from a program thread, which does not have its eventfd: through the fork word, which the pager
    /// looks at on every turn, and a page fault of our own making, which ends its sleep.
    fn kick_pager_from_program(&self) {
        // The pager's eventfd lives in the engine's descriptor table; the monitor, which waits at its gate, has it.
        let fd = self.wakeups.kick_fd.load(SeqCst);
        if let Ok(here) = fetch(self.fork.monitor_tid.load(SeqCst), fd) {
            // SAFETY: just made.
            let owned = unsafe { OwnedFd::from_raw_fd(here) };
            let _ = rustix::io::write(&owned, &1u64.to_ne_bytes());
        }
    }
}

/// Whether the thread sleeps in the futex system call. No allocation: called while the process may be being copied.
fn waits_for_lock(tid: u32) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    use std::io::Write;
    let mut path = [0u8; 64];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/self/task/{tid}/syscall").is_err() {
        return false;
    }
    let len = 64 - rest.len();
    let mut text = [0u8; 8];
    let read = open(&path[..len], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|fd| rustix::io::read(&fd, &mut text));
    read.is_ok() && text.starts_with(b"202 ")
}

impl Pager {
    /// Holds still from the request of a forking thread until the process has been copied.
    pub(crate) fn pause_for_fork(&mut self) {
        let f = &self.e.fork;
        let mut held = Verdict::EMPTY;
        let mut removed: Vec<Message> = Vec::with_capacity(VERDICT_MAX);
        self.settle_changes();
        // From here on nothing may change that the child inherits: no allocation, no word, no list.
        f.set_pager(PAUSED);
        let forker = f.forker.load(SeqCst);
        while f.pager.load(SeqCst) != RESUME_WANTED {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            let room = self.waiting.len() < self.waiting.capacity() && removed.len() < removed.capacity();
            let n = if room { self.uffd.read(&mut one).unwrap_or(0) } else { 0 };
            let mut settle = false;
            match one[0] {
                _ if n == 0 => {
                    self.sleep(Some(200_000));
                    // A thread that waits for a page may hold a lock that the forking thread waits for.
                    settle = !self.waiting.is_empty() && waits_for_lock(forker);
                }
                Message::Fault { tid, .. } => {
                    self.accept(one[0], Instant::now());
                    settle = tid == forker;
                }
                event => {
                    held.note(event);
                    removed.push(event);
                }
            }
            if settle {
                // The forking thread has not reached the system call yet: everything may go on. It is woken last,
                // because it may reach the call at once then, and everything must be in order before the copy is made.
                f.settling.store(1, SeqCst);
                for event in removed.drain(..) {
                    self.accept(event, Instant::now());
                }
                held = Verdict::EMPTY;
                self.paused = true;
                self.settle_changes();
                self.paused = false;
                f.settling.store(0, SeqCst);
                for i in 0..self.unwoken.len() {
                    self.uffd.wake(self.unwoken[i], PAGE_SIZE);
                }
                self.unwoken.clear();
            }
        }
        // The copy is made (or failed). First the lease, so that nothing the child may need is reused.
        let lease = self.e.space.fork_parent();
        self.import_lease(lease);
        for event in removed {
            self.accept(event, Instant::now());
        }
        while self.changing() {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            if self.uffd.read(&mut one).unwrap_or(0) == 1 {
                held.note(one[0]);
                self.accept(one[0], Instant::now());
            } else {
                self.sleep(Some(100_000));
            }
        }
        *lock(&self.e.fork.verdict) = held;
        self.e.fork.set_pager(RUNNING);
    }

    /// Applies events and serves faults until no change of mappings is pending and, during a pause, no fault is left:
    /// one of them is the forking thread's. (They all can be served then: the writer holds no page, and pages may be
    /// taken above the budget.)
    fn settle_changes(&mut self) {
        loop {
            while self.read_messages() > 0 {}
            self.serve_waiting();
            if !self.changing() && (!self.paused || self.waiting.is_empty()) {
                return;
            }
            self.sleep(Some(50_000));
        }
    }

    /// Takes over the read end of the lease pipe, which the forking thread has made.
    fn import_lease(&mut self, lease: u32) {
        let f = &self.e.fork;
        let theirs = lock(&f.errand).lease_read;
        if theirs < 0 {
            return;
        }
        match fetch(f.forker.load(SeqCst), theirs) {
            Ok(fd) => {
                // SAFETY: just made; non-blocking so that the monitor can look without waiting.
                let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
                let _ = rustix::io::ioctl_fionbio(borrowed, true);
                lock(&f.leases).push((fd, lease));
            }
            Err(error) => {
                message(&format!("fork: cannot watch the child: {error}; its swap file slots are never reused"))
            }
        }
    }
}
