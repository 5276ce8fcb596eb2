//! `--stats`: runs the program as a child, passes signals on, waits, and reads the statistics page afterwards.
//!
//! The child stays in our process group, so what the terminal sends (Ctrl-C, Ctrl-Z, hang-up, resize) reaches it
//! without us; only signals sent to *us* are passed on. All of them are blocked here and fetched one by one with
//! `sigwaitinfo`: no handler, no race.

use super::exec::Image;
use crate::failure::{Failure, Result, why};
use crate::page::{Found, Page};
use crate::process;
use farpage_base::sys::descriptor::keep_across_exec;
use farpage_ipc::tree::{self, Segment};
use farpage_ipc::{conf, stat};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use rustix::fd::{AsFd, AsRawFd};
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Signals that are not passed on: those that cannot be caught or that stop us before we could; those that say that
/// *we* did something wrong; and SIGCHLD, which is about the child.
#[rustfmt::skip]
const NOT_FORWARDED: [Signal; 12] = [
    Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGCHLD, Signal::SIGSEGV,
    Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS, Signal::SIGPIPE,
];
/// The kernel sent it, for example on behalf of the terminal.
const SI_KERNEL: i32 = 0x80;

/// What became of the program.
#[derive(Debug)]
pub struct Ended {
    /// Its process.
    pub pid: i32,
    /// Exit status or signal.
    pub how: How,
    /// From fork to exit.
    pub wall: Duration,
    /// Largest resident set, bytes, file pages included.
    pub max_rss: u64,
    /// The statistics page; `None`: no engine started.
    pub page: Option<Page>,
}

/// How a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `exit(n)`.
    Exited(i32),
    /// Killed by a signal.
    Killed(i32),
}

impl Ended {
    /// Ends this process in the same way.
    pub fn leave(&self) -> Result<ExitCode> {
        match self.how {
            How::Exited(status) => Ok(ExitCode::from(status as u8)),
            How::Killed(signal) => {
                // The program has dumped its core already if it was to.
                // SAFETY: plain numbers and a valid rlimit; the signal's default disposition ends this process.
                unsafe {
                    libc::prctl(libc::PR_SET_DUMPABLE, 0);
                    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                    libc::setrlimit(libc::RLIMIT_CORE, &none);
                }
                deliver_to_self(signal);
                Ok(ExitCode::from(128u8.wrapping_add(signal as u8)))
            }
        }
    }
}

/// Looks at the child, whose number this is, and at its page; `true`: for the last time. When it wants to look again.
pub type Look<'a> = dyn FnMut(u32, &File, bool) -> Duration + 'a;

/// Runs the image as a child until it ends. `outer`: the tree that this process is in. `look` is called meanwhile, and
/// once more at the end.
///
/// # Errors
/// No page, no process, or the exec failed.
pub fn run(image: &Image, outer: Option<&Segment>, mut look: Option<&mut Look<'_>>) -> Result<Ended> {
    let fail = |what: &str, e: &io::Error| Failure::new(format!("cannot {what}: {}", why(e)));
    let page = stat_page().map_err(|e| fail("make the statistics page", &e))?;
    let (mut exec_error, exec_error_end) = io::pipe().map_err(|e| fail("make a pipe", &e))?;
    let signals = Signals::block().map_err(|e| fail("block signals", &e.into()))?;
    let start = Instant::now();
    // SAFETY: this process has one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        let error = io::Error::last_os_error();
        signals.restore();
        return Err(fail("start a process", &error));
    }
    if pid == 0 {
        drop(exec_error);
        signals.restore();
        outer.inspect(|outer| tree::is_in_nest(outer));
        let error = exec_child(image, &page);
        let _ = io::Write::write_all(&mut &exec_error_end, &error.raw_os_error().unwrap_or(0).to_ne_bytes());
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(crate::failure::FAILED.into()) };
    }
    drop(exec_error_end);
    // SAFETY: sets a disposition; a closed stderr must not end us before the program's status is passed on.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut errno = [0; 4];
    if exec_error.read_exact(&mut errno).is_ok() {
        wait(pid, 0);
        return Err(image.failure(&io::Error::from_raw_os_error(i32::from_ne_bytes(errno))));
    }
    let mut look = |is_last: bool| look.as_mut().map(|look| look(pid as u32, &page, is_last));
    let (how, max_rss) = signals.pass_on_until_end(pid, &mut || look(false))?;
    let wall = start.elapsed();
    look(true);
    // Without it there is less to report, which is no reason to end in another way than the program did.
    let page = match Page::read(&page) {
        Ok(Found::Page(page)) => Some(page),
        Ok(Found::Empty | Found::OtherVersion) | Err(_) => None,
    };
    Ok(Ended { pid, how, wall, max_rss, page })
}

/// In the child: a page that is meant for this process, then exec.
fn exec_child(image: &Image, page: &File) -> io::Error {
    let mut image = image.clone();
    // SAFETY: getpid has no preconditions.
    let value = format!("{}:{}", page.as_raw_fd(), unsafe { libc::getpid() });
    if image.set(conf::ENV_STAT_FD, value.as_bytes()).is_err() {
        return io::Error::from_raw_os_error(libc::EINVAL);
    }
    crate::early::restore_sigpipe();
    image.exec()
}

fn stat_page() -> io::Result<File> {
    let fd = stat::new_memfd()?;
    Ok(File::from(keep_across_exec(fd.as_fd())?))
}

/// The forwarded signals and SIGCHLD, blocked; remembers what the program must find.
struct Signals {
    set: SigSet,
    old_mask: SigSet,
    old_chld: SigAction,
}

impl Signals {
    fn block() -> nix::Result<Signals> {
        let mut set = SigSet::all();
        NOT_FORWARDED.into_iter().for_each(|signal| set.remove(signal));
        set.add(Signal::SIGCHLD);
        let old_mask = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // With SIGCHLD ignored, the kernel would reap the child and its status would be lost.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is involved.
        let old_chld = unsafe { sigaction(Signal::SIGCHLD, &default)? };
        Ok(Signals { set, old_mask, old_chld })
    }

    fn restore(&self) {
        // Both were so before.
        // SAFETY: what was there before Rust code ran, or a default.
        let _ = unsafe { sigaction(Signal::SIGCHLD, &self.old_chld) };
        let _ = self.old_mask.thread_set_mask();
    }

    /// Waits for a signal, or so long.
    fn wait(&self, info: &mut libc::siginfo_t, at_most: Option<Duration>) -> i32 {
        let Some(time) = at_most else {
            // SAFETY: the set is initialised; `info` is a valid place.
            return unsafe { libc::sigwaitinfo(self.set.as_ref(), info) };
        };
        let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // SAFETY: as above; `time` lives through the call.
        unsafe { libc::sigtimedwait(self.set.as_ref(), info, &time) }
    }

    fn pass_on_until_end(&self, child: i32, look: &mut dyn FnMut() -> Option<Duration>) -> Result<(How, u64)> {
        loop {
            // SAFETY: siginfo_t is plain data that the call below fills.
            let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
            let signal = self.wait(&mut info, look());
            match signal {
                libc::SIGCHLD => loop {
                    match wait(child, libc::WNOHANG | libc::WUNTRACED) {
                        Waited::Ended(how, max_rss) => return Ok((how, max_rss)),
                        Waited::Stopped(stop) => stop_with(stop),
                        Waited::Nothing => break,
                        Waited::Gone => return Err(Failure::new("lost track of the program: no child process")),
                    }
                },
                signal if signal > 0 && is_for_child(signal, &info, child) => {
                    // SAFETY: the child is ours and not yet waited for, so the number is still its own; sigqueue fills
                    // si_value.
                    unsafe {
                        match info.si_code {
                            libc::SI_QUEUE => libc::sigqueue(child, signal, info.si_value()),
                            _ => libc::kill(child, signal),
                        }
                    };
                }
                _ => {}
            }
        }
    }
}

/// Was the signal sent to us alone, so that the child has not got it?
fn is_for_child(signal: i32, info: &libc::siginfo_t, child: i32) -> bool {
    if info.si_code == SI_KERNEL {
        // The terminal signals the whole group, save the hang-up of a session leader. An alarm set before we were
        // started is ours, and the program would have had it.
        // SAFETY: these calls have no preconditions.
        let leader = unsafe { libc::getsid(0) == libc::getpid() };
        return signal == libc::SIGALRM || (signal == libc::SIGHUP && leader);
    }
    if info.si_code > 0 {
        return false; // about something that this process has: a descriptor, a timer
    }
    // A program that signals its own group reaches us too; it must not get its signal back.
    // SAFETY: what is not from the kernel comes from kill, tgkill or sigqueue, which all fill si_pid.
    let sender = unsafe { info.si_pid() };
    !descends_from(sender, child)
}

fn descends_from(mut pid: i32, ancestor: i32) -> bool {
    for _ in 0..64 {
        if pid == ancestor {
            return true;
        }
        match process::parent(pid as u32) {
            Some(parent) if parent > 1 => pid = parent as i32,
            _ => return false,
        }
    }
    false
}

/// The child was stopped from the terminal: stop too, so that the shell notices. A SIGSTOP sent to the child alone
/// is left to the process that will continue it.
fn stop_with(signal: i32) {
    if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
        deliver_to_self(signal);
    }
}

/// Sends itself a signal with its default action, although it may be blocked, ignored or pending.
fn deliver_to_self(signal: i32) {
    // SAFETY: plain data filled by the calls; a default disposition runs no handler.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        let mut old = mem::zeroed();
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, &mut old);
        libc::sigprocmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}

enum Waited {
    Ended(How, u64),
    Stopped(i32),
    Nothing,
    Gone,
}

fn wait(child: i32, flags: i32) -> Waited {
    loop {
        let mut status = 0;
        // SAFETY: rusage is plain data that wait4 fills.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: both pointers are to locals.
        let n = unsafe { libc::wait4(child, &mut status, flags, &mut usage) };
        if n < 0 {
            if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Waited::Gone;
        }
        let max_rss = (usage.ru_maxrss as u64) << 10;
        return match () {
            () if n == 0 => Waited::Nothing,
            () if libc::WIFEXITED(status) => Waited::Ended(How::Exited(libc::WEXITSTATUS(status)), max_rss),
            () if libc::WIFSIGNALED(status) => Waited::Ended(How::Killed(libc::WTERMSIG(status)), max_rss),
            () if libc::WIFSTOPPED(status) => Waited::Stopped(libc::WSTOPSIG(status)),
            () => Waited::Nothing,
        };
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.restore();
    }
}
