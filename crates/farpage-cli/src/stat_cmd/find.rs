//! Finds engines and pagers from outside: by their threads' names, and the statistics pages among the descriptors of
//! these. An engine's threads have a table of their own, and so have those of each pager.
//!
//! All that is read here is what a process says of itself, and its user may make it say anything: names with any
//! bytes, and files under the name of a page that hang a process which opens them ([`memfd`](crate::memfd)). Nothing is
//! read of its memory (`environ`, `cmdline`): a page of it may come from a filesystem that does not answer.

use crate::failure::{Failure, OrCannot, Result};
use crate::memfd::{self, Memfd};
use crate::page::{Found, Page};
use crate::process::Status;
use crate::trees;
use farpage_ipc::stat::{MEMFD_NAME, PAGER_THREAD_NAME, STAT_BYTES, THREAD_NAME};
use farpage_ipc::tree::{Member, MemberKind};
use rustix::fs::OFlags;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

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
            Absent::Process => Failure::new(format!("cannot show process {pid}: no such process")),
            Absent::Engine => {
                let why = "it does not run under farpage and has no pager to show";
                Failure::new(format!("cannot show process {pid}: {why}"))
                    .help("farpage stat without a number lists the processes that can be shown")
            }
            Absent::Version => {
                let why = "its farpage is of another version than this command";
                Failure::new(format!("cannot show process {pid}: {why}"))
                    .help("use the farpage command that belongs to the program's library")
            }
            Absent::Permission => no_permission(pid),
        }
    }
}

/// The failure for a page that this user may not read.
pub fn no_permission(pid: u32) -> Failure {
    Failure::new(format!("cannot read the counters of process {pid}: permission denied"))
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
        let is_others = fs::read_dir(dir.join("fd")).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        let absent = if is_others { Absent::Permission } else { Absent::Engine };
        let page = below(pid).ok_or(absent)?;
        return Ok(Managed { pid, command, pages: Some(vec![page]) });
    }
    let own = own_pids(pid);
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
    let pids = crate::process::all().or_cannot("read /proc")?;
    Ok(pids.into_iter().filter_map(|pid| process(pid).ok()).collect())
}

/// What there is to show of a program that is so far below its budget that it has no engine: it is a member of a tree.
/// (One that could not have a budget looks the same.)
fn below(pid: u32) -> Option<Page> {
    let tree = trees::of(pid).ok()?;
    let own = own_pids(pid);
    let is_it = |m: &&Member| own.contains(&m.pid.load(Relaxed).into()) && m.kind() != MemberKind::Stranger;
    tree.segment.living().find(is_it)?;
    let budget = trees::bytes(tree.segment.most_of_one());
    Some(Page::below(pid, budget, Status::read(pid).ok()?.anonymous()))
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
        for path in memfd::named(thread, MEMFD_NAME)? {
            let Ok(memfd) = Memfd::at(&path) else { continue };
            if ![STAT_BYTES as u64, BYTES_BEFORE].contains(&memfd.size) {
                continue;
            }
            let Ok(file) = memfd.open(OFlags::RDONLY).map(fs::File::from) else { continue };
            match Page::read(&file) {
                Ok(Found::OtherVersion) => self.other_version = true,
                Ok(Found::Page(page)) => {
                    let wanted = own.contains(&page.pid()) && page.pager().is_some() == pagers;
                    if wanted && self.pages.iter().all(|(_, known)| *known != memfd.inode) {
                        self.pages.push((page, memfd.inode));
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
fn own_pids(pid: u32) -> Vec<u64> {
    Status::read(pid).map(|status| status.numbers().map(u64::from).collect()).unwrap_or_default()
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
}
