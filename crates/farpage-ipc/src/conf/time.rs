//! Times as text.
//!
//! Callers: `conf`. No locks.

use super::server_error::ServerSpecError;
use std::time::Duration;

/// Reads `90s`, `10m` or `2h`; a second at least.
pub fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let whole = number.parse::<u64>().ok()?.checked_mul(seconds)?;
    (1..=u64::from(u32::MAX)).contains(&whole).then(|| Duration::from_secs(whole))
}

/// What `timeout=` says; `None`: for ever.
///
/// # Errors
/// What is wrong with it.
pub fn timeout(text: &str) -> Result<Option<Duration>, ServerSpecError> {
    match text {
        "inf" => Ok(None),
        _ => parse(text).map(Some).ok_or_else(|| ServerSpecError::Timeout(text.into())),
    }
}
