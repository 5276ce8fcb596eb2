//! An export as a place for pages: areas for each process.
//!
//! Callers: the file device. Locks: `scratch`, a leaf; `TAKEN`, outside those of the exports.

use super::{BACK, Export, FRONT};
use crate::error::DeviceError;
use crate::io::{BATCH_MAX, Batch, Direction, Place, RemoteRuns, Transferred};
use crate::remote::HolderLease;
use crate::remote::areas::{self, AREAS_MAX, Areas, Owners, SharedAreas};
use crate::remote::link::{InReach, Link};
use crate::remote::page_store::{OutgoingPage, PageStore, PageStores, Seal};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Page;
use farpage_base::sys::mutex;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::CLUSTER_SLOTS;
use rustix::io::Errno;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};

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
    /// Memory for encrypted batches.
    scratch: mutex::Mutex<Vec<Box<[Page]>>>,
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
        let (owners, scratch, maker) = (OnceLock::new(), mutex::Mutex::new(Vec::new()), std::process::id());
        Ok(ExportSpace { export, owners, is_shared, maker, has_children, area_slots, areas, scratch })
    }

    /// Slots of all of them.
    pub fn slots(&self) -> u64 {
        self.area_slots * self.areas as u64
    }

    fn owners(&self) -> Option<&'static Owners> {
        if let Some(owners) = self.owners.get() {
            return Some(owners);
        }
        let owners = areas::of_process().filter(|_| !self.is_shared)?;
        Some(self.owners.get_or_init(|| owners))
    }
}

impl PageStores for Arc<ExportSpace> {
    fn make(&self, seal: Option<Seal>) -> Result<Arc<dyn PageStore>, Errno> {
        Ok(Arc::new(ExportPages { space: self.clone(), areas: Areas::new(self.areas), seal }))
    }

    fn link(&self) -> &Link {
        self.export.link()
    }

    fn share(&self, with: SharedAreas) -> bool {
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

    fn allows_another(&self) -> bool {
        self.export.allows_another()
    }

    fn tick(&self) {
        let link = self.export.link();
        if link.reach() == InReach::Up
            && let Some(why) = self.export.keep()
        {
            link.lose_all(why);
        }
    }

    fn fork_child(&self) {
        // SAFETY: one thread, without a guard. Spare memory of the parent's is thrown away, without being freed.
        unsafe { self.scratch.free_in_child() };
        std::mem::forget(std::mem::take(&mut *self.scratch.lock()));
        self.export.fork_child();
    }

    #[cfg(test)]
    fn export(&self) -> Option<&Export> {
        Some(&self.export)
    }
}

/// The pages of one process: areas of an export.
struct ExportPages {
    space: Arc<ExportSpace>,
    areas: Areas,
    seal: Option<Seal>,
}

impl PageStore for ExportPages {
    fn runs(&self) -> Arc<dyn RemoteRuns> {
        self.space.export.clone()
    }

    fn at(&self, slot: u64) -> u64 {
        let (place, rest) = (slot / self.space.area_slots, slot % self.space.area_slots);
        let area = self.areas.get(place as usize).map_or(u64::MAX >> 16, u64::from);
        FRONT + (area.saturating_mul(self.space.area_slots) + rest).saturating_mul(PAGE_SIZE as u64)
    }

    fn unseal(&self, count: u64, page: &mut Page) {
        self.seal.iter().for_each(|seal| seal.apply(count, page));
    }

    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]) {
        let spare = || self.space.scratch.lock().pop().unwrap_or_else(|| vec![[0; PAGE_SIZE]; BATCH_MAX].into());
        let mut sealed = self.seal.as_ref().map(|seal| (seal, spare()));
        if let Some((seal, copies)) = &mut sealed {
            for (copy, leaving) in copies.iter_mut().zip(pages) {
                *copy = *leaving.page;
                seal.apply(leaving.count, copy);
            }
        }
        let export = self.runs();
        out.fill(Transferred::Failed(Errno::IO));
        // What fails is tried once more. What was sent to a server that is out of reach may get there later, so its place
        // is of no use.
        for _ in 0..2 {
            let (mut batch, mut numbers) = (Batch::new(Direction::Write), [None; BATCH_MAX]);
            let failed = |out: &Transferred| matches!(out, Transferred::Failed(_));
            for (i, leaving) in pages.iter().enumerate().filter(|(i, _)| failed(&out[*i])) {
                let page = sealed.as_ref().map_or(leaving.page, |(_, copies)| &copies[i]);
                let place = Place::on_server(export.clone(), self.at(leaving.slot), leaving.count);
                // SAFETY: the page is borrowed until after `run`, and a write does not change it.
                numbers[i] = unsafe { batch.push(&place, std::ptr::from_ref(page).cast_mut()) };
            }
            batch.run_remotely();
            numbers.iter().zip(&mut *out).for_each(|(number, out)| *out = number.map_or(*out, |n| batch.outcome(n)));
        }
        self.space.scratch.lock().extend(sealed.map(|(_, copies)| copies));
    }

    fn grow(&self, end: u64, _step: u64) -> u64 {
        let place = (end / self.space.area_slots) as usize;
        match self.space.owners() {
            Some(owners) if self.areas.claim(owners, place) => end + self.space.area_slots,
            _ => end,
        }
    }

    fn discards(&self) -> bool {
        self.space.export.info().trims()
    }

    fn discard(&self, slot: u64, count: u64) -> Option<bool> {
        self.space.export.trim(self.at(slot), count * PAGE_SIZE as u64).ok()
    }

    fn keep(&self, keep: bool) {
        self.space.has_children.store(keep, Relaxed);
        self.space.owners.get().into_iter().for_each(|owners| self.areas.keep(owners, keep));
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
