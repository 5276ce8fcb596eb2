//! LZ4, by the C library.
//!
//! Its decoder checks every bound and is the most fuzzed there is. Of a page of a Python heap it takes a third to a
//! half of the time of `lz4_flex`, of text two thirds, of index words a tenth more (`docs/measurements/`). Callers:
//! [`super::codec`], and `farpage-bench io`. It allocates nothing by itself and takes no lock.

use lz4_sys::{LZ4_compressBound, LZ4_decompress_safe, c_int};
use std::ffi::{c_char, c_void};

// In the library, but not among what the crate declares.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(state: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        from: *const c_char,
        into: *mut c_char,
        len: c_int,
        room: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// The fastest compression that is not worse than the default one.
const ACCELERATION: c_int = 1;

/// What compression needs between calls.
pub struct Compressor {
    /// A state of the library.
    state: Box<[u64]>,
}

impl Compressor {
    /// A new one; `None`: the library refuses the memory for its state.
    pub fn new() -> Option<Compressor> {
        // SAFETY: asks for a number.
        let bytes = usize::try_from(unsafe { LZ4_sizeofState() }).ok()?;
        let mut state = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        // SAFETY: memory of the size that the library has just asked for, aligned for its words.
        let made = unsafe { LZ4_initStream(state.as_mut_ptr().cast(), bytes) };
        (!made.is_null()).then_some(Compressor { state })
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.state)
    }

    /// Compresses `from` to the beginning of `into`; how many bytes that are. `None`: `into` is too small.
    pub fn compress(&mut self, from: &[u8], into: &mut [u8]) -> Option<usize> {
        let (len, room) = (c_int::try_from(from.len()).ok()?, c_int::try_from(into.len()).ok()?);
        // SAFETY: the state was made by `LZ4_initStream`; the two slices are readable and writable for the given
        // lengths, and apart.
        let n = unsafe {
            let state = self.state.as_mut_ptr().cast();
            let (from, into) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
            LZ4_compress_fast_extState_fastReset(state, from, into, len, room, ACCELERATION)
        };
        usize::try_from(n).ok().filter(|n| *n > 0)
    }
}

/// Bytes that `len` bytes have after compression at most.
pub fn bound(len: usize) -> usize {
    // SAFETY: a computation. It gives 0 for what is too large to be compressed.
    c_int::try_from(len).map_or(0, |len| unsafe { LZ4_compressBound(len) } as usize)
}

/// What `from` was compressed from, at the beginning of `into`; how many bytes. `None`: that is nothing that
/// [`Compressor::compress`] made, or more than `into` has room for.
pub fn decompress(from: &[u8], into: &mut [u8]) -> Option<usize> {
    let (len, room) = (c_int::try_from(from.len()).ok()?, c_int::try_from(into.len()).ok()?);
    // SAFETY: the slices are readable and writable for the given lengths, and the library accesses nothing else,
    // whatever is in them.
    let n = unsafe { LZ4_decompress_safe(from.as_ptr().cast(), into.as_mut_ptr().cast(), len, room) };
    usize::try_from(n).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(
            inputs in prop::collection::vec((prop::collection::vec(0u8..4, 0..4096), any::<bool>()), 1..20)
        ) {
            // One state for all, as in the engine: what it keeps of the page before must not show.
            let mut compressor = Compressor::new().unwrap();
            for (mut input, random) in inputs {
                if random {
                    input.iter_mut().enumerate().for_each(|(i, b)| *b = b.wrapping_mul(97).wrapping_add((i * i) as u8));
                }
                let mut out = vec![0; bound(input.len())];
                let n = compressor.compress(&input, &mut out).unwrap();
                let mut back = vec![9; input.len()];
                prop_assert_eq!(decompress(&out[..n], &mut back), Some(input.len()));
                prop_assert_eq!(&back, &input);
                if !input.is_empty() {
                    prop_assert_eq!(decompress(&out[..n], &mut back[1..]), None, "more than there is room for");
                }
                if n > 1 {
                    prop_assert_eq!(compressor.compress(&input, &mut out[..n - 1]), None, "no room");
                }
            }
        }

        #[test]
        fn what_is_no_lz4_stays_within_its_bounds(input in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut into = [7u8; 600];
            let n = decompress(&input, &mut into[..500]);
            prop_assert!(n.is_none_or(|n| n <= 500) && into[500..].iter().all(|b| *b == 7));
        }
    }
}
