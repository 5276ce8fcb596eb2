//! Why what a user has written was refused.

/// Why a configuration was refused. `Display` is one line that names the part and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfError(pub String);
