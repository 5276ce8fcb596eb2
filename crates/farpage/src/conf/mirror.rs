//! `mirror=file:DIR`: a second copy of what goes to a server.
//!
//! Callers: the specifications of servers. No locks.

use std::fmt;
use std::path::{Path, PathBuf};

/// The directory.
///
/// # Errors
/// What is wrong with it.
pub fn mirror(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("file:").filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| format!("mirror {text:?}: write a directory, as in mirror=file:/var/tmp"))
}

/// Writes the option, if there is one.
///
/// # Errors
/// Those of the formatter.
pub fn write_mirror(f: &mut fmt::Formatter<'_>, path: Option<&Path>) -> fmt::Result {
    path.map_or(Ok(()), |path| write!(f, ",mirror=file:{}", path.display()))
}
