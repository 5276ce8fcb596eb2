//! Where a call comes to that may be about memory of ours, from [`crate::patch`]'s code: registers are put into a
//! [`Frame`], everything that Rust code may change is saved, and `handle` has the call made.
//!
//! To the caller this is the `syscall` instruction: all registers but `rax`, `rcx` and `r11` are as before, and
//! the red zone below the stack is not touched. To an unwinder it is an ordinary function that was called.

use crate::call::{hold_all, whole};
use crate::held::Call;
use crate::parts::{self, is_ours};
use crate::pieces;
use crate::raw::Frame;
use crate::sigbus::{self, Waiting};
use crate::signals::{self, Mask};
use crate::state::shared;
use crate::table::{Rule, Special, class, rule};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that the processor's state takes, and which parts of it are saved.
static SAVE_BYTES: AtomicU64 = AtomicU64::new(0);
static SAVE_MASK: AtomicU64 = AtomicU64::new(0);
/// x87, SSE, AVX, MPX, AVX-512, protection keys: all that code which a compiler makes changes, but not the matrices.
const SAVED: u64 = 0xe7;

unsafe extern "C" {
    /// Comes here: a call of which an argument is in memory of ours. Not to be called.
    #[link_name = "farpage_syscalls_direct"]
    pub fn direct();
    /// Comes here: a call whose arguments point to pointers. Not to be called.
    #[link_name = "farpage_syscalls_nested"]
    pub fn nested();
}

/// Finds out what of the processor's state has to be saved; false: the processor is too old to say.
pub fn prepare() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let has_xsave = __cpuid(1).ecx & (1 << 27) != 0;
    if !has_xsave {
        return false;
    }
    // SAFETY: the bit above says that there is the instruction, and that the kernel allows it.
    let enabled = unsafe { xgetbv() } & SAVED;
    // Of the standard form: the last part's end, which is the same wherever it begins.
    let mut bytes = 576;
    for part in (2..63).filter(|part| enabled & (1 << part) != 0) {
        let leaf = __cpuid_count(13, part);
        bytes = bytes.max(u64::from(leaf.eax) + u64::from(leaf.ebx));
    }
    SAVE_MASK.store(enabled, Relaxed);
    SAVE_BYTES.store(bytes.next_multiple_of(64), Relaxed);
    true
}

/// # Safety
/// The processor has it.
unsafe fn xgetbv() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

// On arrival: rax, rdi, rsi, rdx, r10, r8, r9 as for a `syscall`; r11: address behind it; rcx: where it can be made.
std::arch::global_asm!(
    ".text",
    // From the call's registers to a frame, with `rbp` below it.
    ".macro farpage_syscalls_enter name",
    ".p2align 4",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, r11",
    "lea rsp, [rsp - 128]", // the red zone
    ".cfi_def_cfa_offset 128",
    "push r11",
    ".cfi_def_cfa_offset 136",
    ".cfi_offset rip, -136",
    "push rcx",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    ".cfi_def_cfa_offset 200",
    "push rbp",
    ".cfi_def_cfa_offset 208",
    ".cfi_offset rbp, -208",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    ".endm",
    // And back: to where the call can be made, or (`pop rcx` again) to the address behind it.
    ".macro farpage_syscalls_leave behind",
    "pop rbp",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "pop \\behind",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    ".endm",
    "farpage_syscalls_enter farpage_syscalls_nested",
    // A quick look first. What it is compiled to may use the lower halves of the vector registers, and no more.
    "sub rsp, 256",
    "and rsp, -16",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 16 * \\n], xmm\\n",
    ".endr",
    "lea rdi, [rbp + 8]",
    "call {may_be_ours}",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\n, [rsp + 16 * \\n]",
    ".endr",
    "mov rsp, rbp",
    "test al, al",
    "jnz 2f",
    "jmp 4f",
    ".cfi_endproc",
    ".size farpage_syscalls_nested, . - farpage_syscalls_nested",
    "farpage_syscalls_enter farpage_syscalls_direct",
    "2:",
    "sub rsp, [rip + {bytes}]",
    "and rsp, -64",
    // The header must be zero, whatever was on the stack.
    "xor eax, eax",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "mov [rsp + 512 + 8 * \\n], rax",
    ".endr",
    "mov eax, [rip + {mask}]",
    "xor edx, edx",
    "xsave64 [rsp]",
    "lea rdi, [rbp + 8]",
    "call {handle}",
    "mov r11, rax",
    "mov eax, [rip + {mask}]",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "mov rsp, rbp",
    "test r11b, r11b",
    "jnz 4f",
    // It has been made.
    "farpage_syscalls_leave rcx",
    // It is made where it was.
    "4:",
    "farpage_syscalls_leave r11",
    ".cfi_endproc",
    ".size farpage_syscalls_direct, . - farpage_syscalls_direct",
    ".purgem farpage_syscalls_enter",
    ".purgem farpage_syscalls_leave",
    may_be_ours = sym may_be_ours,
    handle = sym handle,
    bytes = sym SAVE_BYTES,
    mask = sym SAVE_MASK,
);

/// The first, quick question about a call with pointers behind pointers, whose own arguments point elsewhere: whether
/// one of those may be in memory of ours. Called with only half of the vector registers saved: it leaves this crate for
/// nothing.
extern "C" fn may_be_ours(frame: &Frame) -> bool {
    let Some(shared) = shared() else { return false };
    let Some(special) = rule(frame.rax as u32).special else { return true };
    let (low, len) = (shared.low.load(Relaxed), shared.len.load(Relaxed));
    let args = &frame.args;
    let mut may_be = match special {
        Special::Mask => sigbus::matters(args),
        Special::Waits(arg) => sigbus::has_bus(args[usize::from(arg)]),
        // SAFETY: a pointer and a length.
        Special::Pselect => unsafe { parts::read::<usize>(args[5]) }.is_some_and(sigbus::has_bus),
        Special::Action => true,
        _ => false,
    };
    parts::nested(special, args, &mut |part| may_be |= part.addr.wrapping_sub(low) < len);
    may_be
}

/// Makes the call of a frame, or has it made where it was (`true`).
extern "C-unwind" fn handle(frame: &mut Frame) -> bool {
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
    let rule = rule(nr);
    if let Some(result) = sigbus::make(rule.special, &frame.args) {
        frame.rax = result as usize;
        return false;
    }
    let mut waiting = Waiting::default();
    let other = waiting.arguments(rule.special, &frame.args);
    let mask = signals::block();
    let result = prepared(frame, nr, &rule, other, mask);
    signals::restore(mask);
    if let Some(result) = result {
        frame.rax = result as usize;
    }
    result.is_none()
}

/// The same, while signals are blocked; with `other` arguments than its own, if there are any. `None`: it is made where
/// it was.
fn prepared(frame: &Frame, nr: u32, rule: &Rule, other: Option<[usize; 6]>, mask: Mask) -> Option<isize> {
    let args = other.as_ref().unwrap_or(&frame.args);
    let call = || Call::begin(std::ptr::from_ref(frame) as usize, mask);
    // No call of the memory's own comes further than this.
    if !is_about_ours(rule, args) {
        // SAFETY: the program's own call.
        return other.map(|args| unsafe { call().make(nr, &args) });
    }
    let call = call();
    if rule.in_place {
        // Held until the thread's next call like this, if there is one.
        hold_all(&call, rule, args);
        return None;
    }
    Some(match rule.special {
        _ if rule.stream => pieces::stream(&call, nr, rule, args),
        Some(Special::Vector(_, _, access)) => pieces::vector(&call, nr, rule, args, access),
        Some(Special::Message(access)) => pieces::message(&call, nr, rule, args, access),
        Some(Special::Messages(access)) => pieces::messages(&call, nr, rule, args, access),
        _ => whole(&call, nr, rule, args),
    })
}

/// Whether any part is ours.
fn is_about_ours(rule: &Rule, args: &[usize; 6]) -> bool {
    let mut any = false;
    parts::each(rule, args, &mut |part| any |= is_ours(part.addr));
    any
}
