//! The mappings of a process, from outside: what they are called, and how much of each is in memory.
//!
//! The kernel has no name for anonymous memory. What is known of it from elsewhere is its name here: the stack of a
//! thread that waits in the kernel, what belongs to the library before it, and what has the shape of glibc's arenas.
//!
//! Callers: `farpage top`, and `farpage run --report`. No state.

use crate::stat_cmd::find::printable;
use std::fs;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMapping {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// What may be done with it, as the kernel writes that.
    rights: [u8; 4],
    /// Without its directory; may be empty.
    name: String,
    /// Bytes of it that are in memory, as far as that was asked.
    pub resident: u64,
}

impl NamedMapping {
    /// Its name; `anonymous` if it has none.
    pub fn name(&self) -> &str {
        if self.name.is_empty() { "anonymous" } else { &self.name }
    }

    /// One without rights.
    #[cfg(test)]
    pub(crate) fn for_test(start: u64, end: u64, name: &str, resident: u64) -> NamedMapping {
        NamedMapping { start, end, rights: *b"---p", name: name.into(), resident }
    }

    /// One line of `maps`, or the first of several of `smaps`.
    fn parse(line: &[u8]) -> Option<NamedMapping> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (start, end) = std::str::from_utf8(words.next()?).ok()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let rights = words.next()?.try_into().ok()?;
        let name = words.nth(3).unwrap_or_default().trim_ascii();
        let name = printable(name.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        Some(NamedMapping { start: number(start)?, end: number(end)?, rights, name, resident: 0 })
    }
}

/// Those of a process, in address order.
#[derive(Debug, Default, Clone)]
pub struct Names(pub Vec<NamedMapping>);

impl Names {
    /// Those of a process; none if it may not be looked at.
    #[cfg(feature = "top")]
    pub fn of(pid: u32) -> Names {
        Names::parse(&fs::read(format!("/proc/{pid}/maps")).unwrap_or_default()).with_guessed(&stack_pointers(pid))
    }

    /// The same, with what of them is in memory: the kernel looks at every page for that. Neighbours with the
    /// same name are one; of those without a name, if the same may be done with them.
    pub fn with_resident(pid: u32) -> Names {
        let names = Names::parse(&fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default());
        names.merged().with_guessed(&stack_pointers(pid))
    }

    /// Names those that have none. `stacks`: a thread, and an address in its stack.
    fn with_guessed(mut self, stacks: &[(u32, u64)]) -> Names {
        for at in 0..self.0.len() {
            let (one, next) = (&self.0[at], self.0.get(at + 1));
            if !one.name.is_empty() || one.rights[..2] != *b"rw" {
                continue;
            }
            let before = at.checked_sub(1).map(|before| &self.0[before]).filter(|before| before.end == one.start);
            let is_inside = |(_, pointer): &&(u32, u64)| (one.start..one.end).contains(pointer);
            let is_kept =
                |next: &&NamedMapping| next.start == one.end && next.name.is_empty() && next.rights == *b"---p";
            let end = next.filter(is_kept).map_or(one.end, |next| next.end);
            let name = match (stacks.iter().find(is_inside), before) {
                (Some((thread, _)), _) if one.end - one.start <= STACK => format!("stack of thread {thread}"),
                (Some((thread, _)), _) => format!("anonymous, with stack of thread {thread}"),
                (None, Some(library)) if library.name.contains(".so") && one.end - one.start <= BSS => {
                    format!("bss of {}", library.name)
                }
                _ if one.start.is_multiple_of(ARENA) && end - one.start == ARENA => "malloc arena".into(),
                _ => continue,
            };
            self.0[at].name = name;
        }
        self
    }

    /// Names those that have none as they were called before: a stack is not found while its thread runs.
    pub fn inherit(&mut self, before: &Names) {
        for one in self.0.iter_mut().filter(|one| one.name.is_empty()) {
            if let Some(known) = before.find(one.start).filter(|known| (known.start, known.end) == (one.start, one.end))
            {
                one.name.clone_from(&known.name);
            }
        }
    }

    fn parse(maps: &[u8]) -> Names {
        let mut all: Vec<NamedMapping> = Vec::new();
        for line in maps.split(|byte| *byte == b'\n') {
            match (line.strip_prefix(b"Rss:"), all.last_mut()) {
                (Some(size), Some(last)) => last.resident = kib(size),
                _ => all.extend(NamedMapping::parse(line)),
            }
        }
        Names(all)
    }

    fn merged(self) -> Names {
        let mut all: Vec<NamedMapping> = Vec::new();
        for next in self.0 {
            let is_more_of = |last: &&mut NamedMapping| {
                let is_named = !next.name.is_empty();
                last.end == next.start && last.name == next.name && (is_named || last.rights == next.rights)
            };
            match all.last_mut().filter(is_more_of) {
                Some(last) => {
                    last.end = next.end;
                    last.resident += next.resident;
                }
                None => all.push(next),
            }
        }
        Names(all)
    }

    /// The mapping at an address.
    pub fn find(&self, address: u64) -> Option<&NamedMapping> {
        let at = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(at).filter(|mapping| mapping.start <= address)
    }

    /// The name of the mapping at an address, `-` if there is none.
    #[cfg(any(feature = "top", test))]
    pub fn at(&self, address: u64) -> &str {
        self.find(address).map_or("-", NamedMapping::name)
    }
}

/// The kernel joins neighbours of the same kind: what is larger than a usual stack, or bss, has more in it.
const STACK: u64 = (8 << 20) + (64 << 10);
const BSS: u64 = 256 << 10;
/// What glibc reserves for the allocations of some threads, at a multiple of itself.
const ARENA: u64 = 64 << 20;

/// The threads of a process that wait in the kernel, and an address in the stack of each.
fn stack_pointers(pid: u32) -> Vec<(u32, u64)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let pointer = |thread: fs::DirEntry| {
        let state = fs::read_to_string(thread.path().join("syscall")).ok()?;
        let address = state.split_whitespace().rev().nth(1)?.strip_prefix("0x")?;
        Some((thread.file_name().to_str()?.parse().ok()?, u64::from_str_radix(address, 16).ok()?))
    };
    threads.filter_map(pointer).collect()
}

/// ` 12 kB`, in bytes.
fn kib(text: &[u8]) -> u64 {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
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

    #[test]
    fn anonymous_memory_is_what_is_known_of_it() {
        let maps = b"\
10000000-10021000 rw-p 00000000 00:00 0 
10021000-14000000 ---p 00000000 00:00 0 
18000000-18021000 rw-p 00000000 00:00 0 
20000000-20010000 r-xp 00000000 08:01 99                         /usr/lib/libz.so.1
20010000-20020000 rw-p 00000000 00:00 0 
30000000-30010000 ---p 00000000 00:00 0 
30010000-30810000 rw-p 00000000 00:00 0 
";
        let names = |stacks: &[(u32, u64)]| Names::parse(maps).with_guessed(stacks);
        let found = names(&[(7, 0x30800000), (8, 0x10030000)]);
        for (address, name) in [
            (0x10000000, "malloc arena"),
            (0x10030000, "anonymous"),
            (0x18000000, "anonymous"),
            (0x20010000, "bss of libz.so.1"),
            (0x30000000, "anonymous"),
            (0x30010000, "stack of thread 7"),
        ] {
            assert_eq!(found.at(address), name, "{address:x}");
        }
        let mut later = names(&[]);
        assert_eq!(later.at(0x30010000), "anonymous");
        later.inherit(&found);
        assert_eq!(later.at(0x30010000), "stack of thread 7");
    }

    #[test]
    fn a_thread_that_waits_has_a_stack() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let here = 0u8;
            tell.send((rustix::thread::gettid().as_raw_nonzero(), std::ptr::from_ref(&here) as u64)).unwrap();
            receive.recv().unwrap_err();
        });
        let (id, address) = told.recv().unwrap();
        let name = format!("stack of thread {id}");
        // As soon as it waits.
        while Names::with_resident(std::process::id()).at(address) != name {
            std::thread::yield_now();
        }
        drop(send);
        thread.join().unwrap();
    }

    #[test]
    fn neighbours_with_the_same_name_are_one() {
        let smaps = b"\
10000-20000 r-xp 00000000 08:01 99                         /usr/lib/a.so
Size:                 64 kB
Rss:                   8 kB
20000-30000 rw-p 00000000 08:01 99                         /usr/lib/a.so
Rss:                   4 kB
30000-40000 rw-p 00000000 00:00 0 
Rss:                   0 kB
40000-50000 rw-p 00000000 00:00 0 
Rss:                  12 kB
50000-60000 ---p 00000000 00:00 0 
VmFlags: rd mr mw me ac
";
        let seen = |names: &Names| names.0.iter().map(|one| (one.start, one.end, one.resident)).collect::<Vec<_>>();
        let names = Names::parse(smaps);
        assert_eq!((names.0.len(), names.0[1].resident, names.at(0x60000)), (5, 4096, "-"));
        let names = names.merged();
        assert_eq!(seen(&names), [(0x10000, 0x30000, 12288), (0x30000, 0x50000, 12288), (0x50000, 0x60000, 0)]);
        assert_eq!((names.at(0x2fff0), names.at(0x40000), names.at(0x60000)), ("a.so", "anonymous", "-"));
        // This test's own memory.
        let here = Names::with_resident(std::process::id());
        assert!(here.find(std::ptr::from_ref(&names) as u64).is_some_and(|stack| stack.resident > 0));
        assert!(here.0.is_sorted_by_key(|one| one.start) && Names::with_resident(u32::MAX).0.is_empty());
    }
}
