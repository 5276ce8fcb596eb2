//! A file read with several windows in flight, as a thread does that has the next windows read while it uses one; and
//! the same file read by fio, with as much in flight.

use super::fio::{self, Job};
use super::measure::{pages, shuffled, wrong};
use super::sample::{Row, Sampler};
use crate::failure::{Failure, Result};
use farpage_base::mem::units::Page;
use farpage_codec::page_hash::ContentKey;
use farpage_device::read_queue::{Arrived, ReadQueue, Submitted};
use farpage_device::{Entry, SwapSpace};
use std::path::Path;

/// Ours, and fio's that is compared with it: as many bytes in flight.
const PAIRS: [(Job, Job); 3] = [
    (
        Job { name: "ahead", in_order: true, batch: 32, depth: 4 },
        Job { name: "depth4", in_order: true, batch: 32, depth: 4 },
    ),
    (
        Job { name: "ahead16", in_order: true, batch: 64, depth: 16 },
        Job { name: "depth4", in_order: true, batch: 256, depth: 4 },
    ),
    (
        Job { name: "ahead16", in_order: false, batch: 2, depth: 16 },
        Job { name: "depth32", in_order: false, batch: 1, depth: 32 },
    ),
];

/// Stores the pages, and reads them back in order and not, window after window. Ours and fio's rounds alternate; of
/// each the round in the middle is shown.
pub fn rows(space: &SwapSpace, file: &Path, source: &[Page], key: &ContentKey, rounds: usize) -> Result<Vec<Row>> {
    let n = source.len();
    let stored: Vec<(&Page, u128)> = source.iter().map(|page| (page, key.hash(page))).collect();
    let mut entries: Vec<Option<Entry>> = vec![None; n];
    for (pages, out) in stored.chunks(32).zip(entries.chunks_mut(32)) {
        space.store_queued(pages, out).map_err(|e| Failure::new(format!("bench: cannot write: {e}")))?;
    }
    let entries: Vec<Entry> = entries.into_iter().flatten().collect();
    let obstacle = fio::obstacle();
    if let Some(obstacle) = &obstacle {
        eprintln!("bench: {obstacle}: no rows of it");
    }
    let mut rows = Vec::new();
    for (ours, theirs) in PAIRS {
        let order = if ours.in_order { (0..n).collect() } else { shuffled(n) };
        let read = match ours.batch {
            2 => read::<2>,
            32 => read::<32>,
            _ => read::<64>,
        };
        let (mut own, mut fios) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            own.push(read(space, source, &entries, &order, ours)?);
            if obstacle.is_none() {
                fios.push(fio::read(file, n, theirs)?);
            }
        }
        rows.extend([own, fios].into_iter().filter_map(middle));
    }
    entries.iter().for_each(|entry| _ = space.free(*entry));
    Ok(rows)
}

/// The row of the round that was neither fast nor slow.
pub fn middle(mut rounds: Vec<Row>) -> Option<Row> {
    rounds.sort_by(|a, b| a.mib_per_s.total_cmp(&b.mib_per_s));
    let at = rounds.len() / 2;
    (at < rounds.len()).then(|| rounds.swap_remove(at))
}

/// An operation is: take the next window that has arrived (its pages have been compared with their hashes), and have
/// another one read into its place. A page of each is compared with the original, outside of the timed part.
pub fn read<const N: usize>(
    space: &SwapSpace,
    source: &[Page],
    entries: &[Entry],
    order: &[usize],
    job: Job,
) -> Result<Row> {
    let memory = pages(job.depth * N)?;
    let base = memory.as_mut_ptr();
    let windows: Vec<&[usize]> = order.chunks_exact(N).collect();
    let mut queue = ReadQueue::new();
    let mut sampler = Sampler::new(windows.len());
    // A tag is the window's number and its part of `memory`.
    let submit = |queue: &mut ReadQueue, number: usize, part: usize| -> Submitted {
        let tag = (number * job.depth + part) as u64;
        // SAFETY: this part of `memory` is not in flight: nothing has been yet, or the window in it has arrived.
        let part: &mut [Page; N] = unsafe { &mut *base.add(part * N).cast() };
        let mut into = part.each_mut();
        let wanted: [Entry; N] = std::array::from_fn(|i| entries[windows[number][i]]);
        // SAFETY: no thread touches the pages until the window has been named; the queue stays on this thread and is
        // emptied below.
        unsafe { queue.submit(space, tag, &wanted, &mut into) }
    };
    let mut early: Vec<Arrived> = Vec::new();
    let mut next = 0;
    let mut failed = None;
    for _ in 0..windows.len() {
        let arrived = sampler.time(|| {
            // The first time.
            while next < windows.len().min(job.depth) {
                if let Submitted::Done(arrived) = submit(&mut queue, next, next) {
                    early.push(arrived);
                }
                next += 1;
            }
            early.pop().or_else(|| queue.wait(space))
        });
        let Some(Arrived { tag, loaded, error }) = arrived else { break };
        let (first, part) = (windows[tag as usize / job.depth][0], tag as usize % job.depth);
        // SAFETY: the window has arrived: its part of `memory` is not used elsewhere.
        let page = unsafe { &*base.add(part * N) };
        if loaded < N || *page != source[first] {
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
    // SAFETY: nothing is in flight, and nothing else has the pages' address.
    let _ = unsafe { rustix::mm::munmap(base.cast(), job.depth * N * size_of::<Page>()) };
    let op = if job.in_order { "read seq" } else { "read rand" };
    failed.map_or_else(|| Ok(sampler.row("file", job.name, op, N)), Err)
}
