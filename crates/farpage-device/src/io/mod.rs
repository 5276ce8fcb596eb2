//! Queued page I/O: batches of up to 64 pages, merged, submitted at once, every completion looked at.
//!
//! ```text
//!   push page, push page, ...  --> runs (same file, adjacent pages)  --> Rings::run      the caller waits
//!                                                                    `-> ReadQueue       the caller polls
//! ```
//!
//! A [`Batch`] knows nothing of devices: it has descriptors, offsets and memory. The maker of one has looked up where
//! the pages are, and books the outcome page by page ([`Batch::outcome`]). It allocates nothing and may lie on the
//! stack.
//!
//! A short transfer is continued, an interrupted one repeated; a run that the kernel refuses ends with the errno, the
//! pages before the failure being complete. Repeating a failed page is the caller's business.
//!
//! Runs that are on servers go over their connections: at once ([`PageStore::read`]), or in flight
//! ([`farpage_server::in_flight`]). Nothing is written to a server by a batch.
//!
//! Callers: the file device, `space`, `read_queue`. Locks: a thread's ring is in a cell of its own ([`Rings`]), which
//! no other thread waits for.

pub mod inject;
mod request;
pub mod ring;
#[cfg(test)]
mod tests;

use farpage_base::mem::units::Page;
use farpage_base::sys::table::Table;
use farpage_server::link::Patience;
use farpage_server::{PageStore, RemoteRequest};
use farpage_swap::PAGE_SIZE;
use inject::FaultyRun;
use libc::iovec;
use request::Request;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use farpage_server::{BATCH_MAX, Transferred};
pub use request::{Direction, Medium, Place};
pub use ring::{IoRing, Rings};

/// A transfer that is refused with "try again" this many times has failed.
const TRIES_MAX: u16 = 1000;

/// Adjacent pages of one file: one request to the kernel, or several if transfers are short. Or of one server.
struct Run {
    /// Of its first page.
    place: Option<Place>,
    /// `vectors[first..last]` of the batch are its memory; what is done is cut off at the front.
    first: u16,
    last: u16,
    tries: u16,
    /// Bytes.
    want: usize,
    done: usize,
    end: Option<Transferred>,
    /// What goes wrong on purpose.
    faults: Option<FaultyRun>,
    /// A server was asked for it, and has not answered yet.
    begun: bool,
}

impl Run {
    const NONE: Run =
        Run { place: None, first: 0, last: 0, tries: 0, want: 0, done: 0, end: None, faults: None, begun: false };

    fn fd(&self) -> RawFd {
        match self.place {
            Some(Place { on: Medium::File { fd, .. }, .. }) => fd,
            _ => -1,
        }
    }

    fn at(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.at)
    }

    fn store(&self) -> Option<&Arc<dyn PageStore>> {
        match &self.place {
            Some(Place { on: Medium::Server(store), .. }) => Some(store),
            _ => None,
        }
    }
}

const NO_MEMORY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Up to [`BATCH_MAX`] pages to transfer in one direction.
pub struct Batch {
    direction: Direction,
    vectors: [iovec; BATCH_MAX],
    vector_count: usize,
    runs: [Run; BATCH_MAX],
    run_count: usize,
    /// Of each page: its run, and which page of the run it is.
    pages: [(u8, u8); BATCH_MAX],
    page_count: usize,
    /// Runs that have not ended.
    open: usize,
    /// Waits for servers that are out of reach.
    patient: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new(direction: Direction) -> Batch {
        Batch {
            direction,
            vectors: [NO_MEMORY; BATCH_MAX],
            vector_count: 0,
            runs: [Run::NONE; BATCH_MAX],
            run_count: 0,
            pages: [(0, 0); BATCH_MAX],
            page_count: 0,
            open: 0,
            patient: direction == Direction::Read,
        }
    }

    /// The same, not waiting for a server that is out of reach. (Writes never do.)
    pub fn impatient(self) -> Batch {
        Batch { patient: false, ..self }
    }

    /// Pages pushed.
    pub fn len(&self) -> usize {
        self.page_count
    }

    /// Nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.page_count == 0
    }

    /// Runs, after merging.
    pub fn runs(&self) -> usize {
        self.run_count
    }

    /// Adds a page, merged with the one before if they are adjacent in the file; its number in the batch, or `None`
    /// if the batch is full. Pages pushed in the order of their places merge best.
    ///
    /// # Safety
    /// From now until the batch has been run (or is dropped without having been submitted), `page` is valid memory of
    /// one page; for a read nothing else looks at it, for a write nothing changes it. With [`Place::is_direct`] it is
    /// aligned to a page.
    pub unsafe fn push(&mut self, place: &Place, page: *mut Page) -> Option<usize> {
        if self.page_count == BATCH_MAX {
            return None;
        }
        let memory = page.cast::<u8>();
        self.patient &= !place.has_copy;
        let adjacent = self.run_count.checked_sub(1).filter(|&last| {
            let run = &self.runs[last];
            run.at() + run.want as u64 == place.at && run.place.as_ref().is_some_and(|run| run.on.joins(&place.on))
        });
        let at = adjacent.unwrap_or(self.run_count);
        let run = &mut self.runs[at];
        if adjacent.is_none() {
            let first = self.vector_count as u16;
            let faults = match &place.on {
                Medium::File { injector: Some(injector), .. } => Some(FaultyRun::new(injector)),
                _ => None,
            };
            *run = Run { place: Some(place.clone()), first, last: first, faults, ..Run::NONE };
            self.run_count += 1;
            self.open += 1;
        }
        let before = (run.last > run.first).then(|| &mut self.vectors[usize::from(run.last) - 1]);
        match before {
            Some(v) if v.iov_base.cast::<u8>().wrapping_add(v.iov_len) == memory => v.iov_len += PAGE_SIZE,
            _ => {
                self.vectors[self.vector_count] = iovec { iov_base: memory.cast(), iov_len: PAGE_SIZE };
                self.vector_count += 1;
                run.last += 1;
            }
        }
        self.pages[self.page_count] = (at as u8, (run.want / PAGE_SIZE) as u8);
        run.want += PAGE_SIZE;
        self.page_count += 1;
        Some(self.page_count - 1)
    }

    /// What became of page `i` of a batch that has been run.
    pub fn outcome(&self, i: usize) -> Transferred {
        let (run, at) = self.pages[i];
        let run = &self.runs[usize::from(run)];
        match run.end {
            _ if run.done >= (usize::from(at) + 1) * PAGE_SIZE => Transferred::Done,
            Some(end @ (Transferred::EndOfFile | Transferred::Gone)) => end,
            Some(Transferred::Failed(errno)) => Transferred::Failed(errno),
            Some(Transferred::OutOfReach) => Transferred::OutOfReach,
            // A run that ended whole has all its pages; one that did not end was never submitted.
            Some(Transferred::Done) | None => Transferred::Failed(Errno::IO),
        }
    }

    /// The request for what is left of run `i`; `None`: it has ended (perhaps only now, by an injected fault).
    pub(super) fn request(&mut self, i: usize) -> Option<Request> {
        let run = &mut self.runs[i];
        if run.end.is_some() {
            return None;
        }
        let vectors = &self.vectors[usize::from(run.first)..usize::from(run.last)];
        let mut single = match vectors {
            [one] => Some((one.iov_base.cast(), one.iov_len)),
            _ => None,
        };
        let (fd, at, direction) = (run.fd(), run.at() + run.done as u64, self.direction);
        if let Some(faults) = &mut run.faults {
            match faults.limit((direction, at, run.want), run.done > 0, run.tries > 0) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    single = vectors.first().map(|one| (one.iov_base.cast(), bytes.min(one.iov_len)));
                }
                Err(errno) => {
                    self.end(i, Transferred::Failed(errno));
                    return None;
                }
            }
        }
        Some(Request { fd, at, direction, vectors: vectors.as_ptr(), count: vectors.len(), single })
    }

    /// Books what the kernel said to a request of run `i`. `true`: the run has not ended, submit the rest.
    pub(crate) fn completed(&mut self, i: usize, result: Result<usize, Errno>) -> bool {
        let direction = self.direction;
        let run = &mut self.runs[i];
        run.tries += 1;
        match result {
            Ok(0) if direction == Direction::Read => self.end(i, Transferred::EndOfFile),
            Ok(0) => self.end(i, Transferred::Failed(Errno::IO)),
            Ok(n) => {
                let n = run.faults.as_ref().map_or(n, |faults| faults.transferred(n, run.done > 0));
                run.done += n;
                run.tries = 1;
                let mut left = n;
                while left > 0 && run.first < run.last {
                    let vector = &mut self.vectors[usize::from(run.first)];
                    let cut = left.min(vector.iov_len);
                    *vector = iovec {
                        iov_base: vector.iov_base.cast::<u8>().wrapping_add(cut).cast(),
                        iov_len: vector.iov_len - cut,
                    };
                    left -= cut;
                    if vector.iov_len == 0 {
                        run.first += 1;
                    }
                }
                if run.done >= run.want {
                    self.spoil(i);
                    self.end(i, Transferred::Done);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) if run.tries < TRIES_MAX => {}
            Err(errno) => self.end(i, Transferred::Failed(errno)),
        }
        self.runs[i].end.is_none()
    }

    fn end(&mut self, i: usize, end: Transferred) {
        self.runs[i].end = Some(end);
        self.open -= 1;
    }

    /// Injected bit errors in what was read, or stored.
    fn spoil(&mut self, i: usize) {
        let run = &self.runs[i];
        let (Some(faults), Some(last)) = (&run.faults, run.last.checked_sub(1)) else { return };
        let end = self.vectors[usize::from(last)].iov_base.cast::<u8>();
        // SAFETY: the vector's end is the end of the run's last page, of which all was transferred; the memory is the
        // batch's until it has ended (contract of `push`). The descriptor is open until then (see `Medium`).
        unsafe { faults.spoil(self.direction, end, run.fd(), run.at() + (run.want - PAGE_SIZE) as u64) };
    }

    /// Whether a run is for a server.
    pub(super) fn is_remote(&self, i: usize) -> bool {
        self.runs[i].store().is_some()
    }

    /// Whether all pages are on servers.
    pub(crate) fn is_away(&self) -> bool {
        (0..self.run_count).all(|i| self.is_remote(i))
    }

    /// Whether all pages are in files.
    pub(crate) fn is_local(&self) -> bool {
        !(0..self.run_count).any(|i| self.is_remote(i))
    }

    /// The store of run `i`, if it is on a server, has not ended and was not begun.
    pub(crate) fn store_to_ask(&self, i: usize) -> Option<Arc<dyn PageStore>> {
        let run = &self.runs[i];
        run.store().filter(|_| run.end.is_none() && !run.begun).cloned()
    }

    /// What a server is to be asked for to have the runs of the store of run `first`, and their numbers: begun from now
    /// on. How many there are.
    pub(crate) fn begin_remotely(&mut self, first: usize, out: &mut [(RemoteRequest, usize); BATCH_MAX]) -> usize {
        let mut count = 0;
        for i in first..self.run_count {
            let same = match (&self.runs[first].place, &self.runs[i].place) {
                (Some(first), Some(other)) => first.on.is(&other.on),
                _ => false,
            };
            if !same || self.store_to_ask(i).is_none() {
                continue;
            }
            let run = &mut self.runs[i];
            let (Some(place), Some(store)) = (&run.place, run.store()) else { continue };
            let memory = &self.vectors[usize::from(run.first)..usize::from(run.last)];
            let len = if store.packs() { (run.want / PAGE_SIZE) as u64 } else { run.want as u64 };
            out[count] = (RemoteRequest::new(place.at, place.count, memory, len), i);
            run.begun = true;
            count += 1;
        }
        count
    }

    /// Books what became of a run on a server.
    pub(crate) fn remote_ended(&mut self, i: usize, end: Transferred) {
        let run = &mut self.runs[i];
        run.begun = false;
        match end {
            _ if run.end.is_some() => {}
            Transferred::Done => {
                let rest = run.want - run.done;
                self.completed(i, Ok(rest));
            }
            end => self.end(i, end),
        }
    }

    /// Reads what has not ended nor begun and is on servers, one after the other.
    pub(crate) fn run_remotely(&mut self) {
        let patience = if self.patient { Patience::Wait } else { Patience::Now };
        for first in 0..self.run_count {
            let Some(store) = self.store_to_ask(first) else { continue };
            let mut asked = [(RemoteRequest::NONE, 0); BATCH_MAX];
            let count = self.begin_remotely(first, &mut asked);
            let (requests, mut ends) = (asked.map(|asked| asked.0), [Transferred::Failed(Errno::INVAL); BATCH_MAX]);
            // Pages are stored by their store.
            if self.direction == Direction::Read {
                store.read(patience, &requests[..count], &mut ends[..count]);
            }
            for ((_, i), end) in asked[..count].iter().zip(ends) {
                self.remote_ended(*i, end);
            }
        }
    }

    /// Runs what has not ended with one system call after the other.
    pub(super) fn run_plainly(&mut self, table: Option<&Arc<Table>>) {
        self.run_remotely();
        for i in 0..self.run_count {
            while let Some(request) = self.request(i) {
                let result = request.run(table.map(Arc::as_ref));
                self.completed(i, result);
            }
        }
    }
}
