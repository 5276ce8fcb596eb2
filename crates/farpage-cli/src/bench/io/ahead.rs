//! A file read in order with several windows in flight, as a thread does that has the next windows read while it uses one.

use super::measure::{pages, shuffled, wrong};
use super::sample::{Row, Sampler};
use crate::failure::{Failure, Result};
use farpage::content::ContentKey;
use farpage::device::read_queue::{Arrived, ReadQueue, Submitted};
use farpage::device::{Entry, Page, SwapSpace};

/// Pages of a window.
const WINDOW: usize = 32;
/// Windows in flight.
const DEPTH: usize = 4;

/// Stores the pages, and reads them back in order and not, window after window.
pub fn rows(space: &SwapSpace, source: &[Page], key: &ContentKey) -> Result<Vec<Row>> {
    let n = source.len() / WINDOW * WINDOW;
    let stored: Vec<(&Page, u128)> = source[..n].iter().map(|page| (page, key.hash(page))).collect();
    let mut entries: Vec<Option<Entry>> = vec![None; n];
    for (pages, out) in stored.chunks(WINDOW).zip(entries.chunks_mut(WINDOW)) {
        space.store_queued(pages, out).map_err(|e| Failure::new(format!("bench: cannot write: {e}")))?;
    }
    let entries: Vec<Entry> = entries.into_iter().flatten().collect();
    let mut rows = Vec::new();
    for (op, order) in [("read seq", (0..n).collect()), ("read rand", shuffled(n))] {
        rows.push(read(space, source, &entries, &order)?.row("file", "ahead", op, WINDOW));
    }
    entries.iter().for_each(|entry| _ = space.free(*entry));
    Ok(rows)
}

/// An operation is: take the next window that has arrived (its pages have been compared with their hashes), and have another
/// one read into its place. A page of each is compared with the original, outside of the timed part.
fn read(space: &SwapSpace, source: &[Page], entries: &[Entry], order: &[usize]) -> Result<Sampler> {
    let memory = pages(DEPTH * WINDOW)?;
    let base = memory.as_mut_ptr();
    let windows: Vec<&[usize]> = order.chunks_exact(WINDOW).collect();
    let mut queue = ReadQueue::new();
    let mut sampler = Sampler::new(windows.len());
    // A tag is the window's number and its part of `memory`.
    let submit = |queue: &mut ReadQueue, number: usize, part: usize| -> Submitted {
        let tag = (number * DEPTH + part) as u64;
        // SAFETY: this part of `memory` is not in flight: nothing has been yet, or the window in it has arrived.
        let part: &mut [Page; WINDOW] = unsafe { &mut *base.add(part * WINDOW).cast() };
        let mut into = part.each_mut();
        let wanted: [Entry; WINDOW] = std::array::from_fn(|i| entries[windows[number][i]]);
        // SAFETY: nobody touches the pages until the window has been named; the queue stays on this thread and is
        // emptied below.
        unsafe { queue.submit(space, tag, &wanted, &mut into) }
    };
    let mut early: Vec<Arrived> = Vec::new();
    let mut next = 0;
    while next < windows.len().min(DEPTH) {
        if let Submitted::Done(arrived) = submit(&mut queue, next, next) {
            early.push(arrived);
        }
        next += 1;
    }
    let mut failed = None;
    for _ in 0..windows.len() {
        let arrived = sampler.time(|| early.pop().or_else(|| queue.wait(space)));
        let Some(Arrived { tag, loaded, error }) = arrived else { break };
        let (first, part) = (windows[tag as usize / DEPTH][0], tag as usize % DEPTH);
        // SAFETY: the window has arrived: its part of `memory` is nobody's.
        let page = unsafe { &*base.add(part * WINDOW) };
        if loaded < WINDOW || *page != source[first] {
            failed = failed.or(Some(error.map_or(wrong("the file", first), |e| Failure::new(format!("bench: {e}")))));
        }
        if next < windows.len() {
            if let Submitted::Done(arrived) = sampler.extend(|| submit(&mut queue, next, part)) {
                early.push(arrived);
            }
            next += 1;
        }
    }
    queue.finish_all(space, |_| ());
    failed.map_or(Ok(sampler), Err)
}
