//! Why what a user has written was refused.

/// Why a configuration was refused. `Display` is one line that names the part and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfError(pub String);

/// Why a device cannot be used at all. `Display` is one line: which device, why, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("swap device {name:?}: {reason}; {remedy}")]
pub struct DeviceError {
    /// The device as the user wrote it.
    pub name: String,
    /// What is wrong.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl DeviceError {
    /// Which device, why, what to do.
    pub fn new(name: String, reason: impl Into<String>, remedy: &str) -> DeviceError {
        DeviceError { name, reason: reason.into(), remedy: remedy.into() }
    }
}
