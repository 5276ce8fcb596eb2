//! A system call as registers have it, and making one.
//!
//! Callers: all of this crate, and the engine. It calls nothing.

use std::arch::asm;

/// A system call: its number and arguments, where it goes on when it has been made, and where it is made.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    /// Number; the result, once it has been made.
    pub rax: usize,
    /// Arguments.
    pub args: [usize; 6],
    /// Address of an instruction that makes it and goes on.
    pub resume: usize,
    /// Address behind it.
    pub after: usize,
}

/// Makes a system call; the kernel's answer, errors below zero.
///
/// # Safety
/// As for the call.
#[inline]
pub unsafe fn raw(nr: u32, args: &[usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the calling convention; the meaning is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    ret
}
