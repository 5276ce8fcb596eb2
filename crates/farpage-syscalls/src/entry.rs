//! Where a call comes to that may be about memory of ours, from [`crate::patch`]'s code: registers are put into a
//! [`Frame`], everything that Rust code may change is saved, and [`crate::call::handle`] makes the call.
//!
//! To who made the call this is the `syscall` instruction: all registers but `rax`, `rcx` and `r11` are as before, and
//! the red zone below the stack is not touched. To who unwinds it is an ordinary function that was called.

use crate::call::handle;
use crate::parts::may_be_ours;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    ".p2align 4",
    ".globl farpage_syscalls_nested",
    ".hidden farpage_syscalls_nested",
    ".type farpage_syscalls_nested, @function",
    "farpage_syscalls_nested:",
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
    // A quick look first. What it is compiled to may use the lower halves of the vector registers, and no more.
    "sub rsp, 256",
    "and rsp, -16",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "lea rdi, [rbp + 8]",
    "call {may_be_ours}",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbp",
    "test al, al",
    "jnz 2f",
    "jmp 4f",
    ".cfi_endproc",
    ".size farpage_syscalls_nested, . - farpage_syscalls_nested",
    ".p2align 4",
    ".globl farpage_syscalls_direct",
    ".hidden farpage_syscalls_direct",
    ".type farpage_syscalls_direct, @function",
    "farpage_syscalls_direct:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, r11",
    "lea rsp, [rsp - 128]",
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
    "2:",
    "sub rsp, [rip + {bytes}]",
    "and rsp, -64",
    // The header must be zero, whatever was on the stack.
    "xor eax, eax",
    "mov [rsp + 512], rax",
    "mov [rsp + 520], rax",
    "mov [rsp + 528], rax",
    "mov [rsp + 536], rax",
    "mov [rsp + 544], rax",
    "mov [rsp + 552], rax",
    "mov [rsp + 560], rax",
    "mov [rsp + 568], rax",
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
    "pop rbp",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // It is made where it was.
    "4:",
    "pop rbp",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "pop r11",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    ".cfi_endproc",
    ".size farpage_syscalls_direct, . - farpage_syscalls_direct",
    may_be_ours = sym may_be_ours,
    handle = sym handle,
    bytes = sym SAVE_BYTES,
    mask = sym SAVE_MASK,
);
