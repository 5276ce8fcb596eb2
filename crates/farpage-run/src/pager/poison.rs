//! Pages that no device can read back.
//!
//! The page is poisoned: the threads that wait for it, and those that touch it later, get SIGBUS; the rest of the
//! program goes on. Its slot is freed and its word says that there is no page, as after a discard. A real discard or
//! `munmap` drops the kernel's mark, and the page is zero then; `mremap` takes the mark along, and a fork copies it. A
//! scan that takes a marked page for present cannot move it; and zeros are not put over it ([`super::marks`]).
//!
//! Caller: `fault`, on the pager's thread.

use crate::pager::cx::Cx;
use crate::shared::page_table::State;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::message::{fatal, message, warn};
use farpage_base::sys::uffd::UffdError;
use farpage_device::{Entry, LoadError};
use farpage_ipc::stat::Stat;
use std::sync::atomic::Ordering::SeqCst;

impl Cx {
    /// The page at `vpn`, stored under `entry`, cannot be read. What kept it from being poisoned, as for a page that
    /// could not be placed; `Some(Present)`: nothing did, the threads that wait are to be woken.
    pub(crate) fn poison(&mut self, vpn: Vpn, entry: Entry, error: &LoadError) -> Option<UffdError> {
        let e = self.e;
        let page = vpn.addr();
        // Quiet: the threads that wait are woken by the caller, after the message, which may be the last of this
        // process.
        match self.mm.poison(page, true) {
            Ok(()) => {
                Stat::add(&e.stat.pages_lost, 1);
                e.memory.marked.store(true, SeqCst);
                if let Some(node) = e.table.node(vpn) {
                    e.table.set(node, State::None);
                }
                e.free_entry(Some(entry));
                // Why, if the device has something to say: this process may be about to end.
                while let Some(warning) = e.space.take_warning() {
                    warn(&warning);
                }
                let name = e.space.name_of(error.device());
                let raw = entry.raw();
                match e.space.count_lost(error.device()) {
                    Some(1) => message(&format!(
                        "the page at {page:#x} (entry {raw:#x}) cannot be read back: {error} ({name}); \
                         threads that touch it get SIGBUS"
                    )),
                    Some(so_far) => message(&format!(
                        "{so_far} pages cannot be read back by now, the last at {page:#x} (entry {raw:#x}): {error} \
                         ({name})"
                    )),
                    None => {}
                }
                Some(UffdError::Present)
            }
            Err(why @ (UffdError::Retry | UffdError::Present | UffdError::Absent)) => Some(why),
            Err(UffdError::Other(rustix::io::Errno::NOMEM)) => None,
            Err(why) => fatal(&format!("the page at {page:#x} cannot be read back: {error}; nor be poisoned: {why:?}")),
        }
    }
}
