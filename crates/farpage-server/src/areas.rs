//! Which process has which part of a server's space.
//!
//! An export, unlike a file, cannot be made anew for each process. So its space is cut into *areas*, and a process
//! takes one after the other as it needs them. Which has which is said in memory that all processes of a tree share (a
//! word an area), or that a process shares with the children that it forks.
//!
//! A forked child reads what its parent has stored. So while there may be such children, the parent's areas are *kept*:
//! no process takes them, even if the parent has ended. Of others that have ended areas are taken over.
//!
//! No locks: words are claimed by compare-and-swap. A process that can write this memory can make others lose pages, as
//! with all that a tree shares; not more, because every page is compared with its hash.

use farpage_ipc::conf::nbd::ExportId;
use farpage_ipc::tree::areas::{AREAS_MAX, Owners};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Where the owners of areas are written down, for all processes that use the export of this id.
pub type SharedAreas = fn(id: ExportId) -> Option<&'static Owners>;

/// A child may need what is there.
const KEPT: u64 = 1 << 31;

/// The calling process: its pid namespace and id. (Both have 32 bits at most; ids have 22.)
fn myself() -> u64 {
    let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
    namespace << 32 | u64::from(std::process::id())
}

/// Memory for [`Owners`] that forked children share; never given back.
pub fn of_process() -> Option<&'static Owners> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<Owners>(), prot, flags) }.ok()?;
    // SAFETY: mapped for good, of this size and alignment; atomics, for which any bytes are values.
    Some(unsafe { &*at.cast::<Owners>() })
}

/// The areas of one process's file.
pub struct Areas {
    /// Number of each, plus one, in the order of the file's slots.
    mine: Box<[AtomicU32]>,
}

impl Areas {
    /// None yet, of `most`.
    pub fn new(most: usize) -> Areas {
        Areas { mine: (0..most.min(AREAS_MAX)).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The number of the area at this place of the file.
    pub fn get(&self, place: usize) -> Option<u32> {
        self.mine.get(place)?.load(Relaxed).checked_sub(1)
    }

    /// Takes an area for this place of the file; whether there was one.
    pub fn claim(&self, owners: &Owners, place: usize) -> bool {
        let me = myself();
        let Some(mine) = self.mine.get(place) else { return false };
        let owners = &owners[..self.mine.len()];
        let take = |from: fn(u64, u64) -> bool| {
            owners.iter().position(|owner| {
                let has = owner.load(Relaxed);
                from(has, me) && owner.compare_exchange(has, me, SeqCst, Relaxed).is_ok()
            })
        };
        let found = take(|has, _| has == 0).or_else(|| take(has_ended));
        let Some(area) = found else { return false };
        mine.store(area as u32 + 1, SeqCst);
        true
    }

    /// Whether children may need what is there.
    pub fn keep(&self, owners: &Owners, keep: bool) {
        let me = myself();
        for area in self.each() {
            let (from, to) = if keep { (me, me | KEPT) } else { (me | KEPT, me) };
            let _ = owners[area].compare_exchange(from, to, SeqCst, Relaxed);
        }
    }

    fn each(&self) -> impl Iterator<Item = usize> {
        self.mine.iter().filter_map(|area| area.load(Relaxed).checked_sub(1)).map(|area| area as usize)
    }
}

/// What this process had before it became another program is free.
pub fn begin(owners: &Owners) {
    let me = myself();
    owners.iter().for_each(|owner| _ = owner.compare_exchange(me, 0, SeqCst, Relaxed));
}

/// Whether the process `has` has ended, as far as `me` can see, and left nothing to children.
fn has_ended(has: u64, me: u64) -> bool {
    let pid = Pid::from_raw((has & 0x7fff_ffff) as i32);
    has & KEPT == 0
        && has >> 32 != 0
        && has >> 32 == me >> 32
        && pid.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}
