//! Where the preload library is.

use crate::embedded::{self, ENV_PRELOAD};
use crate::failure::{Failure, OrCannot, Result, why};
use farpage_ipc::conf::ENV_DISABLE;
use object::LittleEndian as Little;
use object::elf::{EM_X86_64, ET_DYN, FileHeader64, PT_NOTE, ProgramHeader64};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use crate::embedded::NAME;

/// The library: `FARPAGE_PRELOAD`, else next to the command, else `../lib/farpage` from there, else the command's own.
///
/// # Errors
/// It is in none of the places, cannot be read, or `LD_PRELOAD` cannot carry its path.
pub fn find() -> Result<PathBuf> {
    let path = locate()?;
    check(&path).map(|()| path)
}

/// Where it is, whether or not it can be used. It may be that only its own user could write it there, so this comes
/// before a change of the user, and [`check`] after it.
///
/// # Errors
/// It is nowhere.
pub fn locate() -> Result<PathBuf> {
    let (places, named) = places()?;
    for place in &places {
        let hidden = || fs::metadata(place).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        if place.is_file() || hidden() {
            return Ok(std::path::absolute(place).unwrap_or_else(|_| place.clone()));
        }
    }
    if let Some(carried) = embedded::library().filter(|_| !named) {
        return carried;
    }
    let looked = places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
    let failure = Failure::new(format!("cannot find the preload library: no file {looked}"));
    Err(failure.help(format!("set {ENV_PRELOAD} to the path of {NAME}")))
}

/// Whether the environment tells the library to do nothing.
pub fn is_disabled() -> bool {
    std::env::var_os(ENV_DISABLE).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Says that the library did nothing in a program that has ended, and why if that is known.
pub fn did_not_start(program: impl std::fmt::Display) -> String {
    match is_disabled() {
        true => format!("the preload library did nothing in {program}, because {ENV_DISABLE} is set"),
        false => format!("the preload library did not start in {program}: nothing was managed"),
    }
}

/// Where a file is looked for, and whether the user named it.
fn places() -> Result<(Vec<PathBuf>, bool)> {
    if let Some(path) = std::env::var_os(ENV_PRELOAD).filter(|p| !p.is_empty()) {
        return Ok((vec![PathBuf::from(path)], true));
    }
    let exe = fs::read_link("/proc/self/exe").or_cannot("find the preload library: /proc/self/exe")?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let lib = dir.parent().unwrap_or(Path::new("/")).join("lib/farpage").join(NAME);
    Ok((vec![dir.join(NAME), lib], false))
}

/// Whether this user's programs can load it.
///
/// # Errors
/// It cannot be read, is not this command's, or `LD_PRELOAD` cannot carry its path.
pub fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    if let Some(byte) = path.as_os_str().as_bytes().iter().find(|b| b" :\t\n$".contains(b)) {
        let byte = char::from(*byte);
        return Err(Failure::new(format!(
            "cannot preload {shown}: LD_PRELOAD cannot carry a path with {byte:?} in it"
        ))
        .help(format!("copy the library elsewhere and set {ENV_PRELOAD}")));
    }
    fs::File::open(path).map_err(NoLibrary::from).and_then(|file| check_version(&file)).map_err(|error| {
        let failure = Failure::new(format!("cannot preload {shown}: {error}"));
        match error {
            NoLibrary::Denied(_) => {
                failure.help(format!("install farpage where this user can read it, or set {ENV_PRELOAD} to a copy"))
            }
            NoLibrary::Unreadable(_) => failure,
            NoLibrary::Version(_) => failure.help("install both from the same build"),
            NoLibrary::Foreign => failure.help(format!("set {ENV_PRELOAD} to the path of {NAME}, or unset it")),
            NoLibrary::Broken(_) => failure.help("install it anew"),
        }
    })
}

/// Why a file cannot be preloaded.
#[derive(Debug, thiserror::Error)]
enum NoLibrary {
    #[error("uid {0} may not read it")]
    Denied(u32),
    #[error("{}", why(.0))]
    Unreadable(io::Error),
    #[error("it is of farpage {}, and this command is {OWN_VERSION}", .0.escape_debug())]
    Version(String),
    #[error("it is not farpage's library")]
    Foreign,
    /// It is no whole library.
    #[error("{0}")]
    Broken(&'static str),
}

impl From<io::Error> for NoLibrary {
    fn from(error: io::Error) -> NoLibrary {
        match error.kind() {
            io::ErrorKind::PermissionDenied => NoLibrary::Denied(rustix::process::geteuid().as_raw()),
            _ => NoLibrary::Unreadable(error),
        }
    }
}

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The header, and what a library has behind it: program headers.
const HEAD: usize = 4096;
/// Longer than all notes of a library.
const NOTES: u64 = 1 << 16;

/// Whether the library says of itself, in a note, that it is of this version of farpage.
fn check_version(file: &fs::File) -> std::result::Result<(), NoLibrary> {
    let length = file.metadata()?.len();
    let mut head = vec![0; HEAD.min(usize::try_from(length).unwrap_or(HEAD))];
    file.read_exact_at(&mut head, 0)?;
    let header = FileHeader64::<Little>::parse(&*head).map_err(|_| NoLibrary::Broken("not a shared library"))?;
    if header.e_type(Little) != ET_DYN || header.e_machine(Little) != EM_X86_64 {
        return Err(NoLibrary::Broken("not a shared library for 64-bit x86-64 programs"));
    }
    let parts = header.program_headers(Little, &*head).map_err(|_| NoLibrary::Broken("it is damaged"))?;
    let end = |part: &ProgramHeader64<Little>| part.p_offset(Little).checked_add(part.p_filesz(Little));
    if parts.is_empty() || parts.iter().any(|part| end(part).is_none_or(|end| end > length)) {
        return Err(NoLibrary::Broken("it is damaged: a part of it is missing"));
    }
    for part in parts.iter().filter(|part| part.p_type(Little) == PT_NOTE && part.p_filesz(Little) < NOTES) {
        let mut notes = vec![0; part.p_filesz(Little) as usize];
        file.read_exact_at(&mut notes, part.p_offset(Little))?;
        let Ok(mut notes) = NoteIterator::<FileHeader64<Little>>::new(Little, part.p_align(Little), &notes) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"farpage" {
                let version = note.desc().split(|byte| *byte == 0).next().unwrap_or_default();
                let version = String::from_utf8_lossy(version).into_owned();
                return if version == OWN_VERSION { Ok(()) } else { Err(NoLibrary::Version(version)) };
            }
        }
    }
    Err(NoLibrary::Foreign)
}

/// `LD_PRELOAD` with `library` in front of what was there, but for libraries of other installations of farpage: one
/// process has one engine.
pub fn ld_preload(library: &Path, old: Option<&OsStr>) -> Vec<u8> {
    let library = library.as_os_str().as_bytes();
    let mut value = library.to_vec();
    let others = old.map_or(&[][..], OsStrExt::as_bytes);
    let is_ours = |part: &[u8]| part == library || Path::new(OsStr::from_bytes(part)).ends_with(NAME);
    for part in others.split(|b| b" :".contains(b)).filter(|part| !part.is_empty() && !is_ours(part)) {
        value.push(b':');
        value.extend_from_slice(part);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_first_and_only_once() {
        let join = |old: Option<&str>| String::from_utf8(ld_preload(Path::new("/l.so"), old.map(OsStr::new))).unwrap();
        assert_eq!(join(None), "/l.so");
        assert_eq!(join(Some("/a.so /b.so")), "/l.so:/a.so:/b.so");
        assert_eq!(join(Some("/a.so:/l.so")), "/l.so:/a.so");
        assert_eq!(join(Some("/opt/lib/libfarpage_preload.so:/b.so libfarpage_preload.so")), "/l.so:/b.so");
    }

    #[test]
    fn paths_that_ld_preload_cannot_carry() {
        for path in ["/a b/l.so", "/a:b/l.so", "/$x/l.so"] {
            assert!(check(Path::new(path)).unwrap_err().sentence.contains("LD_PRELOAD"), "{path}");
        }
    }
}
