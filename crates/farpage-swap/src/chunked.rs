//! An array that grows without moving what is in it, read without a lock.
//!
//! Owned by devices (their clusters) and by the table pool. Locks: none; two that make the same chunk wait for each
//! other.

use crate::sync::OnceLock;

/// Places that never move: chunks of 16, 16, 32, 64, ... made when the first of them is asked for.
pub(crate) struct Chunked<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

/// log2 of the first chunk's size.
const CHUNK_SHIFT: u32 = if cfg!(loom) { 1 } else { 4 };
/// Enough for 2^31 places.
const CHUNKS: usize = 32 - CHUNK_SHIFT as usize;

impl<T> Chunked<T> {
    pub(crate) fn new() -> Chunked<T> {
        Chunked { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// (chunk, place in it, places of the chunk).
    #[inline]
    fn split(at: usize) -> (usize, usize, usize) {
        let group = at >> CHUNK_SHIFT;
        if group == 0 {
            return (0, at, 1 << CHUNK_SHIFT);
        }
        let log = group.ilog2();
        let len = 1 << (log + CHUNK_SHIFT);
        (log as usize + 1, at - len, len)
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        let (chunk, place, _) = Self::split(at);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    fn make(&self, at: usize, new: impl Fn() -> T) -> &T {
        let (chunk, place, len) = Self::split(at);
        &self.chunks[chunk].get_or_init(|| (0..len).map(|_| new()).collect())[place]
    }

    /// Makes sure that place `at`, below 2^31, exists.
    pub(crate) fn ensure(&self, at: usize, new: impl Fn() -> T) {
        self.make(at, new);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| size_of_val::<[T]>(chunk)).sum()
    }
}

impl<T> Chunked<OnceLock<T>> {
    /// The place `at`, below 2^31, made if need be.
    pub(crate) fn get_or_make(&self, at: usize) -> &OnceLock<T> {
        self.make(at, OnceLock::new)
    }
}
