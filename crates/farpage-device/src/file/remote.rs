//! A file device whose pages a server keeps: batches to the server, and what is told to it.
//!
//! A slot that was freed is *retired*: it has no value, and is not given out before the server has forgotten it. What
//! nobody knows the end of (a connection broke) is never used again.
//!
//! Locks: as for the others; `retired`, a leaf.

use super::table::File;
use super::*;
use farpage_server::{OutgoingPage, PageStore};

/// Slots that the server is told of at once.
const FORGET: usize = 512;

impl FileDevice {
    /// As `write`, on a server.
    pub(super) fn write_remote(
        &self,
        own: &File,
        backing: &Backing,
        store: &dyn PageStore,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let first = own.written.fetch_add(places.len() as u64, Relaxed);
        let seal = || self.seal(backing, first, pages, places);
        let sealed = if store.packs() && backing.mirror().is_none() { None } else { seal() };
        let (clear, secret) = (|at: usize| pages[places[at].0].0, sealed.as_ref());
        let to_mirror = |at: usize| secret.map_or_else(|| clear(at), |sealed| &sealed[at].0);
        let to_store = |at: usize| if store.packs() { clear(at) } else { to_mirror(at) };
        let leaving = (0..).zip(first..).zip(places).map(|((at, count), &(_, slot))| OutgoingPage {
            slot,
            count,
            page: to_store(at),
        });
        let mut outcomes = [Transferred::Failed(Errno::IO); BATCH_MAX];
        store.store(&leaving.collect::<Vec<_>>(), &mut outcomes[..places.len()]);
        self.write_mirror(backing, places, &outcomes, &to_mirror);
        let result = self.book_writes(own, pages, places, &outcomes, Some(first), out);
        self.scratch.lock().extend(sealed);
        result
    }

    /// What is to be done now and then about a server; whether there was something.
    pub fn look_after_server(&self) -> bool {
        let Some(server) = &self.server else { return false };
        server.tick();
        // Inherited ones, too: whoever made them may be gone.
        for id in 0.. {
            let Some(file) = self.inner.lock().files.get(id).cloned() else { break };
            if let Some(why) = file.as_ref().and_then(|file| file.store()?.tick())
                && !self.failed.swap(true, Relaxed)
            {
                *self.warning.lock() = Some(Warning::Unfit(why));
            }
        }
        self.own.get().filter(|_| self.server_accepts()).is_some_and(|own| self.forget_retired(own))
    }

    /// Tells the server what it need not keep; whether there was something.
    fn forget_retired(&self, own: &File) -> bool {
        let Some(store) = own.store().filter(|store| store.forgets()) else { return false };
        let slots = {
            let mut retired = own.retired.lock();
            let keep = retired.len().saturating_sub(FORGET);
            retired.split_off(keep)
        };
        if slots.is_empty() {
            return false;
        }
        if store.forget(&slots) {
            slots.iter().for_each(|slot| _ = own.slots.give_back(*slot));
            self.full.store(false, Relaxed);
        } else {
            self.inner.lock().bad.extend(slots);
        }
        true
    }

    /// The pages are wanted by nobody any more.
    pub fn remove_from_server(&self) {
        let Some(own) = self.own.get() else { return };
        // A child may need what is there; it says that it is alive, and the rest is for `farpage swapoff`.
        if let Some(store) = own.store().filter(|_| self.inner.lock().leases.is_empty()) {
            store.remove(own.slots.slots());
        }
    }
}
