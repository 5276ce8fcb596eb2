//! What libc calls around a fork, in the forking thread: `prepare` and `parent` in the parent, `child` in the child.
//!
//! `prepare` ends with the engine quiet: writer and monitor behind closed gates, the pager holding still. Between it
//! and the copy libc takes its own locks. In the child nothing but the calling thread exists; until the engine runs
//! again, it may touch only what `prepare` has touched.

use crate::dormant;
use crate::fork::huge;
use crate::fork::reserve::{reserve_anyway, stand_by_again};
use crate::lifecycle::start;
use crate::mappings::manageable::managed_until;
use crate::mappings::{library_guard, thread_starts};
use crate::shared::protocol::{Fork, ForkState, PAUSE_WANTED, PAUSED, RESUME_WANTED, RUNNING};
use crate::shared::state::{Engine, engine};
use farpage_base::mem::lock::lock;
use farpage_base::sys::futex;
use farpage_base::sys::message::fatal;
use farpage_base::sys::raw::{gettid, nr, syscall};
use farpage_base::sys::thread::{block_signals, restore_signals, thread_pointer};
use farpage_ipc::stat::{EventKind, Stat};
use farpage_ipc::tree::{self, Member};
use farpage_swap::PAGE_SIZE;
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
    // SAFETY: libc's own list, walked as libc does, under its lock: no thread closes a stream and frees its memory
    // meanwhile. Offsets of the public, stable layout of FILE.
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

/// In a child, libc writes to the control blocks of all the parent's threads before any handler runs. They are
/// never taken out, but one that was noted late may be out already.
fn touch_pinned(e: &Engine) {
    // A copy: the pager needs the set to serve the faults.
    let pinned: Vec<usize> = lock(&e.memory.pinned).iter().map(|vpn| vpn.addr()).collect();
    for at in pinned {
        touch(at);
    }
}

/// The child runs on this thread's stack and thread-local storage before its engine starts. Returns the address below
/// which the stack holds nothing of worth.
#[inline(never)]
fn touch_stack(e: &Engine) -> usize {
    const PAGE: usize = PAGE_SIZE;
    // A little deeper than here: libc's own calls in the child.
    let mut below = [0u8; 2 * PAGE];
    for page in below.chunks_mut(PAGE) {
        // SAFETY: a byte of the local array.
        unsafe { page.as_mut_ptr().write_volatile(1) };
    }
    let sp = below.as_ptr() as usize;
    let block = thread_pointer();
    // A thread's stack ends at its control block.
    let end = if (sp..sp + (64 << 20)).contains(&block) { block.min(sp + 256 * 1024) } else { sp };
    if end == sp {
        // The first thread's, or one that the program has made: whatever is there.
        for at in (sp..managed_until(e, sp).min(sp + 256 * 1024)).step_by(PAGE) {
            touch(at);
        }
    }
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
    let (e, mask) = loop {
        let Some(e) = dormant::fork_prepare() else { return };
        if !e.fork.is_home() {
            return;
        }
        // A signal handler that forks as well would wait for itself. What a fault raises stays open.
        let mask = block_signals();
        if reserve_anyway(e) {
            break (e, mask);
        }
        restore_signals(mask);
    };
    let f = &e.fork;
    f.forking.mask.store(mask, SeqCst);
    f.forking.prepared.store(thread_pointer(), SeqCst);
    // From here on no thread follows a change of privileges, and no signal of libc's for one reaches this thread.
    f.oversight.lock();
    stand_by_again(f);
    f.gates.writer.lock();
    // Since the reservation this does not change.
    if !e.stage.active.load(SeqCst) {
        return; // nothing that a child would need
    }
    f.forking.tid.store(gettid(), SeqCst);
    f.set_pager(PAUSE_WANTED);
    e.ring();
    f.wait_pager(PAUSED);
    // From here to the copy nothing is taken out any more, so what is touched now stays in memory.
    touch_streams();
    touch_pinned(e);
    f.forking.stack.store(touch_stack(e), SeqCst);
    f.forking.huge_pages.store(huge::switch_off(), SeqCst);
    if !f.channel.is_filled() {
        lock(&f.fork_state).lose_channel();
    }
}

/// Between [`prepare`] and the copy: makes the page at `at` present, if there is one. The kernel writes to some places
/// of a child before anything can run there. Whether it can be read.
pub fn touch(at: usize) -> bool {
    const POPULATE_READ: usize = 22;
    // SAFETY: reads at most; an address that is none answers with an error.
    unsafe { syscall(nr::MADVISE, [at & !(PAGE_SIZE - 1), PAGE_SIZE, POPULATE_READ, 0, 0, 0]) }.is_ok()
}

/// libc calls this in the parent after the fork (also if it failed).
pub extern "C" fn parent() {
    let Some(e) = engine() else { return start::fork_parent() };
    let f = &e.fork;
    if !f.is_home() || f.forking.prepared.load(SeqCst) != thread_pointer() {
        return;
    }
    let mut fork_state = std::mem::replace(&mut *lock(&f.fork_state), ForkState::NONE);
    if fork_state.active {
        // The pager has the threads end that stand by.
        huge::restore(f.forking.huge_pages.load(SeqCst));
        f.set_pager(RESUME_WANTED);
        e.ring();
        f.wait_pager(RUNNING);
    }
    fork_state.lose_channel();
    Stat::add(&e.stat.forks, 1);
    e.stat.events.note(EventKind::Fork, 0, 0);
    tree::place().into_iter().for_each(Member::has_forked);
    let mask = f.forking.mask.load(SeqCst);
    end(f);
    restore_signals(mask);
}

/// The fork is over, in either process.
fn end(f: &Fork) {
    f.forking.prepared.store(0, SeqCst);
    f.reserved.store(0, SeqCst);
    f.oversight.unlock();
    f.gates.open();
    f.lock.unlock();
}

/// libc calls this in the child, whose only thread is the one that forked.
pub extern "C" fn child() {
    child_of(thread_pointer());
}

/// In the child of the thread with this control block, which the child may have exchanged for another.
pub fn child_of(forker: usize) {
    library_guard::forget_others();
    thread_starts::forget_others();
    let Some(e) = engine() else { return start::fork_child() };
    let f = &e.fork;
    if f.forking.prepared.load(SeqCst) != forker {
        return;
    }
    let mask = f.forking.mask.load(SeqCst);
    let mut fork_state = std::mem::replace(&mut *lock(&f.fork_state), ForkState::NONE);
    if !fork_state.active {
        start::fork_child_of(e);
        return restore_signals(mask);
    }
    if f.copy_unsafe.load(SeqCst) != 0 {
        fatal(
            "fork: the process was copied while another thread's fault was being served; nothing is lost in the parent",
        );
    }
    f.pager.store(RUNNING, SeqCst);
    // Numbers in the parent's engine table mean nothing here: they are replaced or forgotten, never closed.
    f.channel.forget();
    f.leases.forget();
    std::mem::forget(lock(&e.discard_area).take());
    f.child.end.store(fork_state.channel, SeqCst);
    e.wakeups.kick_fd.store(-1, SeqCst);
    e.wakeups.writer_tid.store(0, SeqCst);
    e.wakeups.writer.store(0, SeqCst);
    e.wakeups.monitor_rests.store(false, SeqCst);
    e.discovery.notes.fork_child();
    e.helpers.fork_child();
    e.following.fork_child();
    f.standby.forget();
    e.stage.active.store(false, SeqCst);
    f.child.ready.store(0, SeqCst);
    f.child.starts.store(true, SeqCst);
    f.child.is_late.store(false, SeqCst);
    end(f);
    if let Err(why) = start::spawn_monitor(e) {
        fatal(&format!("in a forked child, whose swapped-out memory would be lost: {why}"));
    }
    // The engine has its own copy now.
    fork_state.lose_channel();
    while f.child.ready.load(SeqCst) == 0 {
        futex::wait(&f.child.ready, 0, None);
    }
    huge::restore(f.forking.huge_pages.load(SeqCst));
    restore_signals(mask);
}
