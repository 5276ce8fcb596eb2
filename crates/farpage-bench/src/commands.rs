//! Which commands there are.

use std::path::{Path, PathBuf};

/// The directories of `PATH`.
pub fn path() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// Whether a directory has all of these commands.
pub fn are_in(directory: &Path, names: &[&str]) -> bool {
    let executable = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    names.iter().all(|name| executable(&directory.join(name)))
}
