//! The tries themselves: each asks the kernel on scratch memory and leaves nothing behind.

use super::outcome::{Reason, Verdict};
use farpage_swap::PAGE_SIZE;
use linux_raw_sys::general as raw;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};
use std::ffi::c_void;

const IOC_NEW: Opcode = opcode::none(raw::USERFAULTFD_IOC as u8, 0);
const IOC_API: Opcode = opcode::read_write::<raw::uffdio_api>(raw::UFFDIO as u8, raw::_UFFDIO_API as u8);
const IOC_REGISTER: Opcode = opcode::read_write::<raw::uffdio_register>(raw::UFFDIO as u8, raw::_UFFDIO_REGISTER as u8);
const IOC_MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(raw::UFFDIO as u8, raw::_UFFDIO_MOVE as u8);
const IOC_PAGEMAP_SCAN: Opcode = opcode::read_write::<raw::pm_scan_arg>(b'f', 16);
/// Bytes of `struct io_uring_params`.
const IO_URING_PARAMS_BYTES: usize = 120;

pub(super) fn new_from_device(device: BorrowedFd<'_>, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CLOEXEC.bits() | OFlags::NONBLOCK.bits() | mode;
    // SAFETY: USERFAULTFD_IOC_NEW takes its flags by value and touches no memory of ours.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), u64::from(IOC_NEW), flags as libc::c_ulong) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just given us this descriptor; no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn new_from_syscall(mode: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | mode;
    // SAFETY: creating the descriptor changes no memory; only registering ranges does.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// Handshake on a fresh userfaultfd; enables `features` and answers what the kernel has. MOVE needs no enabling.
pub(super) fn api(fd: &OwnedFd, features: u64) -> Result<u64, Errno> {
    let mut arg = raw::uffdio_api { api: raw::UFFD_API.into(), features, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one uffdio_api.
    unsafe { ioctl(fd, IOC_API, &mut arg) }?;
    Ok(arg.features)
}

/// User-mode-only is enough to ask: the kernel checks the caller, not the descriptor.
pub(super) fn fork_events() -> Verdict {
    let fd = new_from_syscall(UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY))?;
    api(&fd, raw::UFFD_FEATURE_EVENT_FORK.into())?;
    Ok(())
}

/// Moves a page with known content into a registered page and compares.
pub(super) fn move_page(fd: &OwnedFd) -> Verdict {
    const PATTERN: u8 = 0xa5;
    let scratch = TriedPages::new(3)?;
    let (dst, src) = (scratch.page(0), scratch.page(2));
    // SAFETY: `src` is the start of a private, writable page of `scratch`.
    unsafe { std::ptr::write_bytes(src, PATTERN, PAGE_SIZE) };
    let mut register = raw::uffdio_register {
        range: raw::uffdio_range { start: dst as u64, len: PAGE_SIZE as u64 },
        mode: raw::UFFDIO_REGISTER_MODE_MISSING.into(),
        ioctls: 0,
    };
    // SAFETY: the range is one page of `scratch` that nothing else uses; it is read only after the MOVE filled it.
    unsafe { ioctl(fd, IOC_REGISTER, &mut register) }?;
    let mut arg = raw::uffdio_move { dst: dst as u64, src: src as u64, len: PAGE_SIZE as u64, mode: 0, move_: 0 };
    // SAFETY: both pages belong to `scratch`; no reference to either exists.
    unsafe { ioctl(fd, IOC_MOVE, &mut arg) }?;
    // SAFETY: the MOVE succeeded, so the page at `dst` is present and readable.
    let moved = unsafe { std::slice::from_raw_parts(dst, PAGE_SIZE) };
    if arg.move_ != PAGE_SIZE as i64 || moved.iter().any(|b| *b != PATTERN) {
        return Err(Reason::Text("moved page has other content"));
    }
    Ok(())
}

/// Finds the one present page of three.
pub(super) fn pagemap_scan() -> Verdict {
    let pagemap = rustix::fs::open("/proc/thread-self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let scratch = TriedPages::new(3)?;
    let present = scratch.page(1);
    // SAFETY: `present` is the start of a private, writable page of `scratch`.
    unsafe { present.write_volatile(1) };
    let mut regions = [raw::page_region { start: 0, end: 0, categories: 0 }; 4];
    let mut arg = raw::pm_scan_arg {
        size: size_of::<raw::pm_scan_arg>() as u64,
        flags: 0,
        start: scratch.page(0) as u64,
        end: scratch.page(0) as u64 + scratch.len as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: 0,
        category_mask: raw::PAGE_IS_PRESENT.into(),
        category_anyof_mask: 0,
        return_mask: raw::PAGE_IS_PRESENT.into(),
    };
    // SAFETY: PAGEMAP_SCAN reads and writes one pm_scan_arg and at most `vec_len` regions, all alive here.
    let found = unsafe { ioctl(&pagemap, IOC_PAGEMAP_SCAN, &mut arg) }?;
    if found != 1 || regions[0].start != present as u64 || regions[0].end != present as u64 + PAGE_SIZE as u64 {
        return Err(Reason::Text("wrong answer for a known mapping"));
    }
    Ok(())
}

pub(super) fn io_uring() -> Verdict {
    let mut params = [0u64; IO_URING_PARAMS_BYTES / 8];
    // SAFETY: io_uring_setup reads and writes one zeroed io_uring_params of 120 bytes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(last_errno().into());
    }
    // SAFETY: the kernel has just given us this descriptor; no other code owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// # Safety
/// `arg` must be what `op` reads and writes, and what `op` does to memory must be sound.
unsafe fn ioctl<T>(fd: &OwnedFd, op: Opcode, arg: &mut T) -> Result<i32, Errno> {
    // SAFETY: the caller's promise; `arg` is a valid, exclusive pointer.
    let n = unsafe { libc::ioctl(fd.as_raw_fd(), u64::from(op), std::ptr::from_mut(arg)) };
    if n < 0 { Err(last_errno()) } else { Ok(n) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A few pages of private anonymous memory, unmapped on drop.
struct TriedPages {
    base: *mut c_void,
    len: usize,
}

impl TriedPages {
    fn new(pages: usize) -> Result<TriedPages, Errno> {
        let len = pages * PAGE_SIZE;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        Ok(TriedPages { base, len })
    }

    fn page(&self, i: usize) -> *mut u8 {
        assert!(i * PAGE_SIZE < self.len);
        self.base.cast::<u8>().wrapping_add(i * PAGE_SIZE)
    }
}

impl Drop for TriedPages {
    fn drop(&mut self) {
        // SAFETY: `base..base+len` is the mapping made in `new`; no reference into it outlives this value.
        let _ = unsafe { rustix::mm::munmap(self.base, self.len) };
    }
}
