//! Page traces in files.
//!
//! Three forms are read, each also compressed with zstd: what the engine records (`run/pager/trace.rs`),
//! the text of valgrind's lackey, and the one that [`Trace::save`] writes:
//!
//! ```text
//!   the bytes FPTRACE2, then for each access a number in 7-bit groups, lowest first (LEB128):
//!   | difference to the page before, zigzag | kind:2 |      kind: 0 read, 1 write, 2 free
//! ```
//! In older ones, FPTRACE1, the kind has one bit.

use crate::failure::{Failure, Result, why};
use farpage_run::pager::trace as recorded;
use farpage_run::pager::trace::{TraceKind, TraceRecord};
use farpage_swap::sim::{Access, AccessKind};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

const MAGIC: [u8; 8] = *b"FPTRACE2";
const MAGIC_WITHOUT_FREE: [u8; 8] = *b"FPTRACE1";
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// An access to one of so many pages last seen is left out of lackey's: no memory that is worth simulating can tell.
const RECENT: usize = 32;
/// Page numbers of 64-bit address spaces are below.
const NUMBER_END: u64 = 1 << 52;
/// The numbers of pages at a place whose number is another one's begin there: above what the engine records.
const RENAMED_SHIFT: u32 = 35;
const PAGE_SHIFT: u32 = farpage_swap::PAGE_SHIFT;

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
enum TraceError {
    /// It cannot be read.
    #[error("{}", why(.0))]
    Unreadable(#[from] std::io::Error),
    #[error("page {0:#x} is in no address space")]
    NoPage(u64),
    #[error("more pages were moved than can be told apart")]
    Moved,
    #[error("it has more than 2^30 pages or 2^32 accesses")]
    Long,
    #[error("it was recorded by an older farpage: record it anew")]
    Old,
    #[error("there is no access in it")]
    Empty,
    #[error("it is damaged")]
    Damaged,
    #[error("it ends in the middle of an access")]
    Cut,
    #[error("it is neither a trace of farpage nor the output of valgrind's lackey")]
    Unknown,
}

/// A trace, its pages numbered in the order of their first access.
#[derive(Debug)]
pub struct Trace {
    /// That of its file, or its rule.
    pub name: String,
    /// In their order.
    pub accesses: Vec<Access>,
    /// How many pages there are.
    pub pages: u32,
    /// The number that each page had: its address in pages, when it was first accessed. No two pages have the same one
    /// at the same time: if it belongs to a page that was moved, it is another one.
    pub numbers: Vec<u64>,
}

/// Collects accesses.
#[derive(Default)]
struct Builder {
    /// The pages, by where they are now.
    ids: BTreeMap<u64, u32>,
    /// Numbers of pages that are elsewhere now.
    of_moved: HashSet<u64>,
    /// Pages that came to the place of one of these, and have other numbers for it.
    renamed: u64,
    numbers: Vec<u64>,
    accesses: Vec<Access>,
}

impl Builder {
    fn add(&mut self, number: u64, write: bool) -> std::result::Result<(), TraceError> {
        if number >= NUMBER_END {
            return Err(TraceError::NoPage(number));
        }
        let next = self.numbers.len() as u32;
        let page = *self.ids.entry(number).or_insert(next);
        if page == next {
            let mut number = number;
            if self.of_moved.contains(&number) {
                self.renamed += 1;
                number += self.renamed << RENAMED_SHIFT;
                if number >= NUMBER_END {
                    return Err(TraceError::Moved);
                }
            }
            self.numbers.push(number);
        }
        if page >= Access::PAGES_MAX || self.accesses.len() >= u32::MAX as usize {
            return Err(TraceError::Long);
        }
        self.accesses.push(Access::new(page, write));
        Ok(())
    }

    /// The program needs these pages no longer. What comes to their place is a page of another name.
    fn free(&mut self, pages: Range<u64>) {
        for (_, page) in self.take(pages) {
            self.of_moved.remove(&self.numbers[page as usize]);
            self.accesses.push(Access::free(page));
        }
    }

    /// What is at these pages now is elsewhere from now on.
    fn relocate(&mut self, from: Range<u64>, to: u64) {
        self.free(to..to.saturating_add(from.end - from.start));
        for (number, page) in self.take(from.clone()) {
            self.of_moved.insert(self.numbers[page as usize]);
            self.ids.insert(number - from.start + to, page);
        }
    }

    /// What is at these pages, which is nowhere now.
    fn take(&mut self, pages: Range<u64>) -> Vec<(u64, u32)> {
        let taken: Vec<(u64, u32)> = self.ids.range(pages).map(|(number, page)| (*number, *page)).collect();
        for (number, _) in &taken {
            self.ids.remove(number);
        }
        taken
    }
}

/// The pages last seen, the latest first.
#[derive(Default)]
struct Recent(Vec<(u64, bool)>);

impl Recent {
    /// Whether the access tells anything new: the page was not seen just now, or is written for the first time since.
    fn is_new(&mut self, number: u64, write: bool) -> bool {
        match self.0.iter_mut().find(|(seen, _)| *seen == number) {
            Some((_, written)) => write && !std::mem::replace(written, true),
            None => {
                self.0.truncate(RECENT - 1);
                self.0.insert(0, (number, write));
                true
            }
        }
    }
}

/// Reads a trace; `-` is standard input.
///
/// # Errors
/// It cannot be read, or is none of the three.
pub fn read(path: &Path) -> Result<Trace> {
    let fail = |what: TraceError| Failure::new(format!("cannot read the trace {}: {what}", path.display()));
    let file: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(|e| fail(e.into()))?)
    };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.trim_end_matches(".zst").trim_end_matches(".trace").to_owned();
    parse(name, BufReader::with_capacity(1 << 20, file)).map_err(fail)
}

fn parse(name: String, mut input: impl BufRead) -> std::result::Result<Trace, TraceError> {
    let start = input.fill_buf()?;
    if start.starts_with(&ZSTD) {
        let bytes = zstd::stream::decode_all(input)?;
        return parse_plain(name, &bytes[..]);
    }
    parse_plain(name, input)
}

fn parse_plain(name: String, mut input: impl BufRead) -> std::result::Result<Trace, TraceError> {
    let mut built = Builder::default();
    let start = input.fill_buf()?;
    let kind_bits = if start.starts_with(&MAGIC) { Some(2) } else { None };
    let kind_bits = if start.starts_with(&MAGIC_WITHOUT_FREE) { Some(1) } else { kind_bits };
    if start.starts_with(b"FPFAULT1") {
        return Err(TraceError::Old);
    }
    if kind_bits.is_some() || start.starts_with(&recorded::MAGIC) {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        let body = &bytes[8..];
        match kind_bits {
            Some(bits) => compact_form(body, bits, &mut built)?,
            None => recorded_form(body, &mut built)?,
        }
    } else {
        lackey_form(input, &mut built)?;
    }
    let pages = built.numbers.len() as u32;
    if pages == 0 {
        return Err(TraceError::Empty);
    }
    Ok(Trace { name, accesses: built.accesses, pages, numbers: built.numbers })
}

fn recorded_form(body: &[u8], built: &mut Builder) -> std::result::Result<(), TraceError> {
    let (mut last, mut moved) = (None, None);
    for bits in body.as_chunks::<8>().0 {
        let record = TraceRecord::from_bits(u64::from_le_bytes(*bits)).ok_or(TraceError::Damaged)?;
        let range = record.first..record.first + record.pages;
        if range.end > 1 << RENAMED_SHIFT {
            return Err(TraceError::NoPage(range.end));
        }
        match record.kind {
            // Several threads may wait for one page.
            TraceKind::Read | TraceKind::Write if last == Some(record) => {}
            TraceKind::Read | TraceKind::Write => built.add(record.first, record.kind == TraceKind::Write)?,
            TraceKind::Free => built.free(range),
            TraceKind::MoveFrom => moved = Some(range),
            TraceKind::MoveTo => built.relocate(moved.take().ok_or(TraceError::Damaged)?, record.first),
        }
        last = Some(record);
    }
    Ok(())
}

fn compact_form(body: &[u8], kind_bits: u32, built: &mut Builder) -> std::result::Result<(), TraceError> {
    let (mut number, mut value, mut shift) = (0u64, 0u128, 0);
    for byte in body {
        value |= u128::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 != 0 {
            if shift > 70 {
                return Err(TraceError::Damaged);
            }
            continue;
        }
        let zigzag = (value >> kind_bits) as u64;
        number = number.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg());
        match value % (1 << kind_bits) {
            0 => built.add(number, false)?,
            1 => built.add(number, true)?,
            2 => built.free(number..number.saturating_add(1)),
            _ => return Err(TraceError::Damaged),
        }
        (value, shift) = (0, 0);
    }
    if shift == 0 { Ok(()) } else { Err(TraceError::Cut) }
}

/// Lines ` L address,size`, ` S ...`, ` M ...` (load, store, both), addresses hexadecimal; `I` lines are instructions.
fn lackey_form(mut input: impl BufRead, built: &mut Builder) -> std::result::Result<(), TraceError> {
    let (mut line, mut recent, mut lines) = (Vec::new(), Recent::default(), 0u64);
    loop {
        line.clear();
        lines += 1;
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] = &line[..] else {
            // Instructions, what valgrind says, and what the program says.
            if lines > 1000 && built.accesses.is_empty() && !line.starts_with(b"I ") {
                return Err(TraceError::Unknown);
            }
            continue;
        };
        let address = rest.split(|b| *b == b',').next().and_then(|text| std::str::from_utf8(text).ok());
        let Some(address) = address.and_then(|text| u64::from_str_radix(text, 16).ok()) else { continue };
        let write = *kind != b'L';
        if recent.is_new(address >> PAGE_SHIFT, write) {
            built.add(address >> PAGE_SHIFT, write)?;
        }
    }
}

impl Trace {
    /// A trace made by rule.
    pub fn synthetic(name: &str, accesses: Vec<Access>) -> Trace {
        let pages = accesses.iter().map(|access| access.page() + 1).max().unwrap_or(0);
        Trace { name: name.to_owned(), accesses, pages, numbers: (0..u64::from(pages)).collect() }
    }

    /// Writes the trace, compressed.
    pub fn save(&self, path: &Path) -> Result<()> {
        let fail = |e: &std::io::Error| Failure::new(format!("cannot write {}: {}", path.display(), why(e)));
        let packed = zstd::stream::encode_all(&self.packed()[..], 19).map_err(|e| fail(&e))?;
        crate::output::write(path, packed).map_err(|e| fail(&e))
    }

    fn packed(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut last = 0u64;
        for access in &self.accesses {
            let number = self.numbers[access.page() as usize];
            let difference = number.wrapping_sub(last).cast_signed();
            last = number;
            let zigzag = (difference << 1 ^ difference >> 63).cast_unsigned();
            let kind = match access.kind() {
                AccessKind::Read => 0,
                AccessKind::Write => 1,
                AccessKind::Free => 2,
            };
            let mut value = u128::from(zigzag) << 2 | kind;
            while value > 0x7f {
                out.push(value as u8 & 0x7f | 0x80);
                value >>= 7;
            }
            out.push(value as u8);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(trace: &Trace) -> Vec<(u64, bool)> {
        trace.accesses.iter().map(|a| (trace.numbers[a.page() as usize], a.kind() == AccessKind::Write)).collect()
    }

    #[test]
    fn every_form_is_read() {
        let text =
            b"==7== Lackey\nI  04001000,3\n L 00007000,8\n S 00007008,8\n L 00007010,8\n M 1ffefff000,4\n L 0,1\n";
        let want = [(7, false), (7, true), (0x1ffefff, true), (0, false)];
        let trace = parse("x".into(), &text[..]).unwrap();
        assert_eq!(pages(&trace), want);
        assert_eq!(trace.pages, 3);
        let packed = trace.packed();
        assert_eq!(pages(&parse("x".into(), &packed[..]).unwrap()), want);
        let small = zstd::stream::encode_all(&packed[..], 3).unwrap();
        assert_eq!(pages(&parse("x".into(), &small[..]).unwrap()), want);
    }

    #[test]
    fn what_was_freed_or_moved_is_another_page() {
        let record = |kind, first, pages| TraceRecord { kind, first, pages }.to_bits().to_le_bytes();
        let records = [
            record(TraceKind::Read, 7, 1),
            record(TraceKind::Write, 7, 1),
            record(TraceKind::Write, 7, 1),
            record(TraceKind::Write, 8, 1),
            record(TraceKind::Free, 0, 8),
            record(TraceKind::MoveFrom, 8, 4),
            record(TraceKind::MoveTo, 100, 4),
            record(TraceKind::Read, 7, 1),
            record(TraceKind::Read, 8, 1),
            record(TraceKind::Read, 100, 1),
        ];
        let trace = parse("x".into(), &[&recorded::MAGIC[..], &records.concat()].concat()[..]).unwrap();
        let kinds: Vec<_> = trace.accesses.iter().map(|a| (a.page(), a.kind())).collect();
        let [read, write] = [AccessKind::Read, AccessKind::Write];
        assert_eq!(
            kinds,
            [(0, read), (0, write), (1, write), (0, AccessKind::Free), (2, read), (3, read), (1, read)],
            "two threads may wait for one page; page 8 went to 100, and another came to its place"
        );
        assert_eq!(trace.numbers[..3], [7, 8, 7]);
        assert!(trace.numbers[3] > 1 << RENAMED_SHIFT, "the number of a page that is still there: {:?}", trace.numbers);
    }

    /// Any form; what is read is the same when it is packed and read again.
    #[test]
    fn fuzz_trace_file() {
        bolero::check!().with_type().for_each(|(form, bytes): &(u8, Vec<u8>)| {
            let head: &[u8] = match form % 4 {
                0 => &MAGIC,
                1 => &recorded::MAGIC,
                2 => &ZSTD,
                _ => b" L ",
            };
            if let Ok(trace) = parse("x".into(), &[head, &bytes[..]].concat()[..]) {
                let again = parse("x".into(), &trace.packed()[..]).unwrap();
                assert_eq!(pages(&again), pages(&trace));
            }
        });
    }

    #[test]
    fn what_is_not_a_trace_is_refused() {
        assert!(parse("x".into(), &b""[..]).unwrap_err().to_string().contains("no access"));
        assert!(parse("x".into(), &b"hello\n".repeat(2000)[..]).unwrap_err().to_string().contains("neither"));
        let far = [&MAGIC[..], &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]].concat();
        assert!(parse("x".into(), &far[..]).unwrap_err().to_string().contains("no address space"));
        assert!(parse("x".into(), &b"FPFAULT1"[..]).unwrap_err().to_string().contains("older"));
        assert!(parse("x".into(), &b"FPTRACE1\x80"[..]).unwrap_err().to_string().contains("middle"));
        assert!(
            parse("x".into(), &[&b"FPTRACE1"[..], &[0xff; 20]].concat()[..])
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }

    #[test]
    fn any_number_survives_packing() {
        let numbers = [0, u64::MAX >> 12, 1, (1 << 52) - 1, 5, 1 << 51];
        let mut built = Builder::default();
        numbers.iter().for_each(|&n| built.add(n, n % 2 == 0).unwrap());
        let pages_of = built.numbers.len() as u32;
        let trace = Trace { name: "x".into(), accesses: built.accesses, pages: pages_of, numbers: built.numbers };
        let back = parse("x".into(), &trace.packed()[..]).unwrap();
        assert_eq!(pages(&back), pages(&trace));
    }
}
