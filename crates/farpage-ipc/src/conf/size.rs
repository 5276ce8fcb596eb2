//! Sizes as users write them: `512M` is 512 MiB, `512MB` is 512 000 000 bytes, a bare number is bytes.

/// Why a size was refused; `Display` is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

/// Reads a size in bytes: digits with an optional fraction, then nothing, `K M G T` (any case, powers of 1024),
/// `KiB ...` (the same) or `KB ...` (powers of 1000). Zero, negatives and overflow are refused.
///
/// # Errors
/// Says which text could not be read and shows a form that can.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    parse_of(text, None)
}

/// Like [`parse`], and `25%` means a quarter of `whole` bytes.
///
/// # Errors
/// As [`parse`]; also a percentage where no whole is known.
pub fn parse_of(text: &str, whole: Option<u64>) -> Result<u64, SizeError> {
    let bad = |why: &str| SizeError(format!("size {text:?} {why}; write for example 512M or 1.5G"));
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value: f64 = number.parse().map_err(|_| bad("cannot be read"))?;
    let lower = unit.to_ascii_lowercase();
    if lower == "%" {
        let whole = whole.ok_or_else(|| bad("is a percentage, which is not possible here"))?;
        if !(value > 0.0 && value <= 100.0) {
            return Err(SizeError(format!("size {text:?} is not above 0% and at most 100%; write for example 50%")));
        }
        return Ok((whole as f64 * value / 100.0) as u64);
    }
    let power = |c: u8| b"kmgt".iter().position(|&u| u == c).map(|i| i as i32 + 1);
    let factor = match lower.as_bytes() {
        [] | [b'b'] => 1.0,
        [c] | [c, b'i', b'b'] => 1024f64.powi(power(*c).ok_or_else(|| bad("has an unknown unit"))?),
        [c, b'b'] => 1000f64.powi(power(*c).ok_or_else(|| bad("has an unknown unit"))?),
        _ => return Err(bad("has an unknown unit")),
    };
    let bytes = (value * factor).round();
    if bytes < 1.0 {
        return Err(bad("is zero"));
    }
    if bytes >= i64::MAX as f64 {
        return Err(bad("is too large"));
    }
    Ok(bytes as u64)
}

/// `512.0 MiB`: three steps of 1024, one decimal.
pub fn format(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(parse("512M").unwrap(), 512 << 20);
        assert_eq!(parse("512m").unwrap(), 512 << 20);
        assert_eq!(parse("512MiB").unwrap(), 512 << 20);
        assert_eq!(parse("512MB").unwrap(), 512_000_000);
        assert_eq!(parse("1.5G").unwrap(), 3 << 29);
        assert_eq!(parse("4096").unwrap(), 4096);
        assert_eq!(parse_of("25%", Some(400)).unwrap(), 100);
    }

    #[test]
    fn refusals() {
        for text in ["", "x", "0", "-1", "12Q", "1..2", "25%", "99999999999T", "0%", "M"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_of("101%", Some(100)).is_err());
    }

    #[test]
    fn shown() {
        assert_eq!(format(512 << 20), "512.0 MiB");
        assert_eq!(format(100), "100 B");
    }
}
