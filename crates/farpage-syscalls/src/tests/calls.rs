//! Calls of many kinds, each with memory that is absent.

use super::*;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

#[test]
fn reads_and_writes() {
    let memory = absent();
    let text: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
    let at = memory.take(&text);
    let mut file = tempfile::tempfile().unwrap();
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::write(file.as_raw_fd(), at as *const _, text.len()) }), text.len() as i64);
    let mut seen = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut seen).unwrap();
    assert!(seen == text && memory.is_free(at, text.len()));
    let other = memory.take(&vec![0; text.len()]);
    // SAFETY: as above.
    assert_eq!(good(unsafe { libc::pread(file.as_raw_fd(), other as *mut _, text.len(), 0) }), text.len() as i64);
    assert!(memory.is_free(other, text.len()) && memory.content(other, text.len()) == text);
    file.write_all(b"").unwrap();
}
