//! System calls under the names that the standard library has for them, time, and `errno`.
//!
//! On a program thread `errno` is the program's, on an engine thread a word of its control block.

use super::{define, named};
use crate::real::{function, real};
use farpage_base::sys::raw::{Errno, ErrnoText, syscall};
use farpage_base::sys::thread::{engine_errno, is_engine_thread};
use rustix::time::ClockId;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::atomic::AtomicI32;

define! {
    "__errno_location" = errno_location;
    "__xpg_strerror_r" = strerror_r;
    "abort" = abort;
    "clock_gettime" = clock_gettime;
    "clock_nanosleep" = clock_nanosleep;
    "getcwd" = getcwd;
    "ZSTD_trace_compress_begin" = trace_begin;
    "ZSTD_trace_compress_end" = trace_end;
    "ZSTD_trace_decompress_begin" = trace_begin;
    "ZSTD_trace_decompress_end" = trace_end;
}

extern "C" fn errno_location() -> *mut c_int {
    if is_engine_thread() {
        return engine_errno();
    }
    // SAFETY: libc's function of this name has this type.
    match unsafe { function(real!("__errno_location").address(), errno_location as extern "C" fn() -> _) } {
        Some(real) => real(),
        None => {
            // No libc that we know: a word that is read nowhere else.
            static SPARE: AtomicI32 = AtomicI32::new(0);
            SPARE.as_ptr()
        }
    }
}

/// The result of a system call.
pub type Answer = Result<usize, Errno>;

/// What libc's functions return for it; sets `errno`.
pub fn answer(result: Answer) -> isize {
    result.map_or_else(
        |error| {
            // SAFETY: the calling thread's.
            unsafe { *errno_location() = error.raw_os_error() };
            -1
        },
        |value| value as isize,
    )
}

/// Functions whose arguments are those of the system call, in order; those with a name are defined under it.
macro_rules! plain {
    ($($($name:literal =)? $function:ident($($arg:ident: $type:ty),*) -> $result:ty = $number:ident;)*) => {
        $(
            $(define! { $name = $function; })?

            /// # Safety
            /// As for the system call.
            unsafe extern "C" fn $function($($arg: $type),*) -> $result {
                let given = [$($arg as usize),*];
                let args = std::array::from_fn(|i| given.get(i).copied().unwrap_or(0));
                // SAFETY: caller's promise.
                answer(unsafe { syscall(libc::$number as u32, args) }) as $result
            }
        )*
    };
}

plain! {
    close(fd: c_int) -> c_int = SYS_close;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = SYS_close_range;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl;
    "fstat64" = fstat(fd: c_int, to: *mut c_void) -> c_int = SYS_fstat;
    "getrandom" = getrandom(to: *mut c_void, len: usize, flags: c_uint) -> isize = SYS_getrandom;
    "getpid" = getpid() -> c_int = SYS_getpid;
    "gettid" = gettid() -> c_int = SYS_gettid;
    ioctl(fd: c_int, request: usize, argument: usize) -> c_int = SYS_ioctl;
    "lseek64" = lseek(fd: c_int, offset: i64, from: c_int) -> i64 = SYS_lseek;
    madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int = SYS_madvise;
    mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void = SYS_mmap;
    "munmap" = munmap(at: *mut c_void, len: usize) -> c_int = SYS_munmap;
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = SYS_open;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int = SYS_openat;
    "poll" = poll(fds: *mut c_void, n: usize, milliseconds: c_int) -> c_int = SYS_poll;
    "read" = read(fd: c_int, to: *mut c_void, len: usize) -> isize = SYS_read;
    "readlink" = readlink(path: *const c_char, to: *mut c_char, len: usize) -> isize = SYS_readlink;
    "stat64" = stat(path: *const c_char, to: *mut c_void) -> c_int = SYS_stat;
    "statx" = statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int = SYS_statx;
    "write" = write(fd: c_int, from: *const c_void, len: usize) -> isize = SYS_write;
    "writev" = writev(fd: c_int, from: *const c_void, n: c_int) -> isize = SYS_writev;
}

/// What the functions that this library exports go on to on an engine thread; 0: no engine thread calls such a
/// function.
pub fn on_engine_threads(name: &CStr) -> usize {
    match name.to_bytes() {
        b"close" => close as *const () as usize,
        b"close_range" => close_range as *const () as usize,
        b"fcntl" => fcntl as *const () as usize,
        b"ioctl" => ioctl as *const () as usize,
        b"madvise" => madvise as *const () as usize,
        b"mmap" => mmap as *const () as usize,
        b"open" | b"open64" => open as *const () as usize,
        b"openat" | b"openat64" => openat as *const () as usize,
        _ => 0,
    }
}

/// # Safety
/// As libc's.
unsafe extern "C" fn getcwd(to: *mut c_char, len: usize) -> *mut c_char {
    // SAFETY: caller's promise.
    if answer(unsafe { syscall(libc::SYS_getcwd as u32, [to as usize, len, 0, 0, 0, 0]) }) < 0 {
        null_mut()
    } else {
        to
    }
}

/// # Safety
/// As libc's.
unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut libc::timespec) -> c_int {
    let known = match clock {
        libc::CLOCK_MONOTONIC => ClockId::Monotonic,
        libc::CLOCK_REALTIME => ClockId::Realtime,
        _ => {
            let args = [clock as usize, to as usize, 0, 0, 0, 0];
            // SAFETY: caller's promise.
            return answer(unsafe { syscall(libc::SYS_clock_gettime as u32, args) }) as c_int;
        }
    };
    // By the vDSO, which rustix finds without libc.
    let now = rustix::time::clock_gettime(known);
    // SAFETY: caller's promise.
    unsafe { to.write(libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec as c_long }) };
    0
}

/// # Safety
/// As libc's.
unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    how_long: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    let args = [clock as usize, flags as usize, how_long as usize, left as usize, 0, 0];
    // SAFETY: caller's promise.
    let done = unsafe { syscall(libc::SYS_clock_nanosleep as u32, args) };
    done.map_or_else(Errno::raw_os_error, |_| 0)
}

/// Text that ends in a buffer's last byte at the latest.
struct Text {
    at: *mut u8,
    left: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes().take(self.left.saturating_sub(1)) {
            // SAFETY: `left` bytes at `at` are the caller's.
            unsafe { self.at.write(byte) };
            self.at = self.at.wrapping_add(1);
            self.left -= 1;
        }
        Ok(())
    }
}

/// # Safety
/// As libc's.
unsafe extern "C" fn strerror_r(error: c_int, to: *mut c_char, len: usize) -> c_int {
    let mut text = Text { at: to.cast(), left: len };
    let _ = text.write_str(ErrnoText(Errno::from_raw_os_error(error)).words());
    if text.left > 0 {
        // SAFETY: the last byte, at most.
        unsafe { text.at.write(0) };
    }
    0
}

/// Called by the standard library after a panic's message.
extern "C" fn abort() -> ! {
    let default = [0usize; 4]; // the kernel's `struct sigaction`: SIG_DFL, no flags, no mask
    let action = [libc::SIGABRT as usize, default.as_ptr() as usize, 0, 8, 0, 0];
    let open = 1u64 << (libc::SIGABRT - 1);
    let unblock = [libc::SIG_UNBLOCK as usize, &raw const open as usize, 0, 8, 0, 0];
    // SAFETY: both structures are alive and of the sizes the kernel reads; the process ends.
    unsafe {
        let _ = syscall(libc::SYS_rt_sigaction as u32, action);
        let _ = syscall(libc::SYS_rt_sigprocmask as u32, unblock);
        let me = [getpid() as usize, gettid() as usize, libc::SIGABRT as usize, 0, 0, 0];
        let _ = syscall(libc::SYS_tgkill as u32, me);
        loop {
            let _ = syscall(libc::SYS_exit_group as u32, [128 + libc::SIGABRT as usize, 0, 0, 0, 0, 0]);
        }
    }
}

/// zstd's hooks for profilers: not these contexts.
extern "C" fn trace_begin(_: *const c_void) -> u64 {
    0
}

extern "C" fn trace_end(_: u64, _: *const c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_s_text_fits_its_buffer() {
        let mut bytes = [b'x' as c_char; 8];
        for (len, wanted) in [(8, c"no such"), (4, c"no "), (1, c"")] {
            // SAFETY: `len` bytes of the array.
            unsafe { strerror_r(libc::ENOENT, bytes.as_mut_ptr(), len) };
            // SAFETY: ends within `len`.
            assert_eq!(unsafe { CStr::from_ptr(bytes.as_ptr()) }, wanted);
        }
    }
}
