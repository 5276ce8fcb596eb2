//! The preload library that the command carries, for installations that have no other: `cargo install` installs only
//! commands. [`crate::preload`] asks for it when there is none beside the command.
//!
//! Programs load it by a path, and so do those that they start, perhaps for days. So it lies in a file that stays: the
//! name of its directory goes with its content, so that other versions have theirs, and no running program's library
//! changes.

use crate::failure::{Failure, Result, why};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Names the library outright.
pub const ENV_PRELOAD: &str = "FARPAGE_PRELOAD";
/// Its file.
pub const NAME: &str = "libfarpage_preload.so";

/// A name for the library's content, and the library.
#[cfg(feature = "embed")]
const LIBRARY: Option<(&str, &[u8])> = farpage_embed::preload_library!();
#[cfg(not(feature = "embed"))]
const LIBRARY: Option<(&str, &[u8])> = None;

/// The library's file, made if it is not there; `None`: this command carries none.
///
/// # Errors
/// There is no directory to write it to, or something else is there.
pub fn library() -> Option<Result<PathBuf>> {
    let (name, bytes) = LIBRARY?;
    let environment = |name: &str| std::env::var_os(name);
    let found = cache(rustix::process::geteuid().is_root(), environment).and_then(|cache| {
        let place = cache.join("farpage").join(name);
        kept(&place, bytes).map_err(|e| no_file(&format!("{}: {}", cache.display(), why(&e))))
    });
    Some(found)
}

/// Where files go that can be made again. Root's are for all users that `--user` names, and in no place that
/// another user's environment names.
fn cache(root: bool, environment: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    if root {
        return Ok("/var/cache".into());
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let named = environment("XDG_CACHE_HOME").and_then(absolute);
    let home = || environment("HOME").and_then(absolute).map(|home| home.join(".cache"));
    named.or_else(home).ok_or_else(|| no_file("neither XDG_CACHE_HOME nor HOME is set"))
}

fn no_file(why: &str) -> Failure {
    let failure = Failure::new(format!("cannot write the preload library to a file: {why}"));
    let failure = failure.help(format!("set {ENV_PRELOAD} to the path of {NAME} of this version"));
    match rustix::process::geteuid().is_root() {
        true => failure,
        false => failure.help("or set XDG_CACHE_HOME to a directory that this user may write to"),
    }
}

/// The library in the directory `place`.
fn kept(place: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let path = place.join(NAME);
    if is_there(&path, bytes) {
        return Ok(path);
    }
    DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    let below_cache = place.parent().unwrap_or(Path::new("/"));
    for directory in [below_cache, place] {
        if !is_ours(&fs::symlink_metadata(directory)?) {
            let why = format!("others may write to {}", directory.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        // Whatever the mask is: other users' programs load it, too.
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    let mut file = tempfile::Builder::new().prefix(".farpage-").tempfile_in(place)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o755))?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(path)
}

/// Whether the file is the library: no half of it, and not changed.
fn is_there(path: &Path, bytes: &[u8]) -> bool {
    let place = path.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::with_capacity(bytes.len() + 1);
    fs::symlink_metadata(place).is_ok_and(|directory| is_ours(&directory))
        && File::open(path).is_ok_and(|mut file| {
            file.metadata().is_ok_and(|metadata| is_ours(&metadata) && metadata.len() == bytes.len() as u64)
                && file.read_to_end(&mut found).is_ok()
        })
        && found == bytes
}

/// No other user can change it: it is this user's, or root's, and no symbolic link.
fn is_ours(metadata: &fs::Metadata) -> bool {
    let owner = metadata.uid() == 0 || metadata.uid() == rustix::process::geteuid().as_raw();
    owner && !metadata.is_symlink() && metadata.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_place_for_all_and_users_have_theirs() {
        let place = |root, named: Option<&str>, home: Option<&str>| {
            let value = |name: &str| if name == "HOME" { home } else { named }.map(OsString::from);
            cache(root, value).map(|path| path.display().to_string()).map_err(|failure| failure.sentence)
        };
        assert_eq!(place(true, Some("/home/alice/cache"), Some("/home/alice")).unwrap(), "/var/cache");
        assert_eq!(place(false, Some("/scratch"), Some("/home/alice")).unwrap(), "/scratch");
        assert_eq!(place(false, Some("not/absolute"), Some("/home/alice")).unwrap(), "/home/alice/.cache");
        assert!(place(false, None, None).unwrap_err().ends_with("neither XDG_CACHE_HOME nor HOME is set"));
    }

    #[test]
    fn the_file_is_made_once_and_mended() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("farpage").join("name");
        let path = kept(&place, b"library").unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let first = inode(&path);
        assert_eq!((fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mode() & 0o777), (b"library".into(), 0o755));
        assert_eq!(inode(&kept(&place, b"library").unwrap()), first);
        for wrong in ["librar", "library!", "LIBRARY"] {
            fs::write(&path, wrong).unwrap();
            let before = inode(&path);
            assert_eq!(fs::read(kept(&place, b"library").unwrap()).unwrap(), b"library");
            assert_ne!(inode(&path), before, "a program may have it open");
        }
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "a temporary file stayed");
    }

    #[test]
    fn no_library_lies_where_others_may_write() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("farpage").join("name");
        let path = kept(&place, b"library").unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(kept(&place, b"library").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
        // Its content can be trusted no more than the directory that a link leads to.
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(!is_there(&path, b"library"));
        let link = directory.path().join("farpage").join("link");
        std::os::unix::fs::symlink(&place, &link).unwrap();
        assert_eq!(kept(&link, b"library").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
