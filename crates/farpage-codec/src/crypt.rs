//! Encryption of what is written to a disk, with a key that exists only in this process's memory (and in the copies
//! that its forked children have of it).
//!
//! XChaCha20 (RustCrypto's `chacha20`). The nonce of a page is the file's random [`Salt`] and a count that goes up with
//! every page written to the file, so no two pages share one, in no process: a file has one writer (see the rules for
//! forks in the header of the file device), and a child's own file has a salt of its own. The count is kept with the
//! slot. There is no authentication tag: a page is compared with its keyed 128-bit hash after it was decrypted.
//!
//! The key has a page of its own, which is locked (the kernel's swap does not get it) and no part of core dumps. It is
//! overwritten when the device goes; a forked child overwrites its own copy, so neither has to ask the other. Of the
//! key nothing stays on the stack where the cipher has worked; what may stay is the key derived from it for one nonce,
//! that is one page.
//!
//! No locks.

use chacha20::XChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use farpage_base::sys::raw::random_bytes;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, mlock, munlock};

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

/// A page of its own for the key: what is asked of the kernel for it concerns nothing else.
#[repr(align(4096))]
struct Key([u8; 32]);

const _: () = assert!(size_of::<Key>() == PAGE_SIZE);

/// The key of a device.
pub struct Cipher(Box<Key>);

impl Cipher {
    /// A new key.
    pub fn random() -> Result<Cipher, Errno> {
        let mut cipher = Cipher(Box::new(Key([0; 32])));
        cipher.guard();
        random_bytes(&mut cipher.0.0)?;
        Ok(cipher)
    }

    /// Keeps the key in memory and out of core dumps, as far as the kernel lets us (`RLIMIT_MEMLOCK`); a key that may
    /// be swapped out is no reason to write pages that are not encrypted. In a forked child once more: locks are not
    /// inherited.
    pub fn guard(&self) {
        let at = std::ptr::from_ref(&*self.0).cast_mut().cast();
        // SAFETY: the page is this value's; neither call changes what it holds.
        let _ = unsafe { (mlock(at, PAGE_SIZE), madvise(at, PAGE_SIZE, Advice::LinuxDontDump)) };
    }

    /// Encrypts what is stored as number `count` with `salt` (a page, or what became of it), or decrypts it.
    pub fn apply(&self, salt: &Salt, count: u64, page: &mut [u8]) {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&salt.0);
        nonce[16..].copy_from_slice(&count.to_le_bytes());
        XChaCha20::new((&self.0.0).into(), &nonce.into()).apply_keystream(page);
    }

    /// Overwrites the key, and asks nothing more of the kernel for its page.
    fn wipe(&mut self) {
        for byte in &mut self.0.0 {
            // SAFETY: a byte of our own. Volatile, or it would be left out: the byte is not read again.
            unsafe { std::ptr::from_mut(byte).write_volatile(0) };
        }
        let at = std::ptr::from_mut(&mut *self.0).cast();
        // SAFETY: the page is this value's; neither call changes what it holds. It is an ordinary one from here on.
        let _ = unsafe { (madvise(at, PAGE_SIZE, Advice::LinuxDoDump), munlock(at, PAGE_SIZE)) };
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(any(test, feature = "testing"))]
impl Cipher {
    /// Of "lo" (locked) and "dd" (not dumped), what the kernel says of the key's page (`VmFlags` of its mapping).
    pub fn guards(&self) -> Vec<String> {
        let at = std::ptr::from_ref(&*self.0).addr();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to))) {
                inside = (from..to).contains(&at);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                let flags = flags.split_whitespace().filter(|flag| matches!(*flag, "lo" | "dd"));
                return flags.map(String::from).collect();
            }
        }
        panic!("the key is in no mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(byte: u8) -> Cipher {
        Cipher(Box::new(Key([byte; 32])))
    }

    #[test]
    fn no_part_of_the_key_stays_on_the_stack() {
        use std::os::unix::fs::FileExt;
        const LOOK: usize = 64 << 10;
        #[inline(never)]
        fn copy(cipher: &Cipher) {
            std::hint::black_box(&mut [cipher.0.0; 64]);
        }
        let parts = |cipher: &Cipher, stack: &[u8]| {
            stack.windows(8).filter(|part| cipher.0.0.chunks(8).any(|key| key == *part)).count()
        };
        let run = move || {
            let (cipher, mut page) = (Cipher::random().unwrap(), Box::new([7; PAGE_SIZE]));
            let (mem, mut stacks) =
                (std::fs::File::open("/proc/self/mem").unwrap(), [vec![0u8; LOOK], vec![0u8; LOOK]]);
            let from = (std::ptr::from_ref(&page).addr() - LOOK) as u64;
            cipher.apply(&Salt([1; 16]), 2, &mut page[..]);
            mem.read_exact_at(&mut stacks[0], from).unwrap();
            copy(&cipher);
            mem.read_exact_at(&mut stacks[1], from).unwrap();
            stacks.map(|stack| parts(&cipher, &stack))
        };
        // A thread of its own, whose stack has been used for nothing else.
        let [left, copied] = std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
        assert!(left == 0 && copied > 0, "{left} parts; {copied} where there is a copy");
    }

    #[test]
    fn the_key_is_overwritten_when_it_goes_and_its_page_is_an_ordinary_one_again() {
        let mut cipher = Cipher::random().unwrap();
        assert!(cipher.0.0 != [0; 32] && cipher.guards().len() == 2);
        cipher.wipe();
        assert_eq!(cipher.0.0, [0; 32]);
        assert!(cipher.guards().is_empty());
    }

    #[test]
    fn a_page_is_decrypted_by_its_own_nonce_only() {
        let (seven, salt) = (cipher(7), Salt([9; 16]));
        let mut page = [0; PAGE_SIZE];
        seven.apply(&salt, 5, &mut page);
        let stream = page;
        assert!(page.iter().filter(|&&byte| byte == 0).count() < 64, "a stream that is not random");
        for (cipher, salt, count) in
            [(cipher(8), Salt([9; 16]), 5), (cipher(7), Salt([8; 16]), 5), (cipher(7), Salt([9; 16]), 6)]
        {
            let mut other = [0; PAGE_SIZE];
            cipher.apply(&salt, count, &mut other);
            assert!(other.iter().zip(&stream).filter(|(a, b)| a == b).count() < 64);
        }
        seven.apply(&salt, 5, &mut page);
        assert!(page == [0; PAGE_SIZE]);
    }

    #[test]
    fn keys_and_salts_differ() {
        assert_ne!(Cipher::random().unwrap().0.0, Cipher::random().unwrap().0.0);
        assert_ne!(Salt::random().unwrap().0, Salt::random().unwrap().0);
    }
}
