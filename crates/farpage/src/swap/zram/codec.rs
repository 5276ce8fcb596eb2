//! Compression of one page, without allocating per page.
//!
//! Owns a small set of codec states (hash tables, zstd contexts), each behind its own lock, made at first use. A caller
//! takes the one of its CPU, or else the next that is free; only when all are busy does it wait for one. No other lock
//! is taken. Both decoders are checked ones: what lies in the pool may have been changed by the program, whose memory
//! it is in (`tests/damage.rs`). With zstd's default build the contexts come from the C heap: the crate feature
//! `with-rust-allocator` moves them.

use super::lz4;
use crate::PAGE_SIZE;
use crate::conf::Alg;
use crate::mem::units::Page;
use crate::sys::cpu;
use crate::sys::mutex::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Codec states of each kind, shared by CPUs where there are more: more threads than this at a time wait.
const STATES: usize = 8;
const ZSTD_LEVEL: i32 = 1;
/// For pages that nobody waits for.
const DENSE_LEVEL: i32 = 5;

/// Compressed bytes and what produced them.
pub struct Encoder {
    kind: EncoderKind,
    out: Box<[u8]>,
}

enum EncoderKind {
    Lz4(lz4::Compressor),
    Zstd(zstd::bulk::Compressor<'static>),
}

/// The codec of one device.
pub struct Codec {
    alg: Alg,
    /// Of zstd.
    level: i32,
    encoders: [Mutex<Option<Encoder>>; STATES],
    decoders: [Mutex<Option<zstd::bulk::Decompressor<'static>>>; STATES],
    bytes: AtomicU64,
}

impl Codec {
    pub fn new(alg: Alg) -> Codec {
        Codec::with_level(alg, ZSTD_LEVEL)
    }

    /// One that takes more time to compress and gets more out of it.
    pub fn dense() -> Codec {
        Codec::with_level(Alg::Zstd, DENSE_LEVEL)
    }

    /// In a forked child, before it has a second thread: a state that was at work is free again.
    ///
    /// # Safety
    /// As [`Mutex::free_in_child`]. Each use of a state begins anew, so it may have been cut off anywhere.
    pub unsafe fn fork_child(&self) {
        for state in &self.decoders {
            // SAFETY: caller's promise.
            unsafe { state.free_in_child() };
        }
    }

    fn with_level(alg: Alg, level: i32) -> Codec {
        Codec {
            alg,
            level,
            encoders: std::array::from_fn(|_| Mutex::new(None)),
            decoders: std::array::from_fn(|_| Mutex::new(None)),
            bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of memory that the states take, about.
    pub fn meta_bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Compresses a page and hands the bytes to `then`. `None`: no codec state could be made, or it failed.
    pub fn compress<R>(&self, page: &Page, then: impl FnOnce(&[u8]) -> R) -> Option<R> {
        with_state(&self.encoders, |state| {
            if state.is_none() {
                let encoder = state.insert(Encoder::new(self.alg, self.level)?);
                self.bytes.fetch_add(encoder.bytes(), Relaxed);
            }
            let encoder = state.as_mut()?;
            let len = match &mut encoder.kind {
                EncoderKind::Lz4(compressor) => compressor.compress(page, &mut encoder.out)?,
                EncoderKind::Zstd(context) => context.compress_to_buffer(&page[..], &mut encoder.out[..]).ok()?,
            };
            encoder.out.get(..len).map(then)
        })
    }

    /// Makes every state that [`Codec::decompress`] may need now, so that it never allocates.
    pub fn warm(&self) {
        if self.alg == Alg::Zstd {
            for state in &self.decoders {
                let mut state = state.lock();
                if state.is_none() {
                    *state = zstd::bulk::Decompressor::new().ok();
                    self.bytes.fetch_add(160 << 10, Relaxed);
                }
            }
        }
    }

    /// The page that was compressed to `bytes`; `false`: they are not what `compress` made.
    pub fn decompress(&self, bytes: &[u8], into: &mut Page) -> bool {
        match self.alg {
            Alg::Lz4 => lz4::decompress(bytes, &mut into[..]) == Some(PAGE_SIZE),
            Alg::Zstd => with_state(&self.decoders, |state| {
                if state.is_none() {
                    *state = zstd::bulk::Decompressor::new().ok();
                    self.bytes.fetch_add(160 << 10, Relaxed);
                }
                let n = state.as_mut().and_then(|context| context.decompress_to_buffer(bytes, &mut into[..]).ok());
                n == Some(PAGE_SIZE)
            }),
        }
    }
}

impl Encoder {
    fn new(alg: Alg, level: i32) -> Option<Encoder> {
        let (kind, room) = match alg {
            Alg::Lz4 => (EncoderKind::Lz4(lz4::Compressor::new()?), lz4::bound(PAGE_SIZE)),
            Alg::Zstd => {
                let context = zstd::bulk::Compressor::new(level).ok()?;
                (EncoderKind::Zstd(context), zstd::zstd_safe::compress_bound(PAGE_SIZE))
            }
        };
        Some(Encoder { kind, out: vec![0; room].into_boxed_slice() })
    }

    /// Memory that it takes, about.
    fn bytes(&self) -> u64 {
        let state = match &self.kind {
            EncoderKind::Lz4(compressor) => compressor.bytes(),
            // A context of level 1 for small inputs.
            EncoderKind::Zstd(_) => 96 << 10,
        };
        (state + self.out.len()) as u64
    }
}

/// Runs `f` with the state of this CPU or the next one that is free, or waits for the former.
fn with_state<T, R>(states: &[Mutex<T>], f: impl FnOnce(&mut T) -> R) -> R {
    let own = cpu::current() % states.len();
    let (before, from) = states.split_at(own);
    for state in from.iter().chain(before) {
        if let Some(mut state) = state.try_lock() {
            return f(&mut state);
        }
    }
    f(&mut states[own].lock())
}

/// The word that fills the page, if one does.
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    // The last word differs most often, of those pages whose beginning is even.
    (words[words.len() - 1] == first && words.iter().all(|word| *word == first)).then(|| u64::from_ne_bytes(first))
}

/// Fills a page with a word.
pub fn fill(page: &mut Page, word: u64) {
    page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}
