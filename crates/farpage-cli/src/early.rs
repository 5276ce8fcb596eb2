//! What the process looked like before Rust's runtime changed it, so that the program can be given exactly that.
//!
//! Before `main`, the runtime sets SIGPIPE to "ignore" and opens /dev/null for standard descriptors that are closed.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// Bit n: descriptor n was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

// The C runtime calls the functions of .init_array before Rust's own start-up code.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

extern "C" fn record() {
    // SAFETY: an all-zero sigaction is a valid value; sigaction with no new action only fills it.
    let pipe = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut old);
        old.sa_sigaction
    };
    SIGPIPE_IGNORED.store(pipe == libc::SIG_IGN, Relaxed);
    for fd in 0..3 {
        // SAFETY: F_GETFD only asks.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Relaxed);
        }
    }
}

/// Puts SIGPIPE back. A closed pipe then ends `farpage stat | head` silently, as it ends any other command.
pub fn restore_sigpipe() {
    if !SIGPIPE_IGNORED.load(Relaxed) {
        // SAFETY: sets a default disposition; no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Closes the standard descriptors that were closed at start; only right before an exec.
pub fn restore_closed_descriptors() {
    for fd in 0..3 {
        if CLOSED.load(Relaxed) & (1 << fd) != 0 {
            // SAFETY: the runtime opened /dev/null there; nothing is written to it between here and exec.
            unsafe { libc::close(fd) };
        }
    }
}
