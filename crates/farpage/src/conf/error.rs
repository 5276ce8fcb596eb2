//! Why what somebody has written was refused.

use std::fmt;

/// Why a configuration was refused. `Display` is one line that names the part and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfError(pub String);

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfError {}
