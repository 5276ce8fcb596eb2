//! `memcpy` and its like. In assembly, because a compiler may make a call of `memcpy` from a loop in a function of this
//! name.
//!
//! Long pieces are left to `rep movs` and `rep stos`, which processors since 2012 do in lines of their cache: what the
//! engine copies are pages. Short ones are copied from both ends, overlapping in the middle. Only SSE2 is used, which
//! every x86-64 has.

use super::named;
use core::arch::global_asm;

global_asm!(
    ".pushsection .text.farpage_memory,\"ax\",@progbits",
    // A function of one or two names.
    ".macro farpage_begin names:vararg",
    ".p2align 5",
    ".irp name, \\names",
    concat!(".globl ", named!("\\name")),
    concat!(".hidden ", named!("\\name")),
    concat!(".type ", named!("\\name"), ",@function"),
    concat!(named!("\\name"), ":"),
    ".endr",
    ".cfi_startproc",
    ".endm",
    ".macro farpage_end names:vararg",
    ".cfi_endproc",
    ".irp name, \\names",
    concat!(".size ", named!("\\name"), ", . - ", named!("\\name")),
    ".endr",
    ".endm",
    // memcpy(rdi = to, rsi = from, rdx = n), memmove: rax = to
    "farpage_begin memcpy, memmove",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 30f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "cmp rdx, 32",
    "ja 20f",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    "20:",
    "movups xmm2, [rsi + 16]",
    "movups xmm3, [rsi + rdx - 32]",
    "cmp rdx, 64",
    "ja 21f",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm2",
    "movups [rdi + rdx - 32], xmm3",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    // More than 64. Both ends are in registers before the first store: 0, 2, 4, 5 the first 64 bytes, 7, 6, 3, 1 the
    // last.
    "21:",
    "movups xmm4, [rsi + 32]",
    "movups xmm5, [rsi + 48]",
    "movups xmm6, [rsi + rdx - 48]",
    "movups xmm7, [rsi + rdx - 64]",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 25f", // `to` lies in what is to be read: from the end
    "cmp rdx, 1024",
    "jb 22f",
    "neg rcx",
    "cmp rcx, rdx",
    "jb 22f", // the other way round: right, but `rep movs` is slow there
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    // Upwards in steps of 64, as long as more than 64 bytes are left.
    "22:",
    "lea r8, [rdi + rdx - 64]",
    "23:",
    "movups xmm0, [rsi]",
    "movups xmm2, [rsi + 16]",
    "movups xmm4, [rsi + 32]",
    "movups xmm5, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm2",
    "movups [rdi + 32], xmm4",
    "movups [rdi + 48], xmm5",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb 23b",
    "movups [r8], xmm7",
    "movups [r8 + 16], xmm6",
    "movups [r8 + 32], xmm3",
    "movups [r8 + 48], xmm1",
    "ret",
    // Downwards.
    "25:",
    "movups xmm8, [rsi + rdx - 64]",
    "movups xmm9, [rsi + rdx - 48]",
    "movups xmm10, [rsi + rdx - 32]",
    "movups xmm11, [rsi + rdx - 16]",
    "movups [rdi + rdx - 64], xmm8",
    "movups [rdi + rdx - 48], xmm9",
    "movups [rdi + rdx - 32], xmm10",
    "movups [rdi + rdx - 16], xmm11",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 25b",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm2",
    "movups [rdi + 32], xmm4",
    "movups [rdi + 48], xmm5",
    "ret",
    // Less than 16.
    "30:",
    "cmp edx, 8",
    "jb 31f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "31:",
    "cmp edx, 4",
    "jb 32f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "32:",
    "cmp edx, 2",
    "jb 33f",
    "movzx ecx, word ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "mov [rdi], cx",
    "mov [rdi + rdx - 1], r8b",
    "ret",
    "33:",
    "test edx, edx",
    "je 34f",
    "movzx ecx, byte ptr [rsi]",
    "mov [rdi], cl",
    "34:",
    "ret",
    "farpage_end memcpy, memmove",
    // memset(rdi = to, esi = byte, rdx = n): rax = to
    "farpage_begin memset",
    "mov rax, rdi",
    "movzx esi, sil",
    "movabs r8, 0x0101010101010101",
    "imul r8, rsi",
    "cmp rdx, 16",
    "jb 45f",
    "cmp rdx, 2048",
    "jae 44f",
    "movq xmm0, r8",
    "punpcklqdq xmm0, xmm0",
    "lea rcx, [rdi + rdx - 16]",
    "43:",
    "movups [rdi], xmm0",
    "add rdi, 16",
    "cmp rdi, rcx",
    "jb 43b",
    "movups [rcx], xmm0",
    "ret",
    "44:",
    "mov r9, rdi",
    "mov rcx, rdx",
    "mov eax, esi",
    "rep stosb",
    "mov rax, r9",
    "ret",
    "45:",
    "cmp edx, 8",
    "jb 46f",
    "mov [rdi], r8",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "46:",
    "cmp edx, 4",
    "jb 47f",
    "mov [rdi], r8d",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "47:",
    "test edx, edx",
    "je 49f",
    "mov [rdi], r8b",
    "mov [rdi + rdx - 1], r8b",
    "cmp edx, 3",
    "jb 49f",
    "mov [rdi + 1], r8b",
    "49:",
    "ret",
    "farpage_end memset",
    // memcmp(rdi, rsi, rdx = n), bcmp: eax = the difference of the first bytes that differ
    "farpage_begin memcmp, bcmp",
    "cmp rdx, 16",
    "jb 55f",
    "lea r8, [rdx - 16]", // where the last 16 bytes begin, some of which may have been compared
    "xor ecx, ecx",
    "51:",
    "movups xmm0, [rdi + rcx]",
    "movups xmm1, [rsi + rcx]",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb eax, xmm0",
    "xor eax, 0xffff",
    "jne 53f",
    "add rcx, 16",
    "cmp rcx, r8",
    "jb 51b",
    "mov rcx, r8",
    "movups xmm0, [rdi + rcx]",
    "movups xmm1, [rsi + rcx]",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb eax, xmm0",
    "xor eax, 0xffff",
    "jne 53f",
    "ret",
    "53:",
    "bsf eax, eax",
    "add rcx, rax",
    "54:",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx edx, byte ptr [rsi + rcx]",
    "sub eax, edx",
    "ret",
    "55:",
    "xor ecx, ecx",
    "56:",
    "cmp rcx, rdx",
    "je 57f",
    "movzx eax, byte ptr [rdi + rcx]",
    "cmp al, byte ptr [rsi + rcx]",
    "jne 54b",
    "inc rcx",
    "jmp 56b",
    "57:",
    "xor eax, eax",
    "ret",
    "farpage_end memcmp, bcmp",
    // strlen(rdi): rax. What is measured are names.
    "farpage_begin strlen",
    "xor eax, eax",
    "60:",
    "cmp byte ptr [rdi + rax], 0",
    "je 61f",
    "inc rax",
    "jmp 60b",
    "61:",
    "ret",
    "farpage_end strlen",
    ".purgem farpage_begin",
    ".purgem farpage_end",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn farpage_memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8;
        fn farpage_memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8;
        fn farpage_memset(to: *mut u8, byte: c_int, n: usize) -> *mut u8;
        fn farpage_memcmp(a: *const u8, b: *const u8, n: usize) -> c_int;
        fn farpage_bcmp(a: *const u8, b: *const u8, n: usize) -> c_int;
        fn farpage_strlen(text: *const c_char) -> usize;
    }

    /// Every length around which the way changes, up to more than a page.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 9000])
    }

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 + i / 256 * 7) as u8).collect()
    }

    #[test]
    fn copies_of_every_length_from_and_to_every_alignment() {
        for n in lengths() {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 13), (15, 16), (17, 31)] {
                let source = bytes(n + from);
                let mut target = vec![0xa5; n + to + 40];
                // SAFETY: n bytes of both.
                let back = unsafe { farpage_memcpy(target.as_mut_ptr().add(to), source.as_ptr().add(from), n) };
                assert_eq!(back, target.as_mut_ptr().wrapping_add(to));
                assert_eq!(target[to..to + n], source[from..], "{n} bytes");
                assert!(target[..to].iter().chain(&target[to + n..]).all(|b| *b == 0xa5), "{n} bytes, and more");
            }
        }
    }

    #[test]
    fn moves_that_overlap() {
        for n in lengths() {
            for far in [0, 1, 7, 15, 16, 17, 63, 64, 65, 100, 1000, 4096] {
                for (from, to) in [(0, far), (far, 0)] {
                    let mut memory = bytes(n + far);
                    let mut wanted = memory.clone();
                    wanted.copy_within(from..from + n, to);
                    let at = memory.as_mut_ptr();
                    // SAFETY: n bytes from both places on.
                    unsafe { farpage_memmove(at.add(to), at.add(from), n) };
                    assert!(memory == wanted, "{n} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn fills() {
        for n in lengths() {
            for at in [0, 1, 9, 16] {
                let mut memory = vec![0x11; n + at + 40];
                // SAFETY: n bytes from there on.
                let back = unsafe { farpage_memset(memory.as_mut_ptr().add(at), 0x1ee, n) };
                assert_eq!(back, memory.as_mut_ptr().wrapping_add(at));
                assert!(memory[at..at + n].iter().all(|b| *b == 0xee), "{n} bytes");
                assert!(memory[..at].iter().chain(&memory[at + n..]).all(|b| *b == 0x11), "{n} bytes, and more");
            }
        }
    }

    #[test]
    fn compares() {
        for n in lengths() {
            let a = bytes(n);
            let mut b = a.clone();
            let sign = |a: &[u8], b: &[u8]| {
                // SAFETY: n bytes each.
                let (order, same) =
                    unsafe { (farpage_memcmp(a.as_ptr(), b.as_ptr(), n), farpage_bcmp(a.as_ptr(), b.as_ptr(), n)) };
                assert_eq!(order == 0, same == 0);
                order.signum()
            };
            assert_eq!(sign(&a, &b), 0);
            for i in (0..n).filter(|i| n < 130 || i % 97 == 0 || i + 20 > n) {
                b[i] = a[i].wrapping_add(100);
                assert_eq!(sign(&a, &b), a[..].cmp(&b[..]) as c_int, "{n} bytes, byte {i} differs");
                b[i] = a[i];
            }
        }
    }

    #[test]
    fn lengths_of_text() {
        for text in [c"", c"a", c"LD_PRELOAD"] {
            // SAFETY: ends with a zero.
            assert_eq!(unsafe { farpage_strlen(text.as_ptr()) }, text.count_bytes());
        }
    }
}
