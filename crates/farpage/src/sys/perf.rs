//! Being told of new mappings at once: perf's record of a process's mmap, brk and mprotect calls.
//!
//! One dummy software event per CPU, inherited by the program's threads, writes a record for every new mapping and
//! wakes whoever polls. It counts nothing and samples nothing. Where the system does not allow it (a container's
//! seccomp filter, `kernel.perf_event_paranoid` above 2) the monitor's looks at `/proc/self/maps` have to do.

use super::raw::{Errno, nr, syscall};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = crate::PAGE_SIZE;
/// Pages of records per CPU.
const DATA: usize = 2 * PAGE;
/// More CPUs than this and one event per CPU costs more than it is worth.
const CPUS_MAX: usize = 64;
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const RECORD_MMAP: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    rest: [u32; 15],
}

const _: () = assert!(size_of::<Attr>() == 112);

struct Ring {
    fd: OwnedFd,
    base: usize,
}

/// New mappings of this process as they are made.
pub struct MappingEvents {
    rings: Vec<Ring>,
    /// Readable when one of them has a record.
    any: OwnedFd,
}

impl MappingEvents {
    /// Follows the process's main thread and all threads it will start, from now on: records that nobody reads cost little, and
    /// stop when the buffers are full. Switched on later, the events would have to be so in every thread. To be called while the
    /// program has one thread.
    ///
    /// # Errors
    /// Not allowed here, or too many CPUs.
    pub fn open() -> Result<MappingEvents, Errno> {
        let mut rings = Vec::new();
        let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
        for cpu in 0..=CPUS_MAX {
            let flags = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 14 | 1 << 17 | 1 << 35;
            // inherit, exclude_kernel, exclude_hv, mmap, watermark, mmap_data, inherit_thread
            let attr = Attr { kind: 1, size: 112, config: 9, flags, wakeup_watermark: 1, ..Attr::default() };
            let args = [std::ptr::from_ref(&attr) as usize, pid, cpu, usize::MAX, 8, 0];
            // SAFETY: attr is alive and of the size it names; the call makes a descriptor.
            let fd = match unsafe { syscall(nr::PERF_EVENT_OPEN, args) } {
                // SAFETY: just made.
                Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd as RawFd) },
                Err(Errno::NODEV | Errno::INVAL) if cpu > 0 => break,
                Err(e) => return Err(e),
            };
            if cpu == CPUS_MAX {
                return Err(Errno::TOOBIG);
            }
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base = unsafe {
                mmap(std::ptr::null_mut(), PAGE + DATA, prot, MapFlags::SHARED | MapFlags::POPULATE, &fd, 0)
            }? as usize;
            let ring = Ring { fd, base };
            // The first write is a page fault that waits for the lock of the address space: now, not when threads that fill
            // memory keep it (68 to 76 ms were seen with 16 of them).
            ring.word(TAIL).store(0, Ordering::Relaxed);
            rings.push(ring);
        }
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for ring in &rings {
            epoll::add(&any, &ring.fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(MappingEvents { rings, any })
    }

    /// Calls `each(start, end)`, in bytes, for the new mappings since the last call that may be anonymous memory.
    pub fn read(&mut self, mut each: impl FnMut(usize, usize)) {
        self.rings.iter().for_each(|ring| ring.drain(&mut each));
    }
}

/// To be polled: readable once when there is something to [`MappingEvents::read`].
impl AsFd for MappingEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: a word of the ring's control page, mapped as long as the ring.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let offset = (at as usize + i) % DATA;
            // SAFETY: inside the data pages; the kernel wrote it before it moved the head.
            *byte = unsafe { ((self.base + PAGE + offset) as *const u8).read_volatile() };
        }
    }

    fn drain(&self, each: &mut impl FnMut(usize, usize)) {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let mut at = self.word(TAIL).load(Ordering::Relaxed);
        while at < head {
            let mut record = [0u8; 48];
            self.copy(at, &mut record);
            let u = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| record[i + k]));
            let (kind, size) = (u(0) as u32, u(0) >> 48);
            if size == 0 {
                break;
            }
            if kind == RECORD_MMAP && matches!(&record[40..42], b"//" | b"[h") {
                each(u(16) as usize, (u(16) + u(24)) as usize);
            }
            at += size;
        }
        self.word(TAIL).store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_a_new_mapping() {
        let mut events = match MappingEvents::open() {
            Ok(events) => events,
            Err(e) => return eprintln!("skipped: perf_event_open is not allowed here: {e}"),
        };
        // The events follow the main thread; a test runs on another one, which was there before. So only that nothing
        // breaks and nothing foreign is reported can be seen here; the stress program sees the rest.
        events.read(|start, end| assert!(start < end));
    }
}
