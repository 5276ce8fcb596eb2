//! `PAGEMAP_SCAN`: which pages of a range are there.

use super::fd::Fd;
use super::raw::{Errno, nr, syscall};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, OFlags, fstatfs, readlinkat_raw};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct ScannedRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96);

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;
const IS_GUARD: u64 = 1 << 8;
const PAGEMAP_SCAN: usize = (3 << 30) | (size_of::<ScanArg>() << 16) | ((b'f' as usize) << 8) | 16;

/// [`IS_GUARD`], if this kernel knows it (Linux 6.16).
static GUARD: AtomicU64 = AtomicU64::new(IS_GUARD);

/// What the page table has at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// A page, or the kernel's own swap has it.
    Page,
    /// The kernel's shared zero page: read but never written, so there is no memory behind it yet, and there will be at
    /// the first write, without a fault.
    Zero,
    /// A guard (`MADV_GUARD_INSTALL`). (A kernel that does not say so has those of its own swap there.)
    Guard,
}

/// This process's pagemap.
///
/// # Errors
/// No `/proc` here.
pub fn own() -> Result<OwnedFd, Errno> {
    super::proc::Proc::open()?.private_file("thread-self/pagemap")
}

/// Whether the file of this name, whose last part is "pagemap", is the calling process's. Yes where that cannot be
/// said.
pub fn is_of_this_process(dir: RawFd, path: &CStr) -> bool {
    const PROC: i64 = 0x9fa0;
    let flags = (OFlags::PATH | OFlags::CLOEXEC).bits() as usize;
    // SAFETY: reads the name, and makes a descriptor.
    let Ok(file) = (unsafe { syscall(nr::OPENAT, [dir as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }) else {
        return true;
    };
    // SAFETY: just made, with no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(file as RawFd) };
    if fstatfs(&file).is_ok_and(|at| at.f_type != PROC) {
        return false;
    }
    // Whatever the numbers of processes are in that /proc.
    if path.to_bytes().windows(5).any(|part| part == b"self/") {
        return true;
    }
    let (mut name, mut link) = ([0u8; 32], [0u8; 512]);
    let mut rest = &mut name[..];
    let _ = write!(rest, "/proc/self/fd/{}", file.as_raw_fd());
    let len = 32 - rest.len();
    match readlinkat_raw(CWD, &name[..len], &mut link[..]) {
        Ok(len) => pid_of(&link[..len]).is_none_or(|pid| pid == std::process::id()),
        Err(_) => true,
    }
}

/// The process whose file this is: `/proc/PID/NAME`, `/proc/PID/task/TID/NAME`.
fn pid_of(path: &[u8]) -> Option<u32> {
    let mut parts = path.rsplit(|b| *b == b'/').skip(1);
    let (last, before) = (parts.next()?, parts.next());
    let pid = if before == Some(b"task") { parts.next()? } else { last };
    std::str::from_utf8(pid).ok()?.parse().ok()
}

/// Calls `each(start, end)`, in bytes, for every run of pages in `[start, end)` that have memory (or kernel swap)
/// behind them, until it answers `false`. A snapshot: pages may come and go while it is taken.
///
/// # Errors
/// The errno of the ioctl (`NOTTY`: kernel older than 6.7).
pub fn present_runs(
    pagemap: &Fd,
    start: usize,
    end: usize,
    mut each: impl FnMut(usize, usize) -> bool,
) -> Result<(), Errno> {
    runs_by_kind(pagemap, start, end, |start, end, _| each(start, end))
}

/// As [`present_runs`]; the third argument says what is there.
///
/// # Errors
/// As [`present_runs`].
pub fn runs_by_kind(
    pagemap: &Fd,
    start: usize,
    end: usize,
    mut each: impl FnMut(usize, usize, PageKind) -> bool,
) -> Result<(), Errno> {
    let mut look = |guard: u64| {
        let told = IS_PRESENT | IS_ZERO_PAGE | guard;
        let want = Categories { anyof: IS_PRESENT | IS_SWAPPED, told, ..Categories::default() };
        scan(pagemap, start, end, want, |r| {
            let kind = match r.categories {
                seen if seen & IS_ZERO_PAGE != 0 => PageKind::Zero,
                seen if seen & IS_GUARD != 0 => PageKind::Guard,
                _ => PageKind::Page,
            };
            each(r.start as usize, r.end as usize, kind)
        })
    };
    match GUARD.load(Relaxed) {
        IS_GUARD => match look(IS_GUARD) {
            Err(Errno::INVAL) => {
                GUARD.store(0, Relaxed);
                look(0)
            }
            result => result,
        },
        _ => look(0),
    }
}

/// Pages of `[start, end)` that have anonymous memory: of a private file mapping those that were written.
///
/// # Errors
/// As [`present_runs`].
pub fn anonymous_pages(pagemap: &Fd, start: usize, end: usize) -> Result<u64, Errno> {
    count(pagemap, start, end, ANONYMOUS)
}

/// Calls `each(start, end)`, in bytes, for every run of such pages.
///
/// # Errors
/// As [`present_runs`].
pub fn anonymous_runs(pagemap: &Fd, start: usize, end: usize, mut each: impl FnMut(usize, usize)) -> Result<(), Errno> {
    scan(pagemap, start, end, ANONYMOUS, |r| {
        each(r.start as usize, r.end as usize);
        true
    })
}

/// Pages of `[start, end)` that are mapped, whatever they are.
///
/// # Errors
/// As [`present_runs`].
pub fn mapped_pages(pagemap: &Fd, start: usize, end: usize) -> Result<u64, Errno> {
    count(pagemap, start, end, Categories { all: IS_PRESENT, told: IS_PRESENT, ..Categories::default() })
}

fn count(pagemap: &Fd, start: usize, end: usize, want: Categories) -> Result<u64, Errno> {
    let mut bytes = 0;
    scan(pagemap, start, end, want, |r| {
        bytes += r.end - r.start;
        true
    })?;
    Ok(bytes / farpage_swap::PAGE_SIZE as u64)
}

const ANONYMOUS: Categories = Categories {
    all: IS_PRESENT | IS_FILE | IS_ZERO_PAGE,
    inverted: IS_FILE | IS_ZERO_PAGE,
    anyof: 0,
    told: IS_PRESENT,
};

/// Which pages a scan finds, and what it tells of them.
#[derive(Clone, Copy, Default)]
struct Categories {
    /// All of these...
    all: u64,
    /// ... but these not, ...
    inverted: u64,
    /// ... and one of these, if there are any.
    anyof: u64,
    told: u64,
}

fn scan(
    pagemap: &Fd,
    start: usize,
    end: usize,
    want: Categories,
    mut each: impl FnMut(&ScannedRegion) -> bool,
) -> Result<(), Errno> {
    let mut regions = [ScannedRegion::default(); 64];
    let mut from = start as u64;
    while from < end as u64 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start: from,
            end: end as u64,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: want.inverted,
            category_mask: want.all,
            category_anyof_mask: want.anyof,
            return_mask: want.told,
        };
        // SAFETY: arg and the vector it names are alive; the scan asks for no write-protection, so it only reads.
        let n = unsafe { pagemap.call(nr::IOCTL, [PAGEMAP_SCAN, std::ptr::from_mut(&mut arg) as usize, 0, 0, 0]) }?;
        for r in &regions[..n.min(regions.len())] {
            if !each(r) {
                return Ok(());
            }
        }
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn which_process_a_name_of_a_pagemap_means() {
        let own = std::process::id();
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let is_own = |dir: RawFd, path: &str| is_of_this_process(dir, &std::ffi::CString::new(path).unwrap());
        let here = CWD.as_raw_fd();
        for path in ["/proc/self/pagemap", "/proc/thread-self/pagemap", &format!("/proc/{own}/pagemap")] {
            assert!(is_own(here, path), "{path}");
        }
        assert!(is_own(here, &format!("/proc/{own}/task/{}/pagemap", super::super::raw::gettid())));
        assert!(is_own(proc.as_raw_fd(), "self/pagemap") && is_own(proc.as_raw_fd(), &format!("{own}/pagemap")));
        assert!(!is_own(here, "/proc/1/pagemap") || own == 1);
        let dir = std::env::temp_dir().join(format!("farpage-{own}-pagemap"));
        std::fs::write(&dir, "").unwrap();
        assert!(!is_own(here, dir.to_str().unwrap()), "another file of that name");
        std::fs::remove_file(dir).unwrap();
        assert_eq!(pid_of(b"/mnt/proc/12/task/13/pagemap"), Some(12));
    }

    #[test]
    fn sees_touched_pages_only() {
        let len = 64 * 4096;
        // SAFETY: a new private mapping.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
                .unwrap();
        for page in [3usize, 4, 9] {
            // SAFETY: inside the mapping.
            unsafe { base.cast::<u8>().add(page * 4096).write(1) };
        }
        let pagemap = Fd::new(own().unwrap());
        let mut runs = Vec::new();
        present_runs(&pagemap, base as usize, base as usize + len, |s, e| {
            runs.push(((s - base as usize) / 4096, (e - base as usize) / 4096));
            true
        })
        .unwrap();
        assert_eq!(runs, [(3, 5), (9, 10)]);
        // SAFETY: inside the mapping.
        (4..8).for_each(|page| _ = unsafe { base.cast::<u8>().add(page * 4096).read_volatile() });
        let mut kinds = Vec::new();
        runs_by_kind(&pagemap, base as usize, base as usize + len, |s, e, kind| {
            kinds.push(((s - base as usize) / 4096, (e - base as usize) / 4096, kind));
            true
        })
        .unwrap();
        let (page, zero) = (PageKind::Page, PageKind::Zero);
        assert_eq!(kinds, [(3, 5, page), (5, 8, zero), (9, 10, page)]);
        assert_eq!(anonymous_pages(&pagemap, base as usize, base as usize + len), Ok(3));
        let mut written = Vec::new();
        anonymous_runs(&pagemap, base as usize, base as usize + len, |s, e| written.push((s, e))).unwrap();
        assert_eq!(written.iter().map(|(s, e)| (e - s) / 4096).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(mapped_pages(&pagemap, base as usize, base as usize + len), Ok(6));
        // SAFETY: ours, and no longer used.
        unsafe { munmap(base, len) }.unwrap();
    }

    #[test]
    fn written_pages_of_a_private_file_mapping_are_anonymous() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let len = 16 * 4096;
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rw, MapFlags::PRIVATE, &file, 0) }.unwrap();
        for page in 0..16 {
            // SAFETY: inside the mapping.
            let at = unsafe { base.cast::<u8>().add(page * 4096) };
            // SAFETY: as above.
            unsafe { if page % 4 == 0 { at.write_volatile(1) } else { _ = at.read_volatile() } }
        }
        let pagemap = Fd::new(own().unwrap());
        assert_eq!(anonymous_pages(&pagemap, base as usize, base as usize + len), Ok(4));
        assert_eq!(mapped_pages(&pagemap, base as usize, base as usize + len), Ok(16));
        // SAFETY: ours, and no longer used.
        unsafe { munmap(base, len) }.unwrap();
    }
}
