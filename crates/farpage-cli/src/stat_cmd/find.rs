//! Finds engines from outside: a thread with the engine's name, and the statistics page among its descriptors.

use crate::failure::{Failure, Result};
use crate::page::Page;
use farpage::stat::{MEMFD_NAME, THREAD_NAME};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A process that runs under farpage.
#[derive(Debug)]
pub struct Managed {
    /// Process.
    pub pid: u32,
    /// Its `comm`.
    pub command: String,
    /// Its page; `None`: not ours to read.
    pub page: Option<Page>,
}

/// Why a process has no [`Managed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// No such process.
    Process,
    /// It does not run under farpage.
    Engine,
}

impl Absent {
    /// In words.
    pub fn failure(self, pid: u32) -> Failure {
        match self {
            Absent::Process => Failure::with_status(1, format!("cannot show process {pid}: no such process")),
            Absent::Engine => {
                Failure::with_status(1, format!("cannot show process {pid}: it does not run under farpage"))
                    .help("farpage stat without a number lists the processes that do")
            }
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
    let command = fs::read_to_string(dir.join("comm")).ok().filter(|_| is_leader).ok_or(Absent::Process)?;
    let thread = engine_thread(&dir).ok_or(Absent::Engine)?;
    let page = match pages(&thread) {
        Ok(pages) => {
            let own = own_pids(&dir);
            // An inherited page of another process may lie open beside its own.
            Some(pages.into_iter().find(|p| own.contains(&p.pid())).ok_or(Absent::Engine)?)
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => return Err(Absent::Engine),
    };
    Ok(Managed { pid, command: command.trim_end().to_owned(), page })
}

/// Every process that runs under farpage, by number.
pub fn all() -> Result<Vec<Managed>> {
    let entries = fs::read_dir("/proc")
        .map_err(|e| Failure::with_status(1, format!("cannot read /proc: {}", crate::failure::why(&e))))?;
    let mut pids: Vec<u32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(|pid| process(pid).ok()).collect())
}

fn engine_thread(dir: &Path) -> Option<PathBuf> {
    let tasks = fs::read_dir(dir.join("task")).ok()?;
    tasks
        .flatten()
        .map(|t| t.path())
        .find(|task| fs::read(task.join("comm")).is_ok_and(|comm| comm.trim_ascii_end() == THREAD_NAME.as_bytes()))
}

fn pages(thread: &Path) -> io::Result<Vec<Page>> {
    let link_start = format!("/memfd:{MEMFD_NAME}");
    let mut pages = Vec::new();
    for entry in fs::read_dir(thread.join("fd"))? {
        let path = entry?.path();
        let Ok(link) = fs::read_link(&path) else { continue };
        if link.as_os_str().as_bytes().starts_with(link_start.as_bytes()) {
            let page = fs::File::open(&path).and_then(|file| Page::read(&file));
            pages.extend(page.ok().flatten());
        }
    }
    Ok(pages)
}

/// The process's number in each of its pid namespaces.
fn own_pids(dir: &Path) -> Vec<u64> {
    let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
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
}
