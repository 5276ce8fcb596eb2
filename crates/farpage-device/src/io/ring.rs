//! io_uring rings: one for each thread that does page I/O.
//!
//! A ring belongs to the thread that made it (`SINGLE_ISSUER`) and completes nothing behind its back
//! (`DEFER_TASKRUN`): fewest wake-ups, and no lock is waited for. Rings are made at the first batch of a thread. Where
//! io_uring is refused (`kernel.io_uring_disabled`, seccomp, no descriptors left), batches are run by `preadv` and
//! `pwritev`, one run after the other; the result is the same.
//!
//! Neither files nor buffers are registered ([devices.md] has the measurements). *Files*: the kernel lets go of a
//! registered file when the ring is freed, in a worker of its own, tens of milliseconds after the process is gone;
//! until then the next process finds a swap file with a name, or a block device, in use. A request gets 3 to 5 %
//! cheaper. *Buffers*: frames are moved by `UFFDIO_MOVE`, which refuses pinned pages (O_DIRECT pins them during the
//! transfer only), and copying from a registered buffer into a frame costs what it saves. A page that is copied to the
//! program anyway is read alone, by `preadv`, and that is no slower.
//!
//! [devices.md]: ../../../../../docs/dev/devices.md
//!
//! # Forks
//! A ring is tied to descriptor table and address space of the process that made it. Its mappings are `MADV_DONTFORK`,
//! so a forked child has no ring memory at all; the child forgets its copies of the handles (nothing is unmapped,
//! nothing closed: other things may be at those addresses and numbers by then) and makes rings of its own. Mappings of
//! a ring are shared ones, which the engine never adopts.

#[cfg(test)]
mod tests;

use super::{BATCH_MAX, Batch, Direction, Request};
use farpage_base::sys::message::fatal;
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::raw::gettid;
use farpage_base::sys::table::Table;
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Threads that can have a ring at the same time; others do without.
const RINGS: usize = 8;
/// `IORING_REGISTER_EVENTFD`.
const REGISTER_EVENTFD: u8 = 4;
/// First and longest pause after a refusal by a ring that holds requests, and for how long it may go on refusing. Then
/// there is no saying what becomes of their memory.
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(10);
const IO_WAIT_MAX: Duration = Duration::from_secs(60);

/// One io_uring, for the thread that made it.
pub struct IoRing {
    uring: ManuallyDrop<IoUring>,
    /// Process that made it.
    owner: u32,
    /// Requests the kernel has and that have not been booked.
    in_flight: usize,
}

impl IoRing {
    /// A ring of the calling thread, for `entries` requests at a time.
    ///
    /// # Errors
    /// What the kernel said; ENOSYS and EPERM mean that there is no io_uring here.
    pub fn new(entries: u32) -> Result<IoRing, Errno> {
        let mut builder: io_uring::Builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all().dontfork();
        let uring = builder.setup_r_disabled().build(entries).map_err(errno)?;
        // The queue is memory of the process, which the program can write, and seccomp filters do not see what is in
        // it. So the ring does what `push` asks for, and nothing else, such as opening files or connecting.
        let mut allowed = [
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Writev::CODE),
            Restriction::register_op(REGISTER_EVENTFD),
        ];
        uring.submitter().register_restrictions(&mut allowed).map_err(errno)?;
        uring.submitter().register_enable_rings().map_err(errno)?;
        Ok(IoRing { uring: ManuallyDrop::new(uring), owner: process(), in_flight: 0 })
    }

    /// From now on adds to `eventfd` whenever a completion can be booked. (Polling the ring itself is no way to wait:
    /// with deferred completions nothing wakes the poller.)
    ///
    /// # Errors
    /// What the kernel said.
    pub fn notify(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.uring.submitter().register_eventfd(eventfd.as_raw_fd()).map_err(errno)
    }

    /// Requests that have not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// In a forked child: the ring is the parent's, and nothing of it is here. Leaks a small record.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Queues all runs of a batch, marked with `tag`. The caller has seen to it that the ring has room.
    ///
    /// # Safety
    /// Batch and memory stay where they are, untouched, until every run has been booked ([`IoRing::reap`]).
    pub(crate) unsafe fn queue(&mut self, batch: &mut Batch, tag: u32) {
        for i in 0..batch.runs() {
            if batch.is_remote(i) {
                continue;
            }
            if let Some(request) = batch.request(i) {
                // SAFETY: caller's promise.
                unsafe { self.push(&request, tag, i) };
            }
        }
    }

    /// # Safety
    /// As for [`IoRing::queue`].
    unsafe fn push(&mut self, request: &Request, tag: u32, run: usize) {
        let fd = types::Fd(request.fd);
        let (vectors, count) = (request.vectors, request.count as u32);
        let entry: squeue::Entry = match (request.direction, request.single) {
            (Direction::Read, Some((base, len))) => opcode::Read::new(fd, base, len as u32).offset(request.at).build(),
            (Direction::Write, Some((base, len))) => {
                opcode::Write::new(fd, base, len as u32).offset(request.at).build()
            }
            (Direction::Read, None) => opcode::Readv::new(fd, vectors, count).offset(request.at).build(),
            (Direction::Write, None) => opcode::Writev::new(fd, vectors, count).offset(request.at).build(),
        };
        let entry = entry.user_data(u64::from(tag) << 16 | run as u64);
        let mut refusals = Refusals::default();
        loop {
            // SAFETY: descriptor and memory are valid until the completion (caller's promise).
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                break;
            }
            // Full: only if the caller queues more than the ring was made for.
            if self.uring.submit().is_err() {
                refusals.wait();
            }
        }
        self.in_flight += 1;
    }

    /// Hands what is queued to the kernel and waits for `want` completions (0: does not wait). A refusal by a ring that
    /// holds requests is no reason to go on without them, because the kernel may still read or write their memory: it
    /// is waited out, and ends the process if it lasts.
    ///
    /// # Errors
    /// The kernel takes nothing at all from this ring, and has nothing: what is queued never happened.
    pub(crate) fn enter(&mut self, want: usize) -> Result<(), Errno> {
        let mut refusals = Refusals::default();
        loop {
            let result = self.uring.submit_and_wait(want);
            let queued = self.uring.submission().len();
            match result {
                Ok(_) if queued == 0 => return Ok(()),
                // Completions must be booked before the rest is taken.
                Ok(_) => {
                    if !self.uring.completion().is_empty() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    if !self.uring.completion().is_empty() {
                        return Ok(());
                    }
                    let error = errno(error);
                    let passing = matches!(error, Errno::INTR | Errno::AGAIN | Errno::BUSY);
                    if !passing && queued == self.in_flight {
                        self.in_flight = 0;
                        return Err(error);
                    }
                    // A signal is no refusal; the rest passes when others have given memory back.
                    if error != Errno::INTR {
                        refusals.wait();
                    }
                }
            }
        }
    }

    /// Next completion: tag, run, result. Does not enter the kernel.
    pub(crate) fn reap(&mut self) -> Option<(u32, usize, Result<usize, Errno>)> {
        let done = self.uring.completion().next()?;
        self.in_flight -= 1;
        let data = done.user_data();
        let result = usize::try_from(done.result()).map_err(|_| Errno::from_raw_os_error(-done.result()));
        Some(((data >> 16) as u32, (data & 0xffff) as usize, result))
    }

    /// Runs a batch to its end; `meanwhile` is called while the kernel works.
    ///
    /// # Errors
    /// The ring is of no use, and nothing was done (`meanwhile` may have been called; it is then not called again).
    fn run(&mut self, batch: &mut Batch, meanwhile: &mut Option<&mut dyn FnMut()>) -> Result<(), Errno> {
        // SAFETY: this function does not return before every request has been booked or was never submitted.
        unsafe { self.queue(batch, 0) };
        if let Some(work) = meanwhile.take_if(|_| self.in_flight > 0) {
            self.enter(0)?;
            work();
        }
        while self.in_flight > 0 {
            self.enter(self.in_flight)?;
            while let Some((_, run, result)) = self.reap() {
                if batch.completed(run, result)
                    && let Some(request) = batch.request(run)
                {
                    // SAFETY: as above.
                    unsafe { self.push(&request, 0, run) };
                }
            }
        }
        Ok(())
    }
}

/// Refusals in a row.
struct Refusals {
    pause: Duration,
    waited: Duration,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals { pause: PAUSE_MIN, waited: Duration::ZERO }
    }
}

impl Refusals {
    /// Pauses before the next try, longer each time. Does not return when there have been too many.
    fn wait(&mut self) {
        if self.waited > IO_WAIT_MAX {
            // Their memory may be written at any later time: nothing is safe any more.
            fatal("swap: io_uring neither completes requests nor takes them back");
        }
        let pause = Timespec { tv_sec: 0, tv_nsec: self.pause.subsec_nanos().into() };
        // Cut short by a signal: a try more.
        let _ = rustix::thread::nanosleep(&pause);
        self.waited += self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Drop for IoRing {
    fn drop(&mut self) {
        // In a forked child the addresses and the descriptor number may be another file's.
        if self.owner == process() {
            // SAFETY: dropped once, here. Requests in flight do not outlive `run`; `ReadQueue` waits for its own.
            unsafe { ManuallyDrop::drop(&mut self.uring) };
        }
    }
}

/// A ring for each thread that asks.
pub struct Rings {
    /// Thread ids; 0: free.
    owners: [AtomicU32; RINGS],
    rings: [Mutex<Option<IoRing>>; RINGS],
    /// No io_uring here.
    refused: AtomicBool,
    /// Requests that went out, pages in them.
    requests: AtomicU64,
    pages: AtomicU64,
    /// Simulated: so long until a request starts that does not go on where the last one ended, microseconds.
    seek_us: AtomicU32,
    /// Where that one ended.
    head: Mutex<(RawFd, u64)>,
    /// The table that the files' descriptors are ones of, if it is not that of all readers.
    table: OnceLock<Arc<Table>>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings {
            owners: std::array::from_fn(|_| AtomicU32::new(0)),
            rings: std::array::from_fn(|_| Mutex::new(None)),
            refused: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            seek_us: AtomicU32::new(0),
            head: Mutex::new((-1, 0)),
            table: OnceLock::new(),
        }
    }
}

impl Rings {
    /// Runs a batch to its end, with `preadv` and `pwritev` where there is no ring. `meanwhile` runs in the calling
    /// thread while the kernel works on the batch (or before it), and may run batches itself.
    pub fn run(&self, batch: &mut Batch, meanwhile: &mut dyn FnMut()) {
        self.begin(batch);
        let mut meanwhile = Some(meanwhile);
        // One run that is waited for gains nothing by a ring, and a write to new blocks loses: the ring passes it on to
        // a kernel thread.
        // The ring is held by this thread alone: by itself, if `meanwhile` does I/O of its own, which is then done
        // plainly.
        if batch.runs() > 1
            && batch.is_local()
            && self.table().is_none_or(|table| table.is_member())
            && let Some(mut place) = self.cell().and_then(Mutex::try_lock)
        {
            if place.is_none() {
                match IoRing::new(BATCH_MAX as u32) {
                    Ok(ring) => *place = Some(ring),
                    Err(_) => self.refuse(),
                }
            }
            if let Some(ring) = place.as_mut() {
                if ring.run(batch, &mut meanwhile).is_err() {
                    *place = None;
                    self.refuse();
                }
                drop(place);
            }
        }
        if let Some(work) = meanwhile {
            work();
        }
        batch.run_plainly(self.table());
    }

    /// As [`Rings::run`], by `preadv` and `pwritev` only: for a signal handler, which must not make a ring.
    pub fn run_plainly(&self, batch: &mut Batch, meanwhile: &mut dyn FnMut()) {
        self.begin(batch);
        meanwhile();
        batch.run_plainly(self.table());
    }

    fn begin(&self, batch: &Batch) {
        self.requests.fetch_add(batch.runs() as u64, Relaxed);
        self.pages.fetch_add(batch.len() as u64, Relaxed);
        self.seek(batch);
    }

    /// From now on files are read and written in this table, and rings are for its threads only: the program could
    /// close one of another thread's.
    pub fn belong_to(&self, table: &Arc<Table>) {
        let _ = self.table.set(table.clone());
    }

    /// See [`Rings::belong_to`].
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.get()
    }

    /// From now on the device is one with a single head that takes this long to move: for measurements.
    pub fn simulate_seeks(&self, us: u32) {
        self.seek_us.store(us, Relaxed);
    }

    /// Whether seeks are simulated.
    pub fn has_seeks(&self) -> bool {
        self.seek_us.load(Relaxed) > 0
    }

    fn seek(&self, batch: &Batch) {
        if !self.has_seeks() {
            return;
        }
        let pause = std::time::Duration::from_micros(self.seek_us.load(Relaxed).into());
        for run in &batch.runs[..batch.run_count] {
            // Held while it moves: there is one head.
            let mut head = self.head.lock();
            if *head != (run.fd(), run.at()) {
                std::thread::sleep(pause);
            }
            *head = (run.fd(), run.at() + run.want as u64);
        }
    }

    /// Whether the calling thread has taken a place for a ring; for tests.
    #[cfg(test)]
    pub fn has_mine(&self) -> bool {
        let me = gettid();
        self.owners.iter().any(|owner| owner.load(Relaxed) == me)
    }

    /// Whether io_uring was refused.
    pub fn refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// From now on without io_uring.
    pub fn refuse(&self) {
        self.refused.store(true, Relaxed);
    }

    /// Requests that went out so far, and the pages in them: how well they merge.
    pub fn counts(&self) -> (u64, u64) {
        (self.requests.load(Relaxed), self.pages.load(Relaxed))
    }

    /// In a forked child, before anything else: the rings are the parent's.
    pub fn fork_child(&self) {
        for (owner, ring) in self.owners.iter().zip(&self.rings) {
            owner.store(0, Relaxed);
            if let Some(ring) = ring.lock().take() {
                ring.forget();
            }
        }
    }

    /// The calling thread's cell; `None`: all are taken, or there is no io_uring.
    fn cell(&self) -> Option<&Mutex<Option<IoRing>>> {
        if self.refused() {
            return None;
        }
        let me = gettid();
        let mine = |owner: &AtomicU32| owner.load(Relaxed) == me;
        let claim = |owner: &AtomicU32| owner.compare_exchange(0, me, Relaxed, Relaxed).is_ok();
        let i = self.owners.iter().position(mine).or_else(|| self.owners.iter().position(claim))?;
        self.rings.get(i)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}
