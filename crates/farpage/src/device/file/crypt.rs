//! Encryption of what is written to a disk, with a key that exists only in this process's memory (and in the copies that
//! its forked children have of it).
//!
//! XChaCha20 (RustCrypto's `chacha20`). The nonce of a page is the file's random [`Salt`] and a count that goes up with
//! every page written to the file, so no two pages share one, in no process: a file has one writer (see the rules for
//! forks in the header of the file device), and a child's own file has a salt of its own. The count is kept with the
//! slot. There is no authentication tag: a page is compared with its keyed 128-bit hash after it was decrypted.
//!
//! No locks.

use super::super::Page;
use crate::sys::raw::random_bytes;
use chacha20::XChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use rustix::io::Errno;

/// The random half of a file's nonces.
pub struct Salt([u8; 16]);

impl Salt {
    /// A new one.
    pub fn random() -> Result<Salt, Errno> {
        let mut salt = [0; 16];
        random_bytes(&mut salt)?;
        Ok(Salt(salt))
    }
}

/// The key of a device.
pub struct Cipher([u8; 32]);

impl Cipher {
    /// A new key.
    pub fn random() -> Result<Cipher, Errno> {
        let mut key = [0; 32];
        random_bytes(&mut key)?;
        Ok(Cipher(key))
    }

    /// Encrypts page number `count` of the file with `salt`, or decrypts it.
    pub fn apply(&self, salt: &Salt, count: u64, page: &mut Page) {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&salt.0);
        nonce[16..].copy_from_slice(&count.to_le_bytes());
        XChaCha20::new(&self.0.into(), &nonce.into()).apply_keystream(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    #[test]
    fn a_page_is_decrypted_by_its_own_nonce_only() {
        let (cipher, salt) = (Cipher([7; 32]), Salt([9; 16]));
        let mut page = [0; PAGE_SIZE];
        cipher.apply(&salt, 5, &mut page);
        let stream = page;
        assert!(page.iter().filter(|&&byte| byte == 0).count() < 64, "a stream that is not random");
        for (cipher, salt, count) in [
            (Cipher([8; 32]), Salt([9; 16]), 5),
            (Cipher([7; 32]), Salt([8; 16]), 5),
            (Cipher([7; 32]), Salt([9; 16]), 6),
        ] {
            let mut other = [0; PAGE_SIZE];
            cipher.apply(&salt, count, &mut other);
            assert!(other.iter().zip(&stream).filter(|(a, b)| a == b).count() < 64);
        }
        cipher.apply(&salt, 5, &mut page);
        assert!(page == [0; PAGE_SIZE]);
    }

    #[test]
    fn keys_and_salts_differ() {
        assert_ne!(Cipher::random().unwrap().0, Cipher::random().unwrap().0);
        assert_ne!(Salt::random().unwrap().0, Salt::random().unwrap().0);
    }
}
