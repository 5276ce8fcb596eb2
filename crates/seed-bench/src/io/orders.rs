//! Several pages at a time: as so many pages, or compressed as one unit.
//!
//! A unit of 4 or 16 neighbours compresses better than its pages one by one, and faster; but a reader of one of its
//! pages must decompress all. What that costs and brings is in these rows: *read rand* uses whole units, *read one* one
//! page of each.

use super::measure::{compressor, pages, shuffled, space, wrong};
use super::sample::{Row, Sampler};
use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use farpage_base::mem::units::Page;
use farpage_codec::lz4;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{Alg, DeviceKind, SwapSpec};

/// Orders 0, 2 and 4.
const UNITS: [usize; 3] = [1, 4, 16];

/// Rows of ram, zram and bare LZ4.
pub fn rows(source: &[Page], rounds: usize) -> Result<Vec<Row>> {
    let n = source.len() / 16 * 16;
    let source = &source[..n];
    let ram = space(DeviceKind::Ram.into(), n)?;
    let zram = space(SwapSpec::zram(Alg::Lz4), n)?;
    let mut rows = Vec::new();
    for unit in &UNITS[1..] {
        for (name, space) in [("ram", &ram), ("zram", &zram)] {
            rows.extend(device(name, space, source, *unit, rounds)?);
        }
    }
    for unit in UNITS {
        rows.extend(units(source, unit, rounds)?);
    }
    Ok(rows)
}

/// A device, `unit` pages an operation.
fn device(name: &'static str, space: &SwapSpace, source: &[Page], unit: usize, rounds: usize) -> Result<Vec<Row>> {
    let mut samplers = [0, 1].map(|_| Sampler::new(source.len() / unit * rounds));
    let target = pages(unit)?;
    for _ in 0..rounds {
        let mut entries: Vec<Entry> = Vec::with_capacity(source.len());
        for (number, group) in source.chunks(unit).enumerate() {
            let stored = samplers[0].time(|| {
                group.iter().enumerate().all(|(i, page)| {
                    let stored = space.store_now(page, (number * unit + i) as u128).ok().flatten();
                    stored.map(|entry| entries.push(entry)).is_some()
                })
            });
            stored.then_some(()).ok_or_else(|| Failure::new(format!("bench: {name} took no page")))?;
        }
        for group in shuffled(source.len() / unit) {
            let at = group * unit..(group + 1) * unit;
            let ok = samplers[1].time(|| {
                entries[at.clone()].iter().zip(target.iter_mut()).all(|(entry, page)| space.load(*entry, page).is_ok())
            });
            (ok && *target == source[at.clone()]).then_some(()).ok_or_else(|| wrong(name, at.start))?;
        }
        entries.iter().for_each(|entry| _ = space.free(*entry));
    }
    let [write, read] = samplers;
    Ok(vec![write.row(name, "sync", "write", unit), read.row(name, "sync", "read rand", unit)])
}

/// Bare LZ4 over units of `unit` pages.
fn units(source: &[Page], unit: usize, rounds: usize) -> Result<Vec<Row>> {
    let count = source.len() / unit;
    let mut samplers = [0, 1, 2].map(|_| Sampler::new(count * rounds));
    let mut compressor = compressor()?;
    let mut out = vec![0; lz4::bound(unit * PAGE_SIZE)];
    let mut compressed: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(unit * PAGE_SIZE + 64)).collect();
    let target = pages(unit)?;
    let one = &mut pages(1)?[0];
    for _ in 0..rounds {
        for (group, to) in source.chunks(unit).zip(&mut compressed) {
            samplers[0].time(|| {
                let len = compressor.compress(group.as_flattened(), &mut out).unwrap_or(0);
                to.clear();
                to.extend_from_slice(&out[..len]);
            });
        }
        for number in shuffled(count) {
            let from = &source[number * unit..(number + 1) * unit];
            let ok = samplers[1].time(|| lz4::decompress(&compressed[number], target.as_flattened_mut()).is_some());
            (ok && *target == *from).then_some(()).ok_or_else(|| wrong("LZ4", number))?;
            // One page is wanted: the unit is decompressed, and a page of it copied.
            let wanted = number % unit;
            let ok = samplers[2].time(|| {
                let ok = lz4::decompress(&compressed[number], target.as_flattened_mut()).is_some();
                *one = target[wanted];
                ok
            });
            (ok && *one == from[wanted]).then_some(()).ok_or_else(|| wrong("LZ4", number))?;
        }
    }
    let stored: usize = compressed.iter().map(Vec::len).sum();
    let ratio = Some((source.len() * PAGE_SIZE) as f64 / stored.max(1) as f64);
    let [write, read, single] = samplers;
    let single = single.row("lz4", "unit", "read one", unit);
    let rows = [
        write.row("lz4", "unit", "write", unit),
        read.row("lz4", "unit", "read rand", unit),
        Row { mib_per_s: single.mib_per_s / unit as f64, ..single },
    ];
    Ok(rows.map(|row| Row { ratio, ..row }).to_vec())
}
