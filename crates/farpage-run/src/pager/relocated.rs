//! Relocated tables of libraries: taking them over, and taking their pages out.
//!
//! The monitor finds them ([`crate::mappings::relocated`]). [`make_anonymous`] puts anonymous memory in their place,
//! which is registered then like any new mapping. It stays read-only, and `UFFDIO_MOVE` takes no page out of what may
//! not be written: so a batch is made writable while it is moved. No thread writes there, and one that makes such
//! memory writable by libc waits meanwhile ([`crate::mappings::library_guard`]); from then on it is ordinary memory.
//! Back in pages come by a copy, which the rights do not matter to.
//!
//! Caller: the pager's thread. Locks: `managed`, `read_only`, one at a time.

use crate::mappings::library_guard::LibraryHold;
use crate::pager::cx::Cx;
use crate::pager::register::Adoption;
use crate::shared::page_table::Node;
use crate::shared::state::give_up;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::maps::Kind;
use farpage_base::sys::message::fatal;
use farpage_base::sys::relro::make_anonymous;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;

impl Adoption {
    /// Takes over one range of those that the monitor found; whether there was one.
    pub(crate) fn take_over_step(&mut self, cx: &mut Cx) -> bool {
        let Some((start, end)) = lock(&cx.e.discovery.relocated).pop() else { return false };
        if cx.e.is_excluded() || cx.e.is_known(start, end) {
            return true;
        }
        // Libraries stay as they are meanwhile. If one is being unloaded, the monitor finds the rest again.
        let Some(hold) = LibraryHold::take() else { return true };
        let mapped = |at: usize| cx.mm.mapping_from(at).ok().flatten().filter(|m| m.start <= at);
        let is_same = |at: usize| mapped(at).is_some_and(|m| m.kind == Kind::ReadOnlyFile && end <= m.end);
        let kind_before = || mapped(start - 1).map(|m| m.kind);
        let before = kind_before();
        // SAFETY: a read-only mapping of a file, which stays so while the hold lasts. No file is registered, and new
        // memory only by this thread.
        let done = match unsafe { make_anonymous(start, end, &is_same) } {
            Ok(done) => done,
            Err(error) => give_up("exchanging a library's tables failed", error),
        };
        // Unloaded by a system call instruction in this very moment, and something else may have been there.
        if done > start && kind_before() != before && mapped(start).is_some() {
            fatal("a library was unmapped, not by libc, while its tables were taken over");
        }
        drop(hold);
        if done == start {
            return true;
        }
        let (first, last) = (Vpn::of(start), Vpn::of(done));
        lock(&cx.e.memory.read_only).insert(first, last);
        Stat::add(&cx.e.stat.relocated_pages, (last - first) as u64);
        // Or later, while a change of mappings is pending.
        self.adopt_mappings(cx, start, done);
        true
    }
}

impl Cx {
    /// How many pages of the run, from its start, are in such memory, or are not, as the first one.
    pub(crate) fn of_one_kind(&self, vpn: Vpn, run: usize) -> (usize, bool) {
        let read_only = lock(&self.e.memory.read_only);
        match read_only.covering(vpn) {
            Some((_, last)) => (run.min(last - vpn), true),
            None if read_only.meets(vpn, vpn + run) => {
                (vpn.up_to(vpn + run).take_while(|v| !read_only.contains(*v)).count(), false)
            }
            None => (run, false),
        }
    }

    /// Whether the library is still there. (If it was unmapped before what was taken over was registered, no event said
    /// so.)
    fn is_behind_a_file(&self, vpn: Vpn) -> bool {
        let range = lock(&self.e.memory.read_only).covering(vpn);
        let before = range.and_then(|(first, _)| self.mm.mapping_from(first.addr() - 1).ok().flatten());
        before.is_some_and(|m| matches!(m.kind, Kind::File | Kind::ReadOnlyFile))
    }

    /// As `MoveOut::move_out`, for a run in such memory; `move_out` does so for memory that may be written.
    pub(crate) fn move_read_only_out(
        &mut self,
        vpn: Vpn,
        run: &[Node],
        move_out: impl FnOnce(&mut Cx, Vpn, &[Node]) -> Option<(usize, usize)>,
    ) -> Option<(usize, usize)> {
        let Some(hold) = LibraryHold::take() else { return self.refused(vpn, run, Err(UffdError::Incompatible)) };
        // The program may have changed the rights of a part.
        let run = &run[..self.in_one_mapping(vpn, run.len())];
        let (start, len) = (vpn.addr(), run.len() * PAGE_SIZE);
        let is_read_only = self.mm.rights(start).map(|rights| rights.is_read_only());
        if is_read_only == Some(false) || !self.is_behind_a_file(vpn) {
            // The program has made it writable, or it is something else by now: it is like all other memory.
            lock(&self.e.memory.read_only).remove(vpn, vpn + run.len());
            return move_out(self, vpn, run);
        }
        if is_read_only.is_none() || self.mm.set_writable(start, len, true).is_err() {
            return self.refused(vpn, run, Err(UffdError::Incompatible));
        }
        let result = move_out(self, vpn, run);
        if let Err(error) = self.mm.set_writable(start, len, false) {
            give_up("a library's tables cannot be made read-only again", error);
        }
        drop(hold);
        result
    }
}
