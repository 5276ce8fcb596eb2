//! Queued page I/O: batches of up to 64 pages, merged, submitted at once, every completion looked at.
//!
//! ```text
//!   push page, push page, ...  --> runs (same file, adjacent pages)  --> Rings::run      the caller waits
//!                                                                    `-> ReadQueue       the caller polls
//! ```
//!
//! A [`Batch`] knows nothing of devices: it has descriptors, offsets and memory. Who makes one has looked up where the
//! pages are, and books the outcome page by page ([`Batch::outcome`]). It allocates nothing and may lie on the stack.
//!
//! A short transfer is continued, an interrupted one repeated; a run that the kernel refuses ends with the errno, the
//! pages before the failure being complete. Repeating a failed page is the caller's business.
//!
//! Runs that are on servers go over their connections: at once ([`RemoteRuns::run`]), or in flight ([`Conversation`]).
//!
//! Callers: the file device, `space`, `read_queue`. Locks: a thread's ring is in a cell of its own ([`Rings`]), which
//! no other thread waits for.

pub mod direction;
pub mod inject;
pub mod ring;
#[cfg(test)]
mod tests;

use farpage_base::mem::units::Page;
use farpage_base::sys::raw::{nr, syscall};
use farpage_base::sys::table::Table;
use farpage_swap::PAGE_SIZE;
use inject::{Injector, Upset};
use libc::iovec;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use direction::Direction;
pub use ring::{IoRing, Rings};

/// Most pages in a batch.
pub const BATCH_MAX: usize = 64;
/// A transfer that is refused with "try again" this many times has failed.
const TRIES_MAX: u16 = 1000;

/// Where a page is on a queued device.
#[derive(Clone)]
pub struct Place {
    /// Descriptor in the engine's table; stays open while the page's entry is in use.
    pub fd: RawFd,
    /// Byte in the file.
    pub at: u64,
    /// The file wants aligned memory (O_DIRECT).
    pub direct: bool,
    /// Faults to inject, in tests.
    pub injector: Option<Arc<Injector>>,
    /// The page is on a server, and there is no descriptor.
    pub remote: Option<Arc<dyn RemoteRuns>>,
    /// Its number among all that were ever written there, for a server that needs it.
    pub count: u64,
    /// There is another copy: a server that is out of reach is not waited for.
    pub has_copy: bool,
}

impl Place {
    /// Of a page on a server.
    pub fn on_server(remote: Arc<dyn RemoteRuns>, at: u64, count: u64) -> Place {
        Place { fd: -1, at, direct: false, injector: None, remote: Some(remote), count, has_copy: false }
    }
}

/// A server with pages.
pub trait RemoteRuns: Send + Sync {
    /// Transfers the runs of the batch that are its own (`mine`) and have not ended; ends them.
    fn run(&self, batch: &mut Batch, mine: &[bool]);

    /// Whether adjacent pages are one run.
    fn merges(&self) -> bool {
        true
    }

    /// The same number for all that are on one server.
    fn server(&self) -> usize;

    /// Opens a connection for runs in flight; `None`: there is none now.
    fn connect(&self) -> Option<Box<dyn Conversation>>;

    /// Appends what such a connection is sent to have runs of this value's read.
    fn ask(&self, asked: &[RemoteRead], bytes: &mut Vec<u8>);

    /// Makes a page of what the server keeps for it, where that is not the page itself. `false`: it is something else.
    fn decode(&self, _count: u64, _value: &mut [u8], _into: &mut Page) -> bool {
        false
    }
}

/// A run that a server was asked for.
pub struct RemoteRead {
    /// Whose run it is.
    pub remote: Arc<dyn RemoteRuns>,
    /// Its number among all of its connection.
    pub number: u64,
    /// See [`Place::at`].
    pub at: u64,
    /// See [`Place::count`].
    pub count: u64,
    /// Its memory, `parts` of them; the window's until the run has ended.
    pub memory: *const iovec,
    /// See `memory`.
    pub parts: usize,
    /// How many pages that is.
    pub pages: usize,
    /// Whose run it is: its window, and the run's number in the batch.
    pub window: u32,
    /// See `window`.
    pub run: usize,
    /// Since when it is waited for, milliseconds.
    pub since_ms: i64,
}

// SAFETY: the pointer is to memory lent for as long as the run is in flight (contract of `Batch::push`), not to
// anything of a thread.
unsafe impl Send for RemoteRead {}

impl RemoteRead {
    /// From where to where it goes, in what [`Place::at`] counts in.
    pub fn range(&self) -> (u64, u64) {
        // Runs of more than a page are counted in bytes.
        let len = if self.remote.merges() { self.pages as u64 * PAGE_SIZE as u64 } else { 1 };
        (self.at, self.at + len)
    }
}

/// What has come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Nothing that ends a run.
    Nothing,
    /// The run at this place of those that were asked for has ended.
    Ended(usize, Transferred),
    /// The connection is of no more use; its link knows.
    Broken,
}

/// A connection on which runs are in flight.
pub trait Conversation: Send {
    /// Readable when something has come in.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Sends what asks for these runs; `false`: the connection is of no more use, and its link knows.
    fn send(&mut self, bytes: &[u8], asked: &[RemoteRead]) -> bool;

    /// Takes in what has come for `asked`, the oldest first; does not wait.
    fn receive(&mut self, asked: &VecDeque<RemoteRead>) -> Received;

    /// Whether it can still be used, if nothing has come for a run, the oldest. If not, its link knows.
    fn is_good(&mut self, oldest: &RemoteRead) -> bool;

    /// Whether it can still be used, if nothing is in flight.
    fn is_ready(&mut self) -> bool;
}

/// A run as a server is asked for it.
pub struct RemoteRequest<'a> {
    /// Which way it goes.
    pub direction: Direction,
    /// See [`Place::at`].
    pub at: u64,
    /// See [`Place::count`].
    pub count: u64,
    /// Its memory; the batch's until the run has ended.
    pub memory: &'a [iovec],
    /// How many pages that is.
    pub pages: usize,
}

/// What became of one page of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transferred {
    /// Transferred whole.
    Done,
    /// The file ends before the page does.
    EndOfFile,
    /// A server does not have it any more.
    Gone,
    /// What the kernel said.
    Failed(Errno),
    /// The server is out of reach. What was to be written may yet be, at any later time.
    OutOfReach,
}

/// Adjacent pages of one file: one request to the kernel, or several if transfers are short.
struct Run {
    fd: RawFd,
    at: u64,
    /// `vectors[first..last]` of the batch are its memory; what is done is cut off at the front.
    first: u16,
    last: u16,
    tries: u16,
    /// Bytes.
    want: usize,
    done: usize,
    end: Option<Transferred>,
    injector: Option<Arc<Injector>>,
    upset: Upset,
    remote: Option<Arc<dyn RemoteRuns>>,
    /// See [`Place::count`]; of its first page.
    count: u64,
    /// A server was asked for it, and has not answered yet.
    begun: bool,
}

impl Run {
    const NONE: Run = Run {
        fd: -1,
        at: 0,
        first: 0,
        last: 0,
        tries: 0,
        want: 0,
        done: 0,
        end: None,
        injector: None,
        upset: Upset::None,
        remote: None,
        count: 0,
        begun: false,
    };
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

/// A page in memory that O_DIRECT takes.
#[repr(align(4096))]
struct Aligned(Page);

/// One request to the kernel.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub fd: RawFd,
    pub at: u64,
    pub direction: Direction,
    /// Points into the batch: unchanged until the kernel has taken the request.
    pub vectors: *const iovec,
    pub count: usize,
    /// The whole of a single vector, or less (injected short transfers).
    pub single: Option<(*mut u8, usize)>,
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

    /// Whether it waits for servers.
    pub fn is_patient(&self) -> bool {
        self.patient
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
    /// one page; for a read nobody else looks at it, for a write nobody changes it. With `place.direct` it is aligned
    /// to a page.
    pub unsafe fn push(&mut self, place: &Place, page: *mut Page) -> Option<usize> {
        if self.page_count == BATCH_MAX {
            return None;
        }
        let memory = page.cast::<u8>();
        self.patient &= !place.has_copy;
        let adjacent = self.run_count.checked_sub(1).filter(|&last| {
            let run = &self.runs[last];
            let same = match (&run.remote, &place.remote) {
                (Some(one), Some(other)) => one.merges() && std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other)),
                (None, None) => run.fd == place.fd,
                _ => false,
            };
            same && run.at + run.want as u64 == place.at
        });
        let at = adjacent.unwrap_or(self.run_count);
        let run = &mut self.runs[at];
        if adjacent.is_none() {
            let first = self.vector_count as u16;
            let (injector, remote) = (place.injector.clone(), place.remote.clone());
            let (fd, at, count) = (place.fd, place.at, place.count);
            *run = Run { fd, at, first, last: first, injector, remote, count, ..Run::NONE };
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
        let direction = self.direction;
        let run = &mut self.runs[i];
        if run.end.is_some() {
            return None;
        }
        if let Some(injector) = run.injector.as_ref().filter(|_| run.done == 0 && run.tries == 0) {
            run.upset = injector.upset(direction, run.at, run.want);
        }
        let limit = match run.upset {
            Upset::Error => {
                self.end(i, Transferred::Failed(Errno::IO));
                return None;
            }
            Upset::Full => {
                self.end(i, Transferred::Failed(Errno::NOSPC));
                return None;
            }
            Upset::Short(bytes) | Upset::Torn(bytes) | Upset::TornSilently(bytes) if run.done == 0 => Some(bytes),
            Upset::Torn(_) => {
                self.end(i, Transferred::Failed(Errno::IO));
                return None;
            }
            _ => None,
        };
        let vectors = &self.vectors[usize::from(run.first)..usize::from(run.last)];
        let single = match (vectors, limit) {
            ([one], None) => Some((one.iov_base.cast(), one.iov_len)),
            ([one, ..], Some(bytes)) => Some((one.iov_base.cast(), bytes.min(one.iov_len))),
            _ => None,
        };
        let (vectors, count) = (vectors.as_ptr(), vectors.len());
        Some(Request { fd: run.fd, at: run.at + run.done as u64, direction, vectors, count, single })
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
                // The page goes on as if its rest had been stored.
                let torn = matches!(run.upset, Upset::TornSilently(_)) && run.done == 0;
                let n = if torn { n.next_multiple_of(PAGE_SIZE) } else { n };
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
                    self.flip(i);
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

    /// An injected bit error in what was read, or stored.
    fn flip(&mut self, i: usize) {
        let run = &self.runs[i];
        let Some(last) = run.last.checked_sub(1) else { return };
        let end = self.vectors[usize::from(last)].iov_base.cast::<u8>();
        match (self.direction, run.upset) {
            // SAFETY: the vector's end is the end of the run's last page, of which the last byte was just read; the
            // memory is the batch's until it has ended (contract of `push`).
            (Direction::Read, Upset::Flip(bit)) => unsafe { *end.sub(1) ^= 1 << (bit % 8) },
            (Direction::Write, Upset::FlipStored(bit)) => {
                // The page itself must stay right: it may still be given back to the program.
                let mut wrong = Aligned([0; PAGE_SIZE]);
                // SAFETY: as above; the run's last page ends at `end`.
                wrong.0.copy_from_slice(unsafe { std::slice::from_raw_parts(end.sub(PAGE_SIZE), PAGE_SIZE) });
                wrong.0[bit as usize / 8 % PAGE_SIZE] ^= 1 << (bit % 8);
                let at = run.at + (run.want - PAGE_SIZE) as u64;
                // SAFETY: the descriptor is open while the pages' entries are in use (see `Place::fd`).
                let fd = unsafe { BorrowedFd::borrow_raw(run.fd) };
                // A disk that refuses this has the right page: no fault, then.
                let _ = rustix::io::pwrite(fd, &wrong.0, at);
            }
            _ => {}
        }
    }

    /// Whether a run is for a server.
    pub(super) fn is_remote(&self, i: usize) -> bool {
        self.runs[i].remote.is_some()
    }

    /// Whether all pages are on servers.
    pub(crate) fn is_away(&self) -> bool {
        self.runs[..self.run_count].iter().all(|run| run.remote.is_some())
    }

    /// Whether all pages are in files.
    pub(crate) fn is_local(&self) -> bool {
        self.runs[..self.run_count].iter().all(|run| run.remote.is_none())
    }

    /// What is to be asked of a server for a run; `None`: it has ended.
    pub(crate) fn remote_request(&mut self, i: usize) -> Option<RemoteRequest<'_>> {
        // Of injected faults those that end a run at once are of use here; a part of a run is not asked for.
        let request = self.request(i)?;
        let run = &self.runs[i];
        let memory = &self.vectors[usize::from(run.first)..usize::from(run.last)];
        let pages = (run.want - run.done) / PAGE_SIZE;
        Some(RemoteRequest { direction: request.direction, at: request.at, count: run.count, memory, pages })
    }

    /// Whose run it is, if it is on a server, has not ended and was not begun.
    pub(crate) fn remote_to_begin(&self, i: usize) -> Option<Arc<dyn RemoteRuns>> {
        let run = &self.runs[i];
        run.remote.clone().filter(|_| run.end.is_none() && !run.begun)
    }

    /// The run is in flight from now on, until it has ended.
    pub(crate) fn begun(&mut self, i: usize) {
        self.runs[i].begun = true;
    }

    /// Books what became of a run on a server.
    pub(crate) fn remote_ended(&mut self, i: usize, end: Transferred) {
        let run = &self.runs[i];
        match end {
            _ if run.end.is_some() => {}
            Transferred::Done => _ = self.completed(i, Ok(run.want - run.done)),
            end => self.end(i, end),
        }
    }

    /// Runs what has not ended nor begun and is on servers, one after the other.
    pub(crate) fn run_remotely(&mut self) {
        for first in 0..self.run_count {
            let Some(remote) = self.remote_to_begin(first) else { continue };
            let mut mine = [false; BATCH_MAX];
            for (mine, run) in mine.iter_mut().zip(&self.runs[..self.run_count]) {
                let same = |other: &Arc<dyn RemoteRuns>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&remote));
                *mine = run.end.is_none() && !run.begun && run.remote.as_ref().is_some_and(same);
            }
            remote.run(self, &mine);
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

impl Request {
    /// One `preadv` or `pwritev`, in the table that has the descriptor.
    fn run(&self, table: Option<&Table>) -> Result<usize, Errno> {
        if self.fd < 0 {
            return Err(Errno::BADF);
        }
        let one = self.single.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
        let (vectors, count) = one.as_ref().map_or((self.vectors, self.count), |one| (std::ptr::from_ref(one), 1));
        let nr = if self.direction == Direction::Read { nr::PREADV } else { nr::PWRITEV };
        let args = [self.fd as usize, vectors as usize, count, self.at as usize, 0, 0];
        // SAFETY: the descriptor is open while the pages' entries are in use (see `Place::fd`). The memory is the
        // batch's alone until it has ended (contract of `Batch::push`); `vectors` points to `count` of them, in the
        // batch or here.
        unsafe {
            match table {
                Some(table) => table.transfer(nr, args),
                None => syscall(nr, args),
            }
        }
    }
}
