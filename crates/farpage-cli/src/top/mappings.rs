//! What the mappings of a process are called, from its `/proc/PID/maps`.
//!
//! Callers: `details`. No state.

use crate::stat_cmd::find::printable;
use std::fs;

/// Names by range, in address order.
#[derive(Debug, Default)]
pub struct Names(Vec<(u64, u64, String)>);

impl Names {
    /// Those of a process; none if it may not be looked at.
    pub fn of(pid: u32) -> Names {
        Names::parse(&fs::read(format!("/proc/{pid}/maps")).unwrap_or_default())
    }

    fn parse(maps: &[u8]) -> Names {
        let mapping = |line: &[u8]| {
            let name = line.splitn(6, |byte| *byte == b' ').nth(5).unwrap_or_default().trim_ascii();
            let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let range = line.split(|byte| *byte == b' ').next()?;
            let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?, printable(name)))
        };
        Names(maps.split(|byte| *byte == b'\n').filter_map(mapping).collect())
    }

    /// The name of the mapping at an address, without its directory; `anonymous` if it has none.
    pub fn at(&self, address: u64) -> &str {
        let found = self.0.iter().find(|(start, end, _)| (*start..*end).contains(&address));
        match found {
            Some((_, _, name)) if !name.is_empty() => name,
            Some(_) => "anonymous",
            None => "-",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernels() {
        let maps = b"\
55d0c0de0000-55d0c0e01000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f1000000000-7f1000021000 rw-p 00000000 08:01 99                         /usr/lib/a b\x1b.so
7f2000000000-7f2000021000 rw-p 00000000 00:00 0                          [anon:arena]
nonsense
";
        let names = Names::parse(maps);
        for (address, name) in [
            (0x55d0c0de0000, "[heap]"),
            (0x55d0c0e00fff, "[heap]"),
            (0x55d0c0e01000, "-"),
            (0x7f0000000000, "anonymous"),
            (0x7f1000000000, "a b\\u{1b}.so"),
            (0x7f2000000000, "[anon:arena]"),
        ] {
            assert_eq!(names.at(address), name, "{address:x}");
        }
    }
}
