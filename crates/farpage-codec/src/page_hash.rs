//! What a page contains: all zero or not, and its 128-bit keyed hash.
//!
//! The hash decides whether a page that was swapped in has changed since (if not, its old slot is used again and
//! nothing is compressed or written), so a collision would be a lost write. HighwayHash is a strong keyed function and
//! the key is random per process: the chance of an accidental collision is 2^-128 per comparison.

use farpage_base::mem::units::Page;
use highway::{HighwayHash, HighwayHasher, Key};

/// Hash key of this process.
#[derive(Debug, Clone, Copy)]
pub struct ContentKey([u64; 4]);

impl ContentKey {
    /// A random key; falls back to the time and addresses where the kernel gives no random bytes, because the key only
    /// guards against inputs made to collide.
    pub fn random() -> ContentKey {
        let mut bytes = [0u8; 32];
        let random = farpage_base::sys::raw::random_bytes(&mut bytes);
        let mut key = [0u64; 4];
        for (k, b) in key.iter_mut().zip(bytes.chunks_exact(8)) {
            *k = b.iter().fold(0, |v, x| v << 8 | u64::from(*x));
        }
        if random.is_err() {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            key = [now.tv_nsec as u64, now.tv_sec as u64, bytes.as_ptr() as u64, 1];
        }
        ContentKey(key)
    }

    /// Hash of a page.
    #[inline]
    pub fn hash(&self, page: &Page) -> u128 {
        let [a, b] = HighwayHasher::new(Key(self.0)).hash128(page);
        u128::from(a) << 64 | u128::from(b)
    }
}

/// Whether every byte is zero. Looks at the last word first: pages that differ from zero mostly do so at an end.
#[inline]
pub fn is_zero(page: &Page) -> bool {
    let (chunks, _) = page.as_chunks::<64>();
    let zero = |c: &[u8; 64]| c.iter().fold(0, |a, b| a | b) == 0;
    chunks.last().is_none_or(zero) && chunks.iter().all(zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let key = ContentKey::random();
        let mut page = [0u8; farpage_swap::PAGE_SIZE];
        let zero_hash = key.hash(&page);
        assert!(is_zero(&page));
        for at in [0, 1, 63, 64, 2000, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page));
            assert_ne!(key.hash(&page), zero_hash);
            page[at] = 0;
        }
        assert_eq!(key.hash(&page), zero_hash);
        assert_ne!(ContentKey::random().hash(&page), zero_hash);
    }
}
