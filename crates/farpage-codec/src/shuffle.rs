//! The bytes of a page in another order, so that LZ4 finds more in it.
//!
//! Memory is mostly words: numbers, pointers, lengths. Their high bytes hardly differ from one word to the next, their
//! low bytes do, and LZ4, which looks for equal sequences of four bytes and more, finds little across the low ones. All
//! first bytes of words, then all second bytes, and so on, are long runs and short noise. The field calls that the
//! shuffle filter (HDF5, Blosc). Words of four bytes gain by words of eight as well. Callers: [`super::codec`]. Owns
//! nothing, takes no lock.

use farpage_base::mem::units::Page;
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_setzero_si128, _mm_storeu_si128};
use std::arch::x86_64::{_mm_unpackhi_epi8, _mm_unpacklo_epi8};

/// Bytes of a vector.
const VECTOR: usize = size_of::<__m128i>();
/// Bytes of a word: eight vectors are sixteen words.
const WORD: usize = 8;
/// Bytes of all words that have the same place in theirs.
const LANE: usize = size_of::<Page>() / WORD;

/// The page's words, byte by byte: all first bytes, then all second bytes.
pub fn shuffle(page: &Page, into: &mut Page) {
    let (blocks, _) = page.as_chunks::<{ WORD * VECTOR }>();
    for (n, block) in blocks.iter().enumerate() {
        // Each step halves the distance between bytes of the same place: after four they are together.
        let lanes = deal(deal(deal(deal(load(block.as_chunks().0)))));
        for (lane, vector) in into.as_chunks_mut::<LANE>().0.iter_mut().zip(lanes) {
            store(vector, &mut lane.as_chunks_mut().0[n]);
        }
    }
}

/// What [`shuffle`] made of a page, as it was.
pub fn unshuffle(shuffled: &Page, into: &mut Page) {
    let (lanes, _) = shuffled.as_chunks::<LANE>();
    let (blocks, _) = into.as_chunks_mut::<{ WORD * VECTOR }>();
    for (n, block) in blocks.iter_mut().enumerate() {
        let parts: [[u8; VECTOR]; WORD] = std::array::from_fn(|lane| lanes[lane].as_chunks().0[n]);
        // Three more make seven: of the seven bits of a byte's place in a block, each has moved all the way round.
        for (vector, into) in deal(deal(deal(load(&parts)))).into_iter().zip(block.as_chunks_mut().0) {
            store(vector, into);
        }
    }
}

/// The halves of 128 bytes, byte by byte in turn.
fn deal(from: [__m128i; WORD]) -> [__m128i; WORD] {
    let mut into = from;
    for n in 0..WORD / 2 {
        // SAFETY: a computation; SSE2 is part of every x86-64.
        (into[2 * n], into[2 * n + 1]) =
            unsafe { (_mm_unpacklo_epi8(from[n], from[n + WORD / 2]), _mm_unpackhi_epi8(from[n], from[n + WORD / 2])) };
    }
    into
}

fn load(from: &[[u8; VECTOR]]) -> [__m128i; WORD] {
    // SAFETY: a computation; SSE2 is part of every x86-64.
    let mut into = [unsafe { _mm_setzero_si128() }; WORD];
    for (into, from) in into.iter_mut().zip(from) {
        // SAFETY: reads the sixteen bytes of `from`, which need no alignment.
        *into = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    }
    into
}

fn store(vector: __m128i, into: &mut [u8; VECTOR]) {
    // SAFETY: writes the sixteen bytes of `into`, which need no alignment.
    unsafe { _mm_storeu_si128(into.as_mut_ptr().cast(), vector) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_swap::PAGE_SIZE;

    #[test]
    fn bytes_of_the_same_place_are_together_and_come_back() {
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * at / 7) as u8);
        let (mut shuffled, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        shuffle(&page, &mut shuffled);
        for (at, byte) in page.iter().enumerate() {
            assert_eq!(*byte, shuffled[at % WORD * LANE + at / WORD], "{at}");
        }
        unshuffle(&shuffled, &mut back);
        assert_eq!(page, back);
    }
}
