//! Engine threads: made by `clone` directly, unknown to libc.
//!
//! Why not pthreads: libc keeps per-thread data (the dynamic TLS vector) in the program's heap, which is memory that
//! the engine swaps out; an engine thread that touched it would wait for itself. A raw thread also keeps the program
//! single-threaded in libc's eyes, takes no signals, and has a *descriptor table of its own*: a program that closes
//! every descriptor (daemons do) cannot close the engine's userfaultfd, and a forked child inherits none of them.
//!
//! What such a thread must not do: use `thread_local!`, call a function of libc or of another library, or touch adopted
//! memory. What our code, the standard library and zstd call by name, the preload library defines for itself
//! (`farpage-preload`, `own`), `errno` among it: its slot lies in the thread control block below.

use super::raw::{Errno, gettid, nr, syscall};
use core::arch::asm;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::mm::{Advice, madvise};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;
const CLONE_SETTLS: usize = 0x8_0000;

/// Bytes of an engine thread's stack.
pub const STACK_BYTES: usize = 256 * 1024;

/// Room on a stack for a system call, bytes.
const CALLS: usize = 4 * 1024;

/// Memory for one engine thread: stack below, thread control block above, never managed.
#[derive(Debug, Clone, Copy)]
pub struct Stack {
    /// Lowest byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

impl Stack {
    /// Gives the memory that the calling thread's stack has below its present depth back to the kernel: before a long
    /// sleep. Does nothing on another stack.
    #[inline(never)]
    pub fn give_back_unused(self) {
        let here = &raw const self as usize;
        if !(self.base..self.base + self.len).contains(&here) {
            return;
        }
        let end = here.saturating_sub(CALLS) / PAGE_SIZE * PAGE_SIZE;
        if end > self.base {
            // SAFETY: whole pages of the calling thread's own stack, below all that is in use: this frame, and those of
            // what it calls, which are far smaller than `CALLS`. An engine thread takes no signals.
            let _ = unsafe { madvise(self.base as *mut _, end - self.base, Advice::LinuxDontNeed) };
        }
    }
}

/// What a thread runs.
pub struct Start {
    /// Never returns.
    pub entry: extern "C" fn(usize) -> !,
    /// Passed to `entry`.
    pub arg: usize,
    /// Shown by `ps -L`, at most 15 bytes.
    pub name: &'static [u8],
    /// Share the descriptor table of the calling engine thread; otherwise the new thread gets a copy of its own.
    pub share_files: bool,
}

/// Address of the calling thread's control block.
pub fn thread_pointer() -> usize {
    let fs: usize;
    // SAFETY: on x86-64 the word at fs:0 holds the thread pointer itself (System V ABI, variant II).
    unsafe { asm!("mov {}, fs:[0]", out(reg) fs, options(nostack, readonly, preserves_flags)) };
    fs
}

/// Whether the calling thread is an engine thread: libc, which has not made it, has no thread-local storage for it.
pub fn is_engine_thread() -> bool {
    let vector: usize;
    // SAFETY: on x86-64 glibc keeps the address of a thread's dynamic TLS vector at fs:8; the block made by `spawn` has
    // 0 there.
    unsafe { asm!("mov {}, fs:[8]", out(reg) vector, options(nostack, readonly, preserves_flags)) };
    vector == 0
}

/// The calling engine thread's own `errno`, in its control block.
pub fn engine_errno() -> *mut i32 {
    (thread_pointer() + ERRNO) as *mut i32
}

/// Where it is, in the page of the control block: behind the words that are used.
const ERRNO: usize = 1024;

/// Starts an engine thread on `stack` with all signals blocked; returns its thread id.
///
/// # Errors
/// The errno of `clone`.
///
/// # Safety
/// `stack` is zeroed (or was used only by a thread that is gone), readable and writable, and not used elsewhere.
/// `start.entry` keeps the rules of the module header.
pub unsafe fn spawn(stack: Stack, start: &Start) -> Result<u32, Errno> {
    let end = stack.base + stack.len;
    // The thread control block: one page at the top; the stack below that.
    let tcb = end - 4096;
    let stack_top = tcb & !63;
    // SAFETY: all written words lie inside the stack's memory, which is ours (caller's promise).
    unsafe {
        let words = tcb as *mut usize;
        words.write(tcb); // the thread pointer points at itself
        words.add(2).write(tcb);
        words.add(5).write(canary()); // stack protector
        let top = stack_top as *mut usize;
        top.sub(1).write(start.entry as usize);
        top.sub(2).write(start.arg);
    }
    let mut flags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    if start.share_files {
        flags |= CLONE_FILES;
    }
    let all_signals = u64::MAX;
    let mut before = 0u64;
    sigprocmask(&all_signals, &mut before)?;
    let tid: isize;
    // SAFETY: the new thread starts on its own stack at the instruction after the call, pops its argument and entry
    // and never returns; the parent sees an ordinary system call. rbp is cleared in the child only.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") 56isize => tid,
            in("rdi") flags,
            in("rsi") stack_top - 16,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") tcb,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    let mut ignored = 0u64;
    sigprocmask(&before, &mut ignored)?;
    if tid < 0 { Err(Errno::from_raw_os_error(-tid as i32)) } else { Ok(tid as u32) }
}

fn canary() -> usize {
    let value: usize;
    // SAFETY: fs:0x28 holds the program's stack protector value; the same one serves here.
    unsafe { asm!("mov {}, fs:[0x28]", out(reg) value, options(nostack, readonly, preserves_flags)) };
    value
}

/// Signals that a thread's own faults raise: not to be blocked.
pub const FAULT_SIGNALS: [i32; 5] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];

/// The same as a set.
pub const FAULT_SET: u64 = {
    let (mut set, mut i) = (0, 0);
    while i < FAULT_SIGNALS.len() {
        set |= 1 << (FAULT_SIGNALS[i] - 1);
        i += 1;
    }
    set
};

/// Blocks the calling thread's signals but [`FAULT_SIGNALS`]; what was blocked before.
pub fn block_signals() -> u64 {
    let set = !FAULT_SET;
    let mut before = 0;
    let args = [0 /* SIG_BLOCK */, &raw const set as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both point to live 8-byte kernel signal sets.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, args) };
    before
}

/// Undoes [`block_signals`].
pub fn restore_signals(before: u64) {
    let _ = sigprocmask(&before, &mut 0);
}

fn sigprocmask(set: &u64, old: &mut u64) -> Result<(), Errno> {
    let args = [2 /* SIG_SETMASK */, std::ptr::from_ref(set) as usize, std::ptr::from_mut(old) as usize, 8, 0, 0];
    // SAFETY: both point to live 8-byte kernel signal sets.
    unsafe { syscall(nr::RT_SIGPROCMASK, args) }.map(drop)
}

/// To be called first in an engine thread: name, short time slice (so that it is put on the CPU soon after a
/// wake-up; the kernel's EEVDF scheduler takes a smaller slice as "needs little, often"). Best effort.
pub fn begin_thread(name: &[u8]) {
    set_name(name);
    prefer_short_slices();
}

/// Names the calling thread.
pub fn set_name(name: &[u8]) {
    let mut comm = [0u8; 16];
    let n = name.len().min(15);
    comm[..n].copy_from_slice(&name[..n]);
    // SAFETY: PR_SET_NAME reads 16 bytes.
    let _ = unsafe { syscall(nr::PRCTL, [15, comm.as_ptr() as usize, 0, 0, 0, 0]) };
}

fn prefer_short_slices() {
    const SCHED_OTHER: u32 = 0;
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>();
    // SAFETY: fills attr, a live sched_attr of the size named, for the calling thread.
    let known = unsafe { syscall(nr::SCHED_GETATTR, [0, std::ptr::from_mut(&mut attr) as usize, size, 0, 0, 0]) };
    // Everything else, its nice value above all, stays as the program's user chose it.
    if known.is_ok() && attr.policy == SCHED_OTHER {
        attr.runtime = 100_000;
        // SAFETY: attr is a live sched_attr of the size it names; applies to the calling thread.
        let _ = unsafe { syscall(nr::SCHED_SETATTR, [0, std::ptr::from_ref(&attr) as usize, 0, 0, 0, 0]) };
    }
}

/// Ends the calling engine thread; its stack may be used again only when the thread is known to be gone.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: ends this thread only; what it had on its stack stays as it is.
        let _ = unsafe { syscall(nr::EXIT, [0; 6]) };
    }
}

/// Ends the process.
pub fn exit_process(status: u8) -> ! {
    loop {
        // SAFETY: ends all threads; what they had in memory stays as it is.
        let _ = unsafe { syscall(nr::EXIT_GROUP, [status.into(), 0, 0, 0, 0, 0]) };
    }
}

/// A set of CPUs, one bit each, as the kernel takes it.
pub type CpuMask = [u64; 16];

/// The CPUs that thread `tid` may run on (0: the caller). All, where that cannot be read.
pub fn allowed_cpus(tid: u32) -> CpuMask {
    let mut mask = [0u64; 16];
    let args = [tid as usize, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the mask is alive and of the size named.
    match unsafe { syscall(nr::SCHED_GETAFFINITY, args) } {
        Ok(_) => mask,
        Err(_) => [u64::MAX; 16],
    }
}

/// Makes thread `tid` (0: the caller) run on `cpu`. Best effort.
pub fn run_on(tid: u32, cpu: usize) {
    let mut mask = [0u64; 16];
    if let Some(word) = mask.get_mut(cpu / 64) {
        *word = 1 << (cpu % 64);
        run_on_any(tid, &mask);
    }
}

/// Makes thread `tid` (0: the caller) run on CPUs of `mask` only. Best effort.
pub fn run_on_any(tid: u32, mask: &CpuMask) {
    let args = [tid as usize, size_of_val(mask), mask.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the mask is alive and of the size named.
    let _ = unsafe { syscall(nr::SCHED_SETAFFINITY, args) };
}

/// Closes every descriptor of the calling thread's own table except `keep` (sorted, without duplicates).
pub fn close_all_but(keep: &[i32]) {
    let mut from = 0u32;
    for &fd in keep {
        let fd = fd as u32;
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: the table belongs to this engine thread; what is closed here are copies of the program's descriptors.
    if unsafe { syscall(nr::CLOSE_RANGE, [first as usize, last as usize, 0, 0, 0, 0]) }.is_ok() {
        return;
    }
    // A seccomp filter that does not know the call. No table is larger than this.
    const NUMBERS: u32 = 1 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    for fd in first..=last.min(limit.min(u64::from(NUMBERS)) as u32) {
        // SAFETY: as above.
        let _ = unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Copies descriptor `fd` of thread `tid`'s table into the calling thread's.
///
/// # Errors
/// No such descriptor, none free here, or not allowed: by a seccomp filter, by a kernel before 6.9 (it has no
/// descriptors of threads, only of processes).
pub fn fetch_fd(tid: u32, fd: RawFd) -> Result<OwnedFd, Errno> {
    const PIDFD_THREAD: usize = 0o200; // O_EXCL
    fetch(tid, PIDFD_THREAD, fd)
}

/// Copies descriptor `fd` of the table that the process's first thread has into the calling thread's.
///
/// # Errors
/// As [`fetch_fd`].
pub fn fetch_fd_of_process(fd: RawFd) -> Result<OwnedFd, Errno> {
    fetch(rustix::process::getpid().as_raw_nonzero().get() as u32, 0, fd)
}

fn fetch(id: u32, flags: usize, fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a descriptor.
    let pidfd = unsafe { syscall(nr::PIDFD_OPEN, [id as usize, flags, 0, 0, 0, 0]) }?;
    // SAFETY: just made; it has no other owner.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) };
    // SAFETY: makes a descriptor.
    let copy = unsafe { syscall(nr::PIDFD_GETFD, [pidfd.as_raw_fd() as usize, fd as usize, 0, 0, 0, 0]) }?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// Runs `f` without the signal `number` being delivered to the calling thread for it: one that `f` raises is gone
/// afterwards.
pub fn without_signal<R>(number: i32, f: impl FnOnce() -> R) -> R {
    const SIG_BLOCK: usize = 0;
    let set = 1u64 << (number - 1);
    let mut before = 0u64;
    let at = std::ptr::from_ref(&set) as usize;
    // SAFETY: both point to live 8-byte kernel signal sets.
    let blocked =
        unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_BLOCK, at, std::ptr::from_mut(&mut before) as usize, 8, 0, 0]) };
    let result = f();
    if blocked.is_ok() && before & set == 0 {
        let now = [0u64; 2];
        // SAFETY: the set and the time are alive; takes a pending signal, if there is one.
        let _ = unsafe { syscall(nr::RT_SIGTIMEDWAIT, [at, 0, now.as_ptr() as usize, 8, 0, 0]) };
        restore_signals(before);
    }
    result
}

/// Starts a thread that waits until `word` is no longer `number`, and ends. It needs no stack, and never runs code of
/// the program's. `there` is its number until it has ended, then 0.
///
/// # Errors
/// The errno of `clone`.
pub fn spawn_standby(word: &'static AtomicU32, number: u32, there: &'static AtomicU32) -> Result<(), Errno> {
    const CLONE_FS: usize = 0x200;
    const CLONE_PARENT_SETTID: usize = 0x10_0000;
    const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
    const ANSWERS: usize = CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    const FLAGS: usize = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | ANSWERS;
    let mut before = 0u64;
    sigprocmask(&u64::MAX, &mut before)?;
    let tid: isize;
    // SAFETY: the new thread has all registers of this one, the stack pointer, too, but no signal can reach it and it
    // pushes nothing: it waits (FUTEX_WAIT, private) on a word that lives for ever, and exits. This thread goes on
    // behind it. The kernel writes to the other word, which lives for ever, too.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 3f",
            "2:",
            "mov rdi, r9",
            "mov esi, 128",
            "mov edx, r8d",
            "xor r10d, r10d",
            "mov eax, 202",
            "syscall",
            "cmp dword ptr [r9], r8d",
            "je 2b",
            "xor edi, edi",
            "mov eax, 60",
            "syscall",
            "ud2",
            "3:",
            inlateout("rax") 56isize => tid,
            in("rdi") FLAGS,
            in("rsi") 0usize,
            in("rdx") there.as_ptr(),
            in("r10") there.as_ptr(),
            in("r8") number as usize,
            in("r9") word.as_ptr(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    sigprocmask(&before, &mut 0)?;
    if tid < 0 { Err(Errno::from_raw_os_error(-tid as i32)) } else { Ok(()) }
}

/// A lock that only sleeps in the kernel, usable from engine and program threads alike, and that can be re-created in
/// a forked child.
#[derive(Debug, Default)]
pub struct ForkLock(AtomicU32);

impl ForkLock {
    /// A free lock.
    pub const fn new() -> ForkLock {
        ForkLock(AtomicU32::new(0))
    }

    /// Takes the lock.
    pub fn lock(&self) {
        let me = gettid();
        while let Err(seen) = self.0.compare_exchange(0, me, SeqCst, SeqCst) {
            super::futex::wait(&self.0, seen, None);
        }
    }

    /// Takes the lock, if no thread has it.
    pub fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, gettid(), SeqCst, SeqCst).is_ok()
    }

    /// Whether a thread has the lock at this moment.
    pub fn is_held(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// Gives it back; also in a child that was forked while it was held.
    pub fn unlock(&self) {
        self.0.store(0, SeqCst);
        super::futex::wake_one(&self.0);
    }
}
