//! Where the preload library is.

use crate::embedded;
use crate::failure::{Failure, Result, why};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names the library outright.
pub const ENV_PRELOAD: &str = "FARPAGE_PRELOAD";
/// Its file.
pub const NAME: &str = "libfarpage_preload.so";

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

/// Where a file is looked for, and whether the user named it.
fn places() -> Result<(Vec<PathBuf>, bool)> {
    if let Some(path) = std::env::var_os(ENV_PRELOAD).filter(|p| !p.is_empty()) {
        return Ok((vec![PathBuf::from(path)], true));
    }
    let exe = fs::read_link("/proc/self/exe")
        .map_err(|e| Failure::new(format!("cannot find the preload library: /proc/self/exe: {}", why(&e))))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let lib = dir.parent().unwrap_or(Path::new("/")).join("lib/farpage").join(NAME);
    Ok((vec![dir.join(NAME), lib], false))
}

/// Whether this user's programs can load it.
///
/// # Errors
/// It cannot be read, or `LD_PRELOAD` cannot carry its path.
pub fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    if let Some(byte) = path.as_os_str().as_bytes().iter().find(|b| b" :\t\n$".contains(b)) {
        let byte = char::from(*byte);
        return Err(Failure::new(format!(
            "cannot preload {shown}: LD_PRELOAD cannot carry a path with {byte:?} in it"
        ))
        .help(format!("copy the library elsewhere and set {ENV_PRELOAD}")));
    }
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut f| io::Read::read_exact(&mut f, &mut magic));
    match read {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(Failure::new(format!(
            "cannot preload {shown}: uid {} may not read it",
            rustix::process::geteuid().as_raw()
        ))
        .help(format!("install farpage where this user can read it, or set {ENV_PRELOAD} to a copy"))),
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
            Err(Failure::new(format!("cannot preload {shown}: {}", why(&e))))
        }
        Ok(()) if magic == *b"\x7fELF" => Ok(()),
        _ => Err(Failure::new(format!("cannot preload {shown}: not a shared library"))),
    }
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
