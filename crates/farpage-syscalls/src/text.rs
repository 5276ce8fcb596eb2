//! Where libc and the loader make system calls: every `syscall` instruction of their text, and where a jump can be put
//! before it.
//!
//! Functions are found by their unwind tables, and decoded from their beginnings. Nothing is guessed: bytes that look
//! like the instruction but are not reached by decoding are left alone.
//!
//! Caller: [`crate::install`], once. Allocates.

use crate::InstallError;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};

/// Bytes of a jump with 32 bits of distance.
pub const JUMP: usize = 5;
/// Bytes of a `syscall` instruction.
pub const SYSCALL: usize = 2;
/// Instructions looked at before a system call.
const BACK: usize = 6;
/// Libraries whose calls are looked at.
const NAMES: [&str; 3] = ["libc.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0"];

/// One `syscall` instruction.
#[derive(Debug, Clone)]
pub struct Site {
    /// Its address.
    pub at: usize,
    /// Where a jump can be: over one instruction before it, of at least five bytes, at this address. `None`: the
    /// instructions before it are too short. These calls (of glibc 2.36: some 25 of 568) end a thread, or wake others;
    /// none has a buffer of the program's.
    pub jump: Option<usize>,
    /// The instructions from there to the call.
    pub moved: Vec<Instruction>,
    /// The call's number, where it is a constant.
    pub nr: Option<u32>,
}

/// The executable segment of a library.
#[derive(Debug)]
pub struct Text {
    /// The library's file.
    pub path: String,
    /// Where it is mapped, in whole pages.
    pub start: usize,
    /// Its end.
    pub end: usize,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// Its system calls.
    pub sites: Vec<Site>,
}

/// The texts of libc and the loader.
///
/// # Errors
/// There is no such libc.
pub fn find() -> Result<Vec<Text>, InstallError> {
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: the callback has the type that is asked for, and gets the vector that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut objects).cast()) };
    if !objects.iter().any(|object| object.path.ends_with(NAMES[0])) {
        return Err(InstallError::UnknownLibc);
    }
    objects.iter().map(Object::text).collect()
}

/// What the loader says of a library.
#[derive(Debug)]
struct Object {
    path: String,
    base: usize,
    headers: Vec<libc::Elf64_Phdr>,
}

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the loader passes valid pointers; the last one is what `find` gave.
    let (info, objects) = unsafe { (&*info, &mut *objects.cast::<Vec<Object>>()) };
    // SAFETY: as above: a string, and so many headers.
    let (name, headers) = unsafe {
        let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        (name, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let path = name.to_string_lossy().into_owned();
    if NAMES.iter().any(|name| path.rsplit('/').next() == Some(name)) {
        objects.push(Object { path, base: info.dlpi_addr as usize, headers: headers.to_vec() });
    }
    0
}

impl Object {
    fn segment(&self, wanted: impl Fn(&libc::Elf64_Phdr) -> bool) -> Option<&'static [u8]> {
        let header = self.headers.iter().find(|header| wanted(header))?;
        // SAFETY: a segment of a loaded library, which libc and the loader are as long as the process lives.
        Some(unsafe {
            std::slice::from_raw_parts((self.base + header.p_vaddr as usize) as *const u8, header.p_memsz as usize)
        })
    }

    fn text(&self) -> Result<Text, InstallError> {
        let is_text = |header: &libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        let unknown = || InstallError::UnknownText(self.path.clone());
        let header = self.headers.iter().find(|header| is_text(header)).ok_or_else(unknown)?;
        let code = self.segment(is_text).ok_or_else(unknown)?;
        let (start, page) = (code.as_ptr() as usize, 4096);
        let first = start / page * page;
        let functions = self.functions().ok_or_else(unknown)?;
        Ok(Text {
            path: self.path.clone(),
            start: first,
            end: (start + code.len()).next_multiple_of(page),
            offset: header.p_offset - (start - first) as u64,
            sites: sites(code, &functions),
        })
    }

    /// Beginnings and lengths of the functions, in ascending order.
    fn functions(&self) -> Option<Vec<(usize, usize)>> {
        let header = self.segment(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        let at = header.as_ptr() as u64;
        let bases = BaseAddresses::default().set_eh_frame_hdr(at);
        let parsed = EhFrameHdr::new(header, NativeEndian).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(frame) = parsed.eh_frame_ptr() else { return None };
        let holds = |header: &libc::Elf64_Phdr| {
            let start = self.base as u64 + header.p_vaddr;
            header.p_type == libc::PT_LOAD && (start..start + header.p_memsz).contains(&frame)
        };
        let segment = self.segment(holds)?;
        let table = EhFrame::new(&segment[(frame - segment.as_ptr() as u64) as usize..], NativeEndian);
        let bases = bases.set_eh_frame(frame);
        let mut functions = Vec::new();
        let mut entries = table.entries(&bases);
        while let Some(entry) = entries.next().ok()? {
            if let gimli::CieOrFde::Fde(partial) = entry {
                let fde = partial.parse(EhFrame::cie_from_offset).ok()?;
                // It begins one byte too early, for the unwinder's sake, which is no instruction.
                if fde.is_signal_trampoline() {
                    continue;
                }
                functions.push((fde.initial_address() as usize, fde.len() as usize));
            }
        }
        functions.sort_unstable();
        Some(functions)
    }
}

/// The system calls in `code`.
fn sites(code: &'static [u8], functions: &[(usize, usize)]) -> Vec<Site> {
    let start = code.as_ptr() as usize;
    let inside = |at: usize, len: usize| at >= start && at + len <= start + code.len();
    let bodies = || functions.iter().filter(|(at, len)| *len > 0 && inside(*at, *len));
    let decode = |at: usize, len: usize| {
        Decoder::with_ip(64, &code[at - start..at - start + len], at as u64, DecoderOptions::NONE)
    };
    let mut targets: HashSet<usize> = HashSet::new();
    for &(at, len) in bodies() {
        targets.insert(at);
        let jumps = decode(at, len).into_iter().filter(|i| i.op0_kind() == OpKind::NearBranch64);
        targets.extend(jumps.map(|i| i.near_branch64() as usize));
    }
    let mut sites: Vec<Site> = Vec::new();
    for &(at, len) in bodies() {
        let mut before: Vec<Instruction> = Vec::new();
        for instruction in decode(at, len).into_iter() {
            if instruction.code() == Code::Syscall {
                let at = instruction.ip() as usize;
                let moved = room_before(&before, at, &targets).map_or(&[][..], |first| &before[first..]).to_vec();
                let jump = moved.first().map(|first| first.ip() as usize);
                sites.push(Site { at, jump, moved, nr: number(&before, &targets) });
                before.clear();
            } else if instruction.is_invalid() {
                break;
            } else {
                before.push(instruction);
            }
        }
    }
    sites.sort_unstable_by_key(|site| site.at);
    sites.dedup_by_key(|site| site.at);
    sites
}

/// The index of the last instruction before a call that is as long as a jump, if the way from there leads to the call,
/// or away from it. A jump between the two would pass us by.
fn room_before(before: &[Instruction], call: usize, targets: &HashSet<usize>) -> Option<usize> {
    let mut next = call;
    for (index, instruction) in before.iter().enumerate().rev().take(BACK) {
        let goes_on = matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        if instruction.next_ip() as usize != next || targets.contains(&next) || !goes_on {
            return None;
        }
        if instruction.len() >= JUMP {
            return Some(index);
        }
        next = instruction.ip() as usize;
    }
    None
}

/// The number that the instructions before a call put into `eax`, if all ways to the call come by there.
fn number(before: &[Instruction], targets: &HashSet<usize>) -> Option<u32> {
    for (i, instruction) in before.iter().rev().take(BACK).enumerate() {
        let next = instruction.next_ip() as usize;
        if targets.contains(&next) || instruction.flow_control() != FlowControl::Next {
            return None;
        }
        if i > 0 && before[before.len() - i].ip() as usize != next {
            return None;
        }
        let zero = instruction.code() == Code::Xor_rm32_r32 && instruction.op1_register() == Register::EAX;
        match (instruction.op0_kind(), instruction.op0_register().full_register()) {
            (OpKind::Register, Register::RAX) if instruction.op_count() == 2 => {
                return match (instruction.code(), instruction.op1_kind()) {
                    (Code::Mov_r32_imm32, _) => Some(instruction.immediate32()),
                    (Code::Mov_rm64_imm32, _) => u32::try_from(instruction.immediate32to64()).ok(),
                    (Code::Xor_rm32_r32, OpKind::Register) if zero => Some(0),
                    _ => None,
                };
            }
            (OpKind::Register, Register::RAX) => return None,
            _ => {}
        }
    }
    None
}
