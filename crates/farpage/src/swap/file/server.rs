//! A server's space as a place for files: areas for each process, and what becomes of pages when the server is out of
//! reach.
//!
//! Callers: the file device. No locks of its own.

use crate::PAGE_SIZE;
use crate::conf::nbd::{ExportId, NbdSpec};
use crate::mem::lock::lock;
use crate::swap::error::DeviceError;
use crate::swap::remote::HolderLease;
use crate::swap::remote::areas::{self, AREAS_MAX, Areas, Owners};
use crate::swap::remote::link::InReach;
use crate::swap::remote::nbd::{BACK, Export, FRONT};
use farpage_swap::cluster::CLUSTER_SLOTS;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};

/// Where the owners of areas are written down, for all processes that use the export of this id.
pub type SharedAreas = fn(id: ExportId) -> Option<&'static Owners>;

/// See the module header.
pub struct ExportSpace {
    export: Arc<Export>,
    owners: OnceLock<&'static Owners>,
    /// The header was written by who started this process: others may use the export, too.
    is_shared: bool,
    /// The process that connected.
    maker: u32,
    /// Forked children may need what is there.
    has_children: Arc<AtomicBool>,
    /// Slots of an area.
    area_slots: u64,
    areas: usize,
}

impl ExportSpace {
    /// Connects; `size` bytes of the export at most are used.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(spec: &NbdSpec, size: Option<u64>) -> Result<ExportSpace, DeviceError> {
        let error = |reason: String, remedy: &str| DeviceError { name: spec.name(), reason, remedy: remedy.into() };
        let endpoint = spec.address.endpoint().ok_or_else(|| {
            error("its name was not looked up".into(), "write its address in numbers, or start it by farpage run")
        })?;
        let export =
            Export::open(spec.name(), endpoint, &spec.export, spec.served.timeout, spec.id, HolderLease::USUAL)
                .map_err(|(reason, remedy)| error(reason, remedy))?;
        let bytes = (export.info().size - FRONT - BACK).min(size.unwrap_or(u64::MAX));
        let (area_slots, areas) = divide(bytes / PAGE_SIZE as u64);
        if areas == 0 {
            return Err(error("its size is below 2 MiB".into(), "give it a larger size="));
        }
        let (export, is_shared) = (Arc::new(export), spec.id.is_some());
        let has_children = Arc::new(AtomicBool::new(false));
        if !is_shared {
            note_taken(&export, &has_children);
        }
        let owners = OnceLock::new();
        Ok(ExportSpace { export, owners, is_shared, maker: std::process::id(), has_children, area_slots, areas })
    }

    /// The export.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// How many areas there are.
    pub fn areas(&self) -> usize {
        self.areas
    }

    /// Slots of all of them.
    pub fn slots(&self) -> u64 {
        self.area_slots * self.areas as u64
    }

    /// From now on its owners are known to several processes; whether that is so, where it must be.
    pub fn share(&self, with: SharedAreas) -> bool {
        if !self.is_shared {
            return true;
        }
        let shared = self.export.id().and_then(with);
        shared.into_iter().for_each(|owners| {
            if self.owners.set(owners).is_ok() {
                areas::begin(owners);
            }
        });
        shared.is_some()
    }

    fn owners(&self) -> Option<&'static Owners> {
        if let Some(owners) = self.owners.get() {
            return Some(owners);
        }
        let owners = areas::of_process().filter(|_| !self.is_shared)?;
        Some(self.owners.get_or_init(|| owners))
    }

    /// Byte of a slot.
    pub fn at(&self, areas: &Areas, slot: u64) -> u64 {
        let (place, rest) = (slot / self.area_slots, slot % self.area_slots);
        let area = areas.get(place as usize).map_or(u64::MAX >> 16, u64::from);
        FRONT + (area.saturating_mul(self.area_slots) + rest).saturating_mul(PAGE_SIZE as u64)
    }

    /// Says now and then that we are there. If somebody else has taken the export over, its pages are lost.
    pub fn look_after(&self) {
        let link = self.export.link();
        if link.reach() == InReach::Up
            && let Some(why) = self.export.keep()
        {
            link.lose_all(why);
        }
    }

    /// A file that has `end` slots wants more: how many it has then.
    pub fn grow(&self, areas: &Areas, end: u64) -> u64 {
        let place = (end / self.area_slots) as usize;
        match self.owners() {
            Some(owners) if areas.claim(owners, place) => end + self.area_slots,
            _ => end,
        }
    }

    /// Whether children may need what this process has stored.
    pub fn keep(&self, areas: &Areas, keep: bool) {
        self.has_children.store(keep, Relaxed);
        self.owners.get().into_iter().for_each(|owners| areas.keep(owners, keep));
    }
}

impl Drop for ExportSpace {
    fn drop(&mut self) {
        // What was made ours here is nobody's from now on.
        if !self.is_shared && self.maker == std::process::id() && !self.has_children.load(Relaxed) {
            self.export.empty();
        }
    }
}

/// An export that this process has taken for itself.
struct TakenExport {
    export: Weak<Export>,
    maker: u32,
    has_children: Arc<AtomicBool>,
}

/// Those of this process, and of the one that it was forked from.
static TAKEN: Mutex<Vec<TakenExport>> = Mutex::new(Vec::new());
/// How long the end of a process waits until it has heard that its children have ended, and for how long each time,
/// milliseconds: a pager looks more often.
const CHILDREN_MS: u64 = 400;
const STEP_MS: u64 = 20;

fn note_taken(export: &Arc<Export>, has_children: &Arc<AtomicBool>) {
    let taken =
        TakenExport { export: Arc::downgrade(export), maker: std::process::id(), has_children: has_children.clone() };
    let mut all = lock(&TAKEN);
    all.retain(|taken| taken.export.strong_count() > 0);
    all.push(taken);
}

/// A process may end in order without dropping its pagers: from now on its exports are left then, so that no other
/// process has to watch them. Their pages stay until one takes them, as threads may still want some. Not for engine
/// threads: libc's list of such functions may be allocated.
pub fn leave_at_exit() {
    static REGISTERED: Once = Once::new();
    // SAFETY: a function that may be called at any time until the library is unloaded, which libc heeds.
    REGISTERED.call_once(|| _ = unsafe { libc::atexit(leave_all) });
}

extern "C" fn leave_all() {
    // Whoever takes one at this moment keeps it.
    let Ok(all) = TAKEN.try_lock() else { return };
    for taken in all.iter().filter(|taken| taken.maker == std::process::id()) {
        let Some(export) = taken.export.upgrade() else { continue };
        for _ in 0..CHILDREN_MS / STEP_MS {
            if taken.has_children.load(Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(STEP_MS));
            }
        }
        if !taken.has_children.load(Relaxed) {
            export.leave();
        }
    }
}

/// Slots of an area, and areas, of a space of so many slots. An area is whole clusters.
fn divide(slots: u64) -> (u64, usize) {
    let cluster = CLUSTER_SLOTS as u64;
    let area = (slots / AREAS_MAX as u64).next_multiple_of(cluster).max(cluster);
    (area, ((slots / area) as usize).min(AREAS_MAX))
}

#[cfg(test)]
mod tests {
    use super::divide;

    #[test]
    fn areas_are_whole_clusters_and_fit() {
        for slots in [0, 511, 512, 1 << 18, (1 << 18) + 511, 1 << 24, 1 << 32, 600 * 1024] {
            let (area, areas) = divide(slots);
            assert!(area % 512 == 0 && areas <= 1024 && area * areas as u64 <= slots);
            assert!(slots - area * areas as u64 <= area.max(511) * 2, "{slots}: {areas} of {area}");
        }
    }
}
