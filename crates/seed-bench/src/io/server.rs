//! A device whose pages are on a server, beside a bare client of the same server.

use super::ahead::{self, middle};
use super::bare::Bare;
use super::fio::Job;
use super::measure::{pages, shuffled, space, wrong};
use super::sample::{Row, Sampler};
use crate::failure::{Failure, Result};
use farpage_base::mem::units::Page;
use farpage_codec::page_hash::ContentKey;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{DeviceKind, SwapSpec};

/// Threads that read at the same time.
const THREADS: [(&str, usize); 4] = [("t1", 1), ("t2", 2), ("t4", 4), ("t8", 8)];
/// Pages that each of them reads in an operation.
const EACH: usize = 64;
/// Windows in flight.
const AHEAD: [Job; 3] = [
    Job { name: "ahead", in_order: true, batch: 32, depth: 4 },
    Job { name: "depth1", in_order: false, batch: 1, depth: 1 },
    Job { name: "depth8", in_order: false, batch: 1, depth: 8 },
];

/// Stores the pages, and reads them back: one and 32 at a time, ours and the bare client's rounds alternating; with
/// windows in flight; by several threads. Of each the round in the middle is shown.
pub fn rows(text: &str, source: &[Page], rounds: usize) -> Result<Vec<Row>> {
    let spec = SwapSpec::parse(text).map_err(|e| Failure::new(e.to_string()))?;
    let device = if matches!(spec.kind, DeviceKind::Nbd(_)) { "nbd" } else { "redis" };
    let n = source.len() / 32 * 32;
    let source = &source[..n];
    let space = space(spec.clone(), 1)?;
    let key = ContentKey::random();
    space.check_contents(key);
    let hashes: Vec<u128> = source.iter().map(|page| key.hash(page)).collect();
    let mut entries: Vec<Option<Entry>> = vec![None; n];
    let mut write = Sampler::new(n / 32);
    for (at, out) in (0..n).step_by(32).zip(entries.chunks_mut(32)) {
        let pages: Vec<(&Page, u128)> = (at..at + 32).map(|i| (&source[i], hashes[i])).collect();
        write
            .time(|| space.store_queued(&pages, out))
            .map_err(|e| Failure::new(format!("bench: cannot write: {e}")))?;
    }
    let entries: Vec<Entry> = entries.into_iter().flatten().collect();
    let mut bare = Bare::open(&spec, source)?;
    let mut rows = vec![write.row(device, "sync", "write", 32)];
    for (op, batch) in [("read rand", 1), ("read rand", 32), ("read seq", 32)] {
        let mut order: Vec<usize> = (0..n / batch).collect();
        if op == "read rand" {
            order = shuffled(n / batch);
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            theirs.push(bare_round(&mut bare, device, op, batch, &order)?);
            ours.push(round(&space, device, op, batch, &order, &entries, source)?);
        }
        rows.extend([ours, theirs].into_iter().filter_map(middle));
    }
    for job in AHEAD {
        let order = if job.in_order { (0..n).collect() } else { shuffled(n) };
        let read = if job.batch == 1 { ahead::read::<1> } else { ahead::read::<32> };
        let round = |_| read(&space, source, &entries, &order, job).map(|row| Row { device, ..row });
        rows.extend(middle((0..rounds).map(round).collect::<Result<_>>()?));
    }
    for (path, threads) in THREADS {
        let round = |_| threads_round(&space, device, path, threads, &entries);
        rows.extend(middle((0..rounds).map(round).collect::<Result<_>>()?));
    }
    bare.close(n)?;
    entries.iter().for_each(|entry| _ = space.free(*entry));
    Ok(rows)
}

fn bare_round(bare: &mut Bare, device: &'static str, op: &'static str, batch: usize, order: &[usize]) -> Result<Row> {
    let target = pages(batch)?;
    let mut sampler = Sampler::new(order.len());
    for window in order {
        sampler.time(|| bare.read(window * batch, target))?;
    }
    Ok(sampler.row(device, "bare", op, batch))
}

fn round(
    space: &SwapSpace,
    device: &'static str,
    op: &'static str,
    batch: usize,
    order: &[usize],
    entries: &[Entry],
    source: &[Page],
) -> Result<Row> {
    let target = pages(batch)?;
    let mut sampler = Sampler::new(order.len());
    for window in order {
        let at = window * batch;
        let mut into: Vec<&mut Page> = target.iter_mut().collect();
        let (loaded, error) = sampler.time(|| space.load_many(&entries[at..at + batch], &mut into));
        if let Some(error) = error.filter(|_| loaded < batch) {
            return Err(Failure::new(format!("bench: cannot read: {error}")));
        }
        (*target == source[at..at + batch]).then_some(()).ok_or_else(|| wrong(device, at))?;
    }
    Ok(sampler.row(device, "sync", op, batch))
}

/// Threads that read pages anywhere; an operation is [`EACH`] pages of each.
fn threads_round(
    space: &SwapSpace,
    device: &'static str,
    path: &'static str,
    threads: usize,
    entries: &[Entry],
) -> Result<Row> {
    let order = shuffled(entries.len());
    let mut sampler = Sampler::new(order.len() / (EACH * threads));
    for parts in order.chunks_exact(EACH * threads) {
        let right = sampler.time(|| {
            std::thread::scope(|scope| {
                let read = |part: &[usize]| {
                    let mut page = [0; farpage::PAGE_SIZE];
                    part.iter().all(|i| space.load(entries[*i], &mut page).is_ok())
                };
                let readers: Vec<_> = parts.chunks_exact(EACH).map(|part| scope.spawn(move || read(part))).collect();
                readers.into_iter().all(|reader| reader.join().unwrap_or(false))
            })
        });
        right.then_some(()).ok_or_else(|| wrong(device, parts[0]))?;
    }
    Ok(sampler.row(device, path, "read rand", EACH * threads))
}
