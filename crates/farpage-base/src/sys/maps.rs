//! This process's mappings, as `/proc` and the kernel's `PROCMAP_QUERY` tell them.

use super::raw::{Errno, nr, syscall};
use rustix::fd::OwnedFd;
use rustix::io::pread;

fn hex(text: &[u8]) -> Option<usize> {
    let mut value = 0usize;
    for &b in text {
        let digit = (b as char).to_digit(16)?;
        value = value.checked_mul(16)? + digit as usize;
    }
    (!text.is_empty()).then_some(value)
}

/// What is mapped, as far as the budget cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous memory without code. Other access rights do not matter: they may change while the mapping is
    /// registered, and a mapping of which only a part is registered is two mappings for mremap.
    Plain,
    /// The same that may be executed.
    Code,
    /// The stack of the process's first thread.
    Stack,
    /// A file's, private: what the program has written of it is anonymous memory.
    File,
    /// The same that may only be read.
    ReadOnlyFile,
    /// Shared memory: without a name, a memfd's, or a file's in tmpfs (or one of another filesystem without a device).
    Shared,
    /// A file's, shared.
    SharedFile,
    /// The kernel's own.
    Kernel,
}

impl Kind {
    fn of(rights: Rights, has_device: bool, has_inode: bool, name: &[u8]) -> Kind {
        match name {
            _ if rights.shared && has_device => Kind::SharedFile,
            _ if rights.shared => Kind::Shared,
            _ if has_inode && rights.is_read_only() => Kind::ReadOnlyFile,
            _ if has_inode => Kind::File,
            b"[stack]" => Kind::Stack,
            _ if name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:") => {
                if rights.executable {
                    Kind::Code
                } else {
                    Kind::Plain
                }
            }
            _ => Kind::Kernel,
        }
    }
}

/// What may be done with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    readable: bool,
    writable: bool,
    executable: bool,
    shared: bool,
}

impl Rights {
    /// It may be read, and nothing else.
    pub fn is_read_only(self) -> bool {
        self.readable && !self.writable && !self.executable
    }

    /// It may be written and executed.
    pub fn is_writable_code(self) -> bool {
        self.writable && self.executable
    }
}

/// One mapping of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// First byte behind.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
}

impl Mapping {
    /// Whether it can be managed.
    pub fn adoptable(&self) -> bool {
        matches!(self.kind, Kind::Plain | Kind::Code | Kind::Stack)
    }
}

/// Calls `each` for every mapping, with its name, in address order. `buf` is scratch memory, at least 8 KiB.
///
/// # Errors
/// As pread.
pub fn mappings(maps: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(Mapping, &[u8])) -> Result<(), Errno> {
    mappings_of_files(maps, buf, |m, _, name| each(m, name))
}

/// The same, with the offset in the file of those that have one.
///
/// # Errors
/// As pread.
pub fn mappings_of_files(
    maps: &OwnedFd,
    buf: &mut [u8],
    mut each: impl FnMut(Mapping, usize, &[u8]),
) -> Result<(), Errno> {
    lines(maps, buf, |line| {
        if let Some((m, offset, name)) = parse_line(line) {
            each(m, offset, name);
        }
    })
}

/// Calls `each(start, end)`, in bytes, for every mapping that a child has without its pages (`MADV_WIPEONFORK`).
/// `smaps` walks all page tables. `buf` is scratch memory, at least 8 KiB.
///
/// # Errors
/// As pread.
pub fn wiped_mappings(smaps: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(usize, usize)) -> Result<(), Errno> {
    let mut current = None;
    lines(smaps, buf, |line| match line.strip_prefix(b"VmFlags:") {
        Some(flags) if flags.split(|b| *b == b' ').any(|flag| flag == b"wf") => {
            if let Some((start, end)) = current.take() {
                each(start, end);
            }
        }
        Some(_) => current = None,
        // Of all lines only a mapping's first has such a word in front.
        None => current = line.split(|b| *b == b' ').next().and_then(range).or(current),
    })
}

fn range(text: &[u8]) -> Option<(usize, usize)> {
    let mut bounds = text.split(|b| *b == b'-');
    Some((hex(bounds.next()?)?, hex(bounds.next()?)?))
}

fn lines(file: &OwnedFd, buf: &mut [u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let (mut offset, mut held) = (0u64, 0usize);
    loop {
        let n = pread(file, &mut buf[held..], offset)?;
        if n == 0 {
            return Ok(());
        }
        offset += n as u64;
        held += n;
        let mut at = 0;
        while let Some(len) = buf[at..held].iter().position(|b| *b == b'\n') {
            each(&buf[at..at + len]);
            at += len + 1;
        }
        buf.copy_within(at..held, 0);
        held -= at;
        if held == buf.len() {
            held = 0; // a line longer than the buffer: a file name, which is of no interest
        }
    }
}

/// What the kernel says about one mapping.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);
/// Look for the next mapping if none covers the address.
const OR_NEXT: u64 = 0x10;

impl Query {
    fn ask(maps: &OwnedFd, addr: usize, flags: u64, name: &mut [u8]) -> Result<Query, Errno> {
        const PROCMAP_QUERY: usize = (3 << 30) | (size_of::<Query>() << 16) | ((b'f' as usize) << 8) | 17;
        let mut query = Query { size: size_of::<Query>() as u64, flags, addr: addr as u64, ..Query::default() };
        if !name.is_empty() {
            (query.name_size, query.name) = (name.len() as u32, name.as_mut_ptr() as u64);
        }
        let fd = rustix::fd::AsRawFd::as_raw_fd(maps) as usize;
        // SAFETY: query and name are alive; the kernel writes to both within their sizes.
        unsafe { syscall(nr::IOCTL, [fd, PROCMAP_QUERY, std::ptr::from_mut(&mut query) as usize, 0, 0, 0]) }?;
        Ok(query)
    }

    fn rights(&self) -> Rights {
        let is = |flag| self.vma_flags & flag != 0;
        Rights { readable: is(1), writable: is(2), executable: is(4), shared: is(8) }
    }
}

/// The mapping that covers `addr` right now, or else the next one; `None`: there is none behind it.
///
/// # Errors
/// `NOTTY`: the kernel (before 6.11) cannot be asked this.
pub fn mapping_from(maps: &OwnedFd, addr: usize) -> Result<Option<Mapping>, Errno> {
    // The longest name that a program can give: `[anon:` and 80 bytes.
    let mut name = [0u8; 96];
    let (query, name) = match Query::ask(maps, addr, OR_NEXT, &mut name) {
        Ok(query) => {
            let len = (query.name_size as usize).min(name.len());
            (query, name[..len].split(|b| *b == 0).next().unwrap_or_default())
        }
        Err(Errno::NAMETOOLONG) => (Query::ask(maps, addr, OR_NEXT, &mut [])?, &b"/"[..]), // a file
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let kind = Kind::of(query.rights(), query.device[0] != 0, query.inode != 0, name);
    Ok(Some(Mapping { start: query.start as usize, end: query.end as usize, kind }))
}

/// What may be done with what is mapped at `addr`; `None`: nothing is, or the kernel (before 6.11) does not say.
pub fn rights(maps: &OwnedFd, addr: usize) -> Option<Rights> {
    Query::ask(maps, addr, 0, &mut []).ok().map(|query| query.rights())
}

/// How far a mapping that ends at `end` could grow in place: where the next one starts.
pub fn free_until(maps: &OwnedFd, end: usize) -> usize {
    Query::ask(maps, end, OR_NEXT, &mut []).map_or(end, |next| (next.start as usize).max(end))
}

fn parse_line(line: &[u8]) -> Option<(Mapping, usize, &[u8])> {
    let mut fields = line.splitn(6, |b| *b == b' ');
    let (start, end) = range(fields.next()?)?;
    let perms = fields.next()?;
    let (offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    let is = |place: usize, letter| perms.get(place) == Some(&letter);
    let rights = Rights { readable: is(0, b'r'), writable: is(1, b'w'), executable: is(2, b'x'), shared: is(3, b's') };
    let kind = Kind::of(rights, !device.starts_with(b"00:"), inode != b"0", name);
    Some((Mapping { start, end, kind }, hex(offset)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::proc::Proc;

    #[test]
    fn lines() {
        let line = b"7f0c9c000000-7f0c9c021000 rw-p 00000000 00:00 0 ";
        let plain = Mapping { start: 0x7f0c9c000000, end: 0x7f0c9c021000, kind: Kind::Plain };
        assert_eq!(parse_line(line), Some((plain, 0, &b""[..])));
        for (line, kind) in [
            (&b"5581-5582 rw-p 00000000 00:00 0                          [heap]"[..], Kind::Plain),
            (b"1000-2000 r--p 00000000 00:00 0 ", Kind::Plain),
            (b"1000-2000 rw-p 00000000 00:00 0           [anon:x y]", Kind::Plain),
            (b"1000-2000 r-xp 00000000 00:00 0", Kind::Code),
            (b"1000-2000 rwxp 00000000 00:00 0", Kind::Code),
            (b"1000-2000 rw-p 00000000 00:00 0 [stack]", Kind::Stack),
            (b"1000-2000 rw-p 00000000 08:01 1234 /usr/lib/x", Kind::File),
            (b"1000-2000 r--p 00000000 08:01 1234 /usr/lib/x", Kind::ReadOnlyFile),
            (b"1000-2000 ---p 00000000 08:01 1234 /usr/lib/x", Kind::File),
            (b"1000-2000 rw-s 00000000 00:01 1034 /dev/zero (deleted)", Kind::Shared),
            (b"1000-2000 rw-s 00000000 08:01 1034 /var/tmp/x", Kind::SharedFile),
            (b"1000-2000 r--p 00000000 00:00 0 [vvar]", Kind::Kernel),
            (b"1000-2000 r-xp 00000000 00:00 0 [vdso]", Kind::Kernel),
        ] {
            assert_eq!(parse_line(line).unwrap().0.kind, kind, "{}", String::from_utf8_lossy(line));
        }
        let file = b"1000-2000 rw-p 0003e000 08:01 1234                       /a file (deleted)";
        let (_, offset, name) = parse_line(file).unwrap();
        assert_eq!((offset, name), (0x3e000, &b"/a file (deleted)"[..]));
    }

    #[test]
    fn mappings_that_a_fork_wipes() {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let smaps = Proc::open().unwrap().file("thread-self/smaps").unwrap();
        let all = || {
            let mut found = Vec::new();
            wiped_mappings(&smaps, &mut vec![0; 8192], |start, end| found.push((start, end))).unwrap();
            found
        };
        // SAFETY: new memory, of which the two pages in the middle are given advice; gone at the end, unused.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), 4 << 12, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            madvise(base.byte_add(1 << 12), 2 << 12, Advice::LinuxWipeOnFork).unwrap();
            let at = base as usize;
            assert!(all().contains(&(at + (1 << 12), at + (3 << 12))), "{:x?}", all());
            munmap(base, 4 << 12).unwrap();
            assert!(!all().iter().any(|(start, _)| (at..at + (4 << 12)).contains(start)));
        }
    }

    #[test]
    fn the_kernel_and_the_text_say_the_same() {
        let proc = Proc::open().unwrap();
        let maps = proc.file("thread-self/maps").unwrap();
        let (mut all, mut last, mut found) = (Vec::new(), 0, false);
        let here = std::ptr::from_ref(&last) as usize;
        let code = the_kernel_and_the_text_say_the_same as *const () as usize;
        mappings(&maps, &mut vec![0; 8192], |m, _| {
            assert!(m.start >= last && m.end > m.start);
            found |= (m.start..m.end).contains(&here);
            last = m.end;
            all.push(m);
        })
        .unwrap();
        assert!(all.len() > 5 && found);
        let kind_at = |at: usize| all.iter().find(|m| (m.start..m.end).contains(&at)).map(|m| m.kind);
        assert_eq!(kind_at(code), Some(Kind::File));
        // Not all: other tests map memory meanwhile.
        for m in all.iter().filter(|m| matches!(m.kind, Kind::File | Kind::ReadOnlyFile | Kind::Stack | Kind::Kernel)) {
            match mapping_from(&maps, m.start) {
                Ok(Some(now)) if now.start == m.start => assert_eq!(now.kind, m.kind, "{m:x?}"),
                Ok(_) => {}
                Err(error) => assert!(error == Errno::NOTTY || error == Errno::NOENT, "{m:x?}"),
            }
        }
    }

    #[test]
    fn one_mapping() {
        let proc = Proc::open().unwrap();
        let page = vec![1u8; 1 << 20];
        let maps = proc.file("thread-self/maps").unwrap();
        let found = mapping_from(&maps, page.as_ptr() as usize).unwrap().unwrap();
        assert!(found.adoptable() && found.start <= page.as_ptr() as usize);
        assert!(found.end >= page.as_ptr() as usize + page.len());
        let code = mapping_from(&maps, one_mapping as *const () as usize).unwrap().unwrap();
        assert_eq!(code.kind, Kind::File);
        assert!(mapping_from(&maps, 0).unwrap().unwrap().start > 0, "the first mapping");
        let next = free_until(&proc.file("thread-self/maps").unwrap(), found.end);
        assert!(next >= found.end && next < 1 << 47);
    }
}
