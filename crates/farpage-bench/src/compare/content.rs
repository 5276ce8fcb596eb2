//! What the pages of a workload contain: every word follows from its page, its place and how often the page was
//! written, so that any access can be checked on the spot, without a second copy.
//!
//! A generated page is 128 phrases of 32 bytes. A share of them is random (it does not compress); the others come from
//! a dictionary of 16, so LZ4 finds them again in the page. One word of each page, its *stamp*, changes with every
//! write. With a corpus, the bytes of a file take the place of the phrases.

use farpage_swap::sim::mix;
use std::fs::File;
use std::path::Path;

/// 8-byte words of a page.
pub const WORDS: usize = farpage::PAGE_SIZE / 8;
const PHRASE: usize = 4;
const PHRASES: usize = 16;
/// Share of random phrases at which LZ4 makes about a third of a page.
pub const ENTROPY: f64 = 0.14;

/// Content of all pages.
pub struct Content {
    seed: u64,
    source: Source,
}

enum Source {
    /// Phrases; the share of random ones in 2^16ths.
    Phrases { random: u64, dictionary: Box<[[u64; PHRASE]; PHRASES]> },
    /// Whole words of a mapped file.
    Corpus(&'static [u64]),
}

impl Content {
    /// Generated content; `entropy` is the share of phrases that do not compress (0 to 1).
    pub fn generated(seed: u64, entropy: f64) -> Content {
        let mut dictionary = Box::new([[0; PHRASE]; PHRASES]);
        for (i, word) in dictionary.iter_mut().flatten().enumerate() {
            *word = mix(seed ^ 0xd1c7 ^ (i as u64) << 32);
        }
        Content { seed, source: Source::Phrases { random: (entropy.clamp(0.0, 1.0) * 65536.0) as u64, dictionary } }
    }

    /// The bytes of a file, again and again.
    ///
    /// # Errors
    /// It cannot be mapped, or has less than a page.
    pub fn corpus(seed: u64, path: &Path) -> std::io::Result<Content> {
        let file = File::open(path)?;
        let words = file.metadata()?.len() as usize / farpage::PAGE_SIZE * WORDS;
        if words == 0 {
            return Err(std::io::Error::other("shorter than a page"));
        }
        let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; never unmapped.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), words * 8, prot, flags, &file, 0) }?;
        // SAFETY: mapped above for good, page-aligned, whole words. A process that changes the file during the bench
        // makes it report wrong contents, which is what happened then.
        Ok(Content { seed, source: Source::Corpus(unsafe { std::slice::from_raw_parts(base.cast::<u64>(), words) }) })
    }

    /// Place of the page's stamp.
    #[inline]
    pub fn stamp_at(&self, page: u64) -> usize {
        (mix(self.seed ^ page ^ 0x57a3 << 48) % WORDS as u64) as usize
    }

    /// The stamp of a page that was written `version` times since it was filled.
    #[inline]
    pub fn stamp(&self, page: u64, version: u32) -> u64 {
        mix(self.seed ^ (page << 32 | u64::from(version)))
    }

    /// The word at `at` of a page, if it is not the stamp.
    #[inline]
    pub fn word(&self, page: u64, at: usize) -> u64 {
        match &self.source {
            Source::Phrases { random, dictionary } => {
                let dice = self.dice(page, at / PHRASE);
                if dice & 0xffff < *random {
                    mix(dice ^ (at % PHRASE) as u64)
                } else {
                    dictionary[(dice >> 16) as usize % PHRASES][at % PHRASE]
                }
            }
            Source::Corpus(words) => words[((page as usize * WORDS) % words.len()) + at],
        }
    }

    #[inline]
    fn dice(&self, page: u64, phrase: usize) -> u64 {
        mix(self.seed ^ (page * (WORDS / PHRASE) as u64 + phrase as u64))
    }

    /// Writes a page as it is before any further write.
    ///
    /// # Safety
    /// `to` is the start of a page that no other thread accesses now.
    pub unsafe fn fill(&self, page: u64, to: *mut u64) {
        let stamp_at = self.stamp_at(page);
        for phrase in 0..WORDS / PHRASE {
            let words: [u64; PHRASE] = match &self.source {
                Source::Phrases { random, dictionary } => {
                    let dice = self.dice(page, phrase);
                    if dice & 0xffff < *random {
                        std::array::from_fn(|i| mix(dice ^ i as u64))
                    } else {
                        dictionary[(dice >> 16) as usize % PHRASES]
                    }
                }
                Source::Corpus(words) => {
                    let from = (page as usize * WORDS) % words.len() + phrase * PHRASE;
                    std::array::from_fn(|i| words[from + i])
                }
            };
            // SAFETY: inside the page (caller's promise), aligned to 32 bytes in it.
            unsafe { to.add(phrase * PHRASE).cast::<[u64; PHRASE]>().write_volatile(words) };
        }
        // SAFETY: inside the page.
        unsafe { to.add(stamp_at).write_volatile(self.stamp(page, 0)) };
    }

    /// The word expected at `at`.
    #[inline]
    pub fn expected(&self, page: u64, at: usize, version: u32) -> u64 {
        if at == self.stamp_at(page) { self.stamp(page, version) } else { self.word(page, at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content: &Content, page: u64) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        // SAFETY: a page of our own.
        unsafe { content.fill(page, words.as_mut_ptr()) };
        words
    }

    #[test]
    fn every_word_is_what_expected_says() {
        for content in [Content::generated(7, ENTROPY), Content::generated(9, 1.0), Content::generated(1, 0.0)] {
            for number in [0, 1, 77, 131_071] {
                let words = page(&content, number);
                (0..WORDS).for_each(|at| assert_eq!(words[at], content.expected(number, at, 0)));
                assert_ne!(content.stamp(number, 0), content.stamp(number, 1));
            }
        }
    }

    #[test]
    fn a_corpus_is_the_files_words() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3 * farpage::PAGE_SIZE + 5).map(|i| (i % 251) as u8).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let content = Content::corpus(3, file.path()).unwrap();
        let words = page(&content, 4);
        (0..WORDS).for_each(|at| assert_eq!(words[at], content.expected(4, at, 0)));
        let at = (content.stamp_at(4) + 1) % WORDS;
        let from = farpage::PAGE_SIZE + at * 8;
        assert_eq!(words[at].to_ne_bytes(), bytes[from..from + 8]);
        assert!(Content::corpus(3, Path::new("/dev/null")).is_err());
    }
}
