//! The parts of memory that a call is about, by its rule.
//!
//! Arrays of pointers are read from where the program has them. Reading one that is not there yet is a fault like any
//! other of this thread. One that is no memory at all ends the program, where the kernel would say EFAULT; only arrays
//! of pointers are read like that, never what they point to.
//!
//! Callers: [`crate::entry`], [`crate::call`], [`crate::pieces`]. Allocates nothing, takes no lock.

use crate::state::{Shared, memory, shared};
use crate::table::{Access, Len, Rule, Special};
use std::sync::atomic::Ordering::Relaxed;

/// Longest name of a file.
const PATH_MAX: usize = 4096;
/// The most vectors, or messages, that the kernel takes.
pub const VECTORS_MAX: usize = 1024;
/// Strings of a program's arguments that are looked at.
const STRINGS_MAX: usize = 1 << 16;

/// Memory that the kernel reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Where it begins.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// What is done with it.
    pub access: Access,
}

/// Whether an address is memory of ours, and not of others that lie between ([`crate::cover`]).
pub fn is_ours(addr: usize) -> bool {
    let covered = |shared: &Shared| addr.wrapping_sub(shared.low.load(Relaxed)) < shared.len.load(Relaxed);
    shared().is_some_and(covered) && memory().is_some_and(|memory| memory.contains(addr))
}

/// Whether the program can have anything at an address.
pub fn is_user(addr: usize) -> bool {
    (PATH_MAX..1 << 47).contains(&addr)
}

/// A value at an address that is for the kernel, if it can be one.
///
/// # Safety
/// See the module documentation.
pub unsafe fn read<T: Copy>(addr: usize) -> Option<T> {
    // SAFETY: the caller's promise; any alignment.
    is_user(addr).then(|| unsafe { std::ptr::read_unaligned(addr as *const T) })
}

/// Writes a value where the kernel would.
///
/// # Safety
/// See the module documentation.
pub unsafe fn write<T: Copy>(addr: usize, value: T) {
    // SAFETY: the caller's promise; any alignment.
    unsafe { std::ptr::write_unaligned(addr as *mut T, value) };
}

/// An entry of an array.
///
/// # Safety
/// As [`read`].
pub unsafe fn entry<T: Copy>(array: usize, index: usize) -> Option<T> {
    // SAFETY: the caller's promise.
    unsafe { read(array.wrapping_add(index.wrapping_mul(size_of::<T>()))) }
}

/// A buffer of a vector: address and length.
pub type Buffer = (usize, usize);

/// The kernel's `msghdr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Address of the peer.
    pub name: usize,
    /// Its length.
    pub name_len: u32,
    /// Buffers.
    pub array: usize,
    /// How many.
    pub count: usize,
    /// Control data.
    pub control: usize,
    /// Its length.
    pub control_len: usize,
    /// What the kernel says.
    pub flags: i32,
}

/// Bytes of a `mmsghdr`.
pub const MMSGHDR: usize = 64;

/// Calls `f` with an array of strings that ends with a null, and with the strings.
fn strings(array: usize, f: &mut dyn FnMut(Part)) {
    f(Part { addr: array, len: PATH_MAX, access: Access::In });
    for i in 0..STRINGS_MAX {
        // SAFETY: an array of strings, as the call takes it, up to its end.
        let Some(addr) = (unsafe { entry::<usize>(array, i) }).filter(|addr| *addr != 0) else { return };
        f(Part { addr, len: PATH_MAX, access: Access::In });
    }
}

/// The length of what argument `arg` points to, bytes.
fn length(len: Len, args: &[usize; 6]) -> usize {
    let argument = |arg: u8| args[usize::from(arg)];
    match len {
        Len::Bytes(bytes) => bytes as usize,
        Len::Args(arg, each) => argument(arg).saturating_mul(each as usize),
        // SAFETY: a length, as the call takes it.
        Len::U32At(arg) => unsafe { read::<u32>(argument(arg)) }.unwrap_or(0) as usize,
        Len::Bits(arg) => argument(arg).div_ceil(64).saturating_mul(8),
        Len::Sets => (args[0] as u32 as usize).div_ceil(64) * 8,
        Len::Path | Len::Some4K => PATH_MAX,
    }
}

/// Calls `f` with each part that the arguments of a call name directly, in their order.
pub fn direct(rule: &Rule, args: &[usize; 6], f: &mut dyn FnMut(Part)) {
    for &(arg, len, access) in rule.pointers {
        f(Part { addr: args[usize::from(arg)], len: length(len, args), access });
    }
}

/// Calls `f` with each part that a call is about.
pub fn each(rule: &Rule, args: &[usize; 6], f: &mut dyn FnMut(Part)) {
    direct(rule, args, f);
    if let Some(special) = rule.special {
        nested(special, args, f);
    }
}

/// Calls `f` with an array of buffers, and then with the buffers.
pub fn vector(array: usize, count: usize, access: Access, f: &mut dyn FnMut(Part)) {
    let count = count.min(VECTORS_MAX);
    f(Part { addr: array, len: count * size_of::<Buffer>(), access: Access::In });
    for i in 0..count {
        // SAFETY: an array of buffers, as the call takes it.
        let Some((addr, len)) = (unsafe { entry::<Buffer>(array, i) }) else { return };
        f(Part { addr, len, access });
    }
}

/// Calls `f` with a message's header, and with what it names.
pub fn message(at: usize, access: Access, f: &mut dyn FnMut(Part)) {
    f(Part { addr: at, len: size_of::<Header>(), access: Access::Both });
    // SAFETY: a header, as the call takes it.
    let Some(header) = (unsafe { read::<Header>(at) }) else { return };
    f(Part { addr: header.name, len: header.name_len as usize, access });
    f(Part { addr: header.control, len: header.control_len, access });
    vector(header.array, header.count, access, f);
}

/// Calls `f` with each part that a call's arguments name indirectly.
pub fn nested(special: Special, args: &[usize; 6], f: &mut dyn FnMut(Part)) {
    let argument = |arg: u8| args[usize::from(arg)];
    match special {
        Special::Vector(array, count, access) => vector(argument(array), argument(count), access, f),
        Special::TwoVectors(access) => {
            vector(args[1], args[2], access, f);
            // Of this process, or of another one, where these addresses are something else; then it is for nothing.
            vector(args[3], args[4], Access::Both, f);
        }
        Special::Message(access) => message(args[1], access, f),
        Special::Messages(access) => {
            (0..args[2].min(VECTORS_MAX)).for_each(|i| message(args[1].wrapping_add(i * MMSGHDR), access, f));
        }
        Special::Pselect => {
            f(Part { addr: args[5], len: 16, access: Access::In });
            // SAFETY: a pointer and a length.
            if let Some(addr) = unsafe { read::<usize>(args[5]) } {
                f(Part { addr, len: 8, access: Access::In });
            }
        }
        Special::Iocbs => {
            f(Part { addr: args[2], len: args[1].min(VECTORS_MAX) * 8, access: Access::In });
            for i in 0..args[1].min(VECTORS_MAX) {
                // SAFETY: an array of addresses.
                let Some(addr) = (unsafe { entry::<usize>(args[2], i) }) else { return };
                f(Part { addr, len: 64, access: Access::Both });
            }
        }
        Special::Futexes => {
            for i in 0..args[1].min(128) {
                // SAFETY: structures with an address in the second word.
                let Some(addr) = (unsafe { read::<usize>(args[0] + i * 24 + 8) }) else { return };
                f(Part { addr, len: 4, access: Access::Both });
            }
        }
        Special::Ranges | Special::Mask | Special::Action | Special::Waits(_) => {}
        Special::Clone3 => {
            for (at, len) in [(8, 4), (16, 4), (24, 4), (64, 128)] {
                // SAFETY: a structure with addresses there.
                let Some(addr) = (unsafe { read::<usize>(args[0] + at) }) else { return };
                f(Part { addr, len, access: Access::Both });
            }
        }
        Special::Exec(first) => {
            strings(argument(first), f);
            strings(argument(first + 1), f);
        }
    }
}
