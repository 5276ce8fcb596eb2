//! Page traces in files.
//!
//! Three forms are read, each also compressed with zstd: what the engine records (`run/pager/trace.rs`),
//! the text of valgrind's lackey, and the one that [`Trace::save`] writes:
//!
//! ```text
//!   the bytes FPTRACE1, then for each access a number in 7-bit groups, lowest first (LEB128):
//!   | difference to the page before, zigzag | write:1 |
//! ```

use crate::failure::{Failure, Result, why};
use farpage_swap::sim::Access;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MAGIC: [u8; 8] = *b"FPTRACE1";
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// An access to one of so many pages last seen is left out of lackey's: no memory that is worth simulating can tell.
const RECENT: usize = 32;
const PAGE_SHIFT: u32 = farpage_swap::PAGE_SHIFT;

/// A trace, its pages numbered in the order of their first access.
#[derive(Debug)]
pub struct Trace {
    pub name: String,
    pub accesses: Vec<Access>,
    pub pages: u32,
    /// The number that each page had.
    numbers: Vec<u64>,
}

/// Collects accesses.
#[derive(Default)]
struct Builder {
    ids: HashMap<u64, u32>,
    numbers: Vec<u64>,
    accesses: Vec<Access>,
}

impl Builder {
    fn add(&mut self, number: u64, write: bool) -> std::result::Result<(), String> {
        let next = self.numbers.len() as u32;
        let page = *self.ids.entry(number).or_insert(next);
        if page == next {
            self.numbers.push(number);
        }
        if page >= Access::PAGES_MAX || self.accesses.len() >= u32::MAX as usize {
            return Err(String::from("it has more than 2^31 pages or 2^32 accesses"));
        }
        self.accesses.push(Access::new(page, write));
        Ok(())
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
    let fail = |what: String| Failure::new(format!("cannot read the trace {}: {what}", path.display()));
    let file: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(|e| fail(why(&e)))?)
    };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.trim_end_matches(".zst").trim_end_matches(".trace").to_owned();
    parse(name, BufReader::with_capacity(1 << 20, file)).map_err(fail)
}

fn parse(name: String, mut input: impl BufRead) -> std::result::Result<Trace, String> {
    let start = input.fill_buf().map_err(|e| why(&e))?;
    if start.starts_with(&ZSTD) {
        let bytes = zstd::stream::decode_all(input).map_err(|e| why(&e))?;
        return parse_plain(name, &bytes[..]);
    }
    parse_plain(name, input)
}

fn parse_plain(name: String, mut input: impl BufRead) -> std::result::Result<Trace, String> {
    let mut built = Builder::default();
    let start = input.fill_buf().map_err(|e| why(&e))?;
    let (compact, faults) =
        (start.starts_with(&MAGIC), start.starts_with(&farpage::internals::run::pager::trace::MAGIC));
    if compact || faults {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes).map_err(|e| why(&e))?;
        let body = &bytes[8..];
        if compact { compact_form(body, &mut built)? } else { fault_form(body, &mut built)? }
    } else {
        lackey_form(input, &mut built)?;
    }
    let pages = built.numbers.len() as u32;
    if pages == 0 {
        return Err(String::from("there is no access in it"));
    }
    Ok(Trace { name, accesses: built.accesses, pages, numbers: built.numbers })
}

fn fault_form(body: &[u8], built: &mut Builder) -> std::result::Result<(), String> {
    let mut last = None;
    for record in body.as_chunks::<8>().0 {
        let record = u64::from_le_bytes(*record);
        // Several threads may wait for one page.
        if last != Some(record) {
            built.add(record >> 1, record & 1 != 0)?;
        }
        last = Some(record);
    }
    Ok(())
}

fn compact_form(body: &[u8], built: &mut Builder) -> std::result::Result<(), String> {
    let (mut number, mut value, mut shift) = (0u64, 0u128, 0);
    for byte in body {
        value |= u128::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 != 0 {
            if shift > 70 {
                return Err(String::from("it is damaged"));
            }
            continue;
        }
        let zigzag = (value >> 1) as u64;
        number = number.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg());
        built.add(number, value & 1 != 0)?;
        (value, shift) = (0, 0);
    }
    if shift == 0 { Ok(()) } else { Err(String::from("it ends in the middle of an access")) }
}

/// Lines ` L address,size`, ` S ...`, ` M ...` (load, store, both), addresses hexadecimal; `I` lines are instructions.
fn lackey_form(mut input: impl BufRead, built: &mut Builder) -> std::result::Result<(), String> {
    let (mut line, mut recent, mut lines) = (Vec::new(), Recent::default(), 0u64);
    loop {
        line.clear();
        lines += 1;
        if input.read_until(b'\n', &mut line).map_err(|e| why(&e))? == 0 {
            return Ok(());
        }
        let [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] = &line[..] else {
            // Instructions, what valgrind says, and what the program says.
            if lines > 1000 && built.accesses.is_empty() && !line.starts_with(b"I ") {
                return Err(String::from("it is neither a trace of farpage nor the output of valgrind's lackey"));
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
            let mut value = u128::from(zigzag) << 1 | u128::from(access.is_write());
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
        trace.accesses.iter().map(|a| (trace.numbers[a.page() as usize], a.is_write())).collect()
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
        let mut faults = farpage::internals::run::pager::trace::MAGIC.to_vec();
        [14u64, 15, 15, u64::MAX].iter().for_each(|r| faults.extend(r.to_le_bytes()));
        assert_eq!(pages(&parse("x".into(), &faults[..]).unwrap()), [(7, false), (7, true), (u64::MAX >> 1, true)]);
    }

    /// Any form; what is read is the same when it is packed and read again.
    #[test]
    fn fuzz_trace_file() {
        bolero::check!().with_type().for_each(|(form, bytes): &(u8, Vec<u8>)| {
            let head: &[u8] = match form % 4 {
                0 => &MAGIC,
                1 => &farpage::internals::run::pager::trace::MAGIC,
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
        assert!(parse("x".into(), &b""[..]).unwrap_err().contains("no access"));
        assert!(parse("x".into(), &b"hello\n".repeat(2000)[..]).unwrap_err().contains("neither"));
        assert!(parse("x".into(), &b"FPTRACE1\x80"[..]).unwrap_err().contains("middle"));
        assert!(parse("x".into(), &[&b"FPTRACE1"[..], &[0xff; 20]].concat()[..]).unwrap_err().contains("damaged"));
    }

    #[test]
    fn any_number_survives_packing() {
        let numbers = [0, u64::MAX >> 12, 1, u64::MAX, 5, 1 << 63];
        let mut built = Builder::default();
        numbers.iter().for_each(|&n| built.add(n, n % 2 == 0).unwrap());
        let pages_of = built.numbers.len() as u32;
        let trace = Trace { name: "x".into(), accesses: built.accesses, pages: pages_of, numbers: built.numbers };
        let back = parse("x".into(), &trace.packed()[..]).unwrap();
        assert_eq!(pages(&back), pages(&trace));
    }
}
