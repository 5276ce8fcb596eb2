//! What the loader of a program makes of a library for glibc that it is told to preload, before the program is started.
//!
//! Called between `vfork` and exec, so it allocates nothing, takes no lock, and leaves `errno` alone. What cannot be
//! looked at is taken for a program of glibc's: so nothing changes for it.

use super::raw::{Errno, syscall};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::fs::{Access, AtFlags, FileType};
use rustix::io::pread;
use std::ffi::{CStr, c_char, c_int};

const HEADER: usize = 64;
const PHDR: usize = 56;
const PT_INTERP: u32 = 3;
/// `\x7fELF`, 64 bits, little-endian.
const IDENT: [u8; 6] = *b"\x7fELF\x02\x01";
const X86_64: u16 = 62;
/// The kernel reads this much of a `#!` line, and follows so many of them.
const LINE: usize = 256;
const SCRIPTS: usize = 5;
/// Program headers looked at, and the longest name of a loader.
const PHDRS: u64 = 64;
const NAME: usize = 512;
/// How glibc's loader is called.
const GLIBC: [&[u8]; 3] = [b"ld-linux-x86-64.so", b"ld-lsb-x86-64.so", b"ld-2."];

/// Who loads a program, as far as libraries to preload are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoaderKind {
    /// glibc's, which loads them.
    Glibc,
    /// Another one, which complains, or gives up.
    Other,
    /// Nobody (a static program), or glibc's, which leaves them out (a program with more rights).
    Ignores,
}

/// Who would load the program at `path`, as `execveat` takes it.
///
/// # Safety
/// `path` is for the kernel: it may be anything.
pub unsafe fn kind(dir: c_int, path: *const c_char, flags: c_int) -> LoaderKind {
    // SAFETY: caller's promise.
    let Ok(mut file) = (unsafe { open(dir, path, flags) }) else { return LoaderKind::Glibc };
    let mut head = [0; LINE];
    for _ in 0..SCRIPTS {
        let Ok(n) = pread(&file, &mut head, 0) else { break };
        let Some(line) = head[..n].strip_prefix(b"#!") else {
            return match elf(&file, &head[..n]).unwrap_or(LoaderKind::Glibc) {
                LoaderKind::Glibc if gives_rights(&file) => LoaderKind::Ignores,
                kind => kind,
            };
        };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_start();
        let end = line.iter().position(|byte| b" \t\0".contains(byte)).unwrap_or(line.len());
        let mut name = [0; LINE];
        name[..end].copy_from_slice(&line[..end]);
        // SAFETY: a string that ends in zero, as the line is shorter than the array.
        let Ok(next) = (unsafe { open(libc::AT_FDCWD, name.as_ptr().cast(), 0) }) else { break };
        file = next;
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

/// Of an ELF file; `None`: it is none, or damaged.
fn elf(file: impl AsFd, head: &[u8]) -> Option<LoaderKind> {
    if !head.starts_with(b"\x7fELF") || head.len() < HEADER {
        return None;
    }
    if !head.starts_with(&IDENT) || u16_at(head, 18) != X86_64 {
        return Some(LoaderKind::Other);
    }
    let (table, size, count) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56));
    if usize::from(size) != PHDR {
        return None;
    }
    for i in 0..u64::from(count).min(PHDRS) {
        let mut phdr = [0; PHDR];
        if pread(&file, &mut phdr, table.checked_add(i * PHDR as u64)?).ok()? != PHDR {
            return None;
        }
        if u32::from_le_bytes([phdr[0], phdr[1], phdr[2], phdr[3]]) == PT_INTERP {
            let mut name = [0; NAME];
            let name = name.get_mut(..usize::try_from(u64_at(&phdr, 32)).ok()?)?;
            if pread(&file, &mut *name, u64_at(&phdr, 8)).ok()? != name.len() {
                return None;
            }
            let name = CStr::from_bytes_until_nul(name).ok()?.to_bytes();
            let name = name.rsplit(|byte| *byte == b'/').next()?;
            let is_glibcs = GLIBC.iter().any(|known| name.starts_with(known));
            return Some(if is_glibcs { LoaderKind::Glibc } else { LoaderKind::Other });
        }
    }
    Some(LoaderKind::Ignores)
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

    #[test]
    fn who_gets_more_rights_preloads_nothing() {
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
        alone[56] = 0;
        alone[57] = 0;
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
