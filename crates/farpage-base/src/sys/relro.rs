//! Relocated tables of libraries: what the loader writes into a private mapping of the file (addresses, which depend on
//! where the library is), and then makes read-only (`PT_GNU_RELRO`). Of large libraries that is some MiB in each
//! process.

use super::raw::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap_anonymous, mprotect, mremap_fixed, munmap};
use std::ffi::c_void;

const PAGE: usize = farpage_swap::PAGE_SIZE;
const PHDR: usize = 56;
/// `\x7fELF`, 64 bits, little-endian.
const IDENT: [u8; 6] = *b"\x7fELF\x02\x01";
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_GNU_RELRO: u64 = 0x6474_e552;

/// Bytes of an ELF file's header.
pub const HEADER: usize = 64;

/// Most bytes of program headers.
pub const HEADERS: usize = 64 * PHDR;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// Where an ELF file with this header has its program headers: offset in the file, bytes.
pub fn program_headers(header: &[u8; HEADER]) -> Option<(usize, usize)> {
    let short = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (size, count) = (short(54), short(56));
    let fits = header.starts_with(&IDENT) && size == PHDR && count * PHDR <= HEADERS;
    fits.then_some((usize::try_from(word(header, 32)?).ok()?, count * PHDR))
}

/// Where an ELF file with these program headers, the beginning of which is mapped at `at`, has relocated tables, in
/// whole pages. Not the dynamic section, which debuggers read to find the libraries, nor what is behind it: there are
/// the slots of functions, which some programs change.
pub fn relocated_part(headers: &[u8], at: usize) -> Option<(usize, usize)> {
    let (mut bias, mut tables, mut dynamic) = (None, None, u64::MAX);
    for header in headers.chunks_exact(PHDR) {
        let (offset, from, bytes) = (word(header, 8)?, word(header, 16)?, word(header, 40)?);
        match word(header, 0)? & u64::from(u32::MAX) {
            PT_LOAD if bias.is_none() && offset < PAGE as u64 => {
                bias = Some((at as u64).wrapping_sub(from & !(PAGE as u64 - 1)));
            }
            PT_DYNAMIC => dynamic = from,
            PT_GNU_RELRO => tables = Some((from, from.checked_add(bytes)?)),
            _ => {}
        }
    }
    let (from, to) = tables?;
    let place = |address: u64| bias?.wrapping_add(address).try_into().ok();
    // As the loader rounds.
    let (start, end): (usize, usize) = (place(from)?, place(to.min(dynamic))?);
    let (start, end) = (start & !(PAGE - 1), end & !(PAGE - 1));
    (at <= start && start < end).then_some((start, end))
}

/// So much is exchanged at a time: for a moment there are two of it.
const STEP: usize = 32 * PAGE;

/// Puts anonymous memory in the place of `[start, end)`: of the same content, and as read-only. Asks `is_same` before
/// each step. How far it came; what is behind is as it was.
///
/// Threads that read meanwhile see the same: one call takes the old pages away and puts the new ones there, and a
/// thread that comes in between waits for it. No thread can write there, so nothing is written after it was copied.
///
/// # Errors
/// The kernel could not finish a step that it had begun: nothing is mapped there any more.
///
/// # Safety
/// `[start, end)` is mapped, may only be read, and no thread changes that between `is_same` and the end of the step.
/// Neither it nor new memory is registered with a userfaultfd.
pub unsafe fn make_anonymous(start: usize, end: usize, is_same: &dyn Fn(usize) -> bool) -> Result<usize, Errno> {
    let (len, both) = (end - start, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new memory, at an address of the kernel's choice.
    let Ok(spare) = (unsafe { mmap_anonymous(std::ptr::null_mut(), len, both, MapFlags::PRIVATE) }) else {
        return Ok(start); // a limit, perhaps
    };
    // SAFETY: the new memory; no huge page is to be made for a step.
    let _ = unsafe { madvise(spare, len, Advice::LinuxNoHugepage) };
    let mut at = start;
    let mut result = Ok(());
    while at < end && result.is_ok() {
        let step = STEP.min(end - at);
        // SAFETY: the offset is within the spare memory.
        let new = unsafe { spare.byte_add(at - start) };
        // SAFETY: caller's promise; the spare memory is this function's.
        let ready = is_same(at) && unsafe { copy_read_only(at, new, step) };
        if !ready || !is_same(at) {
            break;
        }
        // SAFETY: caller's promise; what goes has the same content as what comes.
        result = unsafe { mremap_fixed(new, step, step, MremapFlags::MAYMOVE, at as *mut c_void) }.map(drop);
        if result.is_ok() {
            at += step;
        } else if is_same(at) {
            result = Ok(()); // refused before anything was done
            break;
        }
    }
    if at < end {
        // SAFETY: the part of the spare memory that has not been moved.
        let _ = unsafe { munmap(spare.byte_add(at - start), end - at) };
    }
    result.map(|()| at)
}

/// # Safety
/// `from` can be read, `to` is the caller's own memory.
unsafe fn copy_read_only(from: usize, to: *mut c_void, len: usize) -> bool {
    // SAFETY: caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from as *const u8, to.cast(), len);
        mprotect(to, len, MprotectFlags::READ).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::mmap;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// Program headers: kind, offset, address, bytes.
    fn headers(headers: &[[u64; 4]]) -> Vec<u8> {
        let mut bytes = vec![0; headers.len() * PHDR];
        for (header, values) in bytes.chunks_exact_mut(PHDR).zip(headers) {
            for (place, value) in [0, 8, 16, 40].into_iter().zip(values) {
                header[place..place + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn tables_end_before_the_dynamic_section() {
        let at = 0x7f00_0000_0000;
        let (load, tables) = ([PT_LOAD, 0, 0, 0x5000], [PT_GNU_RELRO, 0, 0x6e30, 0x41d0]);
        let part = |all: &[[u64; 4]]| relocated_part(&headers(all), at);
        assert_eq!(part(&[load, [PT_DYNAMIC, 0, 0x9ff8, 0x100], tables]), Some((at + 0x6000, at + 0x9000)));
        assert_eq!(part(&[load, tables]), Some((at + 0x6000, at + 0xb000)));
        assert_eq!(part(&[load, [PT_DYNAMIC, 0, 0x6e30, 0x100], tables]), None);
        assert_eq!(part(&[load, [PT_GNU_RELRO, 0, u64::MAX - 1, 0x41d0]]), None);
        assert_eq!(part(&[tables]), None);
        let fixed = headers(&[[PT_LOAD, 0, 0x40_0000, 0x5000], [PT_GNU_RELRO, 0, 0x40_6000, 0x2000]]);
        assert_eq!(relocated_part(&fixed, 0x40_0000), Some((0x40_6000, 0x40_8000)));
    }

    #[test]
    fn where_program_headers_are() {
        let exe = std::fs::read("/proc/self/exe").unwrap();
        let mut header: [u8; HEADER] = *exe.first_chunk().unwrap();
        let (at, len) = program_headers(&header).unwrap();
        let first = word(&exe, at).unwrap() & u64::from(u32::MAX);
        assert!(first <= 6 && len >= 3 * PHDR, "{at} {len} {first}");
        (header[56], header[57]) = (65, 0);
        assert_eq!(program_headers(&header), None);
        assert_eq!(program_headers(&[b'#'; HEADER]), None);
    }

    /// Written pages of a private file mapping, read-only, each with its number in every word.
    fn tables(pages: usize) -> usize {
        let file = tempfile::tempfile().unwrap();
        file.set_len((pages * PAGE) as u64).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory of this length, filled and then only read.
        unsafe {
            let at = mmap(std::ptr::null_mut(), pages * PAGE, both, MapFlags::PRIVATE, &file, 0).unwrap();
            for i in 0..pages * PAGE / 8 {
                at.cast::<usize>().add(i).write(i / 512);
            }
            mprotect(at, pages * PAGE, MprotectFlags::READ).unwrap();
            at as usize
        }
    }

    fn is_right(at: usize, pages: usize) -> bool {
        // SAFETY: mapped as long as the test runs.
        (0..pages * PAGE / 8).all(|i| unsafe { (at as *const usize).add(i).read_volatile() } == i / 512)
    }

    #[test]
    fn readers_see_the_same_throughout() {
        const PAGES: usize = 300;
        let at = tables(PAGES);
        let (end, stop) = (at + PAGES * PAGE, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0;
                while !stop.load(SeqCst) || rounds == 0 {
                    assert!(is_right(at, PAGES));
                    rounds += 1;
                }
            });
            for _ in 0..20 {
                // SAFETY: only read, and never unmapped.
                assert_eq!(unsafe { make_anonymous(at, end, &|_| true) }, Ok(end));
            }
            stop.store(true, SeqCst);
            reader.join().unwrap();
        });
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-"))).unwrap();
        assert!(line.contains(" r--p ") && line.contains(" 00:00 0"), "{line}");
    }

    #[test]
    fn what_has_changed_is_left_alone() {
        const PAGES: usize = 100;
        let at = tables(PAGES);
        let end = at + PAGES * PAGE;
        // SAFETY: only read, and never unmapped.
        assert_eq!(unsafe { make_anonymous(at, end, &|now| now < at + STEP) }, Ok(at + STEP));
        assert!(is_right(at, PAGES));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.lines().any(|line| line.starts_with(&format!("{:x}-{end:x} r--p", at + STEP))), "{maps}");
    }
}
