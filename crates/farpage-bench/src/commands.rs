//! Which commands there are.

use farpage_ipc::conf::ENV_DEFAULTS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directories of `PATH`.
pub fn path() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// The file that this process runs.
pub fn this() -> PathBuf {
    let path = PathBuf::from("/proc/self/exe");
    fs::read_link(&path).unwrap_or(path)
}

/// `farpage`: this process, or, of `farpage-bench`, what lies beside it, or is installed.
pub fn farpage() -> PathBuf {
    let this = this();
    if !this.ends_with("farpage-bench") {
        return this;
    }
    let beside = this.with_file_name("farpage");
    if beside.is_file() { beside } else { "farpage".into() }
}

/// `farpage run`, whatever defaults of options the user's files have.
pub fn farpage_run() -> Command {
    let mut command = Command::new(farpage());
    command.arg("run").env(ENV_DEFAULTS, "0");
    command
}

/// Whether a directory has all of these commands.
pub fn are_in(directory: &Path, names: &[&str]) -> bool {
    let executable = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    names.iter().all(|name| executable(&directory.join(name)))
}
