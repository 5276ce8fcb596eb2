//! Faults on purpose: what a disk, a cable or a kernel may do to page I/O, by seed, for tests.
//!
//! An [`Injector`] belongs to one device and is asked before each run of a batch. With [`Faults::transient`] no place
//! fails twice in a row, so that a retry helps and the program under test loses nothing; the other faults stay.
//! *Silent* ones report success: what reads the page later must notice. Reached from the command line by the
//! undocumented option `fault=SEED` of a file device.

use farpage_swap::PAGE_SIZE;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}

/// How often what goes wrong: chances out of 65536 per run, and what lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Start of the random numbers.
    pub seed: u64,
    /// The run fails with EIO and nothing is transferred.
    pub error: u16,
    /// The kernel transfers only a part at first.
    pub short: u16,
    /// A write stores a part and fails with EIO.
    pub torn: u16,
    /// A bit of what was read is wrong.
    pub flip: u16,
    /// The run starts late (0.1 to 3 ms).
    pub delay: u16,
    /// A place that failed works at the next try.
    pub transient: bool,
    /// From this run on every write fails.
    pub dead_after: Option<u64>,
    /// From this run on every write finds the disk full.
    pub full_after: Option<u64>,
    /// Chances out of 65536 that a place can never be read.
    pub lost: u16,
    /// A write stores a part of one page only, and reports success.
    pub silent_torn: u16,
    /// A write stores one wrong bit, and reports success.
    pub silent_flip: u16,
}

impl Faults {
    /// A bit of everything, all of it curable: what `fault=SEED` stands for.
    pub fn curable(seed: u64) -> Faults {
        Faults {
            seed,
            error: 1200,
            short: 2400,
            torn: 1200,
            flip: 1200,
            delay: 600,
            transient: true,
            ..Faults::none(seed)
        }
    }

    /// No faults.
    pub fn none(seed: u64) -> Faults {
        Faults {
            seed,
            error: 0,
            short: 0,
            torn: 0,
            flip: 0,
            delay: 0,
            transient: false,
            dead_after: None,
            full_after: None,
            lost: 0,
            silent_torn: 0,
            silent_flip: 0,
        }
    }

    /// Writes that go wrong untold, about one in thirty: what `fault=silent:SEED` stands for.
    pub fn silent(seed: u64) -> Faults {
        Faults { silent_torn: 1200, silent_flip: 1200, ..Faults::none(seed) }
    }
}

/// What happens to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upset {
    /// Nothing.
    None,
    /// EIO.
    Error,
    /// ENOSPC.
    Full,
    /// First only so many bytes.
    Short(usize),
    /// So many bytes, then EIO.
    Torn(usize),
    /// One bit in the last byte read.
    Flip(u32),
    /// So many bytes of the first page; the rest of that page is said to be stored, and is not.
    TornSilently(usize),
    /// One bit of the last page is stored wrong.
    FlipStored(u32),
}

const REMEMBERED: usize = 1024;

/// Decides what goes wrong. Thread-safe; the order of concurrent runs decides which gets which number.
pub struct Injector {
    faults: Faults,
    /// Bytes that are never torn apart.
    unit: usize,
    runs: AtomicU64,
    /// Places (byte + 1) whose last run was upset; the next one is spared.
    upset: [AtomicU64; REMEMBERED],
    count: AtomicU64,
    /// The next write waits here twice: when it begins, and to go on.
    #[cfg(test)]
    gate: std::sync::Mutex<Option<std::sync::Arc<std::sync::Barrier>>>,
}

impl Injector {
    /// For one device.
    pub fn new(faults: Faults) -> Injector {
        Injector {
            faults,
            unit: 512,
            runs: AtomicU64::new(0),
            upset: [const { AtomicU64::new(0) }; REMEMBERED],
            count: AtomicU64::new(0),
            #[cfg(test)]
            gate: Default::default(),
        }
    }

    /// Nothing goes wrong; the first write waits at `gate` when it begins, and a second time to go on.
    #[cfg(test)]
    pub fn with_gate(gate: std::sync::Arc<std::sync::Barrier>) -> Injector {
        Injector { gate: std::sync::Mutex::new(Some(gate)), ..Injector::new(Faults::none(0)) }
    }

    /// The same for a disk that transfers so many bytes at least, not more than a page (512 without this).
    pub fn with_unit(self, bytes: usize) -> Injector {
        Injector { unit: bytes, ..self }
    }

    /// Faults injected so far.
    pub fn injected(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// What happens to the transfer of `len` bytes at `at`.
    pub fn upset(&self, direction: Direction, at: u64, len: usize) -> Upset {
        let run = self.runs.fetch_add(1, Relaxed);
        let f = &self.faults;
        #[cfg(test)]
        if direction == Direction::Write
            && let Some(gate) = self.gate.lock().unwrap().take()
        {
            gate.wait();
            gate.wait();
        }
        if direction == Direction::Write && f.dead_after.is_some_and(|after| run >= after) {
            self.count.fetch_add(1, Relaxed);
            return Upset::Error;
        }
        if direction == Direction::Write && f.full_after.is_some_and(|after| run >= after) {
            self.count.fetch_add(1, Relaxed);
            return Upset::Full;
        }
        let is_lost = |page: u64| (mix(f.seed ^ mix(page)) & 0xffff) < u64::from(f.lost);
        if direction == Direction::Read && (at..at + len as u64).step_by(PAGE_SIZE).any(is_lost) {
            self.count.fetch_add(1, Relaxed);
            return Upset::Error;
        }
        // A retry of a merged run is of its pages, so each page is remembered.
        let pages = || (at..at + len as u64).step_by(PAGE_SIZE);
        let cell = |page: u64| &self.upset[(page / PAGE_SIZE as u64) as usize % REMEMBERED];
        let mut spared = false;
        if f.transient {
            pages().for_each(|page| spared |= cell(page).compare_exchange(page + 1, 0, Relaxed, Relaxed).is_ok());
        }
        let random = mix(f.seed.wrapping_add(run.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let (mut dice, more) = ((random & 0xffff) as u32, random >> 16);
        let mut falls = |chance: u16| {
            let hit = dice < u32::from(chance);
            if !hit {
                dice -= u32::from(chance);
            }
            hit
        };
        // Whole units, or O_DIRECT would refuse the rest.
        let part = (1 + more as usize % (len / self.unit - 1).max(1)) * self.unit;
        let units = PAGE_SIZE / self.unit;
        let upset = if falls(f.delay) {
            let late = Timespec { tv_sec: 0, tv_nsec: (100 + more % 2900) as i64 * 1000 };
            let _ = rustix::thread::nanosleep(&late);
            Upset::None
        } else if falls(f.short) && part < len {
            Upset::Short(part)
        } else if spared {
            Upset::None
        } else if falls(f.error) {
            Upset::Error
        } else if direction == Direction::Write && falls(f.torn) && part < len {
            Upset::Torn(part)
        } else if direction == Direction::Read && falls(f.flip) {
            Upset::Flip(more as u32)
        } else if direction == Direction::Write && falls(f.silent_torn) && units > 1 {
            Upset::TornSilently((1 + more as usize % (units - 1)) * self.unit)
        } else if direction == Direction::Write && falls(f.silent_flip) {
            Upset::FlipStored(more as u32)
        } else {
            Upset::None
        };
        if upset != Upset::None {
            self.count.fetch_add(1, Relaxed);
            if f.transient && !matches!(upset, Upset::Short(_)) {
                pages().for_each(|page| cell(page).store(page + 1, Relaxed));
            }
        }
        upset
    }
}

/// A run of a batch on a device with faults: what goes wrong with it.
pub(super) struct FaultyRun {
    injector: Arc<Injector>,
    upset: Upset,
}

impl FaultyRun {
    /// Of this device.
    pub fn new(injector: &Arc<Injector>) -> FaultyRun {
        FaultyRun { injector: injector.clone(), upset: Upset::None }
    }

    /// Before a request for what is left of the run (`want` bytes in all): only so many bytes of its first piece of
    /// memory are to be transferred, or the run ends at once. `has_some`: a part was transferred before; `again`: it
    /// was tried.
    pub fn limit(
        &mut self,
        (direction, at, want): (Direction, u64, usize),
        has_some: bool,
        again: bool,
    ) -> Result<Option<usize>, Errno> {
        if !has_some && !again {
            self.upset = self.injector.upset(direction, at, want);
        }
        match self.upset {
            Upset::Error => Err(Errno::IO),
            Upset::Full => Err(Errno::NOSPC),
            Upset::Short(bytes) | Upset::Torn(bytes) | Upset::TornSilently(bytes) if !has_some => Ok(Some(bytes)),
            Upset::Torn(_) => Err(Errno::IO),
            _ => Ok(None),
        }
    }

    /// How much goes on as if it had been transferred.
    pub fn transferred(&self, bytes: usize, has_some: bool) -> usize {
        match self.upset {
            Upset::TornSilently(_) if !has_some => bytes.next_multiple_of(PAGE_SIZE),
            _ => bytes,
        }
    }

    /// A bit error in a run that was transferred whole, which ends at `end` in memory; its last page is at `at`.
    ///
    /// # Safety
    /// The last page is there, and may be written to if it was read. The descriptor is open.
    pub unsafe fn spoil(&self, direction: Direction, end: *mut u8, fd: RawFd, at: u64) {
        match (direction, self.upset) {
            // SAFETY: caller's promise.
            (Direction::Read, Upset::Flip(bit)) => unsafe { *end.sub(1) ^= 1 << (bit % 8) },
            (Direction::Write, Upset::FlipStored(bit)) => {
                // The page itself must stay right: it may still be given back to the program.
                let mut wrong = Aligned([0; PAGE_SIZE]);
                // SAFETY: caller's promise.
                wrong.0.copy_from_slice(unsafe { std::slice::from_raw_parts(end.sub(PAGE_SIZE), PAGE_SIZE) });
                wrong.0[bit as usize / 8 % PAGE_SIZE] ^= 1 << (bit % 8);
                // SAFETY: caller's promise.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                // A disk that refuses this has the right page: no fault, then.
                let _ = rustix::io::pwrite(fd, &wrong.0, at);
            }
            _ => {}
        }
    }
}

/// A page in memory that O_DIRECT takes.
#[repr(align(4096))]
struct Aligned([u8; PAGE_SIZE]);

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
