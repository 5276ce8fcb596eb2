//! An export as a place for pages: areas for each process.
//!
//! Callers: the device. Locks: `TAKEN`, outside those of the exports.

use super::exchange::{self, NbdCommand, NbdReplies};
use super::{BACK, Export, FRONT};
use crate::areas::{self, Areas, SharedAreas};
use crate::link::{AskedFor, InReach, Link, Patience};
use crate::page_store::{OutgoingPage, PageStore, PageStores, Seal};
use crate::request::{self, BATCH_MAX, RemoteRequest, ReplyReader, RequestBytes, Transferred};
use crate::wire::NOTHING;
use farpage_base::mem::lock::lock;
use farpage_ipc::conf::DeviceError;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_ipc::tree::areas::{AREAS_MAX, Owners};
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::CLUSTER_SLOTS;
use libc::iovec;
use rustix::io::Errno;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};

/// See the module header.
pub struct ExportSpace {
    export: Arc<Export>,
    owners: OnceLock<&'static Owners>,
    /// The header was written by the process that started this one: others may use the export, too.
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
        let export = Export::of(spec, spec.id)?;
        let bytes = (export.info().size - FRONT - BACK).min(size.unwrap_or(u64::MAX));
        let (area_slots, areas) = divide(bytes / PAGE_SIZE as u64);
        if areas == 0 {
            return Err(DeviceError::new(spec.name(), "its size is below 2 MiB", "give it a larger size="));
        }
        let (export, is_shared) = (Arc::new(export), spec.id.is_some());
        let has_children = Arc::new(AtomicBool::new(false));
        if !is_shared {
            note_taken(&export, &has_children);
        }
        let (owners, maker) = (OnceLock::new(), std::process::id());
        Ok(ExportSpace { export, owners, is_shared, maker, has_children, area_slots, areas })
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
    fn make(&self, _seal: Option<Seal>) -> Result<Arc<dyn PageStore>, Errno> {
        Ok(Arc::new(ExportPages { space: self.clone(), areas: Areas::new(self.areas) }))
    }

    fn link(&self) -> &Arc<Link> {
        &self.export.link
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
        self.export.fork_child();
    }

    #[cfg(any(test, feature = "testing"))]
    fn export(&self) -> Option<&Export> {
        Some(&self.export)
    }
}

/// The pages of one process: areas of an export.
struct ExportPages {
    space: Arc<ExportSpace>,
    areas: Areas,
}

impl PageStore for ExportPages {
    fn link(&self) -> &Arc<Link> {
        &self.space.export.link
    }

    fn replies(&self) -> Box<dyn ReplyReader> {
        Box::new(NbdReplies::default())
    }

    fn ask(&self, requests: &[RemoteRequest], bytes: &mut RequestBytes) {
        exchange::ask(requests, bytes);
    }

    fn read(&self, patience: Patience, requests: &[RemoteRequest], ends: &mut [Transferred]) {
        request::read(requests, ends, |about, ends| {
            self.space.export.exchange((patience, about), NbdCommand::Read, requests, ends)
        });
    }

    fn at(&self, slot: u64) -> u64 {
        let (place, rest) = (slot / self.space.area_slots, slot % self.space.area_slots);
        let area = self.areas.get(place as usize).map_or(u64::MAX >> 16, u64::from);
        FRONT + (area.saturating_mul(self.space.area_slots) + rest).saturating_mul(PAGE_SIZE as u64)
    }

    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]) {
        // What has no owner is as full: it may have one again.
        out.fill(Transferred::Failed(Errno::NOSPC));
        // What fails is tried once more. What was sent to a server that is out of reach may get there later, so its
        // place is of no use.
        let mut parts = [NOTHING; BATCH_MAX];
        for (part, leaving) in parts.iter_mut().zip(pages) {
            *part = iovec { iov_base: leaving.page.as_ptr().cast_mut().cast(), iov_len: PAGE_SIZE };
        }
        for _ in 0..2 {
            // Asked each time: the process may have been stopped in between.
            if !self.space.export.is_kept() {
                return;
            }
            let mut requests = [RemoteRequest::NONE; BATCH_MAX];
            let (mut run_of, mut runs) = ([None; BATCH_MAX], 0);
            let failed = |out: &Transferred| matches!(out, Transferred::Failed(_));
            for (i, leaving) in pages.iter().enumerate().filter(|(i, _)| failed(&out[*i])) {
                let (at, bytes) = (self.at(leaving.slot), PAGE_SIZE as u64);
                // Side by side, here and there: one request.
                match requests[..runs].last_mut() {
                    Some(last) if last.at + last.len == at && i > 0 && run_of[i - 1].is_some() => {
                        (last.len, last.parts) = (last.len + bytes, last.parts + 1);
                    }
                    _ => {
                        let memory = parts[i..].as_ptr();
                        requests[runs] = RemoteRequest { at, memory, parts: 1, len: bytes, ..requests[runs] };
                        runs += 1;
                    }
                }
                run_of[i] = Some(runs - 1);
            }
            let (about, mut ends) = ((Patience::Now, AskedFor::Stores), [None; BATCH_MAX]);
            // What has no end may yet get there.
            let _ = self.space.export.exchange(about, NbdCommand::Write, &requests[..runs], &mut ends[..runs]);
            for (run, out) in run_of.iter().zip(&mut *out) {
                *out = run.map_or(*out, |run: usize| ends[run].unwrap_or(Transferred::OutOfReach));
            }
        }
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
        // What was made ours here is free from now on.
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
    // A thread that takes one at this moment keeps it.
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
