//! Memory and mappings of another process.
//!
//! Caller: [`super`]. No locks.

use crate::failure::{Failure, OrCannot, Result, why};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// Files of processes are others' to choose: no more is read, bytes.
const FILE_MAX: u64 = 1 << 30;

/// The memory of a process, open.
pub struct Memory {
    pid: u32,
    file: File,
}

/// A mapping of a file, or of nothing.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// First address, and one behind the last.
    pub range: (usize, usize),
    /// Where in the file it begins, bytes.
    pub offset: u64,
    /// Its file, or what the kernel calls it.
    pub name: String,
}

impl Mapping {
    /// The last part of its name.
    pub fn file_name(&self) -> &str {
        self.name.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default()
    }
}

impl Memory {
    /// Opens it.
    ///
    /// # Errors
    /// As for the file in `/proc`.
    pub fn open(pid: u32) -> Result<Memory> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let file = file.map_err(|error| failed(pid, "open the memory", &error))?;
        Ok(Memory { pid, file })
    }

    /// Reads it.
    ///
    /// # Errors
    /// There is none.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(to, at as u64).map_err(|error| failed(self.pid, "read the memory", &error))
    }

    /// Writes to it, also where the process could not.
    ///
    /// # Errors
    /// There is none.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at as u64).map_err(|error| failed(self.pid, "write to the memory", &error))
    }

    /// What is mapped.
    ///
    /// # Errors
    /// As for the file in `/proc`.
    pub fn mappings(&self) -> Result<Vec<Mapping>> {
        let text = fs::read(format!("/proc/{}/maps", self.pid))
            .map_err(|error| failed(self.pid, "read the mappings", &error))?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(mapping).collect())
    }

    /// The content of a mapping's file, also where it has been replaced meanwhile.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn file_of(&self, mapping: &Mapping) -> Result<Vec<u8>> {
        let (from, to) = mapping.range;
        let mapped = PathBuf::from(format!("/proc/{}/map_files/{from:x}-{to:x}", self.pid));
        // Names are of the process's root, as are the links in them.
        let named = || {
            let root = File::open(format!("/proc/{}/root", self.pid))?;
            let (flags, how) = (OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, ResolveFlags::IN_ROOT);
            read_file(openat2(root, &mapping.name, flags, Mode::empty(), how)?.into())
        };
        let read = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(mapped).and_then(read_file);
        read.or_else(|_| named()).or_cannot(format_args!("read {}", mapping.name.escape_debug()))
    }

    /// The file that the process runs.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn executable(&self) -> Result<Vec<u8>> {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(format!("/proc/{}/exe", self.pid));
        file.and_then(read_file).map_err(|error| failed(self.pid, "read the executable", &error))
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// A whole file, if it is one, and not larger than any program.
fn read_file(file: File) -> io::Result<Vec<u8>> {
    let about = file.metadata()?;
    if !about.is_file() || about.len() > FILE_MAX {
        return Err(io::Error::other("it is no program's file"));
    }
    let mut content = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut content)?;
    Ok(content)
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (from, to) = fields.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = (address(from)?, address(to)?);
    let _protection = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let name = fields.nth(2).unwrap_or_default().trim_start().to_owned();
    Some(Mapping { range, offset, name })
}

fn failed(pid: u32, what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} of process {pid}: {}", why(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line =
            "7f5e6c628000-7f5e6c77d000 r-xp 00026000 fe:00 1234                       /usr/lib/libc so.6 (deleted)";
        let mapping = mapping(line).unwrap();
        assert_eq!((mapping.range, mapping.offset), ((0x7f5e_6c62_8000, 0x7f5e_6c77_d000), 0x26000));
        assert!(mapping.name == "/usr/lib/libc so.6 (deleted)");
        assert_eq!(mapping.file_name(), "libc so.6");
        let heap = super::mapping("55d0-55e0 rw-p 00000000 00:00 0  [heap]").unwrap();
        assert_eq!(heap.name, "[heap]");
        assert_eq!(super::mapping("55d0-55e0 rw-p 00000000 00:00 0 ").unwrap().name, "");
        assert!(super::mapping("nonsense").is_none());
    }

    #[test]
    fn own_memory_is_read_and_written() {
        let memory = Memory::open(std::process::id()).unwrap();
        let word = Box::new(7u64);
        let at = std::ptr::from_ref(&*word) as usize;
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 7);
        let own = memory.mappings().unwrap();
        assert!(own.iter().any(|m| (m.range.0..m.range.1).contains(&at)));
        assert!(memory.read(0, &mut bytes).unwrap_err().sentence.contains("cannot read the memory"));
    }
}
