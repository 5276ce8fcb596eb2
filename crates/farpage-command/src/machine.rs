//! What machine this is, in words, for reports of what was measured on it; `/proc/meminfo`. No state.

use farpage_ipc::conf::size;
use std::fmt;
use std::fs;

/// Where something ran.
#[derive(Debug, Clone)]
pub struct System {
    /// Release of the kernel.
    pub kernel: String,
    /// How many CPUs there are.
    pub cpus: usize,
    /// What they are called.
    pub cpu: Option<String>,
    /// Physical memory, bytes.
    pub memory: u64,
}

impl System {
    /// This machine.
    pub fn here() -> System {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        System {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: cpus.lines().filter(|line| line.starts_with("processor")).count(),
            cpu: model.map(|(_, name)| name.to_owned()),
            memory: meminfo("MemTotal").unwrap_or(0),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or("unknown CPU");
        write!(f, "Linux {}, {} x {cpu}, {} of memory", self.kernel, self.cpus, size::format(self.memory))
    }
}

/// A value of `/proc/meminfo`, bytes.
pub fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let here = System::here();
        assert!(here.kernel.starts_with(|c: char| c.is_ascii_digit()), "{here:?}");
        assert!(here.cpus > 0 && here.memory > 1 << 20 && here.to_string().contains(" x "), "{here}");
    }
}
