//! Files that the command makes for its user: no others may read them, unless the user says so, or they are made for
//! others ([`publish`]).
//!
//! A file that is there already keeps its permissions.

use crate::failure::{Failure, Result, why};
use crate::progress;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Version of every JSON object that these commands print.
pub const SCHEMA: u32 = 1;

/// Opens a file for what will be written later, and leaves what is in it.
///
/// # Errors
/// As open.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Writes a file in place, from its beginning.
///
/// # Errors
/// As open and write.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes.as_ref())
}

/// Writes a file as a whole: readers see the old one or the new one.
///
/// # Errors
/// No file can be made beside it, or it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, 0o600)
}

/// The same, of a file that is made for others: where it is new, all that the user's mask lets may read it. Through a
/// link, its target is replaced.
///
/// # Errors
/// As [`replace`]; there is something else than a file.
pub fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("not a file"));
    }
    replace_with(&path.canonicalize().unwrap_or_else(|_| path.into()), bytes, 0o644)
}

/// Writes a file as a whole; if it is new, with these permissions, as far as the mask allows.
fn replace_with(path: &Path, bytes: &[u8], new: u32) -> io::Result<()> {
    let place = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    let mut file = builder.prefix(".farpage-").permissions(Permissions::from_mode(new)).tempfile_in(place)?;
    file.write_all(bytes)?;
    if let Ok(old) = fs::metadata(path) {
        file.as_file().set_permissions(Permissions::from_mode(old.permissions().mode() & 0o777))?;
    }
    file.persist(path).map(drop).map_err(|e| e.error)
}

/// What `--json` says: the table is printed, JSON written to `to` (`-`: to standard output, without the table).
///
/// # Errors
/// The file cannot be written.
pub fn table_or_json(to: Option<&Path>, table: impl FnOnce(), json: impl FnOnce() -> String) -> Result<()> {
    if to.is_some_and(|path| path.as_os_str() == "-") {
        progress::aside(|| println!("{}", json()));
        return Ok(());
    }
    progress::aside(table);
    let Some(path) = to else { return Ok(()) };
    write(path, json() + "\n").map_err(|e| Failure::new(format!("cannot write {}: {}", path.display(), why(&e))))
}

/// A bar of a table: `part` of `width` characters; one that is longer ends in an arrow.
pub fn bar(part: f64, width: usize) -> String {
    let length = (part * width as f64).round();
    if length > width as f64 { "#".repeat(width - 1) + ">" } else { "#".repeat(length as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_end_where_the_column_does() {
        for (part, shown) in [(0.01, ""), (0.5, "##"), (1.0, "####"), (1.2, "###>"), (99.0, "###>")] {
            assert_eq!(bar(part, 4), shown, "{part}");
        }
    }

    #[test]
    fn new_files_are_private_and_old_ones_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        for way in ["write", "replace", "open"] {
            for mode in [0o600, 0o640] {
                match way {
                    "write" => write(&path, b"text").unwrap(),
                    "replace" => replace(&path, b"text").unwrap(),
                    _ => open(&path).unwrap().write_all(b"text").unwrap(),
                }
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
                assert!(fs::read(&path).unwrap().ends_with(b"text"));
                fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            }
            fs::remove_file(&path).unwrap();
        }
        // For others, as far as this test's mask allows; which is the same for a plain file.
        File::create(dir.path().join("plain")).unwrap();
        publish(&path, b"text").unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("report"), mode("plain") & 0o644);
        assert!(publish(Path::new("/dev/null"), b"text").is_err());
        ["plain", "report"].iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a temporary file stayed");
    }
}
