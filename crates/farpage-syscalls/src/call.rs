//! Making a call: the parts that it is about are brought in and held, it is made, and they are let go of.
//!
//! Runs in the middle of any of the program's calls, also in signal handlers. Allocates nothing. Has no destructors: a
//! thread may be cancelled, or leave by `longjmp`, while the call waits.
//!
//! Caller: [`crate::entry`].

use crate::entry::Frame;
use crate::held::Call;
use crate::parts::{self, Part, is_ours};
use crate::pieces;
use crate::shared;
use crate::table::{Len, Rule, Special, class, rule};
use std::arch::asm;
use std::sync::atomic::Ordering::Relaxed;

/// Most words of a structure that are looked at for addresses.
const WORDS_MAX: usize = 32;
/// What is brought in at an address that was found like that, bytes.
const FOUND: usize = 16 << 10;
const EFAULT: isize = -(libc::EFAULT as isize);

/// Makes a system call; the kernel's answer, errors below zero.
///
/// # Safety
/// As for the call.
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

/// Makes the call of a frame, or has it made where it was (`true`).
pub extern "C-unwind" fn handle(frame: &mut Frame) -> bool {
    // SAFETY: this thread's.
    let errno = unsafe { *libc::__errno_location() };
    let in_place = make(frame);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    in_place
}

fn make(frame: &mut Frame) -> bool {
    let Ok(nr) = u32::try_from(frame.rax) else { return true };
    // Among them are those that do not return here. An argument that is none looks like an address.
    if !class(nr).matters() {
        return true;
    }
    let (rule, args) = (rule(nr), &frame.args);
    // Nobody's call of the memory's own comes further than this.
    if !is_about_ours(&rule, args) {
        return true;
    }
    if let Some(shared) = shared() {
        shared.calls.fetch_add(1, Relaxed);
    }
    let call = Call::begin(std::ptr::from_ref(frame) as usize);
    if rule.in_place {
        // Held until the thread's next call like this, if there is one.
        hold_all(&call, &rule, args);
        return true;
    }
    let result = match rule.special {
        _ if rule.stream => pieces::stream(&call, nr, &rule, args),
        Some(Special::Vector(_, _, access)) => pieces::vector(&call, nr, args, access),
        Some(Special::Message(access)) => pieces::message(&call, nr, args, access),
        Some(Special::Messages(access)) => pieces::messages(&call, nr, &rule, args, access),
        _ => whole(&call, nr, &rule, args),
    };
    frame.rax = result as usize;
    false
}

/// Whether any part is ours.
fn is_about_ours(rule: &Rule, args: &[usize; 6]) -> bool {
    let mut any = false;
    let mut look = |part: Part| any |= is_ours(part.addr);
    parts::direct(rule, args, &mut look);
    if let Some(special) = rule.special {
        parts::nested(special, args, &mut look);
    }
    any
}

/// Holds a part, if it is ours.
pub fn hold(call: &Call, part: Part) -> usize {
    if is_ours(part.addr) { call.hold(part.addr, part.len, part.access.writes()) } else { 0 }
}

/// Holds all that a call is about.
pub fn hold_all(call: &Call, rule: &Rule, args: &[usize; 6]) {
    let mut hold = |part| _ = hold(call, part);
    parts::direct(rule, args, &mut hold);
    if let Some(special) = rule.special {
        parts::nested(special, args, &mut hold);
    }
}

/// Makes a call in one go.
pub fn whole(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6]) -> isize {
    hold_all(call, rule, args);
    // SAFETY: the program's own call.
    let mut result = unsafe { raw(nr, args) };
    if result == EFAULT && rule.open {
        hold_found(call, rule, args);
        // SAFETY: as above; it has failed before it did anything.
        result = unsafe { raw(nr, args) };
    }
    call.end();
    result
}

/// Holds what looks like an address of ours in the structures that a call's arguments point to.
fn hold_found(call: &Call, rule: &Rule, args: &[usize; 6]) {
    for &(arg, len, access) in rule.pointers {
        let at = args[usize::from(arg)];
        let bytes = match len {
            Len::Bytes(bytes) => bytes as usize,
            Len::Args(by, each) => args[usize::from(by)].saturating_mul(each as usize),
            _ => WORDS_MAX * 8,
        };
        // Elsewhere it may end anywhere.
        let bytes = if is_ours(at) { bytes } else { bytes.min(4096 - at % 4096) };
        for i in 0..(bytes / 8).min(WORDS_MAX) {
            // SAFETY: within what the call reads, or at least in the same page.
            let Some(word) = (unsafe { parts::entry::<usize>(at, i) }) else { break };
            hold(call, Part { addr: word, len: FOUND, access });
        }
    }
}
