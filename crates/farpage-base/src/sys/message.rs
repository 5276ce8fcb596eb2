//! What is said on standard error, and the end of a process that cannot go on.
//!
//! Callers: all crates, on any thread, in signal handlers, too. No locks, no allocation.

use super::descriptor::FileId;
use super::raw::{gettid, nr, syscall};
use super::thread::{exit_process, fetch_fd_of_process, is_engine_thread, without_signal};
use super::valgrind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Writes one line to the process's standard error. Engine threads have a descriptor table of their own: theirs is
/// fetched from the main thread's, so that position and mode are shared with what the program writes; where that is not
/// allowed, it is opened anew.
pub fn message(text: &str) {
    message_fmt(format_args!("{text}"));
}

/// For how long a message waits for room.
const REPORT_WAIT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The same, for [`format_args!`]: allocates nothing, and makes async-signal-safe calls only.
pub fn message_fmt(text: std::fmt::Arguments<'_>) {
    let line = Line::of(text);
    let bytes = &line.bytes[..line.len];
    // An engine's and a pager's threads have tables of their own, in which 2 is something else, or nothing.
    // (Where there are none, because valgrind is here, it would say that it does not know the call.)
    let of_process = match valgrind::is_here() {
        true => Err(Errno::NOSYS),
        false => fetch_fd_of_process(2).or_else(|_| standard_error_anew()),
    };
    // SAFETY: borrowed for these calls, which fail if it is not open, or is no file to write to.
    let own = (!is_engine_thread()).then(|| unsafe { BorrowedFd::borrow_raw(2) });
    let to = of_process.as_ref().ok().map(AsFd::as_fd).or(own).filter(is_standard_error);
    // No signal for a pipe whose reader is gone.
    let is_said = to.is_some_and(|to| without_signal(libc::SIGPIPE, || write_in_time(to, bytes)));
    if !is_said {
        keep(bytes);
    }
}

/// A line that is not written is kept.
fn keep(bytes: &[u8]) {
    let keep = UNSAID.load(Relaxed);
    if keep != 0 {
        // SAFETY: `begin_messages` has put it there.
        let keep = unsafe { std::mem::transmute::<usize, fn(&[u8])>(keep) };
        keep(bytes);
    }
}

/// Standard error, device and inode; zeros: any file is.
static STANDARD_ERROR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What [`message_fmt`] calls with a line that it cannot write; 0: nothing.
static UNSAID: AtomicUsize = AtomicUsize::new(0);

/// From now on messages are written to the file that is standard error now, and to no other: a program that closes the
/// descriptor may give its number to a file of data. A line that cannot be written goes to `unsaid`, which allocates
/// nothing and waits for nothing. `late`: the program has run for a while, so the number may be another file's already.
/// The first call counts.
pub fn begin_messages(late: bool, unsaid: fn(&[u8])) {
    // SAFETY: only asked what it is; if it is not open, the answer is none.
    let fd = unsafe { BorrowedFd::borrow_raw(2) };
    let (device, inode) = match FileId::of(fd) {
        Ok(file) if !late || is_for_lines(fd) => (file.device, file.inode),
        _ => (u64::MAX, u64::MAX),
    };
    if STANDARD_ERROR[0].compare_exchange(0, device, Relaxed, Relaxed).is_ok() {
        STANDARD_ERROR[1].store(inode, Relaxed);
        UNSAID.store(unsaid as usize, Relaxed);
        ON_TERMINAL.store(is_terminal(fd), Relaxed);
    }
}

fn is_standard_error(fd: &BorrowedFd<'_>) -> bool {
    let [device, inode] = [0, 1].map(|i| STANDARD_ERROR[i].load(Relaxed));
    device == 0 || FileId::of(*fd) == Ok(FileId { device, inode })
}

/// Whether messages are written to a terminal on which lines are read: not on one that belongs to an editor.
/// `filtered`: the program has a filter of its own, which may not allow the call that asks.
pub fn is_on_terminal(filtered: bool) -> bool {
    use rustix::termios::{LocalModes, tcgetattr};
    let reads_lines = |fd: OwnedFd| tcgetattr(fd).is_ok_and(|mode| mode.local_modes.contains(LocalModes::ICANON));
    ON_TERMINAL.load(Relaxed) && !filtered && fetch_fd_of_process(2).is_ok_and(reads_lines)
}

static ON_TERMINAL: AtomicBool = AtomicBool::new(false);

fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::{FileType, fstat, major};
    // `/dev/null` and its like.
    const MEMORY: u32 = 1;
    let is_character_device = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode).is_char_device();
    fstat(fd).is_ok_and(|stat| is_character_device(&stat) && major(stat.st_rdev) != MEMORY)
}

/// Whether a file is one that lines are written to: no file of data, which is read, too, or written in other places
/// than its end.
fn is_for_lines(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
    let is_regular = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode).is_file();
    let log = OFlags::WRONLY | OFlags::APPEND;
    !fstat(fd).is_ok_and(is_regular) || fcntl_getfl(fd).is_ok_and(|flags| flags & (OFlags::ACCMODE | log) == log)
}

/// A pipe that is not read must not stop a thread: its reader may wait for this thread. Whether it is written.
fn write_in_time(to: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    let mut room = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    poll(&mut room, Some(&REPORT_WAIT_MAX)) == Ok(1) && rustix::io::write(to, bytes).is_ok()
}

/// The file behind the process's standard error, opened once more; not possible for a socket.
fn standard_error_anew() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(super::proc::Proc::held()?, "self/fd/2", flags, Mode::empty())
}

/// Whether [`warn`] is silent.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on warnings are not written.
pub fn set_quiet() {
    QUIET.store(true, Relaxed);
}

/// [`message`] for what the program gets over; after [`set_quiet`] it is kept only.
pub fn warn(text: &str) {
    if QUIET.load(Relaxed) {
        let line = Line::of(format_args!("{text}"));
        return keep(&line.bytes[..line.len]);
    }
    message(text);
}

/// A line of text without the heap.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// What does not fit is left out.
    fn of(text: std::fmt::Arguments<'_>) -> Line {
        let mut line = Line { bytes: [0; 512], len: 0 };
        let _ = line.write_str("farpage: ").and_then(|()| line.write_fmt(text));
        line.len = line.len.min(line.bytes.len() - 1);
        let _ = line.write_str("\n");
        line
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let take = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}

/// What [`fatal`] says besides; 0: nothing.
static LAST_WORDS: AtomicUsize = AtomicUsize::new(0);

/// From now on [`fatal`] calls `say`, which allocates nothing and waits for nothing.
pub fn set_last_words(say: fn()) {
    LAST_WORDS.store(say as usize, Relaxed);
}

/// Reports a state from which the program's memory cannot be guaranteed any more, and ends the process: a wrong byte
/// would be worse.
pub fn fatal(text: &str) -> ! {
    fatal_fmt(format_args!("{text}"))
}

/// The same, for [`format_args!`]: allocates nothing.
pub fn fatal_fmt(text: std::fmt::Arguments<'_>) -> ! {
    message_fmt(text);
    // Taken: a failure inside `say` does not call it again.
    let say = LAST_WORDS.swap(0, Relaxed);
    if say != 0 {
        // SAFETY: `set_last_words` has put it there.
        let say = unsafe { std::mem::transmute::<usize, fn()>(say) };
        say();
    }
    abort()
}

/// Ends the process by SIGABRT, as libc's function does, but whatever the program does at that signal. Its handler must
/// not run: it would do so on this thread, and wait for memory that only this thread brings in.
fn abort() -> ! {
    const SIGABRT: usize = 6;
    const UNBLOCK: usize = 1;
    let set = 1u64 << (SIGABRT - 1);
    let default = [0usize; 4]; // the kernel's struct sigaction: SIG_DFL, no flags, no restorer, an empty mask
    let (pid, tid) = (rustix::process::getpid().as_raw_nonzero().get() as usize, gettid() as usize);
    // Again, if another thread has just installed a handler, in the hope that it returns.
    for _ in 0..3 {
        // SAFETY: both structures are alive and of the sizes that the kernel has; a default disposition runs no code.
        unsafe {
            let _ = syscall(nr::RT_SIGACTION, [SIGABRT, default.as_ptr() as usize, 0, size_of_val(&set), 0, 0]);
            let _ = syscall(nr::RT_SIGPROCMASK, [UNBLOCK, &raw const set as usize, 0, size_of_val(&set), 0, 0]);
            let _ = syscall(nr::TGKILL, [pid, tid, SIGABRT, 0, 0, 0]);
        }
    }
    // The first process of a container does not end by a signal of its own. What a shell calls the end by SIGABRT.
    exit_process(128 + SIGABRT as u8)
}
