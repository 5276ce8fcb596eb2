//! Plain anonymous memory, asked for as programs do: from libc.
//!
//! `rustix` would make the system call itself. `farpage run` may hear late of such memory
//! (`docs/user/compatibility.md`), and what is measured would then have no budget at first.

use std::ffi::c_void;
use std::io;

/// Maps `bytes` of private memory at an address of the kernel's choice.
///
/// # Errors
/// As `mmap`.
pub fn map(bytes: usize) -> io::Result<*mut c_void> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; nothing that exists is changed.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
}
