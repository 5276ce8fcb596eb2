//! Making a call in one go: the parts that it is about are brought in and held, it is made, and they are let go of.
//!
//! Runs in the middle of any of the program's calls, also in signal handlers. Allocates nothing. Has no destructors: a
//! thread may be cancelled, or leave by `longjmp`, while the call waits.
//!
//! Callers: [`crate::entry`], [`crate::pieces`].

use crate::held::Call;
use crate::parts::{self, Part, is_ours};
use crate::table::{Len, Rule};

/// Most words of a structure that are looked at for addresses.
const WORDS_MAX: usize = 32;
/// What is brought in at an address that was found like that, bytes.
const FOUND: usize = 16 << 10;
const EFAULT: isize = -(libc::EFAULT as isize);

/// Holds a part, if it is ours.
pub fn hold(call: &Call, part: Part) -> usize {
    if is_ours(part.addr) { call.hold(part.addr, part.len, part.access.writes()) } else { 0 }
}

/// Holds all that a call is about.
pub fn hold_all(call: &Call, rule: &Rule, args: &[usize; 6]) {
    parts::each(rule, args, &mut |part| _ = hold(call, part));
}

/// Makes a call in one go.
pub fn whole(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6]) -> isize {
    hold_all(call, rule, args);
    // SAFETY: the program's own call.
    let mut result = unsafe { call.make(nr, args) };
    if result == EFAULT && rule.open {
        hold_found(call, rule, args);
        // SAFETY: as above; it has failed before it did anything.
        result = unsafe { call.make(nr, args) };
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
