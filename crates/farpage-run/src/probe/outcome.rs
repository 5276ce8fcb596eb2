//! What became of a try: it works, or why not.
//!
//! Callers: [`crate::probe`], and the command, which shows it. Types only.

use farpage_base::sys::raw::ErrnoText;
use rustix::io::Errno;
use std::fmt;

/// Why an interface does not work here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The kernel said no.
    Errno(Errno),
    /// Not tried, or the answer was wrong.
    Text(&'static str),
}

/// Neither way to give a child its descriptors works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pidfd_getfd: {fetched}; a local socket: {sent}")]
pub struct ForksRefused {
    /// The parent's are not to be had.
    pub fetched: Reason,
    /// They cannot be sent either.
    pub sent: Reason,
}

impl From<Errno> for Reason {
    fn from(errno: Errno) -> Reason {
        Reason::Errno(errno)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Errno(errno) => write!(f, "{} ({})", ErrnoText(*errno), errno_name(*errno)),
            Reason::Text(text) => f.write_str(text),
        }
    }
}

/// Works, or why not.
pub type Verdict = Result<(), Reason>;

/// `EPERM`.
pub fn errno_name(errno: Errno) -> String {
    let name = match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::ACCESS => "EACCES",
        Errno::NOSYS => "ENOSYS",
        Errno::INVAL => "EINVAL",
        Errno::BADF => "EBADF",
        Errno::NOTTY => "ENOTTY",
        Errno::NODEV => "ENODEV",
        Errno::NXIO => "ENXIO",
        Errno::BUSY => "EBUSY",
        Errno::NOMEM => "ENOMEM",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::AGAIN => "EAGAIN",
        Errno::FAULT => "EFAULT",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        other => return format!("errno {}", other.raw_os_error()),
    };
    name.into()
}
