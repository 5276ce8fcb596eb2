//! The measurements themselves.

use super::ahead;
use super::queue::Queue;
use super::sample::{Row, Sampler};
use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use farpage_base::mem::units::Page;
use farpage_codec::lz4;
use farpage_codec::page_hash::ContentKey;
use farpage_device::io::{BATCH_MAX, Batch, Direction, Place, Rings, Transferred};
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{Alg, DeviceKind, SwapSpec};
use farpage_swap::sim::mix;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::path::{Path, PathBuf};

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// `n` page-aligned pages, private and present.
pub fn pages(n: usize) -> Result<&'static mut [Page]> {
    // SAFETY: a new mapping at an address the kernel chooses; it stays for the life of the process.
    let memory = unsafe {
        mmap_anonymous(std::ptr::null_mut(), n * PAGE_SIZE, RW, MapFlags::PRIVATE | MapFlags::POPULATE)
            .map_err(|e| Failure::new(format!("cannot map {n} pages: {e}")))?
    };
    // SAFETY: the mapping is `n` pages of zeros; nothing else has its address.
    Ok(unsafe { std::slice::from_raw_parts_mut(memory.cast::<Page>(), n) })
}

/// Fills pages with phrases of 32 bytes, one in seven random, the others out of 16: LZ4 makes about a third of it.
fn fill(pages: &mut [Page]) {
    for (number, page) in (0u64..).zip(pages) {
        for (at, phrase) in (0u64..).zip(page.chunks_exact_mut(32)) {
            let dice = mix(number << 16 | at);
            let source = if dice.is_multiple_of(7) { dice } else { dice >> 8 & 15 };
            for (i, word) in (0u64..).zip(phrase.chunks_exact_mut(8)) {
                word.copy_from_slice(&mix(source << 3 | i).to_ne_bytes());
            }
        }
    }
}

/// `n` pages to work with: from a file, as often as it takes, or made up.
pub fn source(n: usize, sample: Option<&Path>) -> Result<&'static [Page]> {
    let all = pages(n)?;
    let Some(path) = sample else {
        fill(all);
        return Ok(all);
    };
    let bytes = std::fs::read(path).map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display())))?;
    let (found, _) = bytes.as_chunks::<PAGE_SIZE>();
    let mut found = found.iter().filter(|page| page.iter().any(|byte| *byte != 0)).peekable();
    if found.peek().is_none() {
        return Err(Failure::new(format!("{} holds no page that is not zero", path.display())));
    }
    let found: Vec<&Page> = found.collect();
    all.iter_mut().zip(found.iter().cycle()).for_each(|(to, from)| *to = **from);
    Ok(all)
}

/// 0 to `n` - 1 in another order.
pub fn shuffled(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    (1..n).rev().for_each(|i| order.swap(i, (mix(i as u64) % (i as u64 + 1)) as usize));
    order
}

pub fn space(spec: SwapSpec, n: usize) -> Result<SwapSpace> {
    let len = (n * PAGE_SIZE * 4).next_multiple_of(4 << 20);
    // SAFETY: as in `pages`.
    let memory = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, RW, MapFlags::PRIVATE | MapFlags::POPULATE)
            .map_err(|e| Failure::new(format!("cannot map {len} bytes: {e}")))?
    };
    // SAFETY: the mapping is private, and the space's alone from now on.
    unsafe { SwapSpace::build(&[spec], memory.cast(), len, len as u64) }.map_err(|e| Failure::new(e.to_string()))
}

pub fn wrong(what: &str, number: usize) -> Failure {
    Failure::new(format!("bench: page {number} came back wrong from {what}"))
}

pub fn compressor() -> Result<lz4::Compressor> {
    lz4::Compressor::new().ok_or_else(|| Failure::new("bench: no state for LZ4"))
}

/// How a space is asked.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Sync,
    Boxed,
    Queued,
}

/// Devices in memory. Rounds of all ways alternate, so that a busy machine hits all alike.
pub fn memory(source: &[Page], rounds: usize) -> Result<Vec<Row>> {
    let n = source.len();
    let order = shuffled(n);
    let target = &mut pages(1)?[0];
    let ram = space(DeviceKind::Ram.into(), n)?;
    let zram = space(SwapSpec::zram(Alg::Lz4), n)?;
    let plain = pages(n)?;
    let mut compressed: Vec<Vec<u8>> = Vec::new();
    let ways = [
        ("ram", "sync", Way::Sync, &ram),
        ("ram", "boxed", Way::Boxed, &ram),
        ("ram", "queued", Way::Queued, &ram),
        ("zram", "sync", Way::Sync, &zram),
    ];
    let mut samplers: Vec<[Sampler; 3]> =
        (0..ways.len() + 2).map(|_| [0, 1, 2].map(|_| Sampler::new(n * rounds))).collect();
    let mut compressor = compressor()?;
    let mut out = vec![0; lz4::bound(PAGE_SIZE)];
    let mut kept: Vec<Vec<Option<Entry>>> = vec![vec![None; n]; ways.len()];
    // What a device makes when it is filled for the first time, and when pages are replaced for the first time, is not
    // what a page costs. From then on every page replaces one.
    for ((device, _, _, space), kept) in ways.iter().zip(&mut kept) {
        for i in (0..n).chain(0..n) {
            let stored = space.store_now(&source[i], i as u128).ok().flatten();
            let entry = stored.ok_or_else(|| Failure::new(format!("bench: {device} took no page")))?;
            kept[i].replace(entry).map(|old| space.free(old));
        }
    }
    for _ in 0..rounds {
        let [write, read, _] = &mut samplers[0];
        for (from, to) in source.iter().zip(plain.iter_mut()) {
            write.time(|| to.copy_from_slice(from));
        }
        for &i in &order {
            read.time(|| target.copy_from_slice(&plain[i]));
            (*target == source[i]).then_some(()).ok_or_else(|| wrong("memory", i))?;
        }
        // Bare LZ4 and a copy of the result, as zram has to make one.
        let [write, read, _] = &mut samplers[1];
        compressed.resize_with(n, || Vec::with_capacity(PAGE_SIZE + 64));
        for (from, to) in source.iter().zip(&mut compressed) {
            write.time(|| {
                let len = compressor.compress(from, &mut out).unwrap_or(0);
                to.clear();
                to.extend_from_slice(&out[..len]);
            });
        }
        for &i in &order {
            let ok = read.time(|| {
                let bytes = &mut out[..compressed[i].len()];
                bytes.copy_from_slice(&compressed[i]);
                lz4::decompress(bytes, &mut target[..]).is_some()
            });
            (ok && *target == source[i]).then_some(()).ok_or_else(|| wrong("LZ4", i))?;
        }
        for (((device, _, way, space), samplers), kept) in ways.iter().zip(&mut samplers[2..]).zip(&mut kept) {
            round(device, space, *way, source, &order, target, samplers, kept)?;
        }
    }
    let names = [("memcpy", "direct"), ("lz4", "direct")].into_iter().chain(ways.iter().map(|w| (w.0, w.1)));
    let mut rows = Vec::new();
    for ((device, path), [write, read, free]) in names.zip(samplers) {
        rows.push(write.row(device, path, "write", 1));
        rows.push(read.row(device, path, "read rand", 1));
        // No queue is in the way of this one.
        if path == "sync" {
            rows.push(free.row(device, path, "free", 1));
        }
    }
    Ok(rows)
}

/// Stores every page in place of the one of the last round, as swapping out again does, and loads all of them in
/// another order.
#[allow(clippy::too_many_arguments, reason = "what is measured, what with, and where it is noted")]
fn round(
    device: &str,
    space: &SwapSpace,
    way: Way,
    source: &[Page],
    order: &[usize],
    target: &mut Page,
    [write, read, free]: &mut [Sampler; 3],
    kept: &mut [Option<Entry>],
) -> Result<()> {
    let queue = Queue::new(space);
    let mut entries: Vec<Entry> = Vec::with_capacity(source.len());
    std::thread::scope(|scope| {
        if way == Way::Queued {
            scope.spawn(|| queue.serve());
        }
        let mut run = || -> Result<()> {
            for (i, page) in source.iter().enumerate() {
                let stored = write.time(|| match way {
                    Way::Sync => space.store_now(page, i as u128).ok().flatten(),
                    _ => queue.store(page, i as u128, way == Way::Boxed),
                });
                let entry = stored.ok_or_else(|| Failure::new(format!("bench: {device} took no page")))?;
                entries.push(entry);
                // What has gone before gives its memory to the next page: no memory is asked of the kernel, as for the
                // others.
                if let Some(old) = kept[i].replace(entry) {
                    free.time(|| _ = space.free(old));
                }
            }
            for &i in order {
                read.time(|| match way {
                    Way::Sync => _ = space.load(entries[i], target),
                    _ => queue.load(entries[i], target, way == Way::Boxed),
                });
                (*target == source[i]).then_some(()).ok_or_else(|| wrong(device, i))?;
            }
            Ok(())
        };
        let result = run();
        queue.stop();
        result
    })?;
    Ok(())
}

/// A file device: batches of 1, 8 and 32 pages, with io_uring and without.
pub fn file(dir: &Path, source: &[Page], rounds: usize) -> Result<Vec<Row>> {
    let n = source.len() / BATCH_MAX * BATCH_MAX;
    let source = &source[..n];
    let mut rows = Vec::new();
    for path in ["uring", "plain", "crypt"] {
        let mut spec = SwapSpec::file(dir);
        if let DeviceKind::File { encrypt, .. } = &mut spec.kind {
            *encrypt = path == "crypt";
        }
        let space = space(spec, 1)?;
        if path == "plain" {
            space.refuse_io_uring();
        }
        let key = ContentKey::random();
        space.check_contents(key);
        let batches_of: &[usize] = if path == "crypt" { &[1, 32] } else { &[1, 8, 32] };
        for &batch in batches_of {
            rows.extend(batches(&space, path, batch, source, &key)?);
        }
        if path == "uring" {
            // The unnamed file behind the directory; fio has no descriptor of its own for it.
            let fd = space.fds().last().copied().ok_or_else(|| Failure::new("bench: the device has no file"))?;
            let file = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
            rows.extend(ahead::rows(&space, &file, source, &key, rounds)?);
            rows.extend(raw(&file, n)?);
        }
    }
    Ok(rows)
}

fn batches(space: &SwapSpace, path: &'static str, batch: usize, source: &[Page], key: &ContentKey) -> Result<Vec<Row>> {
    let n = source.len();
    let mut rows = Vec::new();
    let hashes: Vec<u128> = source.iter().map(|page| key.hash(page)).collect();
    let mut entries: Vec<Option<Entry>> = vec![None; n];
    // The first pass finds the file's blocks unwritten; later ones write over them, as a swap file in use does.
    for op in ["write new", "write"] {
        let mut free = Sampler::new(n);
        entries.iter_mut().filter_map(Option::take).for_each(|entry| free.time(|| _ = space.free(entry)));
        // It is the same for all batches.
        if batch == 1 && !free.is_empty() {
            rows.push(free.row("file", path, "free", 1));
        }
        let mut sampler = Sampler::new(n / batch);
        for (at, out) in (0..n).step_by(batch).zip(entries.chunks_mut(batch)) {
            let pages: Vec<(&Page, u128)> = (at..at + batch).map(|i| (&source[i], hashes[i])).collect();
            sampler
                .time(|| space.store_queued(&pages, out))
                .map_err(|e| Failure::new(format!("bench: cannot write: {e}")))?;
        }
        rows.push(sampler.row("file", path, op, batch));
    }
    let target = pages(batch)?;
    for (op, order) in [("read seq", (0..n).collect()), ("read rand", shuffled(n))] {
        let mut sampler = Sampler::new(n / batch);
        for window in order.chunks_exact(batch) {
            let wanted: Vec<Entry> = window.iter().filter_map(|&i| entries[i]).collect();
            let mut into: Vec<&mut Page> = target.iter_mut().collect();
            let (loaded, error) = sampler.time(|| space.load_many(&wanted, &mut into));
            if let Some(error) = error.filter(|_| loaded < batch) {
                return Err(Failure::new(format!("bench: cannot read: {error}")));
            }
            let right = window.iter().zip(target.iter()).all(|(&i, page)| *page == source[i]);
            right.then_some(()).ok_or_else(|| wrong("the file", window[0]))?;
        }
        rows.push(sampler.row("file", path, op, batch));
    }
    entries.iter().flatten().for_each(|entry| _ = space.free(*entry));
    Ok(rows)
}

/// What the same file gives without the device in between: 32 pages anywhere at a time, and 1 MiB after the other.
fn raw(path: &Path, n: usize) -> Result<Vec<Row>> {
    let failed = |e: rustix::io::Errno| Failure::new(format!("bench: {}: {e}", path.display()));
    let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty());
    let fd: OwnedFd = open().map_err(failed)?;
    let target = pages(256)?;
    let rings = Rings::default();
    let mut random = Sampler::new(n / 32);
    for window in shuffled(n).chunks_exact(32) {
        let mut slots: Vec<usize> = window.to_vec();
        slots.sort_unstable();
        let mut batch = Batch::new(Direction::Read);
        for (slot, page) in slots.into_iter().zip(target.iter_mut()) {
            let at = ((slot + 1) * PAGE_SIZE) as u64;
            let place = Place::in_file(fd.as_raw_fd(), at, true, None);
            // SAFETY: the pages are borrowed by this function until after the run.
            unsafe { batch.push(&place, page) };
        }
        random.time(|| rings.run(&mut batch, &mut || {}));
        if batch.outcome(0) != Transferred::Done {
            return Err(Failure::new("bench: raw read failed"));
        }
    }
    let mut rows = vec![random.row("file", "raw", "read rand", 32)];
    for size in [32, 256] {
        let mut sequential = Sampler::new(n / size);
        let bytes = target[..size].as_flattened_mut();
        for at in (0..n / size).map(|i| i * size) {
            sequential.time(|| rustix::io::pread(&fd, &mut *bytes, (at * PAGE_SIZE) as u64)).map_err(failed)?;
        }
        rows.push(sequential.row("file", "raw", "read seq", size));
    }
    Ok(rows)
}
