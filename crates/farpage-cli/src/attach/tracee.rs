//! A thread of another process that is borrowed for a moment: it makes system calls and calls functions for us, and
//! goes on as if nothing had been.
//!
//! Only this thread stops. Its signals wait. What it does for us it does on a stack of ours ([`Scratch`]), which is
//! gone when it is given back; its registers and its signal mask are put back, and a system call in which it waited is
//! begun again by the kernel.
//!
//! Functions return into a loop that waits in `pause`, and not into a breakpoint: a signal that the kernel forces upon
//! a thread would change what the program does with that signal.
//!
//! Caller: [`super`]. No locks.

pub mod helper;

use super::filter::Filter;
use super::memory::Memory;
use super::stops::{Stop, deliver, get_filter, get_registers, ptrace, waited};
use crate::failure::{Failure, OrCannot, Result, why};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io;
use std::mem::size_of;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Of every thread that is traced.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
const NT_X86_XSTATE: usize = 0x202;
/// Larger than the state of any processor so far.
const XSTATE_BYTES: usize = 64 << 10;
/// Stack and data for the calls.
const SCRATCH_BYTES: usize = 512 << 10;
const PAGE: usize = 4096;
/// Where text lies in the scratch memory, and how much of it there is.
const TEXT_BYTES: usize = 64 << 10;
/// Behind the text: what a function returned, and data for system calls.
const REPLY_BYTES: usize = 64;
/// How long a stop is waited for.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Between two looks at a thread that is to stop.
const LOOK: Duration = Duration::from_micros(20);
/// How long a function may take. It may wait for locks that other threads hold.
const CALL_MAX: Duration = Duration::from_secs(30);

const FATAL: &str = "the process got a fatal signal while the library started in it";

/// Calls the function in `rax`, writes what it returns behind the word at `rbx`, sets that word, waits. At [`CLONE_AT`]:
/// makes a process, which ends if it is let go; its maker waits.
#[rustfmt::skip]
const CALL: [u8; 34] = [
    0xff, 0xd0,                         // call rax
    0x48, 0x89, 0x43, 0x08,             // mov [rbx+8], rax
    0xc7, 0x03, 1, 0, 0, 0,             // mov dword [rbx], 1
    0xb8, libc::SYS_pause as u8, 0, 0, 0, // mov eax, SYS_pause
    0x0f, 0x05,                         // syscall
    0xeb, 0xf7,                         // jmp to the mov
    0x0f, 0x05,                         // syscall: clone
    0x85, 0xc0,                         // test eax, eax
    0x75, 0xf1,                         // jnz to the mov before pause
    0xb8, libc::SYS_exit as u8, 0, 0, 0, // mov eax, SYS_exit
    0x0f, 0x05,                         // syscall
];
const CLONE_AT: usize = 21;

/// A thread that is stopped.
pub struct Tracee<'a> {
    memory: &'a Memory,
    tid: i32,
    registers: libc::user_regs_struct,
    state: Vec<u8>,
    mask: u64,
    /// A `syscall` instruction of the process.
    instruction: usize,
    scratch: Option<Scratch>,
    since: Instant,
    is_stopped: bool,
    /// Descriptors that it was given, to be closed.
    descriptors: Vec<usize>,
    /// The program was told to stop meanwhile: it is told again.
    stops: bool,
    /// Signals that this command leaves for later.
    _held: Held,
    /// There is nothing to put back: it has become another program, or is gone, or this has not come so far.
    is_lost: bool,
    /// What it has made last.
    made: Option<i32>,
}

/// The signals that would end this command or stop it wait while this lives: the thread must be given back.
struct Held(SigSet);

impl Held {
    fn new() -> Held {
        use Signal::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP};
        let set = SigSet::from_iter([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP]);
        // It fails for no set.
        Held(set.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap_or_else(|_| SigSet::empty()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

/// Memory of ours in the process.
#[derive(Clone, Copy)]
struct Scratch {
    at: usize,
    code: usize,
}

/// Why a thread cannot be borrowed.
#[derive(Debug)]
pub enum Refused {
    /// It is not at a place where it may call functions.
    Unsafe,
    /// Another thread may do.
    Gone,
    /// None will.
    Failed(Failure),
}

impl<'a> Tracee<'a> {
    /// Stops thread `tid`. `is_safe` looks whether it may call functions where it is.
    pub fn stop(
        memory: &'a Memory,
        tid: i32,
        instruction: usize,
        is_safe: impl FnOnce(&libc::user_regs_struct) -> bool,
    ) -> std::result::Result<Tracee<'a>, Refused> {
        let mut tracee = Tracee::traced(memory, tid, instruction);
        ptrace(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => Refused::Gone,
            _ => Refused::Failed(not_allowed(tid, &error)),
        })?;
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(|_| Refused::Gone)?;
        let failed = |error: io::Error| Refused::Failed(cannot(tid, "stop", &error));
        loop {
            match waited(tid).map_err(failed)? {
                Some(Stop::Event) => break,
                Some(Stop::Gone | Stop::Exec | Stop::Group) => return Err(Refused::Gone),
                // A signal was on its way: it is delivered, as it would have been.
                Some(Stop::Signal(_) | Stop::Fatal | Stop::Syscall | Stop::Clone(_)) => deliver(tid).map_err(failed)?,
                // It is in the kernel, and cannot be interrupted there.
                None if tracee.since.elapsed() > STOP_MAX => return Err(Refused::Gone),
                None => std::thread::sleep(LOOK),
            }
        }
        tracee.registers = get_registers(tid).map_err(failed)?;
        // The memory that is open is that of the program which was looked at. Where that has become another one, it
        // cannot be read any more; from here on it cannot.
        if memory.read(instruction, &mut [0]).is_err() {
            return Err(Refused::Gone);
        }
        if !is_safe(&tracee.registers) {
            return Err(Refused::Unsafe);
        }
        tracee.state = vec![0u8; XSTATE_BYTES];
        let mut vector = libc::iovec { iov_base: tracee.state.as_mut_ptr().cast(), iov_len: XSTATE_BYTES };
        ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut vector as usize).map_err(failed)?;
        tracee.state.truncate(vector.iov_len);
        let (mask, all) = (&raw mut tracee.mask as usize, u64::MAX);
        ptrace(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), mask).map_err(failed)?;
        ptrace(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), &raw const all as usize).map_err(failed)?;
        tracee.is_lost = false;
        Ok(tracee)
    }

    /// Of a thread that is let go as it is, as long as nothing is known of it that could be put back.
    fn traced(memory: &'a Memory, tid: i32, instruction: usize) -> Tracee<'a> {
        Tracee {
            memory,
            tid,
            // SAFETY: plain numbers.
            registers: unsafe { std::mem::zeroed() },
            state: Vec::new(),
            mask: 0,
            instruction,
            scratch: None,
            since: Instant::now(),
            is_stopped: true,
            descriptors: Vec::new(),
            stops: false,
            _held: Held::new(),
            is_lost: true,
            made: None,
        }
    }

    /// Its number.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Its seccomp filters, the newest first.
    ///
    /// # Errors
    /// Only root may read them.
    pub fn filters(&self) -> Result<Vec<Filter>> {
        let mut filters = Vec::new();
        loop {
            let index = filters.len();
            let length = match get_filter(self.tid, index, null_mut()) {
                Ok(length) => length,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
                Err(error) => {
                    let failure = cannot(self.tid, "read the seccomp filter of", &error);
                    return Err(failure.help("root may, where it has no filter of its own"));
                }
            };
            let mut filter = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; length];
            let got = get_filter(self.tid, index, filter.as_mut_ptr());
            got.map_err(|error| cannot(self.tid, "read the seccomp filter of", &error))?;
            filters.push(filter);
        }
    }

    /// For how long it has been stopped, or at work for us.
    pub fn stopped_for(&self) -> Duration {
        self.since.elapsed()
    }

    fn lost<T>(&mut self) -> Result<T> {
        self.is_lost = true;
        Err(Failure::new(format!("thread {} ended, or became another program, meanwhile", self.tid)))
    }

    /// A request of `ptrace`, by which `what` is done to the thread.
    fn request(&self, what: &str, request: u32, address: usize, data: usize) -> Result<()> {
        ptrace(request, self.tid, address, data).map_err(|error| cannot(self.tid, what, &error))
    }

    fn go(&self, request: u32) -> Result<()> {
        self.request("continue", request, 0, 0)
    }

    fn waited(&self) -> Result<Option<Stop>> {
        waited(self.tid).map_err(|error| cannot(self.tid, "wait for", &error))
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        self.request("set registers of", libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers) as usize)
    }

    /// Goes on by `request` to the next stop of the wanted kind.
    fn go_on(&mut self, request: u32, is_wanted: impl Fn(&Stop) -> bool) -> Result<()> {
        self.go(request)?;
        self.await_stop(request, is_wanted)
    }

    /// Waits for a stop of the wanted kind, and goes on by `request` from others.
    fn await_stop(&mut self, request: u32, is_wanted: impl Fn(&Stop) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.waited()? {
                Some(Stop::Gone | Stop::Exec) => return self.lost(),
                Some(stop) if is_wanted(&stop) => return Ok(()),
                Some(Stop::Fatal) => return Err(Failure::new(FATAL)),
                Some(stop) => {
                    self.note(&stop);
                    self.go(request)?;
                }
                None if since.elapsed() > STOP_MAX => {
                    self.is_lost = true;
                    return Err(Failure::new(format!("thread {} cannot be stopped", self.tid)));
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// What came that cannot be blocked is not lost.
    fn note(&mut self, stop: &Stop) {
        self.stops |= matches!(stop, Stop::Signal(libc::SIGSTOP));
        if let Stop::Clone(made) = stop {
            self.made = Some(*made);
        }
    }

    /// A descriptor that it has only for this.
    pub fn close_later(&mut self, descriptor: usize) {
        self.descriptors.push(descriptor);
    }

    /// Has it make a system call; what that returns, or its error.
    pub fn syscall(&mut self, number: i64, args: [usize; 6]) -> Result<io::Result<usize>> {
        self.syscall_at(self.instruction, number, args)
    }

    /// The same, by the `syscall` instruction at `instruction`.
    fn syscall_at(&mut self, instruction: usize, number: i64, args: [usize; 6]) -> Result<io::Result<usize>> {
        let [a, b, c, d, e, f] = args.map(|arg| arg as u64);
        let registers = libc::user_regs_struct {
            rip: instruction as u64,
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi: a,
            rsi: b,
            rdx: c,
            r10: d,
            r8: e,
            r9: f,
            ..self.registers
        };
        if !self.is_stopped {
            self.event_stop()?;
        }
        self.set_registers(&registers)?;
        // Into it, and out of it.
        self.go_on(libc::PTRACE_SYSCALL, |stop| matches!(stop, Stop::Syscall))?;
        self.go_on(libc::PTRACE_SYSCALL, |stop| matches!(stop, Stop::Syscall))?;
        let result = get_registers(self.tid).map_err(|error| cannot(self.tid, "read registers of", &error))?.rax as i64;
        Ok(match result {
            -4095..=-1 => Err(io::Error::from_raw_os_error(-result as i32)),
            _ => Ok(result as usize),
        })
    }

    /// Memory of ours in the process.
    fn scratch(&mut self) -> Result<Scratch> {
        if let Some(scratch) = self.scratch {
            return Ok(scratch);
        }
        // Shared memory is not the engine's, which may run before the call has returned.
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        const MAP: &str = "map memory in the process";
        let arguments = |bytes| [0, bytes, writable, shared, usize::MAX, 0];
        let at = self.syscall(libc::SYS_mmap, arguments(SCRATCH_BYTES))?.or_cannot(MAP)?;
        self.scratch = Some(Scratch { at, code: at });
        let code = self.syscall(libc::SYS_mmap, arguments(PAGE))?.or_cannot(MAP)?;
        self.scratch = Some(Scratch { at, code });
        self.memory.write(code, &CALL)?;
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        self.syscall(libc::SYS_mprotect, [code, PAGE, protection, 0, 0, 0])?
            .or_cannot("make memory of the process executable")?;
        Ok(Scratch { at, code })
    }

    /// Puts texts into the process; where they are, until the thread is given back.
    pub fn put<const N: usize>(&mut self, texts: [&[u8]; N]) -> Result<[usize; N]> {
        let mut at = self.scratch()?.at;
        let end = at + TEXT_BYTES;
        let mut places = [0; N];
        for (place, text) in places.iter_mut().zip(texts) {
            if at + text.len() + 1 > end {
                return Err(Failure::new("the configuration is too long"));
            }
            self.memory.write(at, &[text, &[0]].concat())?;
            *place = at;
            at += text.len() + 1;
        }
        Ok(places)
    }

    /// Some KiB of memory for what system calls read and write.
    pub fn data(&mut self) -> Result<usize> {
        Ok(self.scratch()?.at + TEXT_BYTES + REPLY_BYTES)
    }

    /// Has it call the function at `function`; what that returns.
    pub fn call(&mut self, function: usize, args: [usize; 3]) -> Result<usize> {
        let scratch = self.scratch()?;
        let reply = scratch.at + TEXT_BYTES;
        self.memory.write(reply, &[0; 16])?;
        let [a, b, c] = args.map(|arg| arg as u64);
        let registers = libc::user_regs_struct {
            rip: scratch.code as u64,
            rax: function as u64,
            rbx: reply as u64,
            orig_rax: u64::MAX,
            rdi: a,
            rsi: b,
            rdx: c,
            rbp: 0,
            rsp: (scratch.at + SCRATCH_BYTES - 64) as u64,
            // Direction flag clear, as functions expect.
            eflags: 0x202,
            ..self.registers
        };
        // From here it goes on by itself: out of a stop in which registers are as they are.
        self.event_stop()?;
        self.set_registers(&registers)?;
        self.go(libc::PTRACE_CONT)?;
        self.is_stopped = false;
        let since = Instant::now();
        loop {
            match self.waited()? {
                Some(Stop::Gone | Stop::Exec) => return self.lost(),
                Some(Stop::Fatal) => {
                    self.is_stopped = true;
                    return Err(Failure::new(FATAL));
                }
                Some(stop) => {
                    self.note(&stop);
                    self.go(libc::PTRACE_CONT)?;
                }
                None => {}
            }
            let mut words = [0u8; 16];
            self.memory.read(reply, &mut words)?;
            if words[0] == 1 {
                return Ok(usize::from_le_bytes(words[8..].try_into().unwrap_or_default()));
            }
            if since.elapsed() > CALL_MAX {
                return Err(Failure::new("the library does not start in it: it waits for a lock of the process"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Stops it where the kernel looks for signals: from there it can begin a system call again.
    fn event_stop(&mut self) -> Result<()> {
        self.request("stop", libc::PTRACE_INTERRUPT, 0, 0)?;
        if self.is_stopped {
            // It goes on to the other stop.
            self.request("stop", libc::PTRACE_CONT, 0, 0)?;
        }
        // Where the process has been told to stop, the same stop is called after that signal.
        self.await_stop(libc::PTRACE_CONT, |stop| matches!(stop, Stop::Event | Stop::Group))?;
        self.is_stopped = true;
        Ok(())
    }

    fn give_back(&mut self) -> Result<()> {
        for descriptor in std::mem::take(&mut self.descriptors) {
            self.syscall(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?.ok();
        }
        if let Some(Scratch { at, code }) = self.scratch.take() {
            self.syscall(libc::SYS_munmap, [at, SCRATCH_BYTES, 0, 0, 0, 0])?.ok();
            self.syscall(libc::SYS_munmap, [code, PAGE, 0, 0, 0, 0])?.ok();
        }
        self.event_stop()?;
        let registers = self.registers;
        self.set_registers(&registers)?;
        let mut vector = libc::iovec { iov_base: self.state.as_mut_ptr().cast(), iov_len: self.state.len() };
        let (vector, mask) = (&raw mut vector as usize, &raw const self.mask as usize);
        self.request("put back", libc::PTRACE_SETREGSET, NT_X86_XSTATE, vector)?;
        self.request("put back", libc::PTRACE_SETSIGMASK, size_of::<u64>(), mask)?;
        self.request("put back", libc::PTRACE_DETACH, 0, 0)
    }
}

impl Drop for Tracee<'_> {
    fn drop(&mut self) {
        if self.is_lost || self.give_back().is_err() {
            let _ = ptrace(libc::PTRACE_DETACH, self.tid, 0, 0);
        }
        if self.stops {
            // SAFETY: a signal that was on its way to this process.
            unsafe { libc::kill(self.memory.pid() as i32, libc::SIGSTOP) };
        }
    }
}

fn cannot(tid: i32, what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} thread {tid}: {}", why(error)))
}

fn not_allowed(tid: i32, error: &io::Error) -> Failure {
    let failure = cannot(tid, "trace", error);
    match error.raw_os_error() {
        Some(libc::EPERM) => failure.help(
            "it is traced already (a debugger), another user's, or kernel.yama.ptrace_scope forbids it: try as root",
        ),
        _ => failure,
    }
}
