//! Puts the jumps into libc's text, and makes the code that they lead to.
//!
//! Near the text lies one block: a page with what that code reads ([`Shared`]), then the code. For each site: the
//! instructions that the jump replaced, up to the call; the question whether an argument points into memory of ours
//! (no other registers than `rcx` and `r11` are used, which a system call changes anyway); and then back to the
//! `syscall` where it was, or to [`crate::entry`].
//!
//! The text is replaced as a whole: a private copy of the file is mapped elsewhere, changed, and moved over it by one
//! `mremap`. For other threads that is one step. Each jump replaces just one instruction, so no thread can be in the
//! middle of what changes. The `syscall` stays, for threads that wait in it, and for what looks where a thread is
//! (cancellation).
//!
//! Caller: [`crate::install`], once.

use crate::entry;
use crate::parts::Header;
use crate::state::Shared;
use crate::table::{CLASSES, Class, Special, class, rule};
use crate::text::{JUMP, SYSCALL, Site, Text};
use iced_x86::{BlockEncoder, BlockEncoderOptions, IcedError, InstructionBlock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::sync::atomic::AtomicUsize;

const PAGE: usize = 4096;
/// Room for one site's code, bytes.
const SITE: usize = 320;
/// A jump with 32 bits of distance reaches this far, less what text and block are long.
const REACH: usize = 1 << 31;
/// Registers of a system call's arguments: what `mov r11, REGISTER` is.
const MOV_R11: [[u8; 3]; 6] = [
    [0x49, 0x89, 0xfb], // rdi
    [0x49, 0x89, 0xf3], // rsi
    [0x49, 0x89, 0xd3], // rdx
    [0x4d, 0x89, 0xd3], // r10
    [0x4d, 0x89, 0xc3], // r8
    [0x4d, 0x89, 0xcb], // r9
];

/// `test REGISTER, REGISTER` for the same.
const TEST: [[u8; 3]; 6] = [
    [0x48, 0x85, 0xff],
    [0x48, 0x85, 0xf6],
    [0x48, 0x85, 0xd2],
    [0x4d, 0x85, 0xd2],
    [0x4d, 0x85, 0xc0],
    [0x4d, 0x85, 0xc9],
];

/// Where the fields are.
const LOW: usize = offset_of!(Shared, low);
const LEN: usize = offset_of!(Shared, len);
const ENTRIES: usize = offset_of!(Shared, entries);
const TABLE: usize = offset_of!(Shared, classes);

/// Writes machine code.
struct Code<'a> {
    /// Where it will be.
    at: usize,
    bytes: &'a mut Vec<u8>,
}

impl Code<'_> {
    fn here(&self) -> usize {
        self.at + self.bytes.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An instruction that ends with a distance to `to`, counted from its end, and then `tail`.
    fn put_relative(&mut self, bytes: &[u8], to: usize, tail: &[u8]) {
        self.put(bytes);
        let end = self.here() + 4 + tail.len();
        self.put(&(to.wrapping_sub(end) as i32).to_le_bytes());
        self.put(tail);
    }

    /// A jump forward, by a condition; the place of its distance, for [`Code::land`].
    fn jump_ahead(&mut self, condition: u8) -> usize {
        self.put(&[0x0f, condition, 0, 0, 0, 0]);
        self.bytes.len() - 4
    }

    /// The same, always.
    fn go_ahead(&mut self) -> usize {
        self.put(&[0xe9, 0, 0, 0, 0]);
        self.bytes.len() - 4
    }

    /// The distance of `rcx` from where memory of ours begins is compared with its length: `jb` ahead, if it is less.
    fn compare_rcx(&mut self, shared: usize) -> usize {
        self.put_relative(&[0x48, 0x2b, 0x0d], shared + LOW, &[]); // sub rcx, [low]
        self.put_relative(&[0x48, 0x3b, 0x0d], shared + LEN, &[]); // cmp rcx, [len]
        self.jump_ahead(JB)
    }

    /// A jump ahead leads here.
    fn land(&mut self, from: usize) {
        let distance = (self.bytes.len() - from - 4) as i32;
        self.bytes[from..from + 4].copy_from_slice(&distance.to_le_bytes());
    }
}

/// Jumps to code ahead: to what is for memory of ours, for pointers behind pointers, and to the call.
#[derive(Default)]
struct Ahead {
    ours: Vec<usize>,
    nested: Vec<usize>,
    call: Vec<usize>,
}

/// Buffers that are looked at without leaving the site's code.
const BUFFERS: u8 = 64;

/// Whether a buffer of an array is ours, with two registers only: from its end down. The array is `rsi`, with `rdx`
/// buffers, or a message's whose header is `rsi`. More than a few, or an array where none can be, is for Rust.
fn look_at_buffers(code: &mut Code<'_>, ahead: &mut Ahead, shared: usize, is_message: bool) {
    code.put_relative(&[0x48, 0x83, 0x3d], shared + LEN, &[0]); // cmp qword [len], 0
    ahead.call.push(code.jump_ahead(JE));
    code.put(&[0x48, 0x81, 0xfe, 0, 0x10, 0, 0]); // cmp rsi, 4096
    ahead.nested.push(code.jump_ahead(JB));
    code.put(&[0x48, 0x89, 0xf1, 0x48, 0xc1, 0xe9, 47]); // mov rcx, rsi; shr rcx, 47
    ahead.nested.push(code.jump_ahead(JNE));
    if is_message {
        for field in [offset_of!(Header, name), offset_of!(Header, control), offset_of!(Header, array)] {
            code.put(&[0x48, 0x8b, 0x4e, field as u8]); // mov rcx, [rsi + field]
            let jump = code.compare_rcx(shared);
            ahead.ours.push(jump);
        }
        let (array, count) = (offset_of!(Header, array) as u8, offset_of!(Header, count) as u8);
        code.put(&[0x48, 0x81, 0x7e, array, 0, 0x10, 0, 0]); // cmp qword [rsi + array], 4096
        ahead.nested.push(code.jump_ahead(JB));
        code.put(&[0x48, 0x8b, 0x4e, array, 0x48, 0xc1, 0xe9, 47]); // mov rcx, [rsi + array]; shr rcx, 47
        ahead.nested.push(code.jump_ahead(JNE));
        code.put(&[0x4c, 0x8b, 0x5e, count]); // mov r11, [rsi + count]
    } else {
        code.put(&[0x49, 0x89, 0xd3]); // mov r11, rdx
    }
    code.put(&[0x49, 0x83, 0xfb, BUFFERS]); // cmp r11, BUFFERS
    ahead.nested.push(code.jump_ahead(JA));
    code.put(&[0x49, 0xc1, 0xe3, 4]); // shl r11, 4
    let with_array = |code: &mut Code<'_>, in_memory: u8, in_register: u8| match is_message {
        true => code.put(&[0x4c, in_memory, 0x5e, offset_of!(Header, array) as u8]),
        false => code.put(&[0x49, in_register, 0xf3]),
    };
    with_array(code, 0x03, 0x01); // add r11, array
    let again = code.bytes.len();
    with_array(code, 0x3b, 0x39); // cmp r11, array
    ahead.call.push(code.jump_ahead(JBE));
    code.put(&[0x49, 0x83, 0xeb, 16, 0x49, 0x8b, 0x0b]); // sub r11, 16; mov rcx, [r11]
    let jump = code.compare_rcx(shared);
    ahead.ours.push(jump);
    let distance = again as isize - (code.bytes.len() + 2) as isize;
    code.put(&[0xeb, distance as u8]); // jmp again
}

const JB: u8 = 0x82;
const JE: u8 = 0x84;
const JBE: u8 = 0x86;
const JA: u8 = 0x87;
const JNE: u8 = 0x85;
const JAE: u8 = 0x83;

/// The code for one site at `at`, with `shared` before it.
///
/// # Errors
/// An instruction before the call cannot be made there.
fn code_for(site: &Site, at: usize, shared: usize) -> Result<Vec<u8>, IcedError> {
    let moved = InstructionBlock::new(&site.moved, at as u64);
    let mut bytes = BlockEncoder::encode(64, moved, BlockEncoderOptions::NONE)?.code_buffer;
    let mut code = Code { at, bytes: &mut bytes };
    let mut ahead = Ahead::default();
    let check = |code: &mut Code<'_>, arg: usize| {
        code.put(&MOV_R11[arg]);
        code.put_relative(&[0x4c, 0x2b, 0x1d], shared + LOW, &[]); // sub r11, [low]
        code.put_relative(&[0x4c, 0x3b, 0x1d], shared + LEN, &[]); // cmp r11, [len]
        code.jump_ahead(JB)
    };
    match site.nr.map(class) {
        Some(class) => {
            ahead.ours.extend((0..6).filter(|arg| class.points(*arg)).map(|arg| check(&mut code, arg)));
            match site.nr.and_then(|nr| rule(nr).special) {
                Some(Special::Vector(1, 2, _)) => look_at_buffers(&mut code, &mut ahead, shared, false),
                Some(Special::Message(_)) => look_at_buffers(&mut code, &mut ahead, shared, true),
                Some(Special::Mask | Special::Action) => ahead.nested.push(code.go_ahead()),
                Some(special @ (Special::Waits(_) | Special::Pselect)) => {
                    let set = if let Special::Waits(arg) = special { usize::from(arg) } else { 5 };
                    code.put(&TEST[set]);
                    ahead.call.push(code.jump_ahead(JE));
                    ahead.nested.push(code.go_ahead());
                }
                _ if class.is_nested() => {
                    code.put_relative(&[0x48, 0x83, 0x3d], shared + LEN, &[0]); // cmp qword [len], 0
                    ahead.nested.push(code.jump_ahead(JNE));
                }
                _ => {}
            }
        }
        None => {
            ahead.ours.extend((0..6).map(|arg| check(&mut code, arg)));
            code.put(&[0x3d]); // cmp eax, CLASSES
            code.put(&(CLASSES as u32).to_le_bytes());
            ahead.call.push(code.jump_ahead(JAE));
            code.put(&[0x89, 0xc1]); // mov ecx, eax
            code.put_relative(&[0x4c, 0x8d, 0x1d], shared + TABLE, &[]); // lea r11, [classes]
            code.put(&[0x41, 0xf6, 0x04, 0x0b, Class::NESTED]); // test byte [r11 + rcx], NESTED
            ahead.call.push(code.jump_ahead(JE));
            code.put_relative(&[0x48, 0x83, 0x3d], shared + LEN, &[0]);
            ahead.nested.push(code.jump_ahead(JNE));
        }
    }
    ahead.call.iter().for_each(|from| code.land(*from));
    code.put_relative(&[0xe9], site.at, &[]);
    for (jumps, entry) in [(ahead.ours, 0), (ahead.nested, 1)] {
        if jumps.is_empty() {
            continue;
        }
        jumps.iter().for_each(|from| code.land(*from));
        code.put_relative(&[0x4c, 0x8d, 0x1d], site.at + SYSCALL, &[]); // lea r11, [behind the call]
        code.put_relative(&[0x48, 0x8d, 0x0d], site.at, &[]); // lea rcx, [the call]
        code.put_relative(&[0xff, 0x25], shared + ENTRIES + entry * 8, &[]); // jmp [entries]
    }
    Ok(bytes)
}

/// Whether a site's calls can be about memory at all.
fn matters(site: &Site) -> bool {
    site.nr.is_none_or(|nr| class(nr).matters())
}

/// Changes texts; the block with what the code reads, and how many calls were left as they were.
///
/// # Errors
/// There is no room near the text, or the kernel refuses.
pub fn patch(texts: &[Text]) -> Result<(&'static Shared, usize), Errno> {
    let sites = || texts.iter().flat_map(|text| &text.sites).filter(|site| matters(site));
    let size = (size_of::<Shared>() + sites().count() * SITE).next_multiple_of(PAGE);
    let low = texts.iter().map(|text| text.start).min().unwrap_or(0);
    let high = texts.iter().map(|text| text.end).max().unwrap_or(0);
    let block = map_near(low, high, size)?;
    let shared = block as usize;
    // SAFETY: fresh memory, zeroed, as large and aligned; zero bits are valid atomics.
    let read = unsafe { &mut *block.cast::<Shared>() };
    read.entries = [entry::direct as *const () as usize, entry::nested as *const () as usize].map(AtomicUsize::new);
    (0..CLASSES).for_each(|nr| read.classes[nr] = class(nr as u32).bits());
    let mut at = shared + size_of::<Shared>();
    let mut edits = Vec::new();
    for (site, jump) in sites().filter_map(|site| Some((site, site.jump?))) {
        let Some(code) = code_for(site, at, shared).ok().filter(|code| code.len() <= SITE) else {
            continue;
        };
        // SAFETY: within the block, by `size`.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        // What is left of the instruction is never reached.
        let mut bytes = vec![0xe9];
        bytes.extend_from_slice(&(at.wrapping_sub(jump + JUMP) as i32).to_le_bytes());
        edits.push((jump, bytes));
        at += SITE;
    }
    let code = (shared + size_of::<Shared>()) as *mut c_void;
    // SAFETY: the block's own pages behind the first.
    unsafe {
        rustix::mm::mprotect(code, size - size_of::<Shared>(), MprotectFlags::READ | MprotectFlags::EXEC)?;
    }
    for text in texts {
        replace(text, &edits)?;
    }
    // SAFETY: written above, and never given back.
    Ok((unsafe { &*block.cast::<Shared>() }, texts.iter().map(|text| text.sites.len()).sum::<usize>() - edits.len()))
}

/// Maps writable memory that all of `[low, high)` reaches by a jump.
fn map_near(low: usize, high: usize, size: usize) -> Result<*mut c_void, Errno> {
    let maps = File::open("/proc/self/maps").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for line in BufReader::new(maps).split(b'\n') {
        let line = line.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let range = String::from_utf8_lossy(&line[..line.iter().position(|b| *b == b' ').unwrap_or(0)]).into_owned();
        let parse = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.split_once('-').and_then(|(s, e)| Some((parse(s)?, parse(e)?))) {
            taken.push((start, end));
        }
    }
    let (from, to) = (high.saturating_sub(REACH - (1 << 20)), (low + REACH - (1 << 20)).saturating_sub(size));
    let ends = taken.iter().map(|place| place.1);
    let starts = taken.iter().skip(1).map(|place| place.0);
    // The nearest room first.
    let mut rooms: Vec<usize> = ends
        .zip(starts)
        .filter(|(end, start)| start - end >= size)
        .flat_map(|(end, start)| [end, start - size])
        .filter(|at| (from..to).contains(at))
        .collect();
    rooms.sort_by_key(|at| at.abs_diff(low));
    let (read_write, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    for at in rooms {
        // SAFETY: new memory where nothing is; the flag has the kernel refuse if that has changed.
        match unsafe { rustix::mm::mmap_anonymous(at as *mut c_void, size, read_write, flags) } {
            Ok(block) if block as usize == at => return Ok(block),
            // A kernel that does not know the flag.
            // SAFETY: what was just mapped.
            Ok(block) => unsafe { rustix::mm::munmap(block, size)? },
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOMEM)
}

/// Maps a changed copy of a text over it.
fn replace(text: &Text, edits: &[(usize, Vec<u8>)]) -> Result<(), Errno> {
    let len = text.end - text.start;
    let (read_write, none) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // Of the file, so that the text keeps its name for what looks at it.
    let mapped = match File::open(&text.path) {
        // SAFETY: a new mapping; what is behind the file's end is not touched, as the text was loaded from it.
        Ok(file) => unsafe { rustix::mm::mmap(none, len, read_write, MapFlags::PRIVATE, &file, text.offset) },
        Err(_) => Err(Errno::NOENT),
    };
    // SAFETY: as above.
    let copy = mapped.or_else(|_| unsafe { rustix::mm::mmap_anonymous(none, len, read_write, MapFlags::PRIVATE) })?;
    for at in (0..len).step_by(PAGE) {
        let (from, to) = ((text.start + at) as *const [u8; PAGE], (copy as usize + at) as *mut [u8; PAGE]);
        // SAFETY: pages of the text, which can be read, and of the copy, which is known nowhere else.
        unsafe {
            // Another file than that which was loaded, or the text was changed in memory.
            if *to != *from {
                std::ptr::copy_nonoverlapping(from, to, 1);
            }
        }
    }
    for (at, bytes) in edits.iter().filter(|(at, _)| (text.start..text.end).contains(at)) {
        // SAFETY: within the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (copy as usize + at - text.start) as *mut u8, bytes.len())
        };
    }
    // SAFETY: the copy has what the text has, but for the jumps, which lead to code that does the same. See the module
    // documentation for threads that are in it.
    unsafe {
        rustix::mm::mprotect(copy, len, MprotectFlags::READ | MprotectFlags::EXEC)?;
        let flags = MremapFlags::MAYMOVE;
        rustix::mm::mremap_fixed(copy, len, len, flags, text.start as *mut c_void)?;
    }
    Ok(())
}
