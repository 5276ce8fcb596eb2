//! What can be said of every device whose pages are on a server: `timeout=`, `noencrypt`, `mirror=file:DIR`.
//!
//! Callers: the specifications of servers. No locks.

use super::address::TIMEOUT;
use super::server_error::ServerSpecError;
use super::time;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How a server is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// For how long a page is waited for while the server is out of reach; `None`: for ever.
    pub timeout: Option<Duration>,
    /// Pages are encrypted with a key that exists only in memory.
    pub encrypt: bool,
    /// The directory in which a second copy of every page is kept.
    pub mirror: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { timeout: Some(TIMEOUT), encrypt: true, mirror: None }
    }
}

impl ServerOptions {
    /// Reads one of them. `None`: it is none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn option(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), ServerSpecError>> {
        let read = match (name, value) {
            ("timeout", Some(text)) => time::timeout(text).map(|timeout| self.timeout = timeout),
            ("mirror", Some(text)) => directory(text).map(|path| self.mirror = Some(path)),
            ("encrypt", None) => {
                self.encrypt = true;
                Ok(())
            }
            ("noencrypt", None) => {
                self.encrypt = false;
                Ok(())
            }
            _ => return None,
        };
        Some(read)
    }

    /// Writes `timeout=`, unless it is the usual one.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn write_timeout(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeout {
            Some(TIMEOUT) => Ok(()),
            Some(timeout) => write!(f, ",timeout={}s", timeout.as_secs()),
            None => f.write_str(",timeout=inf"),
        }
    }

    /// Writes the others.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn write_others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.encrypt { "" } else { ",noencrypt" })?;
        self.mirror.iter().try_for_each(|path| write!(f, ",mirror=file:{}", path.display()))
    }
}

/// What `mirror=` names.
fn directory(text: &str) -> Result<PathBuf, ServerSpecError> {
    let path = text.strip_prefix("file:").filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| ServerSpecError::Mirror(text.into()))
}
