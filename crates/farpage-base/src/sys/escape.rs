//! Paths as `/proc/swaps`, `/proc/self/mountinfo` and `/proc/mounts` write them.
//!
//! Called where a mount or a swap device is looked for. No lock; allocates, so not for the fault path.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The path meant: blank, tab, newline, backslash and what else would be mistaken are there as three octal digits.
pub fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn codes_are_read_once() {
        for (text, path) in
            [("/a\\040b", "/a b"), ("/\\134040", "/\\040"), ("/x\\", "/x\\"), ("/\\4000", "/\\4000"), ("\\0110", "\t0")]
        {
            assert_eq!(unescape(text), Path::new(path));
        }
        assert_eq!(unescape("\\377").as_os_str().as_encoded_bytes(), [0xff]);
    }
}
