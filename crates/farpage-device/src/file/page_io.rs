//! The transfers of a file device: one page, or a batch for its places.
//!
//! Callers: reading and writing. No locks.

use super::backing::Backing;
use super::seal::{Bounce, aligned};
use crate::io::inject::Injector;
use crate::io::{BATCH_MAX, Batch, Direction, Medium, Place, Rings, Transferred};
use farpage_base::mem::units::Page;
use rustix::io::Errno;
use std::sync::Arc;

/// How the I/O is done.
#[derive(Default)]
pub struct PageIo {
    /// Shared by the devices of a space.
    pub rings: Arc<Rings>,
    pub injector: Option<Arc<Injector>>,
}

impl PageIo {
    /// Where the page of a slot is.
    pub fn place(&self, backing: &Backing, slot: u64, count: u64) -> Place {
        let on = match backing.store() {
            Some(store) => Medium::Server(store.clone()),
            None => Medium::File {
                fd: backing.fd.raw().unwrap_or(-1),
                direct: backing.is_direct(),
                injector: self.injector.clone(),
            },
        };
        Place { on, at: backing.at(slot), count, has_copy: backing.mirror().is_some() }
    }

    /// Transfers one page, aligned; switches O_DIRECT off if that is what the kernel minds.
    fn transfer(
        &self,
        backing: &Backing,
        (slot, count): (u64, u64),
        direction: Direction,
        page: &mut Page,
        patient: bool,
    ) -> Transferred {
        for last in [false, true] {
            let batch = Batch::new(direction);
            let mut batch = if patient { batch } else { batch.impatient() };
            let place = Place { has_copy: false, ..self.place(backing, slot, count) };
            // SAFETY: the page is borrowed mutably until after `run`.
            unsafe { batch.push(&place, page) };
            self.rings.run(&mut batch, &mut || {});
            match batch.outcome(0) {
                Transferred::Failed(Errno::INVAL) if !last && backing.give_up_direct().is_ok() => {}
                outcome => return outcome,
            }
        }
        Transferred::Failed(Errno::INVAL)
    }

    /// Reads one page; `at`: its slot and its number.
    pub fn read(&self, backing: &Backing, at: (u64, u64), into: &mut Page, patient: bool) -> Transferred {
        if aligned(into) || !backing.is_direct() {
            return self.transfer(backing, at, Direction::Read, into, patient);
        }
        let mut bounce = Bounce([0; farpage_swap::PAGE_SIZE]);
        let outcome = self.transfer(backing, at, Direction::Read, &mut bounce.0, patient);
        into.copy_from_slice(&bounce.0);
        outcome
    }

    /// Writes pages to their places in one batch; one that fails is tried once more by itself.
    pub fn write<'a>(
        &self,
        backing: &Backing,
        places: &[(usize, u64)],
        content: &dyn Fn(usize) -> &'a Page,
    ) -> [Transferred; BATCH_MAX] {
        let mut batch = Batch::new(Direction::Write);
        let mut numbers = [None; BATCH_MAX];
        for (at, (&(_, slot), number)) in places.iter().zip(&mut numbers).enumerate() {
            let (page, place) = (content(at), self.place(backing, slot, 0));
            if !place.is_direct() || aligned(page) {
                // SAFETY: the page is borrowed until after `run`, and a write does not change it.
                *number = unsafe { batch.push(&place, std::ptr::from_ref(page).cast_mut()) };
            }
        }
        self.rings.run(&mut batch, &mut || {});
        let mut outcomes = [Transferred::Failed(Errno::INVAL); BATCH_MAX];
        for (at, (&(_, slot), number)) in places.iter().zip(numbers).enumerate() {
            outcomes[at] = number.map_or(outcomes[at], |n| batch.outcome(n));
            if outcomes[at] != Transferred::Done {
                let page = &mut Bounce(*content(at)).0;
                outcomes[at] = self.transfer(backing, (slot, 0), Direction::Write, page, false);
            }
        }
        outcomes
    }
}
