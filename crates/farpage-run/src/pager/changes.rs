//! Changes of the program's mappings, as they are read: in order, and no sooner than all that came before can be there.
//! And the messages of forks, where the kernel tells those.
//!
//! Callers: the pager's loop, [`crate::fork`], on the pager's thread. No locks.

use crate::mappings::event_order::{Order, When};
use crate::mappings::grace_period::GracePeriod;
use crate::shared::address_space::AddressSpace;
use crate::shared::given_uffds::Forks;
use crate::shared::state::{Engine, give_up};
use farpage_base::sys::limit::with_room;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::Message;
use rustix::fd::OwnedFd;
use std::time::Duration;

/// Between two looks at threads that have yet to tell a change.
const NAP: Duration = Duration::from_micros(50);

/// See the module documentation.
pub(crate) struct Changes {
    /// Those that were read.
    pub(crate) order: Order,
    /// Threads that may not have told one that was made before.
    pub(crate) grace_period: GracePeriod,
    /// Userfaultfds of forked children.
    pub(crate) forks: Forks,
}

impl Changes {
    /// Reads messages, unless one is waited for that comes before them.
    pub(crate) fn next_messages(&mut self, e: &Engine, mm: &dyn AddressSpace, batch: &mut [Message]) -> usize {
        if self.grace_period.is_pending() {
            if mm.is_changing(e.arena.frames.base) {
                std::thread::sleep(NAP);
                return 0;
            }
            self.grace_period.end();
        }
        e.discovery.recent.fall_behind();
        let n = match with_room_for_fork(e, || mm.read(batch)) {
            Ok(n) => n,
            // The message of a fork, which waits until there is a descriptor again.
            Err(Errno::MFILE | Errno::NFILE) => {
                std::thread::sleep(NAP);
                0
            }
            Err(e) => give_up("reading the userfaultfd failed", e),
        };
        let child = mm.take_child();
        self.hear_forks(e, child);
        n
    }

    /// A message of the program's was read, `child` with it, if it is one of a fork. Reads those of the engine's own.
    pub(crate) fn hear_forks(&mut self, e: &Engine, child: Option<OwnedFd>) {
        self.forks.keep_one(0, child);
        while let Ok(child) = with_room_for_fork(e, || self.forks.read()) {
            self.forks.keep_one(1, Some(child));
        }
    }

    /// Notes a change that was read; whether it is to be applied now. `is_known` as in [`Order::push`].
    pub(crate) fn note(&mut self, change: Message, is_known: impl Fn(usize, usize) -> bool) -> bool {
        let when = self.order.push(change, is_known);
        if when == When::Later {
            self.grace_period.begin();
        }
        when == When::Now
    }

    /// The next change that has waited, if none is pending. `is_known` as in [`Changes::note`].
    pub(crate) fn next_settled(
        &mut self,
        mm: &dyn AddressSpace,
        is_known: impl Fn(usize, usize) -> bool,
    ) -> Option<Message> {
        self.order.next_settled(is_known, |page| mm.is_registered(page))
    }

    /// `[start, end)` (bytes) was looked at while a change was pending.
    pub(crate) fn add_fresh(&mut self, start: usize, end: usize) {
        self.order.add_fresh(start, end);
        self.grace_period.begin();
    }
}

/// Reads messages, of which each of a fork brings a descriptor. Where there is none left, what was put by is used.
fn with_room_for_fork<T>(e: &Engine, mut read: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match read() {
        Err(Errno::MFILE | Errno::NFILE) => {
            e.fork.channel.make_room();
            with_room(read)
        }
        other => other,
    }
}
