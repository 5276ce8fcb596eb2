//! Records which pages the program touches: `farpage run --trace FILE`, for `farpage-bench sim`.
//!
//! What a fault does not show is not in the record. So while one is made, each page comes in by a fault of its own,
//! only an eighth of the budget is mapped, and all pages leave in turn, also hot ones: no page is mapped for longer
//! than it takes that many others to go by. What a memory that is larger by far would have had to read can be told from
//! it (as after J. E. Smith's deletion of stack hits, 1977: what a memory of recency has hits on, a larger one has,
//! too).
//!
//! What is there when memory begins to be managed was written before: it is in the record, in the order of addresses.
//!
//! Belongs to the pager, which notes each fault that it served, and each change of mappings that it applies; nothing
//! else uses it. A record is 8 bytes, 64 of them are one write, and the pager writes the rest when it has nothing to
//! do, so at most the last 63 of a program are lost. A file that cannot be written ends the recording, with a message,
//! not the program.
//!
//! ```text
//!   header: the bytes FPFAULT2, then for each event, little-endian:
//!   | first page:40 | pages - 1:20 | kind:4 |      kind: TraceKind
//! ```

use crate::shared::start_error::StartError;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::message::warn;
use farpage_base::sys::raw::ErrnoText;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::path::{Path, PathBuf};

/// First bytes of a recorded file.
pub const MAGIC: [u8; 8] = *b"FPFAULT2";

const RECORDS: usize = 64;
/// A longer range is several records.
const PAGES_MAX: u64 = 1 << 20;
const KIND_BITS: u32 = 4;

/// What happened to pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// A read found the page absent.
    Read,
    /// A write did.
    Write,
    /// They were unmapped or discarded.
    Free,
    /// They were moved by `mremap`. The next record, [`TraceKind::MoveTo`], says where to.
    MoveFrom,
    /// See there: as many pages.
    MoveTo,
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRecord {
    /// What happened.
    pub kind: TraceKind,
    /// The first page's number: its address in pages.
    pub first: u64,
    /// How many pages; 1 for faults.
    pub pages: u64,
}

impl TraceRecord {
    /// As in the file.
    pub fn to_bits(self) -> u64 {
        (self.first * PAGES_MAX + (self.pages - 1)) << KIND_BITS | self.kind as u64
    }

    /// From the file; `None`: of a kind that is not known.
    pub fn from_bits(bits: u64) -> Option<TraceRecord> {
        let kind = match bits % (1 << KIND_BITS) {
            0 => TraceKind::Read,
            1 => TraceKind::Write,
            2 => TraceKind::Free,
            3 => TraceKind::MoveFrom,
            4 => TraceKind::MoveTo,
            _ => return None,
        };
        let range = bits >> KIND_BITS;
        Some(TraceRecord { kind, first: range / PAGES_MAX, pages: range % PAGES_MAX + 1 })
    }
}

/// A file being recorded.
#[derive(Debug)]
pub struct Recorder {
    file: Option<OwnedFd>,
    records: [u8; RECORDS * 8],
    len: usize,
}

impl Recorder {
    /// Makes `path`, or, if that is there already because an earlier process of the same program made it, `path.PID`.
    ///
    /// # Errors
    /// One line.
    pub fn create(path: &Path) -> Result<Recorder, StartError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut with_pid = path.as_os_str().to_owned();
        with_pid.push(format!(".{}", rustix::process::getpid().as_raw_nonzero()));
        // Which pages a program touches can tell what it works on.
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(path, flags, mode).or_else(|_| open(PathBuf::from(with_pid), flags, mode));
        let file = file.map_err(|e| StartError::Trace(path.into(), e.into()))?;
        let mut recorder = Recorder { file: Some(file), records: [0; RECORDS * 8], len: 0 };
        recorder.put(MAGIC);
        Ok(recorder)
    }

    /// A fault on page `vpn` was served, by this page alone; or it was there when it began to be managed.
    pub fn note(&mut self, vpn: Vpn, write: bool) {
        let kind = if write { TraceKind::Write } else { TraceKind::Read };
        self.put_record(TraceRecord { kind, first: vpn.number(), pages: 1 });
    }

    /// Pages from `first` up to `end` were freed or moved.
    pub fn note_range(&mut self, kind: TraceKind, first: Vpn, end: Vpn) {
        let (mut first, end) = (first.number(), end.number());
        while first < end {
            let pages = (end - first).min(PAGES_MAX);
            self.put_record(TraceRecord { kind, first, pages });
            first += pages;
        }
    }

    /// So many pages from `from` on are at `to` now.
    pub fn note_move(&mut self, from: Vpn, to: Vpn, pages: usize) {
        let mut done = 0;
        while done < pages {
            let piece = (pages - done).min(PAGES_MAX as usize);
            self.note_range(TraceKind::MoveFrom, from + done, from + done + piece);
            self.note_range(TraceKind::MoveTo, to + done, to + done + piece);
            done += piece;
        }
    }

    fn put_record(&mut self, record: TraceRecord) {
        self.put(record.to_bits().to_le_bytes());
    }

    fn put(&mut self, record: [u8; 8]) {
        self.records[self.len..][..8].copy_from_slice(&record);
        self.len += 8;
        if self.len == self.records.len() {
            self.flush();
        }
    }

    /// Writes what has been noted.
    pub fn flush(&mut self) {
        let mut left = &self.records[..std::mem::take(&mut self.len)];
        while let (Some(file), false) = (&self.file, left.is_empty()) {
            match rustix::io::write(file, left) {
                Ok(n) => left = &left[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    warn(&format!("recording faults has ended: {}", ErrnoText::from(error)));
                    self.file = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TraceKind::{Free, MoveFrom, MoveTo, Read, Write};
    use super::*;

    #[test]
    fn every_fault_is_in_the_file_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults");
        let mut recorder = Recorder::create(&path).unwrap();
        (0..150).for_each(|i| recorder.note(Vpn::new(i * 3), i % 2 == 1));
        recorder.note_range(Free, Vpn::new(0x7f_ffff_f000), Vpn::new(0x7f_ffff_f000 + PAGES_MAX + 5));
        recorder.note_move(Vpn::new(7), Vpn::new(1 << 30), PAGES_MAX as usize + 1);
        recorder.flush();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, 0o600);
        let (magic, records) = bytes.split_at(8);
        assert_eq!(magic, MAGIC);
        let record = |bytes: &[u8]| TraceRecord::from_bits(u64::from_le_bytes(bytes.try_into().unwrap())).unwrap();
        let records: Vec<TraceRecord> = records.chunks(8).map(record).collect();
        let fault = |i: u64| TraceRecord { kind: if i % 2 == 1 { Write } else { Read }, first: i * 3, pages: 1 };
        let freed = [(0x7f_ffff_f000, PAGES_MAX), (0x7f_ffff_f000 + PAGES_MAX, 5)];
        let freed = freed.map(|(first, pages)| TraceRecord { kind: Free, first, pages });
        let moved = [
            (MoveFrom, 7, PAGES_MAX),
            (MoveTo, 1 << 30, PAGES_MAX),
            (MoveFrom, 7 + PAGES_MAX, 1),
            (MoveTo, (1 << 30) + PAGES_MAX, 1),
        ];
        let moved = moved.map(|(kind, first, pages)| TraceRecord { kind, first, pages });
        assert_eq!(records, (0..150).map(fault).chain(freed).chain(moved).collect::<Vec<_>>());
        // A second process does not write over it.
        Recorder::create(&path).unwrap().flush();
        assert_eq!((std::fs::read(&path).unwrap(), std::fs::read_dir(dir.path()).unwrap().count()), (bytes, 2));
    }
}
