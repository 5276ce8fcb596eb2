//! What `/proc` says of a process.
//!
//! Callers: what looks at other processes: of `farpage`, `attach`, `guard`, `run`, `stat` and what lists trees; the
//! benches. No locks.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io;
use std::time::Duration;

/// The text of `/proc/PID/status`.
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Of a process.
    ///
    /// # Errors
    /// It has ended, or is not to be seen.
    pub fn read(pid: u32) -> io::Result<Status> {
        text(&format!("/proc/{pid}/status")).map(Status)
    }

    /// Of one of its threads.
    ///
    /// # Errors
    /// As [`Status::read`].
    pub fn of_thread(pid: u32, tid: i32) -> io::Result<Status> {
        text(&format!("/proc/{pid}/task/{tid}/status")).map(Status)
    }

    /// The value of a line, as `Name:`; empty where there is none.
    pub fn value(&self, name: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
    }

    /// It is stopped, by a signal or by a debugger.
    pub fn is_stopped(&self) -> bool {
        self.value("State:").starts_with(['T', 't'])
    }

    /// Its first thread has ended.
    pub fn has_ended(&self) -> bool {
        self.value("State:").starts_with(['Z', 'X'])
    }

    /// The user whose rights it has.
    pub fn uid(&self) -> u32 {
        self.value("Uid:").split_whitespace().nth(1).and_then(|uid| uid.parse().ok()).unwrap_or(0)
    }

    /// Its number in each of its pid namespaces; the last is the one that it knows itself.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.value("NSpid:").split_whitespace().filter_map(|number| number.parse().ok())
    }

    /// Resident anonymous memory, bytes; 0 for threads of the kernel's.
    pub fn anonymous(&self) -> u64 {
        self.value("RssAnon:").trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10)
    }
}

/// A file of `/proc` in which the name of a process is, which may be any bytes.
fn text(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Resident anonymous memory of a process, bytes; 0 where it may not be looked at.
pub fn anonymous(pid: u32) -> u64 {
    Status::read(pid).map_or(0, |status| status.anonymous())
}

/// The same, each page divided by the number of processes that have it.
pub fn anonymous_share(pid: u32) -> u64 {
    let rollup = text(&format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10)
}

/// Resident anonymous memory of a process and of all that descend from it, bytes.
pub fn anonymous_with_children(pid: u32) -> u64 {
    let mut family = vec![pid];
    for i in 0.. {
        let Some(parent) = family.get(i) else { break };
        let threads = fs::read_dir(format!("/proc/{parent}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            family.extend(children.split(' ').filter_map(|child| child.trim().parse::<u32>().ok()));
        }
    }
    match family.len() {
        1 => anonymous(pid),
        _ => family.into_iter().map(anonymous_share).sum(),
    }
}

/// A number of `/proc/PID/stat`, by its place there (`proc_pid_stat(5)`), from 4 on.
fn stat_field(pid: u32, place: usize) -> Option<u64> {
    // Behind the name is field 3.
    text(&format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.split(' ').nth(place - 3)?.trim().parse().ok()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    stat_field(pid, 4)?.try_into().ok()
}

/// When a process was started, in ticks since the machine was: tells two with the same number apart.
pub fn start_time(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// Whether a process is stopped, by a signal or by a debugger.
pub fn is_stopped(pid: u32) -> bool {
    Status::read(pid).is_ok_and(|status| status.is_stopped())
}

/// Waits for a process to end, at most so long; whether it has.
pub fn ended_within(process: &OwnedFd, most: Duration) -> bool {
    let timeout = Timespec::try_from(most).ok();
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, timeout.as_ref()), Ok(n) if n > 0)
}

/// A descriptor of a process.
///
/// # Errors
/// There is none of this number.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// All numbers of processes, in order.
///
/// # Errors
/// There is no `/proc`.
pub fn all() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> =
        fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_process() {
        let pid = std::process::id();
        let status = Status::read(pid).unwrap();
        assert_eq!(status.value("Tgid:"), pid.to_string());
        assert_eq!(status.uid(), rustix::process::geteuid().as_raw());
        assert!(status.anonymous() > 100 << 10 && !is_stopped(pid));
        let above = rustix::process::getppid().unwrap().as_raw_pid() as u32;
        assert_eq!(parent(pid), Some(above));
        assert!(start_time(pid) >= start_time(above));
        assert_eq!(Status::of_thread(pid, pid as i32).unwrap().value("Pid:"), pid.to_string());
        assert!(all().unwrap().contains(&pid));
        assert!(Status::read(u32::MAX).is_err() && start_time(u32::MAX).is_none());
    }

    /// A name may have anything in it but a zero.
    #[test]
    fn of_one_with_a_wild_name() {
        // SAFETY: names this thread by a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"a) R 1\n\xff\xfe".as_ptr()) };
        let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_pid());
        let status = Status::of_thread(pid, tid).unwrap();
        assert!(status.value("Name:").starts_with("a) R 1"));
        assert_eq!(parent(tid as u32), parent(pid));
        assert!(start_time(tid as u32) >= start_time(pid));
    }
}
