//! The owner of an export: one at a time, named by a random id, for as long as it says that it is there.
//!
//! ```text
//!   page 0: the header | 1: candidate | 2: door | 3: candidate | 4: door | ...  (a pair for each generation)
//! ```
//!
//! A server has no compare-and-swap; a page that is read and written is all that there is. Of several that begin at the
//! same time one is chosen without any assumption about time (Lamport, *A fast mutual exclusion algorithm*, 1987): each
//! writes its id as the candidate, finds the door open, closes it, and has won if its id is still there. Two that are
//! in each other's way may both lose, and try with the next generation's pair. The winner writes the header, and looks
//! whether another has begun with the next generation meanwhile, which looks at the header after it has closed the
//! door. So one of them sees the other, and the one that is seen too late gives up.
//!
//! The owner changes its header every so often ([`HolderLease`]). Clocks of two machines differ, so a process
//! that wants the export watches: a header that stays the same for the length of a lease has no owner any more. An
//! owner that could not say for half of that time that it is there (it was stopped, or its machine slept) writes no
//! pages before it has seen its id twice. One that finds another id has lost. At its end an owner clears all of it.
//!
//! Callers: those of [`super::Export`]. Locks: `header`, outside those of the link.

use super::greeting::NbdGreeting;
use super::header::{ExportHeader, OWNED, PAIRS, Wrong};
use super::{BACK, Export, FRONT};
use crate::HolderLease;
use crate::link::Link;
use farpage_base::sys::message::message_fmt;
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::raw::ErrnoText;
use farpage_ipc::conf::DeviceError;
use farpage_ipc::conf::address::Endpoint;
use farpage_ipc::conf::nbd::{ExportId, NbdSpec};
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

/// Generations that are tried.
const ROUNDS: u64 = 8;
/// When an owner that has left looks again.
const GONE: i64 = i64::MAX;

fn now() -> i64 {
    Export::clock()
}

fn pause(ms: i64) {
    std::thread::sleep(Duration::from_millis(ms as u64));
}

fn candidate(generation: u64) -> u64 {
    (1 + 2 * (generation % PAIRS)) * PAGE_SIZE as u64
}

fn door(generation: u64) -> u64 {
    candidate(generation) + PAGE_SIZE as u64
}

fn silent(_: impl Sized) -> Wrong {
    (String::from("the server has stopped answering"), "try again")
}

fn refused(what: &str) -> impl Fn(Errno) -> Wrong {
    move |errno| (format!("{what}: {}", ErrnoText(errno)), "look at the server's messages")
}

fn crowd() -> Wrong {
    (String::from("others begin to use it at this moment"), "try again, or use another export")
}

fn taken(by: &ExportHeader) -> Wrong {
    let remedy = "use another export: each farpage run, and each pager, needs one of its own";
    (format!("{} swaps to it", by.owner()), remedy)
}

impl Export {
    /// The export of a device, whose address is in numbers: for the pages of `id`, or for processes that are started
    /// from here.
    ///
    /// # Errors
    /// It cannot be used, and what to do.
    pub fn of(spec: &NbdSpec, id: Option<ExportId>) -> Result<Export, DeviceError> {
        let error = |(reason, remedy): Wrong| DeviceError::new(spec.name(), reason, remedy);
        let unknown = || ("its name was not looked up".into(), "write its address in numbers, or use farpage run");
        let endpoint = spec.address.endpoint().ok_or_else(unknown).map_err(error)?;
        Export::open(spec.name(), endpoint, &spec.export, spec.served.timeout, id, HolderLease::USUAL).map_err(error)
    }

    /// Connects, and takes the export for the pages of `id`, whose header is there, or makes it ours.
    ///
    /// # Errors
    /// It cannot be reached, or holds something else.
    pub fn open(
        name: String,
        endpoint: Endpoint,
        export: &str,
        timeout: Option<Duration>,
        id: Option<ExportId>,
        lease: HolderLease,
    ) -> Result<Export, Wrong> {
        let begun = Export::clock();
        let greeting = Arc::new(NbdGreeting::new(export));
        if let Some(id) = id {
            greeting.expect(id);
        }
        let asking = Arc::new(NbdGreeting::asking(export));
        let link = Link::new(name, endpoint.clone(), greeting.clone(), timeout);
        link.open().map_err(|why| {
            let refused = Link::new(String::new(), endpoint, asking, None).refusal();
            (
                refused.map_or_else(|| why.to_string(), String::from),
                "look whether the server runs, and whether host, port and export are right",
            )
        })?;
        let info =
            greeting.info().ok_or_else(|| (String::from("it says nothing of its size"), "use another server"))?;
        link.allow_many(info.many());
        let export = Export {
            link: Arc::new(link),
            greeting,
            info,
            lease,
            header: Mutex::new(None),
            kept_ms: AtomicI64::new(begun),
            look_ms: AtomicI64::new(begun),
            was_late: AtomicBool::new(false),
        };
        if info.read_only() {
            return Err(("it can only be read".into(), "let the server export it for writing"));
        }
        if info.size < FRONT + BACK + (4 << 20) {
            return Err(("it is too small".into(), "use one of 6 MiB or more"));
        }
        if id.is_none() {
            export.take_over()?;
        }
        Ok(export)
    }

    /// Makes an export ours that is blank, or not used any more, and empties it.
    fn take_over(&self) -> Result<(), Wrong> {
        let until = self.until();
        let mut bytes = vec![0; 64 << 10];
        for at in (0..FRONT).step_by(bytes.len()).chain([self.info.size - BACK]) {
            if Export::clock() >= until {
                return Err((
                    "the server takes too long to answer".into(),
                    "look how it is reached, or give it more timeout=",
                ));
            }
            self.read(at, &mut bytes).map_err(silent)?.map_err(refused("it cannot be read"))?;
            let ours = (OWNED as u64).saturating_sub(at).min(bytes.len() as u64) as usize;
            let (ours, others) = bytes.split_at(ours);
            if !ours.chunks(PAGE_SIZE).all(ExportHeader::may_be) || others.iter().any(|byte| *byte != 0) {
                let remedy = "use a blank export; if nothing on this one is needed, make its first 1 MiB zero";
                return Err(("it holds something that is not farpage's".into(), remedy));
            }
        }
        let header = self.become_owner()?;
        self.greeting.expect(header.id);
        self.was_kept(Some(header), Export::clock());
        self.trim(FRONT, self.info.size - FRONT - BACK).map_err(silent)?;
        Ok(())
    }

    /// Makes the export ours, unless it has an owner: that one's header.
    pub(super) fn become_owner(&self) -> Result<ExportHeader, Wrong> {
        let mut before = self.owner_page(0)?;
        if let Some(owner) = &before {
            self.watch(owner)?;
        }
        let begin = before.as_ref().map_or(0, |before| before.generation) + 1;
        for generation in begin..begin + ROUNDS {
            let random = |errno| (format!("no random bytes: {}", ErrnoText(errno)), "try again");
            let mine = ExportHeader::new(generation).map_err(random)?;
            if self.is_elected(&mine)? && self.owner_page(0)? == before {
                self.put(0, &mine)?;
                // If the next door is closed, the process that did it may have become the owner before this header was
                // written. No look at what is there now can tell.
                return if self.is_closed(generation + 1)? { Err(crowd()) } else { Ok(mine) };
            }
            // Another process is at it.
            let until = now() + self.soon_ms();
            while now() < until {
                match self.owner_page(0)? {
                    there if there == before => pause(self.soon_ms() / 30),
                    Some(owner) => return Err(taken(&owner)),
                    None => before = None,
                }
            }
        }
        Err(crowd())
    }

    /// So long a process that has lost waits for the winner's header.
    fn soon_ms(&self) -> i64 {
        self.lease.look_ms / 2
    }

    /// Waits until it is clear that an owner is gone.
    fn watch(&self, owner: &ExportHeader) -> Result<(), Wrong> {
        if owner.is_seen() {
            return Err(taken(owner));
        }
        let (mut said, begun) = (false, now());
        while now() - begun <= self.lease.end_ms {
            match self.owner_page(0)? {
                Some(there) if there == *owner => {}
                Some(there) => return Err(taken(&there)),
                None => return Ok(()),
            }
            if !said && now() - begun > self.lease.look_ms {
                said = true;
                let (name, who, s) = (self.link.name(), owner.owner(), self.lease.end_ms / 1000);
                message_fmt(format_args!(
                    "swap device {name:?}: {who} swaps to it, or did not end in order; waiting {s} s for a sign of it"
                ));
            }
            pause(self.lease.look_ms / 10);
        }
        Ok(())
    }

    fn is_elected(&self, mine: &ExportHeader) -> Result<bool, Wrong> {
        self.put(candidate(mine.generation), mine)?;
        if self.is_closed(mine.generation)? {
            return Ok(false);
        }
        self.put(door(mine.generation), mine)?;
        Ok(self.owner_page(candidate(mine.generation))?.is_some_and(|there| there.id == mine.id))
    }

    fn is_closed(&self, generation: u64) -> Result<bool, Wrong> {
        Ok(self.owner_page(door(generation))?.is_some_and(|there| there.generation == generation))
    }

    fn owner_page(&self, at: u64) -> Result<Option<ExportHeader>, Wrong> {
        let mut page = [0; PAGE_SIZE];
        self.read(at, &mut page).map_err(silent)?.map_err(refused("its header cannot be read"))?;
        Ok(ExportHeader::parse(&page))
    }

    fn put(&self, at: u64, page: &ExportHeader) -> Result<(), Wrong> {
        self.write_front(at, &page.page()).map_err(silent)?.map_err(refused("its header cannot be written"))
    }

    /// Says that the owner is there, if it is time to. `Some`: it is not the owner any more.
    pub fn keep(&self) -> Option<&'static str> {
        let (begun, due) = (now(), self.look_ms.load(Relaxed));
        if begun < due || self.look_ms.compare_exchange(due, begun + self.lease.look_ms, Relaxed, Relaxed).is_err() {
            return None;
        }
        // Until it is written: a thread that leaves at this moment comes after that.
        let mut known = self.header.lock();
        let id = self.id().filter(|_| self.look_ms.load(Relaxed) != GONE)?;
        let mut page = [0; PAGE_SIZE];
        // One that is half written is another one the first time only.
        for _ in 0..2 {
            let Ok(Ok(())) = self.read(0, &mut page) else { return None };
            if ExportHeader::parse(&page).is_some_and(|there| there.id == id) {
                break;
            }
        }
        let mut mine = match (ExportHeader::parse(&page), known.clone()) {
            (Some(there), _) if there.id == id => there,
            // It was late with what it wrote: it has been told, or will be.
            (Some(there), Some(mine)) if there.generation < mine.generation => mine,
            _ => return Some("somebody else has taken the export over"),
        };
        mine.beat = mine.beat.wrapping_add(1);
        let written = matches!(self.write_front(0, &mine.page()), Ok(Ok(())));
        *known = Some(mine);
        drop(known);
        if written {
            let was_late = begun - self.kept_ms.load(Relaxed) > self.lease.end_ms / 2;
            // A process that saw nothing of us may be about to take it over: that shows the next time.
            if !was_late || self.was_late.swap(true, Relaxed) {
                self.was_late.store(false, Relaxed);
                self.kept_ms.store(begun, Relaxed);
            }
        }
        None
    }

    /// Whether it is ours, as its header says.
    fn is_ours(&self) -> bool {
        self.owner_page(0).is_ok_and(|there| there.is_some_and(|there| Some(there.id) == self.id()))
    }

    /// Empties it, as after the end of all processes that used it, and gives it back; if it is ours.
    pub fn empty(&self) {
        let begun = now();
        if self.is_ours() {
            self.kept_ms.store(begun, Relaxed);
            let _ = self.trim(FRONT, self.info.size - FRONT - BACK);
        }
        self.leave();
        self.link.close();
    }

    /// It has no owner from now on, if it is ours.
    pub fn leave(&self) {
        let _known = self.header.lock();
        self.look_ms.store(GONE, Relaxed);
        self.kept_ms.store(0, Relaxed);
        if self.is_ours() {
            let pairs = vec![0; OWNED - PAGE_SIZE];
            let _ = self.write_front(PAGE_SIZE as u64, &pairs);
            let _ = self.write_front(0, &pairs[..PAGE_SIZE]);
        }
    }

    /// The owner could not say for too long that it is there.
    #[cfg(any(test, feature = "testing"))]
    pub fn grow_old(&self) {
        self.kept_ms.store(0, Relaxed);
        self.look_ms.store(0, Relaxed);
    }
}
