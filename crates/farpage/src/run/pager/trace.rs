//! Records which pages the program faults on: `farpage run --trace FILE`, for `farpage sim`.
//!
//! Belongs to the pager, which notes each fault that it served; nothing else uses it. A record is 8 bytes, 64 of them
//! are one write, and the pager writes the rest when it has nothing to do, so at most the last 63 faults of a program
//! are lost. A file that cannot be written ends the recording, with a message, not the program.
//!
//! ```text
//!   header: the bytes FPFAULT1, then for each fault, little-endian:
//!   | page number:63 | write:1 |
//! ```

use crate::mem::units::Vpn;
use crate::sys::message::warn;
use crate::sys::raw::ErrnoText;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::path::{Path, PathBuf};

/// First bytes of a recorded file.
pub const MAGIC: [u8; 8] = *b"FPFAULT1";

const RECORDS: usize = 64;

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
    pub fn create(path: &Path) -> Result<Recorder, String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut with_pid = path.as_os_str().to_owned();
        with_pid.push(format!(".{}", rustix::process::getpid().as_raw_nonzero()));
        // Which pages a program touches can tell what it works on.
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(path, flags, mode).or_else(|_| open(PathBuf::from(with_pid), flags, mode));
        let file = file.map_err(|e| format!("cannot record faults in {}: {}", path.display(), ErrnoText::from(e)))?;
        let mut recorder = Recorder { file: Some(file), records: [0; RECORDS * 8], len: 0 };
        recorder.put(MAGIC);
        Ok(recorder)
    }

    /// A fault on page `vpn` was served.
    pub fn note(&mut self, vpn: Vpn, write: bool) {
        self.put((vpn.number() << 1 | u64::from(write)).to_le_bytes());
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
    use super::*;

    #[test]
    fn every_fault_is_in_the_file_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults");
        let mut recorder = Recorder::create(&path).unwrap();
        (0..150).for_each(|i| recorder.note(Vpn::new(i * 3), i % 2 == 1));
        recorder.flush();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, 0o600);
        let (magic, records) = bytes.split_at(8);
        assert_eq!(magic, MAGIC);
        let records: Vec<u64> = records.chunks(8).map(|r| u64::from_le_bytes(r.try_into().unwrap())).collect();
        assert_eq!(records, (0..150).map(|i| i * 6 + i % 2).collect::<Vec<_>>());
        // A second process does not write over it.
        Recorder::create(&path).unwrap().flush();
        assert_eq!((std::fs::read(&path).unwrap(), std::fs::read_dir(dir.path()).unwrap().count()), (bytes, 2));
    }
}
