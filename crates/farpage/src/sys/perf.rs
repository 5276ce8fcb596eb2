//! Being told of new mappings at once: perf's record of a process's mmap, brk and mprotect calls.
//!
//! One dummy software event per CPU, inherited by the program's threads, writes a record for every new mapping and
//! wakes whoever polls. It counts nothing and samples nothing. Where the system does not allow it (a container's
//! seccomp filter, `kernel.perf_event_paranoid` above 2) the monitor's looks at `/proc/self/maps` have to do.

use super::raw::{Errno, nr, syscall};
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = crate::PAGE_SIZE;
/// Pages of records per CPU.
const DATA: usize = 2 * PAGE;
/// Events of threads that were there before, each for one CPU.
const OTHERS_MAX: usize = 512;
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
    /// Events of threads that were there before, whose records go to the rings.
    _others: Vec<OwnedFd>,
    /// Readable when one of them has a record.
    any: OwnedFd,
}

impl MappingEvents {
    /// Follows the process's main thread, its other `threads`, and all that these will start, from now on: records that
    /// nobody reads cost little, and stop when the buffers are full.
    ///
    /// # Errors
    /// Not allowed here, or too many CPUs.
    pub fn open(threads: &[u32]) -> Result<MappingEvents, Errno> {
        let (mut rings, mut others) = (Vec::new(), Vec::new());
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        for cpu in 0..=CPUS_MAX {
            let fd = match event_of(pid, cpu) {
                Ok(fd) => fd,
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
            // The first write is a page fault that waits for the lock of the address space: now, not when threads that
            // fill memory keep it (68 to 76 ms were seen with 16 of them).
            ring.word(TAIL).store(0, Ordering::Relaxed);
            for tid in threads.iter().filter(|tid| **tid != pid) {
                // One that has ended, or is one too many, is not followed.
                if others.len() < OTHERS_MAX
                    && let Ok(other) = event_of(*tid, cpu)
                    && ring.takes(&other)
                {
                    others.push(other);
                }
            }
            rings.push(ring);
        }
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for ring in &rings {
            epoll::add(&any, &ring.fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(MappingEvents { rings, _others: others, any })
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

/// The event of a thread, and of those that it will start, on one CPU.
fn event_of(tid: u32, cpu: usize) -> Result<OwnedFd, Errno> {
    let flags = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 14 | 1 << 17 | 1 << 35;
    // inherit, exclude_kernel, exclude_hv, mmap, watermark, mmap_data, inherit_thread
    let attr = Attr { kind: 1, size: 112, config: 9, flags, wakeup_watermark: 1, ..Attr::default() };
    let args = [std::ptr::from_ref(&attr) as usize, tid as usize, cpu, usize::MAX, 8, 0];
    // SAFETY: attr is alive and of the size it names; the call makes a descriptor, which is owned from here on.
    unsafe { Ok(OwnedFd::from_raw_fd(syscall(nr::PERF_EVENT_OPEN, args)? as RawFd)) }
}

impl Ring {
    /// Has the records of another event of the same CPU written here, too.
    fn takes(&self, event: &OwnedFd) -> bool {
        const SET_OUTPUT: usize = 0x2405;
        let args = [event.as_raw_fd() as usize, SET_OUTPUT, self.fd.as_raw_fd() as usize, 0, 0, 0];
        // SAFETY: both are events, open during the call.
        unsafe { syscall(nr::IOCTL, args) }.is_ok()
    }

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
        let mut events = match MappingEvents::open(&[super::super::raw::gettid()]) {
            Ok(events) => events,
            Err(e) => return eprintln!("skipped: perf_event_open is not allowed here: {e}"),
        };
        let len = 1 << 20;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, unmapped again below. This thread was there before.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }.unwrap();
        let mut found = false;
        let at_once = (at as usize, at as usize + len);
        // One record may be of two neighbours that have become one mapping.
        events.read(|start, end| found |= start <= at_once.0 && at_once.1 <= end && start < end);
        assert!(found);
        // SAFETY: mapped above, used by nobody.
        unsafe { rustix::mm::munmap(at, len) }.unwrap();
    }
}
