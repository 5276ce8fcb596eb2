//! Will the preload library start in this file? Looks at the ELF header, the loader, privileges and `#!` lines.

use super::program;
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Result, shown, why};
use farpage_base::sys::loader::{self, ExecFormat, SCRIPTS};
use rustix::fs::{FileType, Mode};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Interpreter names are this long at most, as for the kernel.
const INTERP_MAX: usize = 4096;

/// Refuses programs in which the preload library would not start.
///
/// # Errors
/// Status 125 for those; 126 and 127 for a script whose interpreter cannot be run.
pub fn check(program: &Path) -> Result<()> {
    let mut path = program.to_path_buf();
    let mut name = [0; INTERP_MAX];
    for _ in 0..SCRIPTS {
        // A file that may be executed and not read cannot be judged.
        let Ok(file) = File::open(&path) else { return privileges(program, &path) };
        let format = loader::format(&file, &mut name).map_err(|errno| {
            Failure::with_status(NOT_EXECUTABLE, format!("cannot run {}: {}", shown(&path), why(&errno.into())))
        })?;
        match format {
            ExecFormat::Script(interpreter) => {
                let interpreter = PathBuf::from(OsStr::from_bytes(interpreter));
                interpreter_exists(&path, &interpreter)?;
                path = interpreter;
            }
            ExecFormat::Unknown => path = PathBuf::from("/bin/sh"),
            ExecFormat::Dynamic(loader) => {
                let loader = PathBuf::from(OsStr::from_bytes(loader));
                if is_musl_loader(&loader) {
                    let why = "it is linked against musl, and the preload library needs glibc";
                    return Err(refuse(program, &path, why).help("use the build for glibc systems"));
                }
                loader_exists(program, &path, &loader)?;
                return privileges(program, &path);
            }
            ExecFormat::Static if is_glibc_loader(&path) => return Ok(()),
            ExecFormat::Static => {
                let failure = refuse(program, &path, "it is statically linked, so nothing can be preloaded into it");
                return Err(failure.help("use a dynamically linked build (go build: -linkmode=external; musl: glibc)"));
            }
            ExecFormat::Broken(what) => {
                let via = if program == path { String::new() } else { format!("its interpreter {}: ", shown(&path)) };
                let sentence = format!("cannot run {}: {via}it is {what}", shown(program));
                return Err(Failure::with_status(NOT_EXECUTABLE, sentence).help("build or install it anew"));
            }
            ExecFormat::Foreign(machine) => {
                let what = machine_name(machine);
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
    program::find(interpreter.as_os_str(), None).map(|_| ()).map_err(|failure| {
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
        _ => (NOT_EXECUTABLE, format!("cannot be used: {}", why(&e))),
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

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "a 32-bit x86 program".into(),
        62 => "an x32 program".into(),
        40 => "a 32-bit Arm program".into(),
        183 => "a 64-bit Arm program".into(),
        243 => "a RISC-V program".into(),
        other => format!("for another architecture (ELF machine {other})"),
    }
}
