//! What libc calls around a fork, in the forking thread: `prepare` and `parent` in the parent, `child` in the child.
//!
//! `prepare` ends with the engine quiet: writer and monitor behind closed gates, the pager holding still. Between it and
//! the copy libc takes its own locks. In the child nothing but the calling thread exists; until the engine runs again, it
//! may touch only what `prepare` has touched.

use super::pending_events::{receive_verdict, send_verdict};
use super::{Errand, Fork, PAUSE_WANTED, PAUSED, RESUME_WANTED, RUNNING, Verdict, huge};
use crate::PAGE_SIZE;
use crate::run::dormant;
use crate::run::state::{Engine, engine, lock};
use crate::stat::{Stat, StatPage};
use crate::sys::futex;
use crate::sys::raw::{ErrnoText, fatal, gettid, message, nr, syscall, warn};
use crate::sys::thread::{block_signals, fetch_fd, restore_signals, thread_pointer};
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::sync::atomic::Ordering::SeqCst;

unsafe extern "C" {
    /// libc's list of open streams (this and the two functions: exported since glibc 2.2.5).
    static _IO_list_all: *const u8;
    /// Takes the lock of that list, which libc's fork does, too, a moment later. The same thread may take it again.
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// In a child, before any handler runs, libc resets the lock of every open stream. The streams are in the program's
/// heap: touched here, they are in memory when the process is copied. One that is opened later has just been written.
fn touch_streams() {
    const CHAIN: usize = 104;
    const LOCK: usize = 136;
    // SAFETY: libc's own list, walked as libc does, under its lock: nobody closes a stream and frees its memory meanwhile.
    // Offsets of the public, stable layout of FILE.
    unsafe {
        _IO_list_lock();
        let mut stream = std::ptr::addr_of!(_IO_list_all).read();
        while !stream.is_null() {
            stream.read_volatile();
            let lock = stream.add(LOCK).cast::<*const u8>().read_volatile();
            if !lock.is_null() {
                lock.read_volatile();
            }
            stream = stream.add(CHAIN).cast::<*const u8>().read_volatile();
        }
        _IO_list_unlock();
    }
}

impl Engine {
    /// In a child, libc writes to the control blocks of all the parent's threads before any handler runs. They are never
    /// taken out, but one that was noted late may be out already.
    fn touch_pinned(&self) {
        // A copy: the pager needs the set to serve the faults.
        let pinned: Vec<usize> = lock(&self.pinned).iter().map(|vpn| *vpn as usize * PAGE_SIZE).collect();
        pinned.into_iter().for_each(touch);
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
    let block = thread_pointer();
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
    let Some(e) = dormant::fork_prepare() else { return };
    let f = &e.fork;
    if !f.is_home() {
        return;
    }
    // A signal handler that forks as well would wait for itself. What a fault raises stays open.
    let mask = block_signals();
    f.lock.lock();
    f.mask.store(mask, SeqCst);
    f.prepared.store(thread_pointer(), SeqCst);
    f.closed.store(1, SeqCst);
    f.writer_gate.lock();
    f.monitor_gate.lock();
    // The monitor cannot activate the engine any more: from here on this does not change.
    if !e.active.load(SeqCst) {
        return; // nothing that a child would need
    }
    f.forker.store(gettid(), SeqCst);
    f.set_pager(PAUSE_WANTED);
    e.ring();
    f.wait_pager(PAUSED);
    // From here to the copy nothing is taken out any more, so what is touched now stays in memory.
    touch_streams();
    e.touch_pinned();
    f.stack.store(touch_stack(), SeqCst);
    f.huge_pages.store(huge::switch_off(), SeqCst);
    let mut errand = Errand {
        active: true,
        verdict_read: -1,
        verdict_write: -1,
        lease_read: -1,
        lease_write: -1,
        ..Errand::default()
    };
    let mut wanted: Vec<RawFd> = e.space.fds();
    wanted.extend(f.descriptors());
    wanted.push(e.device_number().load(SeqCst));
    wanted.retain(|fd| *fd >= 0);
    for fd in wanted {
        match fetch_fd(f.monitor_tid.load(SeqCst), fd) {
            Ok(here) => errand.fetched.push((fd, here)),
            Err(error) => {
                message(&format!("fork: descriptor {fd} cannot be passed to the child: {}", ErrnoText::from(error)))
            }
        }
    }
    for (read, write) in
        [(&mut errand.verdict_read, &mut errand.verdict_write), (&mut errand.lease_read, &mut errand.lease_write)]
    {
        match pipe_with(PipeFlags::CLOEXEC) {
            Ok((r, w)) => (*read, *write) = (r.into_raw_fd(), w.into_raw_fd()),
            Err(error) => warn(&format!(
                "fork: cannot make a pipe: {}; swap file slots of the child are never reused",
                ErrnoText::from(error)
            )),
        }
    }
    *lock(&f.errand) = errand;
}

/// Between [`prepare`] and the copy: makes the page at `at` present, if there is one. The kernel writes to some places of a child
/// before anything can run there.
pub fn touch(at: usize) {
    const POPULATE_READ: usize = 22;
    // SAFETY: reads at most; an address that is none answers with an error.
    let _ = unsafe { syscall(nr::MADVISE, [at & !(PAGE_SIZE - 1), PAGE_SIZE, POPULATE_READ, 0, 0, 0]) };
}

/// libc calls this in the parent after the fork (also if it failed).
pub extern "C" fn parent() {
    let Some(e) = engine() else { return dormant::fork_parent() };
    let f = &e.fork;
    if !f.is_home() || f.prepared.load(SeqCst) != thread_pointer() {
        return;
    }
    let errand = std::mem::take(&mut *lock(&f.errand));
    if errand.active {
        huge::restore(f.huge_pages.load(SeqCst));
        *lock(&f.verdict) = Verdict::EMPTY;
        // The pager needs our number of the lease pipe's read end; it fetches it from this thread's table.
        lock(&f.errand).lease_read = errand.lease_read;
        f.set_pager(RESUME_WANTED);
        e.ring();
        f.wait_pager(RUNNING);
        *lock(&f.errand) = Errand::default();
        let verdict = *lock(&f.verdict);
        if errand.verdict_write >= 0 {
            send_verdict(errand.verdict_write, &verdict);
        }
        for fd in [errand.verdict_read, errand.verdict_write, errand.lease_read, errand.lease_write] {
            close(fd);
        }
    }
    errand.fetched.iter().for_each(|(_, here)| close(*here));
    Stat::add(&e.stat.forks, 1);
    let mask = f.mask.load(SeqCst);
    open_gates(f);
    restore_signals(mask);
}

fn open_gates(f: &Fork) {
    f.prepared.store(0, SeqCst);
    f.closed.store(0, SeqCst);
    f.monitor_gate.unlock();
    f.writer_gate.unlock();
    futex::wake_all(&f.closed);
    f.lock.unlock();
}

/// libc calls this in the child, whose only thread is the one that forked.
pub extern "C" fn child() {
    child_of(thread_pointer());
}

/// In the child of the thread with this control block, which the child may have exchanged for another.
pub fn child_of(forker: usize) {
    let Some(e) = engine() else { return dormant::fork_child() };
    let f = &e.fork;
    if f.prepared.load(SeqCst) != forker {
        return;
    }
    let mask = f.mask.load(SeqCst);
    let errand = std::mem::take(&mut *lock(&f.errand));
    if !errand.active {
        dormant::fork_child_of(e);
        return restore_signals(mask);
    }
    if f.settling.load(SeqCst) != 0 {
        fatal(
            "fork: the process was copied while another thread's fault was being served; nothing is lost in the parent",
        );
    }
    f.pager.store(RUNNING, SeqCst);
    // Numbers in the parent's engine table mean nothing here: they are replaced or forgotten, never closed.
    let here = |fd: RawFd| errand.fetched.iter().find(|(old, _)| *old == fd).map_or(-1, |(_, new)| *new);
    e.space.fork_child(&errand.fetched);
    let device = e.device_number();
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
    e.events.store(std::ptr::null_mut(), SeqCst);
    e.wakeups.kick_fd.store(-1, SeqCst);
    e.wakeups.writer_tid.store(0, SeqCst);
    e.notes.fork_child();
    e.reader.fork_child();
    StatPage::renew(e.stat, e.conf.ram);
    close(errand.verdict_write);
    close(errand.lease_read);
    *lock(&f.verdict) = receive_verdict(errand.verdict_read).unwrap_or(Verdict::EMPTY);
    close(errand.verdict_read);
    e.active.store(false, SeqCst);
    f.child_ready.store(0, SeqCst);
    f.child_starts.store(true, SeqCst);
    open_gates(f);
    if let Err(why) = e.spawn_monitor() {
        fatal(&format!("in a forked child: {why}"));
    }
    // The engine has its own copies now.
    errand.fetched.iter().for_each(|(_, here)| close(*here));
    StatPage::close_descriptor();
    close(errand.lease_write);
    while f.child_ready.load(SeqCst) == 0 {
        futex::wait(&f.child_ready, 0, None);
    }
    huge::restore(f.huge_pages.load(SeqCst));
    restore_signals(mask);
}

fn close(fd: RawFd) {
    if fd >= 0 {
        // SAFETY: made by prepare and used by nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
