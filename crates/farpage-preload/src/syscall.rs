//! `syscall`: what a program asks of the kernel by number comes to what has a function for it here.
//!
//! What the program writes as a system call instruction of its own cannot be seen.

use crate::call::interposed;
use crate::environment::Strings;
use crate::forks::{around, clone3, followed, without_wait};
use crate::own::{Answer, answer};
use crate::{descriptors, execs, mappings, pagemaps, privileges};
use farpage_base::sys::raw;
use farpage_run::lifecycle::start;
use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

interposed! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long = {
        // These set errno themselves.
        let result: c_int = match number {
            libc::SYS_close => descriptors::close(a as c_int),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_fcntl => descriptors::fcntl(a as c_int, b as c_int, c),
            libc::SYS_ioctl => descriptors::ioctl(a as c_int, b as c_ulong, c),
            libc::SYS_madvise => mappings::madvise(a as *mut c_void, b, c as c_int),
            libc::SYS_execve => execs::execve(a as *const c_char, b as Strings, c as Strings),
            libc::SYS_execveat =>
                execs::execveat(a as c_int, b as *const c_char, c as Strings, d as Strings, e as c_int),
            _ => return answer(made(number, [a, b, c, d, e, f])) as c_long,
        };
        result.into()
    };
}

/// Makes one of the others.
///
/// # Safety
/// As for the system call.
unsafe fn made(number: c_long, args: [usize; 6]) -> Answer {
    // SAFETY: caller's promise.
    let call = |args| unsafe { raw::syscall(number as u32, args) };
    let [a, b, c, d, e, f] = args;
    // A child with a stack of its own would return to nowhere: what asks for one does not come through a function.
    match number {
        libc::SYS_fork => around(&[], || call(args)),
        libc::SYS_clone if b == 0 && followed(a) => around(&[d, e], || call([without_wait(a), b, c, d, e, f])),
        libc::SYS_clone3 => clone3(args, call),
        // SAFETY: caller's promise.
        libc::SYS_process_madvise => unsafe { mappings::advise_ranges(args, || call(args)) },
        libc::SYS_open => opened(call(args), libc::AT_FDCWD, a),
        libc::SYS_openat | libc::SYS_openat2 => opened(call(args), a as c_int, b),
        // Not by the functions of these names, which may be another library's, which calls this one.
        libc::SYS_mmap if d & libc::MAP_PRIVATE as usize != 0 && c & libc::PROT_WRITE as usize != 0 => {
            grows(b, call(args))
        }
        libc::SYS_mremap => grows(c.saturating_sub(b), call(args)),
        libc::SYS_mprotect if c & libc::PROT_WRITE as usize != 0 => grows(b, call(args)),
        libc::SYS_brk => call(args).inspect(|_| start::grown()),
        _ => privileges::follow_call(number, args, call),
    }
}

/// What became of a call that opens the file with its name at `path`.
fn opened(result: Answer, dir: c_int, path: usize) -> Answer {
    if result.is_ok() {
        // SAFETY: the kernel has read it.
        unsafe { pagemaps::opened(dir, path as *const c_char) };
    }
    result
}

/// `bytes` more may have become writable, if that was the `result`.
fn grows(bytes: usize, result: Answer) -> Answer {
    result.inspect(|_| start::handed_out(bytes))
}
