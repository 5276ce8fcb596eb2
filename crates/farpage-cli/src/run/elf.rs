//! Will the preload library start in this file? Looks at the ELF header, the loader, privileges and `#!` lines.

use super::{path_of, shown};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Result};
use rustix::fs::{FileType, Mode};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const EM_X86_64: u16 = 62;
const ET_REL: u16 = 1;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const ET_CORE: u16 = 4;
const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
/// The kernel follows this many interpreters.
const SCRIPT_DEPTH: usize = 5;
/// The kernel reads this much of a `#!` line.
const SCRIPT_LINE: usize = 256;
const HEADER_BYTES: usize = 64;
const PHDR_BYTES: usize = 56;

/// Interpreter names are this long at most, as for the kernel.
const INTERP_MAX: u64 = 4096;

/// What kind of file it is, as far as preloading goes.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Started by this loader.
    Dynamic(PathBuf),
    /// No loader.
    Static,
    /// ELF for something else; in words.
    Foreign(String),
    /// ELF that no kernel starts; in words.
    Broken(&'static str),
    /// `#!` and this interpreter.
    Script(PathBuf),
    /// No format we know; the shell runs it, or binfmt_misc.
    Unknown,
}

/// Refuses programs in which the preload library would not start.
///
/// # Errors
/// Status 125 for those; 126 and 127 for a script whose interpreter cannot be run.
pub fn check(program: &Path) -> Result<()> {
    let mut path = program.to_path_buf();
    for _ in 0..SCRIPT_DEPTH {
        // A file that may be executed and not read cannot be judged.
        let Ok(file) = File::open(&path) else { return privileges(program, &path) };
        let kind = kind(&file).map_err(|e| {
            let why = crate::failure::why(&e);
            Failure::with_status(NOT_EXECUTABLE, format!("cannot run {}: {why}", shown(&path)))
        })?;
        match kind {
            Kind::Script(interpreter) => {
                interpreter_exists(&path, &interpreter)?;
                path = interpreter;
            }
            Kind::Unknown => path = PathBuf::from("/bin/sh"),
            Kind::Dynamic(loader) => {
                if is_musl_loader(&loader) {
                    let why = "it is linked against musl, and the preload library needs glibc";
                    return Err(refuse(program, &path, why).help("use the build for glibc systems"));
                }
                loader_exists(program, &path, &loader)?;
                return privileges(program, &path);
            }
            Kind::Static if is_glibc_loader(&path) => return Ok(()),
            Kind::Static => {
                let failure = refuse(program, &path, "it is statically linked, so nothing can be preloaded into it");
                return Err(failure.help("use a dynamically linked build (go build: -linkmode=external; musl: glibc)"));
            }
            Kind::Broken(what) => {
                let via = if program == path { String::new() } else { format!("its interpreter {}: ", shown(&path)) };
                let sentence = format!("cannot run {}: {via}it is {what}", shown(program));
                return Err(Failure::with_status(NOT_EXECUTABLE, sentence).help("build or install it anew"));
            }
            Kind::Foreign(what) => {
                return Err(refuse(
                    program,
                    &path,
                    &format!("it is {what}, and farpage is for 64-bit x86-64 programs"),
                ));
            }
        }
    }
    Err(Failure::with_status(NOT_EXECUTABLE, format!("cannot run {}: too many levels of interpreters", shown(program))))
}

fn refuse(program: &Path, file: &Path, why: &str) -> Failure {
    let via = if program == file { String::new() } else { format!("its interpreter {}: ", shown(file)) };
    Failure::new(format!("cannot run {} under farpage: {via}{why}", shown(program)))
}

fn interpreter_exists(script: &Path, interpreter: &Path) -> Result<()> {
    super::program::find(interpreter.as_os_str(), None).map(|_| ()).map_err(|failure| {
        let what = if failure.status == NOT_FOUND { "does not exist" } else { "cannot be executed" };
        let (script, interpreter) = (shown(script), shown(interpreter));
        Failure::with_status(failure.status, format!("cannot run {script}: its interpreter {interpreter} {what}"))
    })
}

fn loader_exists(program: &Path, file: &Path, loader: &Path) -> Result<()> {
    let Err(e) = std::fs::metadata(loader) else { return Ok(()) };
    let via = if program == file { String::new() } else { format!("its interpreter {}: ", shown(file)) };
    let (status, why) = match e.kind() {
        io::ErrorKind::NotFound => (NOT_FOUND, "does not exist".into()),
        _ => (NOT_EXECUTABLE, format!("cannot be used: {}", crate::failure::why(&e))),
    };
    let sentence = format!("cannot run {}: {via}its loader {} {why}", shown(program), shown(loader));
    Err(Failure::with_status(status, sentence)
        .help("it was built for another system; install that loader, or a build for this one"))
}

fn is_musl_loader(loader: &Path) -> bool {
    loader.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"ld-musl"))
}

/// `ld-linux-x86-64.so.2 program` is started without a loader and honours LD_PRELOAD for `program`.
fn is_glibc_loader(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = real.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b"ld-linux-x86-64.so") || name.starts_with(b"ld-2.")
}

/// Programs that gain privileges at exec: the loader ignores LD_PRELOAD for them.
fn privileges(program: &Path, file: &Path) -> Result<()> {
    let Ok(stat) = rustix::fs::stat(file) else { return Ok(()) };
    debug_assert!(FileType::from_raw_mode(stat.st_mode).is_file());
    let mounted_nosuid =
        rustix::fs::statvfs(file).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if mounted_nosuid || rustix::thread::no_new_privs().unwrap_or(false) {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let what = if mode.contains(Mode::SUID) && stat.st_uid != uid {
        "setuid"
    } else if mode.contains(Mode::SGID | Mode::XGRP) && stat.st_gid != gid {
        "setgid"
    } else if uid != 0 && has_capabilities(file) {
        "privileged by file capabilities"
    } else {
        return Ok(());
    };
    let why = format!("it is {what}, and the loader ignores LD_PRELOAD for such programs");
    let failure = refuse(program, file, &why);
    Err(failure.help("run it as the user whose rights it takes, or use a copy without them    cp PROGRAM ~/copy"))
}

fn has_capabilities(file: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(file, "security.capability", &mut value[..]).is_ok_and(|n| n > 0)
}

fn kind(file: &File) -> io::Result<Kind> {
    let mut head = vec![0; SCRIPT_LINE];
    let n = read_up_to(file, &mut head)?;
    head.truncate(n);
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii_start();
        let end = line.iter().position(|b| b" \t\0".contains(b)).unwrap_or(line.len());
        return Ok(if end == 0 { Kind::Unknown } else { Kind::Script(path_of(&line[..end])) });
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Unknown);
    }
    if head.len() < HEADER_BYTES {
        return Ok(Kind::Broken("a truncated ELF file"));
    }
    let machine = u16_at(&head, 18);
    if head[5] != 1 || machine != EM_X86_64 {
        return Ok(Kind::Foreign(machine_name(machine)));
    }
    if head[4] != CLASS_64 {
        return Ok(Kind::Foreign("an x32 program".into()));
    }
    match u16_at(&head, 16) {
        ET_EXEC | ET_DYN => {}
        ET_REL => return Ok(Kind::Broken("an object file that has not been linked yet")),
        ET_CORE => return Ok(Kind::Broken("a core dump and not a program")),
        _ => return Ok(Kind::Broken("a damaged ELF file")),
    }
    let (table, size, count) = (u64_at(&head, 32), u16_at(&head, 54), u16_at(&head, 56));
    if usize::from(size) != PHDR_BYTES || count == 0 {
        return Ok(Kind::Broken("a damaged ELF file"));
    }
    // What is named in it and is not there is behind the file's end.
    let read = |bytes: &mut [u8], at| match file.read_exact_at(bytes, at) {
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput) => Ok(false),
        result => result.map(|()| true),
    };
    for i in 0..u64::from(count) {
        let mut phdr = [0; PHDR_BYTES];
        if !read(&mut phdr, table.saturating_add(i * PHDR_BYTES as u64))? {
            return Ok(Kind::Broken("a truncated ELF file"));
        }
        if u32_at(&phdr, 0) == PT_INTERP {
            let length = u64_at(&phdr, 32);
            if !(2..=INTERP_MAX).contains(&length) {
                return Ok(Kind::Broken("a damaged ELF file"));
            }
            let mut name = vec![0; length as usize];
            if !read(&mut name, u64_at(&phdr, 8))? {
                return Ok(Kind::Broken("a truncated ELF file"));
            }
            return Ok(match name.split_last() {
                Some((0, name)) => Kind::Dynamic(path_of(name.split(|b| *b == 0).next().unwrap_or_default())),
                _ => Kind::Broken("a damaged ELF file"),
            });
        }
    }
    Ok(Kind::Static)
}

fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match file.read_at(&mut buffer[n..], n as u64)? {
            0 => break,
            more => n += more,
        }
    }
    Ok(n)
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "a 32-bit x86 program".into(),
        40 => "a 32-bit Arm program".into(),
        183 => "a 64-bit Arm program".into(),
        243 => "a RISC-V program".into(),
        other => format!("for another architecture (ELF machine {other})"),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn kind_of(bytes: &[u8]) -> Kind {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        kind(&file).unwrap()
    }

    #[test]
    fn scripts() {
        assert_eq!(kind_of(b"#!/bin/sh -e\necho\n"), Kind::Script("/bin/sh".into()));
        assert_eq!(kind_of(b"#! \t/usr/bin/env python3\n"), Kind::Script("/usr/bin/env".into()));
        assert_eq!(kind_of(b"#!/bin/sh"), Kind::Script("/bin/sh".into()));
        assert_eq!(kind_of(b"#!\n"), Kind::Unknown);
        assert_eq!(kind_of(b""), Kind::Unknown);
        assert_eq!(kind_of(b"echo hello\n"), Kind::Unknown);
    }

    #[test]
    fn this_test_is_dynamic_and_truncated_elf_is_not() {
        let exe = File::open("/proc/self/exe").unwrap();
        assert!(matches!(kind(&exe).unwrap(), Kind::Dynamic(loader) if loader.exists()));
        assert_eq!(kind_of(b"\x7fELF\x02\x01\x01"), Kind::Broken("a truncated ELF file"));
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
            kind_of(&elf);
        });
    }

    /// This test's own file, shorter or with other bytes, at every place that is looked at: no error is the system's.
    #[test]
    fn damaged_elf_files_are_named_as_such() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let table = u64_at(&whole, 32) as usize;
        let headers = table + usize::from(u16_at(&whole, 56)) * PHDR_BYTES;
        for end in [4, 63, 64, table + 1, headers - 1] {
            assert_eq!(kind_of(&whole[..end]), Kind::Broken("a truncated ELF file"), "{end}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut elf = whole[..headers + 4096].to_vec();
            elf[at..at + bytes.len()].copy_from_slice(bytes);
            kind_of(&elf)
        };
        assert!(matches!(with(0, b"\x7fELF"), Kind::Dynamic(_)));
        assert!(matches!(with(16, &[ET_REL as u8]), Kind::Broken(what) if what.contains("object file")));
        assert!(matches!(with(16, &[ET_CORE as u8]), Kind::Broken(what) if what.contains("core dump")));
        let interp = (table..headers).step_by(PHDR_BYTES).find(|&at| u32_at(&whole, at) == PT_INTERP).unwrap();
        let (offset, length) = (u64_at(&whole, interp + 8) as usize, u64_at(&whole, interp + 32) as usize);
        let damaged = Kind::Broken("a damaged ELF file");
        for (at, bytes) in [
            (16, &[9u8, 0][..]),
            (54, &[55, 0]),
            (56, &[0, 0]),
            (interp + 32, &[0xff; 8]),
            (interp + 32, &[0; 8]),
            (offset + length - 1, b"x"),
        ] {
            assert_eq!(with(at, bytes), damaged, "{at}");
        }
        for at in [32, interp + 8] {
            for value in [u64::MAX, 1 << 62, whole.len() as u64] {
                assert_eq!(with(at, &value.to_ne_bytes()), Kind::Broken("a truncated ELF file"), "{at} {value}");
            }
        }
    }
}
