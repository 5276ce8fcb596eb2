//! Finds the program as `execvp` would.

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Result, shown, why};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where `execvp` looks without a PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that `name` means: itself if it has a slash, else the first executable in `path`.
///
/// # Errors
/// Status 127: there is none. Status 126: there is one, and it cannot be executed.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let fail = |status, errno: Errno| {
        Err(Failure::with_status(status, format!("cannot run {}: {}", shown(name), why(&errno.into()))))
    };
    if name.is_empty() {
        return fail(NOT_FOUND, Errno::NOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(PathBuf::from(name)),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => fail(NOT_FOUND, errno),
            Err(Errno::ACCESS) => fail_denied(Path::new(name)),
            Err(errno) => fail(NOT_EXECUTABLE, errno),
        };
    }
    let mut denied = None;
    for dir in path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes().split(|b| *b == b':') {
        let dir = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
        let file = dir.join(name);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::ACCESS) => denied = denied.or(Some(file)),
            Err(_) => {}
        }
    }
    match denied {
        Some(file) => fail_denied(&file),
        None => Err(Failure::with_status(NOT_FOUND, format!("cannot run {}: not found in PATH", shown(name)))
            .help("write it with its directory, as in ./prog, or add that to PATH")),
    }
}

fn fail_denied(file: &Path) -> Result<PathBuf> {
    let help = match file.is_dir() {
        true => String::from("it is a directory; name a program"),
        false => format!("ls -l says who may; if it is a program of yours    chmod +x {}", shown(file)),
    };
    Err(Failure::with_status(NOT_EXECUTABLE, format!("cannot run {}: permission denied", shown(file))).help(help))
}

/// A regular file with execute permission for us; everything else is EACCES, as for `execve`.
fn executable(path: &Path) -> std::result::Result<(), Errno> {
    let stat = rustix::fs::stat(path)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(Errno::ACCESS);
    }
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_as_execvp() {
        let path = |text: &str| find(OsStr::new("sh"), Some(OsStr::new(text)));
        assert_eq!(path("/nonexistent:/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(path("/nonexistent").unwrap_err().status, NOT_FOUND);
        assert_eq!(find(OsStr::new("sh"), None).unwrap(), Path::new("/bin/sh"));
        for (name, status) in [("", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/tmp", 126)] {
            assert_eq!(find(OsStr::new(name), None).unwrap_err().status, status, "{name:?}");
        }
    }
}
