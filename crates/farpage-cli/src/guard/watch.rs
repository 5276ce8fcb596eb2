//! What is watched: the machine or a memory cgroup; how much is left, how fast it goes, whether that is too little.
//!
//! Caller: [`super`]. No locks.

use crate::cgroup::{self, Group};
use crate::process;
use farpage_command::machine::meminfo;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

/// Over how long it is seen how fast memory goes.
const WINDOW: Duration = Duration::from_secs(1);
/// Two looks that are nearer to each other say nothing about that.
const APART: Duration = Duration::from_millis(100);
/// What would be gone after so long counts as gone: an attach takes a part of a second.
const AHEAD_S: u64 = 1;
/// Some task waited for memory for more than this part of the last second: it is exhausted earlier than numbers say.
const STALLED_MAX: f64 = 0.2;

/// A place with an end of memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// This machine, of so many bytes.
    Machine(u64),
    /// A memory cgroup with a limit.
    Cgroup(Group),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Machine(_) => f.write_str("the machine"),
            Place::Cgroup(group) => write!(f, "{}", group.dir().display()),
        }
    }
}

/// Memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The end, bytes.
    pub limit: u64,
    /// What is left, bytes.
    pub left: u64,
    /// For how long tasks have waited for memory in all, us, where the kernel counts that.
    pub stalled_us: Option<u64>,
}

impl Place {
    /// How it is now; `None`: it is gone, or has no limit any more.
    pub fn read(&self, physical: u64) -> Option<Reading> {
        match self {
            Place::Machine(limit) => {
                let left = meminfo("MemAvailable")?;
                let pressure = fs::read_to_string("/proc/pressure/memory").ok();
                let stalled_us = pressure.and_then(|text| cgroup::stalled_us(&text));
                Some(Reading { limit: *limit, left, stalled_us })
            }
            Place::Cgroup(group) => {
                let limit = group.limit(physical)?;
                let left = limit.saturating_sub(group.needed()?);
                Some(Reading { limit, left, stalled_us: group.stalled_us() })
            }
        }
    }

    /// How many processes the kernel has killed there for want of memory.
    pub fn kills(&self) -> u64 {
        match self {
            Place::Machine(_) => {
                let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
                cgroup::keyed(&text, "oom_kill").unwrap_or(0)
            }
            Place::Cgroup(group) => group.kills(),
        }
    }

    /// The processes that have memory of it.
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Place::Machine(_) => process::all().unwrap_or_default(),
            Place::Cgroup(group) => group.processes(),
        }
    }
}

/// What the last second was like.
#[derive(Debug, Default)]
pub struct Trend(VecDeque<(Instant, Reading)>);

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Calm,
    /// It will be exhausted soon, and so many bytes may be filled until then.
    Soon(u64),
    /// So many bytes have to be given back.
    Now(u64),
}

impl Trend {
    /// Notes a reading. With another limit it begins anew: that is no speed.
    pub fn note(&mut self, at: Instant, reading: Reading) {
        if self.0.back().is_some_and(|(_, last)| last.limit != reading.limit) {
            self.0.clear();
        }
        self.0.push_back((at, reading));
        while self.0.get(1).is_some_and(|(then, _)| at.saturating_duration_since(*then) >= WINDOW) {
            self.0.pop_front();
        }
    }

    /// How fast memory goes, bytes a second: the fastest of all spans that end now, but no more than twice as fast as
    /// in the last moments: what filled memory may have ended.
    pub fn rate(&self) -> u64 {
        let Some((now, last)) = self.0.back() else { return 0 };
        let rates = self.0.iter().rev().filter_map(|(then, reading)| {
            let passed = now.saturating_duration_since(*then);
            let gone = reading.left.saturating_sub(last.left) as f64;
            (passed >= APART).then(|| gone / passed.as_secs_f64())
        });
        let latest = rates.clone().next().unwrap_or(0.0);
        rates.fold(0.0, f64::max).min(2.0 * latest) as u64
    }

    /// Whether tasks wait for memory.
    fn is_stalled(&self) -> bool {
        let (Some((then, first)), Some((now, last))) = (self.0.front(), self.0.back()) else { return false };
        let (Some(before), Some(after)) = (first.stalled_us, last.stalled_us) else { return false };
        let passed = now.saturating_duration_since(*then);
        passed >= WINDOW / 2 && after.saturating_sub(before) as f64 > passed.as_micros() as f64 * STALLED_MAX
    }

    /// What has to be done where `keep` bytes are to be left: when less is left, or will be, there shall be twice as
    /// much.
    pub fn need(&self, keep: u64) -> Need {
        let Some((_, last)) = self.0.back() else { return Need::Calm };
        let aim = keep.saturating_mul(2);
        match last.left.checked_sub(aim) {
            None if last.left < keep || self.is_stalled() => Need::Now(aim - last.left),
            _ if last.left.saturating_sub(self.rate().saturating_mul(AHEAD_S)) >= keep => Need::Calm,
            None => Need::Now(aim - last.left),
            Some(room) => Need::Soon(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A trend of what was left, MiB, every 100 ms.
    fn trend(left: &[u64], stalled_ms: u64) -> Trend {
        let (mut trend, start) = (Trend::default(), Instant::now());
        for (i, left) in left.iter().enumerate() {
            let stalled_us = Some(i as u64 * stalled_ms * 1000);
            let at = start + Duration::from_millis(i as u64 * 100);
            trend.note(at, Reading { limit: 1000 * MIB, left: left * MIB, stalled_us });
        }
        trend
    }

    #[test]
    fn what_is_left_decides() {
        assert_eq!(Trend::default().need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[300, 300], 0).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[101, 101], 0).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[99, 99], 0).need(100 * MIB), Need::Now(101 * MIB));
    }

    #[test]
    fn what_will_be_left_in_a_second_decides() {
        assert_eq!(trend(&[500, 300, 300], 0).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[500, 480], 0).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[500, 450], 0).need(100 * MIB), Need::Soon(250 * MIB));
        assert_eq!(trend(&[500, 500, 500, 500, 180], 0).need(100 * MIB), Need::Now(20 * MIB));
        assert_eq!(trend(&[500, 450, 500], 0).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[400, 500, 490], 0).rate() / MIB, 100);
    }

    #[test]
    fn stalls_are_believed_where_little_is_left() {
        assert_eq!(trend(&[150; 11], 30).need(100 * MIB), Need::Now(50 * MIB));
        assert_eq!(trend(&[150; 11], 10).need(100 * MIB), Need::Calm);
        assert_eq!(trend(&[250; 11], 30).need(100 * MIB), Need::Calm);
    }

    #[test]
    fn only_the_last_second_counts() {
        let mut left = vec![900, 500];
        left.extend([500; 20]);
        let mut trend = trend(&left, 0);
        assert!(trend.0.len() <= 12);
        assert_eq!(trend.rate(), 0);
        // A lower limit is no speed.
        let (at, reading) = *trend.0.back().unwrap();
        trend.note(at + Duration::from_millis(100), Reading { limit: 800 * MIB, left: 300 * MIB, ..reading });
        assert_eq!(trend.rate(), 0);
    }
}
