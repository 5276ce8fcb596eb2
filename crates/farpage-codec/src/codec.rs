//! Compression of one page, without allocating per page.
//!
//! Owns a small set of codec states (hash tables, zstd contexts), each behind its own lock, made at first use. A caller
//! takes the one of its CPU, or else the next that is free; only when all are busy does it wait for one. No other lock
//! is taken. Both decoders are checked ones: what lies in the pool may have been changed by the program, whose memory
//! it is in (`tests/damage.rs`). With zstd's default build the contexts come from the C heap: the crate feature
//! `with-rust-allocator` moves them.
//!
//! With LZ4 a page is compressed as it is, or with its bytes shuffled ([`shuffle`]), whichever was smaller lately; the
//! first byte of an object says which. Zstd's entropy coder finds nearly the same by itself.

use super::{lz4, shuffle};
use farpage_base::mem::units::Page;
use farpage_base::sys::cpu;
use farpage_base::sys::mutex::Mutex;
use farpage_ipc::conf::Alg;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Codec states of each kind, shared by CPUs where there are more: more threads than this at a time wait.
const STATES: usize = 8;
const ZSTD_LEVEL: i32 = 1;
/// For pages that no thread waits for.
const DENSE_LEVEL: i32 = 5;

/// Of so many pages, one is compressed in both ways, and the better one is for those that follow. Pages leave with
/// their neighbours, so they are of the same kind.
const TRIAL: u32 = 16;

/// Above that, a page is compressed as it is as well.
const SHUFFLED_MAX: usize = PAGE_SIZE * 3 / 4;

/// The first byte of an object that LZ4 made: of a page as it is, or shuffled.
const PLAIN: u8 = 0;
const SHUFFLED: u8 = 1;

/// What compresses, and room for what comes out.
enum Encoder {
    Lz4(Lz4Encoder),
    Zstd(zstd::bulk::Compressor<'static>, Box<[u8]>),
}

/// LZ4 of a page as it is, and of its bytes in another order.
struct Lz4Encoder {
    compressor: lz4::Compressor,
    /// Room for both results, and for the page with its bytes in that order: one block, whose memory goes back whole
    /// when the encoder is given up.
    room: Box<[u8]>,
    /// Pages so far.
    pages: u32,
    /// Shuffled pages were smaller at the last trial.
    shuffles: bool,
}

/// What decompression needs.
enum Decoder {
    /// Room for a page that is still shuffled.
    Lz4(Box<Page>),
    Zstd(zstd::bulk::Decompressor<'static>),
}

/// The codec of one device.
pub struct Codec {
    alg: Alg,
    /// Of zstd.
    level: i32,
    encoders: [Mutex<Option<Encoder>>; STATES],
    decoders: [Mutex<Option<Decoder>>; STATES],
    bytes: AtomicU64,
}

impl Codec {
    /// One that compresses so.
    pub fn new(alg: Alg) -> Codec {
        Codec::with_level(alg, ZSTD_LEVEL)
    }

    /// One that takes more time to compress and gets more out of it.
    pub fn dense() -> Codec {
        Codec::with_level(Alg::Zstd, DENSE_LEVEL)
    }

    /// What it compresses with.
    pub fn alg(&self) -> Alg {
        self.alg
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
            state.as_mut()?.compress(page).map(then)
        })
    }

    /// Gives up what compresses, where no thread is at it; the next page makes it anew. What decompresses stays.
    pub fn rest(&self) {
        for state in &self.encoders {
            if let Some(encoder) = state.try_lock().and_then(|mut state| state.take()) {
                self.bytes.fetch_sub(encoder.bytes(), Relaxed);
            }
        }
    }

    /// Makes every state that [`Codec::decompress`] may need now, so that it never allocates.
    pub fn warm(&self) {
        for state in &self.decoders {
            self.decoder(&mut state.lock());
        }
    }

    /// The page that was compressed to `bytes`; `false`: they are not what `compress` made.
    pub fn decompress(&self, bytes: &[u8], into: &mut Page) -> bool {
        match (self.alg, bytes) {
            (Alg::Lz4, [PLAIN, bytes @ ..]) => lz4::decompress(bytes, &mut into[..]) == Some(PAGE_SIZE),
            (Alg::Lz4, [SHUFFLED, ..]) | (Alg::Zstd, _) => with_state(&self.decoders, |state| {
                self.decoder(state).is_some_and(|decoder| decoder.decompress(bytes, into))
            }),
            (Alg::Lz4, _) => false,
        }
    }

    /// The decoder of a state, made if there is none yet.
    fn decoder<'a>(&self, state: &'a mut Option<Decoder>) -> Option<&'a mut Decoder> {
        if state.is_none() {
            let decoder = state.insert(Decoder::new(self.alg)?);
            self.bytes.fetch_add(decoder.bytes(), Relaxed);
        }
        state.as_mut()
    }
}

impl Encoder {
    fn new(alg: Alg, level: i32) -> Option<Encoder> {
        let room = |bytes| vec![0; bytes].into_boxed_slice();
        Some(match alg {
            Alg::Lz4 => Encoder::Lz4(Lz4Encoder {
                compressor: lz4::Compressor::new()?,
                room: room(2 * Lz4Encoder::most() + PAGE_SIZE),
                pages: 0,
                shuffles: false,
            }),
            Alg::Zstd => {
                let context = zstd::bulk::Compressor::new(level).ok()?;
                Encoder::Zstd(context, room(zstd::zstd_safe::compress_bound(PAGE_SIZE)))
            }
        })
    }

    /// Memory that it takes, about.
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Encoder::Lz4(lz4) => lz4.compressor.bytes() + lz4.room.len(),
            // A context of level 1 for small inputs.
            Encoder::Zstd(_, out) => (96 << 10) + out.len(),
        };
        bytes as u64
    }

    fn compress(&mut self, page: &Page) -> Option<&[u8]> {
        match self {
            Encoder::Lz4(lz4) => lz4.compress(page),
            Encoder::Zstd(context, out) => {
                let len = context.compress_to_buffer(&page[..], &mut out[..]).ok()?;
                out.get(..len)
            }
        }
    }
}

impl Lz4Encoder {
    fn compress(&mut self, page: &Page) -> Option<&[u8]> {
        let is_trial = self.pages.is_multiple_of(TRIAL);
        self.pages = self.pages.wrapping_add(1);
        let shuffled = if self.shuffles || is_trial { Some(self.compress_shuffled(page)?) } else { None };
        // What was good for its neighbours may be so bad for this page that it would not be kept at all.
        let enough = shuffled.is_some_and(|shuffled| shuffled <= SHUFFLED_MAX) && !is_trial;
        let plain = if enough { None } else { Some(self.compress_plain(page)?) };
        if let (Some(plain), Some(shuffled)) = (plain, shuffled) {
            // Loading it costs more.
            self.shuffles = shuffled < plain / 8 * 7;
        }
        match (plain, shuffled) {
            (Some(plain), shuffled) if shuffled.is_none_or(|shuffled| plain <= shuffled) => self.room.get(..plain),
            (_, shuffled) => self.room.get(Lz4Encoder::most()..)?.get(..shuffled?),
        }
    }

    /// Bytes of a result at most.
    fn most() -> usize {
        1 + lz4::bound(PAGE_SIZE)
    }

    fn compress_plain(&mut self, page: &Page) -> Option<usize> {
        with_first_byte(PLAIN, page, &mut self.compressor, self.room.get_mut(..Lz4Encoder::most())?)
    }

    fn compress_shuffled(&mut self, page: &Page) -> Option<usize> {
        let (into, other) = self.room.get_mut(Lz4Encoder::most()..)?.split_at_mut_checked(Lz4Encoder::most())?;
        let other: &mut Page = other.try_into().ok()?;
        shuffle::shuffle(page, other);
        with_first_byte(SHUFFLED, other, &mut self.compressor, into)
    }
}

/// Compresses a page behind a first byte; how many bytes that are together.
fn with_first_byte(first: u8, page: &Page, compressor: &mut lz4::Compressor, into: &mut [u8]) -> Option<usize> {
    let (byte, rest) = into.split_first_mut()?;
    *byte = first;
    Some(1 + compressor.compress(page, rest)?)
}

impl Decoder {
    fn new(alg: Alg) -> Option<Decoder> {
        match alg {
            // SAFETY: zero bytes are a page. Not written here: most states are never used.
            Alg::Lz4 => Some(Decoder::Lz4(unsafe { Box::new_zeroed().assume_init() })),
            Alg::Zstd => zstd::bulk::Decompressor::new().ok().map(Decoder::Zstd),
        }
    }

    /// Memory that it takes, about.
    fn bytes(&self) -> u64 {
        match self {
            Decoder::Lz4(_) => PAGE_SIZE as u64,
            Decoder::Zstd(_) => 160 << 10,
        }
    }

    /// As [`Codec::decompress`], of an object of zstd, or a shuffled one of LZ4.
    fn decompress(&mut self, bytes: &[u8], into: &mut Page) -> bool {
        match self {
            Decoder::Lz4(shuffled) => {
                let n = bytes.get(1..).and_then(|bytes| lz4::decompress(bytes, &mut shuffled[..]));
                shuffle::unshuffle(shuffled, into);
                n == Some(PAGE_SIZE)
            }
            Decoder::Zstd(context) => context.decompress_to_buffer(bytes, &mut into[..]).ok() == Some(PAGE_SIZE),
        }
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
