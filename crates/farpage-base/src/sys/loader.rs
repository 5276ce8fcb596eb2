//! What kind of file is executed, and what its loader makes of a library for glibc that it is told to preload.
//!
//! Callers: the command, before it starts a program; the preload library, between `vfork` and exec. So it allocates
//! nothing, takes no lock, and leaves `errno` alone. What cannot be looked at is taken there for a program of glibc's:
//! so nothing changes for it.

use super::raw::{Errno, syscall};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::fs::{Access, AtFlags, FileType};
use rustix::io::pread;
use std::ffi::{CStr, c_char, c_int};

const HEADER: usize = 64;
const PHDR: usize = 56;
/// The kernel reads no more program headers than fit into 64 KiB.
const PHDRS: u16 = (65536 / PHDR) as u16;
const PT_INTERP: u32 = 3;
/// 64 bits, little-endian.
const CLASS: [u8; 2] = [2, 1];
const X86_64: u16 = 62;
/// The kernel reads this much of a `#!` line.
const SCRIPT_LINE: usize = 256;
/// The kernel follows so many of them.
pub const SCRIPTS: usize = 5;
/// Longest name of a loader that is looked at where there is little stack.
const NAME: usize = 512;
/// How glibc's loader is called.
const GLIBC: [&[u8]; 3] = [b"ld-linux-x86-64.so", b"ld-lsb-x86-64.so", b"ld-2."];

/// What kind of file is executed.
#[derive(Debug, PartialEq, Eq)]
pub enum ExecFormat<'a> {
    /// `#!` and this interpreter.
    Script(&'a [u8]),
    /// An ELF program that this loader starts.
    Dynamic(&'a [u8]),
    /// One without a loader.
    Static,
    /// One of another kind of processor, by its number in ELF; x86-64's own: of its 32-bit form.
    Foreign(u16),
    /// ELF that no kernel starts; in words.
    Broken(&'static str),
    /// No format that is known here: the shell runs it, or binfmt_misc.
    Unknown,
}

const TRUNCATED: ExecFormat<'_> = ExecFormat::Broken("a truncated ELF file");
const DAMAGED: ExecFormat<'_> = ExecFormat::Broken("a damaged ELF file");

/// What loads a program, as far as libraries to preload are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoaderKind {
    /// glibc's, which loads them.
    Glibc,
    /// Another one, which complains, or gives up.
    Other,
    /// None (a static program), or glibc's, which leaves them out (a program with more rights).
    Ignores,
}

/// What would load the program at `path`, as `execveat` takes it.
///
/// # Safety
/// `path` is for the kernel: it may be anything.
pub unsafe fn kind(dir: c_int, path: *const c_char, flags: c_int) -> LoaderKind {
    // SAFETY: caller's promise.
    let Ok(mut file) = (unsafe { open(dir, path, flags) }) else { return LoaderKind::Glibc };
    for _ in 0..SCRIPTS {
        let mut name = [0; NAME];
        let Ok(found) = format(&file, &mut name) else { break };
        match found {
            ExecFormat::Script(interpreter) => {
                let mut path = [0; SCRIPT_LINE];
                path[..interpreter.len()].copy_from_slice(interpreter);
                // SAFETY: a string that ends in zero, as `#!` is not in it.
                let Ok(next) = (unsafe { open(libc::AT_FDCWD, path.as_ptr().cast(), 0) }) else { break };
                file = next;
            }
            ExecFormat::Dynamic(loader) => {
                let name = loader.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let is_glibcs = GLIBC.iter().any(|known| name.starts_with(known));
                return match is_glibcs {
                    false => LoaderKind::Other,
                    true if gives_rights(&file) => LoaderKind::Ignores,
                    true => LoaderKind::Glibc,
                };
            }
            ExecFormat::Static => return LoaderKind::Ignores,
            ExecFormat::Foreign(_) => return LoaderKind::Other,
            ExecFormat::Broken(_) | ExecFormat::Unknown => break,
        }
    }
    LoaderKind::Glibc
}

/// Whether the program is executed with another user's or group's rights.
fn gives_rights(file: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != rustix::process::getuid().as_raw();
    let group = libc::S_ISGID | libc::S_IXGRP;
    user || stat.st_mode & group == group && stat.st_gid != rustix::process::getgid().as_raw()
}

/// Whether a library at this path can be loaded from here, with this process's effective rights.
pub fn is_library_here(path: &CStr) -> bool {
    rustix::fs::accessat(rustix::fs::CWD, path, Access::READ_OK, AtFlags::EACCESS).is_ok()
}

/// Whether `execvp` would take this for the program that it looks for.
pub fn is_program(path: &CStr) -> bool {
    let regular = rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    regular && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Opens a regular file for reading.
unsafe fn open(dir: c_int, path: *const c_char, flags: c_int) -> Result<OwnedFd, Errno> {
    let follow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
    // SAFETY: asks for a file's kind at a path that the kernel reads; zero bits are a valid place for the answer.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let args = [dir as usize, path.addr(), (&raw mut stat).addr(), flags as usize, 0, 0];
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_newfstatat as u32, args) }?;
    // To open anything else might wait, or do something.
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::ACCESS);
    }
    // SAFETY: the kernel has just read the path.
    if flags & libc::AT_EMPTY_PATH != 0 && unsafe { CStr::from_ptr(path) }.is_empty() {
        let args = [dir as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: a new number for the caller's descriptor.
        let fd = unsafe { syscall(libc::SYS_fcntl as u32, args) }?;
        // SAFETY: just made.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) });
    }
    let how = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | follow;
    // SAFETY: as above.
    let fd = unsafe { syscall(libc::SYS_openat as u32, [dir as usize, path.addr(), how as usize, 0, 0, 0]) }?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Looks at the beginning of a file that is to be executed. `name` has room for the names in it; a loader's that is
/// longer is taken for damage.
///
/// # Errors
/// It cannot be read.
pub fn format<'a>(file: impl AsFd, name: &'a mut [u8]) -> Result<ExecFormat<'a>, Errno> {
    let read = |bytes: &mut [u8], at: u64| {
        let mut n = 0;
        while n < bytes.len() {
            match pread(&file, &mut bytes[n..], at.saturating_add(n as u64)) {
                // What is named in it and is not there is behind the file's end.
                Ok(0) | Err(Errno::INVAL) => break,
                Ok(more) => n += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(n)
    };
    let mut head = [0; SCRIPT_LINE];
    let n = read(&mut head, 0)?;
    let head = &head[..n];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_start();
        let end = line.iter().position(|byte| b" \t\0".contains(byte)).unwrap_or(line.len());
        let Some(name) = name.get_mut(..end).filter(|_| end > 0) else { return Ok(ExecFormat::Unknown) };
        name.copy_from_slice(&line[..end]);
        return Ok(ExecFormat::Script(name));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(ExecFormat::Unknown);
    }
    if head.len() < HEADER {
        return Ok(TRUNCATED);
    }
    let machine = u16_at(head, 18);
    if head[4..6] != CLASS || machine != X86_64 {
        return Ok(ExecFormat::Foreign(machine));
    }
    match u16_at(head, 16) {
        // Executable, or shared as position-independent programs are.
        2 | 3 => {}
        1 => return Ok(ExecFormat::Broken("an object file that has not been linked yet")),
        4 => return Ok(ExecFormat::Broken("a core dump and not a program")),
        _ => return Ok(DAMAGED),
    }
    let (table, size, count) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56));
    if usize::from(size) != PHDR || !(1..=PHDRS).contains(&count) {
        return Ok(DAMAGED);
    }
    for i in 0..u64::from(count) {
        let mut phdr = [0; PHDR];
        if read(&mut phdr, table.saturating_add(i * PHDR as u64))? != PHDR {
            return Ok(TRUNCATED);
        }
        if u32::from_le_bytes([phdr[0], phdr[1], phdr[2], phdr[3]]) == PT_INTERP {
            let len = usize::try_from(u64_at(&phdr, 32)).unwrap_or(usize::MAX);
            let Some(name) = name.get_mut(..len).filter(|_| len > 1) else { return Ok(DAMAGED) };
            if read(name, u64_at(&phdr, 8))? != len {
                return Ok(TRUNCATED);
            }
            return Ok(match name.split_last() {
                Some((0, name)) => ExecFormat::Dynamic(name.split(|byte| *byte == 0).next().unwrap_or_default()),
                _ => DAMAGED,
            });
        }
    }
    Ok(ExecFormat::Static)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (0..8).fold(0, |word, i| word | u64::from(bytes[at + i]) << (8 * i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    fn kind_at(path: &Path) -> LoaderKind {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path.
        unsafe { kind(libc::AT_FDCWD, path.as_ptr(), 0) }
    }

    fn at(path: &Path) -> bool {
        kind_at(path) == LoaderKind::Glibc
    }

    fn format_of(bytes: &[u8]) -> ExecFormat<'static> {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        format(&file, Box::leak(Box::new([0; NAME]))).unwrap()
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(format_of(b"#!/bin/sh -e\necho\n"), ExecFormat::Script(b"/bin/sh"));
        assert_eq!(format_of(b"#! \t/usr/bin/env python3\n"), ExecFormat::Script(b"/usr/bin/env"));
        assert_eq!(format_of(b"#!/bin/sh"), ExecFormat::Script(b"/bin/sh"));
        for other in [&b"#!\n"[..], b"", b"echo hello\n"] {
            assert_eq!(format_of(other), ExecFormat::Unknown);
        }
    }

    /// An ELF file's first bytes, and then anything.
    #[test]
    fn fuzz_elf_file() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        bolero::check!().with_type().for_each(|(kept, changes, end): &(u16, Vec<(u16, u8)>, u16)| {
            let mut elf = whole[..usize::from(*kept).clamp(4, whole.len())].to_vec();
            for (at, byte) in changes {
                let at = usize::from(*at) % elf.len().min(1024);
                elf[at] = *byte;
            }
            elf.truncate(usize::from(*end).max(4));
            let file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut &file, &elf).unwrap();
            let _ = format(&file, &mut [0; NAME]);
        });
    }

    /// This test's own file, shorter or with other bytes, at every place that is looked at: no error is the system's.
    #[test]
    fn damaged_elf_files_are_named_as_such() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let table = u64_at(&whole, 32) as usize;
        let headers = table + usize::from(u16_at(&whole, 56)) * PHDR;
        for end in [7, 63, 64, table + 1, headers - 1] {
            assert_eq!(format_of(&whole[..end]), TRUNCATED, "{end}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut elf = whole[..headers + 4096].to_vec();
            elf[at..at + bytes.len()].copy_from_slice(bytes);
            format_of(&elf)
        };
        assert!(matches!(with(0, b"\x7fELF"), ExecFormat::Dynamic(loader) if loader.starts_with(b"/")));
        assert!(matches!(with(16, &[1]), ExecFormat::Broken(what) if what.contains("object file")));
        assert!(matches!(with(16, &[4]), ExecFormat::Broken(what) if what.contains("core dump")));
        assert_eq!((with(18, &[183]), with(4, &[1])), (ExecFormat::Foreign(183), ExecFormat::Foreign(X86_64)));
        let interp = (table..headers).step_by(PHDR).find(|at| whole[*at] == PT_INTERP as u8).unwrap();
        let (offset, length) = (u64_at(&whole, interp + 8) as usize, u64_at(&whole, interp + 32) as usize);
        for (at, bytes) in [
            (16, &[9u8, 0][..]),
            (54, &[55, 0]),
            (56, &[0, 0]),
            (interp + 32, &[0xff; 8]),
            (interp + 32, &[0; 8]),
            (offset + length - 1, b"x"),
        ] {
            assert_eq!(with(at, bytes), DAMAGED, "{at}");
        }
        for at in [32, interp + 8] {
            for value in [u64::MAX, 1 << 62, whole.len() as u64] {
                assert_eq!(with(at, &value.to_ne_bytes()), TRUNCATED, "{at} {value}");
            }
        }
    }

    #[test]
    fn a_program_with_more_rights_preloads_nothing() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let dir = tempfile::tempdir().unwrap();
        let (own, others) = (dir.path().join("own"), dir.path().join("others"));
        for path in [&own, &others] {
            std::fs::copy("/proc/self/exe", path).unwrap();
        }
        if chown(&others, Some(1), None).is_err() {
            return; // not root
        }
        for path in [&own, &others] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        }
        assert_eq!([&own, &others].map(|path| kind_at(path)), [LoaderKind::Glibc, LoaderKind::Ignores]);
    }

    #[test]
    fn loaders_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let exe = std::fs::read("/proc/self/exe").unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        assert!(at(Path::new("/proc/self/exe")) && at(dir.path()) && at(&dir.path().join("none")));
        let place = exe.windows(14).position(|bytes| bytes == b"ld-linux-x86-6").unwrap();
        let mut musl = exe.clone();
        musl[place..place + 14].copy_from_slice(b"ld-musl-x86-64");
        let musl = file("musl", &musl);
        assert!(!at(&musl));
        let mut narrow = exe.clone();
        narrow[4] = 1;
        assert!(!at(&file("narrow", &narrow)));
        let script = file("script", format!("#! {} -x\n", musl.display()).as_bytes());
        assert!(!at(&script) && !at(&file("again", format!("#!{}", script.display()).as_bytes())));
        assert!(at(&file("shell", b"#!/bin/sh\n")) && at(&file("text", b"echo")) && at(&file("short", &exe[..40])));
        assert!(at(&file("itself", format!("#!{}\n", dir.path().join("itself").display()).as_bytes())));
        for end in [64, 100, 500] {
            assert!(at(&file("cut", &exe[..end])));
        }
        // A program without a header that names a loader.
        let mut alone = exe.clone();
        let headers = (u64_at(&exe, 32) as usize..).step_by(PHDR).take(usize::from(u16_at(&exe, 56)));
        headers.filter(|at| exe[*at] == PT_INTERP as u8).for_each(|at| alone[at] = 0);
        assert_eq!(kind_at(&file("static", &alone)), LoaderKind::Ignores);
        assert_eq!(kind_at(&musl), LoaderKind::Other);
        let open = std::fs::File::open(&musl).unwrap();
        // SAFETY: an empty path; then one that is none.
        let (by_number, nowhere) = unsafe {
            let by_number = kind(open.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH);
            (by_number, kind(libc::AT_FDCWD, std::ptr::null(), 0))
        };
        assert_eq!((by_number, nowhere), (LoaderKind::Other, LoaderKind::Glibc));
    }
}
