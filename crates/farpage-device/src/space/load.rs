//! Reading pages back: one by one, or a window with one batch.

use super::*;

/// A read is tried this many times.
const READ_TRIES: usize = 3;

/// How a batch is run.
type RunBatch = fn(&Rings, &mut Batch, &mut dyn FnMut());

/// How a window is loaded.
#[derive(Clone, Copy)]
struct LoadWay {
    run: RunBatch,
    /// Waits for a server that is out of reach.
    patient: bool,
}

/// Where a page was, and which, when its read was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Located {
    /// The entry under which it really was.
    real: Entry,
    /// Its check value.
    check: Option<u128>,
}

/// What is to be read how.
pub(crate) struct LoadPlan {
    /// The pages that are read by a queue.
    real: [Option<Located>; BATCH_MAX],
    order: [u8; BATCH_MAX],
    queued: usize,
}

impl LoadPlan {
    pub(crate) fn queued(&self) -> &[u8] {
        &self.order[..self.queued]
    }

    pub(crate) fn real(&self, i: u8) -> Option<Located> {
        self.real.get(usize::from(i)).copied().flatten()
    }
}

impl SwapSpace {
    /// Reads a page back; a failed read is tried again.
    ///
    /// # Errors
    /// See [`LoadError`]; the content of `into` is then unspecified.
    pub fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        self.load_with(entry, into, true)
    }

    fn load_with(&self, entry: Entry, into: &mut Page, patient: bool) -> Result<(), LoadError> {
        // Where it is may change between two tries: a failing device is being drained.
        retry(|| {
            let real = self.resolve(entry);
            self.device(real)?.load_with(real, into, patient)
        })
    }

    /// Loads several pages. Those on queued devices are read all at once, adjacent ones merged, wherever they lie, and
    /// the others meanwhile, so that the whole costs about one read. Returns how many were loaded,
    /// from the first on, and why it stopped if not all were; the content of the others is unspecified.
    pub fn load_many(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        self.load_by(entries, into, LoadWay { run: Rings::run, patient: true })
    }

    /// As [`SwapSpace::load_many`], but does not wait for a server that is out of reach
    /// ([`LoadError::OutOfReach`]).
    pub fn load_in_reach(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        self.load_by(entries, into, LoadWay { run: Rings::run, patient: false })
    }

    /// As [`SwapSpace::load_many`], for a signal handler: one request after the other where pages do not lie side by
    /// side, and only calls that such a handler may make.
    pub fn load_plainly(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        self.load_by(entries, into, LoadWay { run: Rings::run_plainly, patient: true })
    }

    fn load_by(&self, entries: &[Entry], into: &mut [&mut Page], way: LoadWay) -> (usize, Option<LoadError>) {
        let mut done = 0;
        for (entries, into) in entries.chunks(BATCH_MAX).zip(into.chunks_mut(BATCH_MAX)) {
            let (n, error) = self.load_batch(entries, into, way);
            done += n;
            if error.is_some() {
                return (done, error);
            }
        }
        (done, None)
    }

    fn load_batch(&self, entries: &[Entry], into: &mut [&mut Page], way: LoadWay) -> (usize, Option<LoadError>) {
        let n = entries.len().min(into.len());
        let plan = self.plan(&entries[..n]);
        if plan.queued().is_empty() {
            return self.load_in_place(&entries[..n], into);
        }
        let batch = Batch::new(Direction::Read);
        let mut batch = if way.patient { batch } else { batch.impatient() };
        let mut numbers = [None; BATCH_MAX];
        for &i in plan.queued() {
            let page: *mut Page = &mut *into[usize::from(i)];
            // SAFETY: the page is borrowed mutably for this whole function; below, only pages that are not in the batch
            // are touched before it has been run.
            numbers[usize::from(i)] = unsafe { self.push(&mut batch, plan.real(i), page) };
        }
        let mut in_place: [Option<LoadError>; BATCH_MAX] = [None; BATCH_MAX];
        (way.run)(&self.rings, &mut batch, &mut || {
            self.load_others(&entries[..n], into, &numbers[..n], &mut in_place);
        });
        for i in 0..n {
            let error = match numbers[i] {
                None => in_place[i],
                Some(number) => {
                    self.finish(entries[i], plan.real(i as u8), batch.outcome(number), into[i], way.patient).err()
                }
            };
            if error.is_some() {
                return (i, error);
            }
        }
        (n, None)
    }

    /// Loads pages none of which is read by a queue.
    fn load_in_place(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        let n = entries.len();
        for (i, (entry, page)) in entries.iter().zip(into).enumerate() {
            if let Err(error) = self.load(*entry, page) {
                return (i, Some(error));
            }
        }
        (n, None)
    }

    /// Loads the pages that have no number.
    pub(crate) fn load_others(
        &self,
        entries: &[Entry],
        into: &mut [&mut Page],
        numbers: &[Option<usize>],
        out: &mut [Option<LoadError>; BATCH_MAX],
    ) {
        let others = numbers.iter().zip(entries).enumerate().filter(|(_, (number, _))| number.is_none());
        others.for_each(|(i, (_, entry))| out[i] = self.load(*entry, into[i]).err());
    }

    /// Which of the entries are read by a queue, in the order of their places.
    pub(crate) fn plan(&self, entries: &[Entry]) -> LoadPlan {
        let mut plan = LoadPlan { real: [None; BATCH_MAX], order: [0; BATCH_MAX], queued: 0 };
        for (i, &entry) in (0u8..).zip(entries.iter().take(BATCH_MAX)) {
            let real = self.resolve(entry);
            if self.device(real).is_ok_and(|device| !device.caps().synchronous) {
                plan.real[usize::from(i)] = Some(Located { real, check: self.check(real) });
                plan.order[plan.queued] = i;
                plan.queued += 1;
            }
        }
        let real = &plan.real;
        plan.order[..plan.queued].sort_unstable_by_key(|&i| real[usize::from(i)]);
        plan
    }

    /// Adds the read of an entry to a batch; `None`: it is to be loaded in place (an unaligned page, or an error that
    /// will show then).
    ///
    /// # Safety
    /// As for [`Batch::push`].
    pub(crate) unsafe fn push(&self, batch: &mut Batch, at: Option<Located>, page: *mut Page) -> Option<usize> {
        let real = at?.real;
        let place = self.device(real).ok()?.place(real)?;
        if place.is_direct() && !page.addr().is_multiple_of(PAGE_SIZE) {
            return None;
        }
        // SAFETY: caller's promise.
        unsafe { batch.push(&place, page) }
    }

    /// Books a page that a batch has read: looks at it, and reads it again, alone, if it is not right. `at`: as
    /// planned.
    ///
    /// A page of a server that is out of reach is asked for again if that is waited for (`patient`), or if there is a
    /// second copy.
    ///
    /// The caller may have given the entry up meanwhile, if it reads in advance; then its place may belong to another
    /// page, half written: [`LoadError::NotInUse`], and no fault of the device.
    pub(crate) fn finish(
        &self,
        entry: Entry,
        at: Option<Located>,
        outcome: Transferred,
        page: &mut Page,
        patient: bool,
    ) -> Result<(), LoadError> {
        let has_copy = || at.is_some_and(|at| self.device(at.real).is_ok_and(|device| device.has_copy(at.real)));
        if outcome == Transferred::OutOfReach && !patient && !has_copy() {
            return Err(LoadError::OutOfReach { device: entry.device(), slot: entry.slot() });
        }
        if let Some(Located { real, check }) = at {
            // A page that was moved to another device meanwhile may have left its place to one whose content is as
            // right.
            let still_there = || self.resolve(entry) == real;
            let mut right = || self.device(real).is_ok_and(|device| device.complete(real, page));
            if outcome == Transferred::Done && still_there() && right() {
                return Ok(());
            }
            if still_there() {
                if check.is_none() || self.check(real) != check {
                    return Err(LoadError::NotInUse { device: entry.device(), slot: entry.slot() });
                }
                self.queued_failures.fetch_add(1, Relaxed);
            }
        }
        self.load_with(entry, page, patient)
    }
}

/// Tries a read again when the device failed or brought something else; what is missing stays so.
pub(super) fn retry(mut read: impl FnMut() -> Result<(), LoadError>) -> Result<(), LoadError> {
    let mut result = read();
    for _ in 1..READ_TRIES {
        match result {
            Err(
                LoadError::Io { .. } | LoadError::ShortRead { .. } | LoadError::Gone { .. } | LoadError::Corrupt { .. },
            ) => result = read(),
            _ => break,
        }
    }
    result
}
