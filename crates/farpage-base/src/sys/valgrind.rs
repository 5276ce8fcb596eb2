//! Whether valgrind runs this program: instruction by instruction, on a processor of its own, with threads that libc
//! has made.
//!
//! Callers: `farpage_run::lifecycle::start`, `farpage_ipc::tree::strangers`, [`super::message`]. No locks.

use core::arch::asm;

/// Whether the calling program is run by valgrind, which ends a program that makes a thread by itself.
pub fn is_here() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut depth = 0usize;
    // SAFETY: a request as in valgrind.h. These instructions together change nothing (rdi is turned once around), but
    // for valgrind, which reads the request at rax and answers in rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") depth,
            out("rdi") _,
            options(nostack)
        );
    }
    depth != 0
}

#[cfg(test)]
mod tests {
    /// It is the processor itself that runs the tests (but under valgrind).
    #[test]
    fn the_request_changes_nothing() {
        let is_wanted =
            std::env::var_os("LD_PRELOAD").is_some_and(|names| names.to_string_lossy().contains("vgpreload"));
        assert_eq!(super::is_here(), is_wanted);
    }
}
