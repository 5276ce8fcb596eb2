//! What `/proc` says of a process.
//!
//! Callers: `farpage attach` and `farpage guard`. No locks.

use std::fs;
use std::io;

/// The text of `/proc/PID/status`.
pub struct Status(String);

impl Status {
    /// Reads it.
    ///
    /// # Errors
    /// It has ended, or is not to be seen.
    pub fn read(pid: u32) -> io::Result<Status> {
        fs::read_to_string(format!("/proc/{pid}/status")).map(Status)
    }

    /// The value of a line, as `Name:`; empty where there is none.
    pub fn value(&self, name: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
    }

    /// The user whose rights it has.
    pub fn uid(&self) -> u32 {
        self.value("Uid:").split_whitespace().nth(1).and_then(|uid| uid.parse().ok()).unwrap_or(0)
    }

    /// Resident anonymous memory, bytes; 0 for threads of the kernel's.
    pub fn anonymous(&self) -> u64 {
        self.value("RssAnon:").trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10)
    }
}

/// When a process was started, in ticks since the machine was: tells two with the same number apart.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may have anything in it; what follows is field 3.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// All numbers of processes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
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
        assert!(status.anonymous() > 100 << 10);
        assert!(start_time(pid) >= start_time(rustix::process::getppid().unwrap().as_raw_pid() as u32));
        assert!(all().contains(&pid));
        assert!(Status::read(u32::MAX).is_err() && start_time(u32::MAX).is_none());
    }
}
