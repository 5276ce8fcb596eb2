//! How much RAM the program may have: `--ram`, or what the machine and its memory cgroup suggest.

use crate::cgroup;
use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use farpage_command::machine::meminfo;
use farpage_ipc::conf::{self, size};

/// What sizes are measured against.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Physical RAM, bytes.
    pub total: u64,
    /// What the kernel thinks can be had without swapping, bytes.
    pub available: u64,
    /// The memory cgroup's limit.
    pub limit: Option<cgroup::Limit>,
}

/// A budget and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Bytes, whole pages.
    pub bytes: u64,
    /// In words.
    pub origin: String,
}

impl Machine {
    /// Reads /proc/meminfo and the cgroup.
    ///
    /// # Errors
    /// /proc/meminfo cannot be read.
    pub fn read() -> Result<Machine> {
        let total = meminfo("MemTotal").ok_or_else(|| Failure::new("cannot read MemTotal from /proc/meminfo"))?;
        let available = meminfo("MemAvailable").unwrap_or(total / 2);
        Ok(Machine { total, available, limit: cgroup::limit(total) })
    }

    /// The budget for `--ram TEXT`, or the default.
    ///
    /// # Errors
    /// An unreadable size, or less than the engine needs.
    pub fn budget(&self, text: Option<&str>) -> Result<Budget> {
        self.budget_of(RAM, text)
    }

    /// The budget for `OPTION TEXT`, or the default.
    fn budget_of(&self, option: &str, text: Option<&str>) -> Result<Budget> {
        let at_least = |failure: Failure| failure.help(format!("give at least {option} {}M", conf::RAM_MIN >> 20));
        let whole = self.limit.as_ref().map_or(self.total, |l| l.bytes.min(self.total));
        match (text, &self.limit) {
            (Some(text), _) => sized(option, text, Some(whole)),
            (None, Some(limit)) => {
                let of = size::format(limit.bytes);
                in_pages(limit.bytes / 10 * 9, format!("90% of the {of} of {}", limit.file.display())).map_err(at_least)
            }
            (None, None) => {
                let origin = format!("half of the {} available", size::format(self.available));
                in_pages(self.available / 2, origin).map_err(at_least)
            }
        }
    }

    /// What there is less of than `bytes`, in words: a budget of so many is never reached.
    pub fn less_than(&self, bytes: u64) -> Option<String> {
        match &self.limit {
            Some(limit) if limit.bytes < bytes => {
                Some(format!("the memory cgroup has {} ({})", size::format(limit.bytes), limit.file.display()))
            }
            _ if self.total < bytes => Some(format!("this machine has {}", size::format(self.total))),
            _ => None,
        }
    }
}

/// Why a budget that was given as `OPTION TEXT` will never act, if so. Shares are of what there is, and where that
/// cannot be found out, nothing is said.
pub fn never_acts(option: &str, text: &str, budget: &Budget) -> Option<String> {
    let there_is = Machine::read().ok().filter(|_| !text.contains('%'))?.less_than(budget.bytes)?;
    Some(format!("the budget of {} ({option} {text}) will never act: {there_is}", size::format(budget.bytes)))
}

/// The budget for `--ram TEXT`, or the default. Only for the latter, or for a share, must be known what the machine
/// has.
///
/// # Errors
/// An unreadable size, less than the engine needs, a machine of which nothing can be read.
pub fn budget(text: Option<&str>) -> Result<Budget> {
    budget_of(RAM, text)
}

/// The same for another option than `--ram`.
///
/// # Errors
/// As [`budget`].
pub fn budget_of(option: &str, text: Option<&str>) -> Result<Budget> {
    match text {
        Some(text) if !text.contains('%') => sized(option, text, None),
        _ => {
            let machine = Machine::read().map_err(|f| f.help(format!("name the budget, as in {option} 512M")))?;
            machine.budget_of(option, text)
        }
    }
}

const RAM: &str = "--ram";

/// Sets `--ram`. A program does not get it: it would be the default of each run below this one.
pub const ENV_RAM: &str = "FARPAGE_RAM";

fn sized(option: &str, text: &str, whole: Option<u64>) -> Result<Budget> {
    let bytes = size::parse_of(text, whole).map_err(|e| Failure::new(format!("{option}: {e}")))?;
    let budget = in_pages(bytes, format!("{option} {text}"));
    budget.map_err(|failure| match text.parse::<u64>() {
        // The unit was forgotten.
        Ok(number) if number << 20 >= conf::RAM_MIN => failure.help(format!("for {number} MiB write {option} {text}M")),
        _ => failure.help(format!("give at least {option} {}M", conf::RAM_MIN >> 20)),
    })
}

fn in_pages(bytes: u64, mut origin: String) -> Result<Budget> {
    let pages = bytes.next_multiple_of(PAGE_SIZE as u64);
    if pages != bytes {
        origin.push_str(", rounded up to pages");
    }
    if pages < conf::RAM_MIN {
        let (given, min) = (size::format(bytes), size::format(conf::RAM_MIN));
        return Err(Failure::new(format!("budget of {given} ({origin}) is below the minimum of {min}")));
    }
    Ok(Budget { bytes: pages, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(limit: Option<u64>) -> Machine {
        let limit = limit.map(|bytes| cgroup::Limit { bytes, file: "/c/memory.max".into() });
        Machine { total: 8 << 30, available: 4 << 30, limit }
    }

    #[test]
    fn defaults() {
        assert_eq!(machine(None).budget(None).unwrap().bytes, 2 << 30);
        let budget = machine(Some(1000 << 20)).budget(None).unwrap();
        assert_eq!(budget.bytes, 900 << 20);
        assert!(budget.origin.contains("/c/memory.max"));
    }

    #[test]
    fn percent_is_of_the_smaller() {
        assert_eq!(machine(None).budget(Some("50%")).unwrap().bytes, 4 << 30);
        assert_eq!(machine(Some(1 << 30)).budget(Some("50%")).unwrap().bytes, 512 << 20);
    }

    #[test]
    fn more_than_there_is() {
        let (machine, cgroup) = (machine(None), machine(Some(1 << 30)));
        assert_eq!((machine.less_than(8 << 30), cgroup.less_than(1 << 30)), (None, None));
        assert_eq!(machine.less_than((8 << 30) + 4096).unwrap(), "this machine has 8.0 GiB");
        assert_eq!(cgroup.less_than(2 << 30).unwrap(), "the memory cgroup has 1.0 GiB (/c/memory.max)");
    }

    #[test]
    fn rounded_up_and_refused() {
        let budget = machine(None).budget(Some("512000001")).unwrap();
        assert_eq!(budget.bytes % PAGE_SIZE as u64, 0);
        assert!(budget.bytes > 512_000_001 && budget.origin.contains("rounded"));
        for text in ["1M", "0", "x", "-1", "101%"] {
            assert_eq!(machine(None).budget(Some(text)).unwrap_err().status, 125, "{text}");
        }
    }
}
