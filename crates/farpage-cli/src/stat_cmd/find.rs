//! Finds engines and pagers from outside: by their threads' names, and the statistics pages among the descriptors of
//! these. An engine's threads have a table of their own, and so have those of each pager.
//!
//! All that is read here is what a process says of itself, and whoever owns it may make it say anything: names with any
//! bytes, and files under the name of a page that hang whoever opens them. So a file is opened only if it is a memfd.

use crate::failure::{Failure, Result};
use crate::page::{Found, Page};
use crate::preload;
use farpage::internals::conf::{Conf, ENV_CONF, ENV_DISABLE};
use farpage::internals::stat::{MEMFD_NAME, PAGER_THREAD_NAME, STAT_BYTES, THREAD_NAME};
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A process that runs under farpage, or has pagers.
#[derive(Debug)]
pub struct Managed {
    /// Process.
    pub pid: u32,
    /// Its `comm`, as it can be printed.
    pub command: String,
    /// Its pages, the engine's first, then the pagers' by number; `None`: not ours to read.
    pub pages: Option<Vec<Page>>,
}

impl Managed {
    /// The engine's page.
    pub fn engine(&self) -> Option<&Page> {
        self.pages.as_deref().and_then(engine)
    }
}

/// The engine's page among those of a process.
pub fn engine(pages: &[Page]) -> Option<&Page> {
    pages.iter().find(|page| page.pager().is_none())
}

/// Why a process has no [`Managed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// No such process.
    Process,
    /// It does not run under farpage and has no pager.
    Engine,
    /// It does, but with another version of farpage than this command's.
    Version,
    /// This user may not see whether it does.
    Permission,
}

impl Absent {
    /// In words.
    pub fn failure(self, pid: u32) -> Failure {
        match self {
            Absent::Process => Failure::with_status(1, format!("cannot show process {pid}: no such process")),
            Absent::Engine => {
                let why = "it does not run under farpage and has no pager to show";
                Failure::with_status(1, format!("cannot show process {pid}: {why}"))
                    .help("farpage stat without a number lists the processes that can be shown")
            }
            Absent::Version => {
                let why = "its farpage is of another version than this command";
                Failure::with_status(1, format!("cannot show process {pid}: {why}"))
                    .help("use the farpage command that belongs to the program's library")
            }
            Absent::Permission => no_permission(pid),
        }
    }
}

/// The failure for a page that this user may not read.
pub fn no_permission(pid: u32) -> Failure {
    Failure::with_status(1, format!("cannot read the counters of process {pid}: permission denied"))
        .help(format!("run as its user or as root    sudo farpage stat {pid}"))
}

/// Looks at one process.
pub fn process(pid: u32) -> std::result::Result<Managed, Absent> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    // A thread's number opens /proc/TID too; only the leader counts as a process.
    let is_leader = dir.join("task").join(pid.to_string()).exists();
    let command = fs::read(dir.join("comm")).ok().filter(|_| is_leader).ok_or(Absent::Process)?;
    let command = printable(command.strip_suffix(b"\n").unwrap_or(&command));
    let threads = threads(&dir);
    if threads.is_empty() {
        let environment = fs::read(dir.join("environ")).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => Absent::Permission,
            _ => Absent::Engine,
        })?;
        let page = below(&dir, pid, &environment).ok_or(Absent::Engine)?;
        return Ok(Managed { pid, command, pages: Some(vec![page]) });
    }
    let own = own_pids(&dir);
    let mut found = Pages::default();
    for (thread, pagers) in &threads {
        match found.add(thread, *pagers, &own) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Managed { pid, command, pages: None });
            }
            // It has ended meanwhile.
            Err(_) | Ok(()) => {}
        }
    }
    if found.pages.is_empty() {
        return Err(if found.other_version { Absent::Version } else { Absent::Engine });
    }
    found.pages.sort_by_key(|(page, _)| page.pager());
    let pages = found.pages.into_iter().map(|(page, _)| page).collect();
    Ok(Managed { pid, command, pages: Some(pages) })
}

/// Every process that runs under farpage or has pagers, by number.
pub fn all() -> Result<Vec<Managed>> {
    let pids = crate::process::all()
        .map_err(|e| Failure::with_status(1, format!("cannot read /proc: {}", crate::failure::why(&e))))?;
    Ok(pids.into_iter().filter_map(|pid| process(pid).ok()).collect())
}

/// What there is to show of a program that is so far below its budget that it has no engine: it has been told of one,
/// and has the library. (One that could not have a budget looks the same.)
fn below(dir: &Path, pid: u32, environment: &[u8]) -> Option<Page> {
    let variable = |name: &str| {
        environment.split(|b| *b == 0).find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    if variable(ENV_DISABLE).is_some_and(|value| !value.is_empty() && value != b"0") {
        return None;
    }
    let conf = Conf::parse(std::str::from_utf8(variable(ENV_CONF)?).ok()?).ok()?;
    let maps = fs::read(dir.join("maps")).ok()?;
    if !String::from_utf8_lossy(&maps).contains(preload::NAME) {
        return None;
    }
    let status = fs::read(dir.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let anonymous =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    Some(Page::below(pid, conf.ram, anonymous.unwrap_or(0u64) << 10))
}

/// Threads of the engine, and (`true`) of pagers.
fn threads(dir: &Path) -> Vec<(PathBuf, bool)> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(dir.join("task")) else { return found };
    for task in tasks.flatten().map(|t| t.path()) {
        let comm = fs::read(task.join("comm")).unwrap_or_default();
        for (name, is_pager) in [(THREAD_NAME, false), (PAGER_THREAD_NAME, true)] {
            if comm.trim_ascii_end() == name.as_bytes() {
                found.push((task.clone(), is_pager));
            }
        }
    }
    found
}

/// The pages of a process, with the number of the file of each.
#[derive(Default)]
struct Pages {
    pages: Vec<(Page, u64)>,
    other_version: bool,
}

impl Pages {
    /// Adds those that a thread has open: pagers' or an engine's. Pages of other processes, inherited, may lie beside
    /// them, and one may be open twice.
    fn add(&mut self, thread: &Path, pagers: bool, own: &[u64]) -> io::Result<()> {
        let link_start = format!("/memfd:{MEMFD_NAME}");
        for entry in fs::read_dir(thread.join("fd"))? {
            let path = entry?.path();
            let Ok(link) = fs::read_link(&path) else { continue };
            if !link.as_os_str().as_bytes().starts_with(link_start.as_bytes()) {
                continue;
            }
            let Ok((file, inode)) = open_memfd(&path) else { continue };
            match Page::read(&file) {
                Ok(Found::OtherVersion) => self.other_version = true,
                Ok(Found::Page(page)) => {
                    let wanted = own.contains(&page.pid()) && page.pager().is_some() == pagers;
                    if wanted && self.pages.iter().all(|(_, known)| *known != inode) {
                        self.pages.push((page, inode));
                    }
                }
                Ok(Found::Empty) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Bytes of a page before events were kept in it: such a one is of another version.
const BYTES_BEFORE: u64 = 16 * 1024;

/// Opens what a descriptor of another process leads to if that is a memfd as large as a page; with its number.
fn open_memfd(path: &Path) -> io::Result<(fs::File, u64)> {
    // To open a pipe may wait for ever, a device may do something, and a filesystem in user space may be asked to
    // answer. This does none of it.
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let asked = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(AT_STATX_DONT_SYNC);
    let what = rustix::fs::statx(&place, c"", asked, StatxFlags::BASIC_STATS)?;
    let device = (what.stx_dev_major, what.stx_dev_minor);
    let regular = FileType::from_raw_mode(what.stx_mode.into()).is_file();
    if Some(device) != memfd_device() || !regular || ![STAT_BYTES as u64, BYTES_BEFORE].contains(&what.stx_size) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = rustix::fs::open(again, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    Ok((file.into(), what.stx_ino))
}

/// Nothing but what is known already; a part of `AT_STATX_SYNC_TYPE`, which rustix has no name for.
const AT_STATX_DONT_SYNC: u32 = 0x4000;

/// The device of the kernel's own filesystem in which all memfds are.
fn memfd_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let stat = rustix::fs::fstat(farpage::internals::stat::new_memfd().ok()?).ok()?;
        Some((rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)))
    })
}

/// A name with nothing in it that a terminal would obey, nor half characters.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            {
                true => out.extend(c.escape_default()),
                false => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

/// The process's number in each of its pid namespaces.
fn own_pids(dir: &Path) -> Vec<u64> {
    let status = fs::read(dir.join("status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_whitespace().filter_map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_and_no_engine() {
        assert_eq!(process(u32::MAX).unwrap_err(), Absent::Process);
        assert_eq!(process(std::process::id()).unwrap_err(), Absent::Engine);
    }

    #[test]
    fn names_are_printed_without_what_a_terminal_obeys() {
        for (name, shown) in [
            (&b"sleep"[..], "sleep"),
            (b"caf\xc3\xa9", "caf\u{e9}"),
            (b"caf\xc3", "caf\\xc3"),
            (b"\x1b[2J\n", "\\u{1b}[2J\\n"),
            ("a\u{202e}b\u{85}".as_bytes(), "a\\u{202e}b\\u{85}"),
        ] {
            assert_eq!(printable(name), shown);
        }
    }

    #[test]
    fn only_a_memfd_of_the_right_size_is_opened() {
        let memfd = farpage::internals::stat::new_memfd().unwrap();
        let path = |fd: &dyn AsRawFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        assert!(open_memfd(&path(&memfd)).is_ok());
        let short = rustix::fs::memfd_create(MEMFD_NAME, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(STAT_BYTES as u64).unwrap();
        let (pipe, _other) = io::pipe().unwrap();
        assert!([path(&short), path(&file), path(&pipe)].iter().all(|path| open_memfd(path).is_err()));
        // Nobody writes to it: to open it for reading would wait.
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        assert!(open_memfd(&fifo).is_err());
    }
}
