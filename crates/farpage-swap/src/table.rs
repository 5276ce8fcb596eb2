//! The swap table: one 64-bit word a slot, allocated while the slot's cluster is in use.
//!
//! ```text
//!   63                       16 15          3   2    1 0
//!  |  payload: frame or shadow |   count    | zero | kind |
//!                                                    00   free: the whole word is 0
//!                                                    01   swapped: the payload is the shadow (0: none)
//!                                                    10   cached: the payload is the frame that has the content
//!                                                    11   bad: never given out
//! ```
//!
//! The word is the slot's whole state. There are no dirty or writeback tags (no look-up needs them; keeping them costs
//! two acquisitions of the index lock a page), and no separate map of counts.
//!
//! *Count* is the number of references to the slot (page table entries of one or more processes); a count above
//! [`COUNT_MAX`] is kept outside the word (`cluster::refs`). One value of the field says *pending*: the only reference
//! of a swapped-out slot was given back while another thread had the cluster's lock. For every thread the slot is free,
//! but it is given out again only when the holder of the lock has made it so (`cluster::pending`). A slot with count 0
//! that is cached is *lazily free*: it keeps its place so that the page need not be written again, and is reclaimed
//! when space is short.
//!
//! # What is allowed without a lock
//! Words change only under their cluster's lock; except that the only reference may become *pending* without it, so a
//! thread that changes a swapped-out word in place does that in one step ([`Table::replace`]). Any thread reads them
//! without a lock: [`TablePool`] keeps the memory of all tables for its own lifetime and hands tables that are no
//! longer needed to other clusters, so a stale reference reads some table's word, never freed memory; `Cluster::lookup`
//! notices that and looks again. What a reader gets is a snapshot: a frame must be locked and the word read again
//! before its content counts.

use crate::chunked::Chunked;
use crate::lock::{Lock, Meter, sites};
use crate::sync::{Arc, AtomicU64, CLUSTER_SLOTS, OnceLock, Ordering};

const KIND_MASK: u64 = 3;
const SWAPPED: u64 = 1;
const CACHED: u64 = 2;
const BAD: u64 = 3;
const ZERO: u64 = 1 << 2;
const COUNT_SHIFT: u32 = 3;
const COUNT_BITS: u32 = 13;
const COUNT_MASK: u64 = ((1 << COUNT_BITS) - 1) << COUNT_SHIFT;
const PAYLOAD_SHIFT: u32 = 16;

/// The largest count that the word itself holds.
pub const COUNT_MAX: u64 = (1 << COUNT_BITS) - 3;
/// The count field's way to say that the count is kept elsewhere.
pub(crate) const COUNT_MANY: u64 = COUNT_MAX + 1;
/// Its way to say that the slot is as good as free.
const PENDING: u64 = COUNT_MAX + 2;
/// Bits of a frame number or shadow.
pub const PAYLOAD_BITS: u32 = 64 - PAYLOAD_SHIFT;

/// The state of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(u64);

/// What a [`Word`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Not in use.
    Free,
    /// Never given out: the device's header, a bad block, beyond the end.
    Bad,
    /// The content is on the device only.
    Swapped {
        /// What was noted when the page was evicted; 0 for nothing.
        shadow: u64,
    },
    /// A frame has the content (too).
    Cached {
        /// Number of the frame.
        frame: u64,
    },
}

impl Word {
    /// A free slot's word.
    pub const FREE: Word = Word(0);
    /// The word of a slot that is never given out.
    pub const BAD: Word = Word(BAD);

    /// Swapped out, with `count` references (at most [`COUNT_MAX`]). Bits of `shadow` above [`PAYLOAD_BITS`] are lost.
    pub const fn swapped(count: u64, shadow: u64) -> Word {
        Word(SWAPPED | (count << COUNT_SHIFT) & COUNT_MASK | shadow << PAYLOAD_SHIFT)
    }

    /// In the swap cache, with `count` references. Bits of `frame` above [`PAYLOAD_BITS`] are lost.
    pub const fn cached(count: u64, frame: u64) -> Word {
        Word(CACHED | (count << COUNT_SHIFT) & COUNT_MASK | frame << PAYLOAD_SHIFT)
    }

    /// What the word says.
    pub const fn view(self) -> View {
        match self.0 & KIND_MASK {
            _ if self.is_pending() => View::Free,
            SWAPPED => View::Swapped { shadow: self.0 >> PAYLOAD_SHIFT },
            CACHED => View::Cached { frame: self.0 >> PAYLOAD_SHIFT },
            BAD => View::Bad,
            _ => View::Free,
        }
    }

    /// Whether the slot is swapped or cached.
    pub const fn is_in_use(self) -> bool {
        matches!(self.0 & KIND_MASK, SWAPPED | CACHED) && !self.is_pending()
    }

    /// The frame of a cached slot.
    pub const fn frame(self) -> Option<u64> {
        if self.0 & KIND_MASK == CACHED { Some(self.0 >> PAYLOAD_SHIFT) } else { None }
    }

    /// Cached and without a reference: kept only to save a write.
    pub const fn is_lazily_free(self) -> bool {
        self.0 & (KIND_MASK | COUNT_MASK) == CACHED
    }

    /// Swapped out with one reference: without it the slot is free.
    pub(crate) const fn is_last_reference(self) -> bool {
        self.0 & (KIND_MASK | COUNT_MASK) == SWAPPED | 1 << COUNT_SHIFT
    }

    /// Its only reference was given back without the cluster's lock.
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & COUNT_MASK == PENDING << COUNT_SHIFT
    }

    pub(crate) const fn to_pending(self) -> Word {
        self.with_count(PENDING)
    }

    /// The content is zeros, whatever the device has.
    pub const fn is_zero(self) -> bool {
        self.0 & ZERO != 0
    }

    /// References, as far as the word can hold them: above [`COUNT_MAX`] it only says "more".
    pub const fn count(self) -> u64 {
        (self.0 & COUNT_MASK) >> COUNT_SHIFT
    }

    pub(crate) const fn with_count(self, count: u64) -> Word {
        Word(self.0 & !COUNT_MASK | (count << COUNT_SHIFT) & COUNT_MASK)
    }

    #[cfg(feature = "seed")]
    pub(crate) const fn with_zero(self, zero: bool) -> Word {
        Word(if zero { self.0 | ZERO } else { self.0 & !ZERO })
    }

    /// The same count and zero flag, now cached in `frame`.
    #[cfg(feature = "seed")]
    pub(crate) const fn to_cached(self, frame: u64) -> Word {
        Word(CACHED | self.0 & (COUNT_MASK | ZERO) | frame << PAYLOAD_SHIFT)
    }

    /// The same count and zero flag, now swapped out.
    #[cfg(feature = "seed")]
    pub(crate) const fn to_swapped(self, shadow: u64) -> Word {
        Word(SWAPPED | self.0 & (COUNT_MASK | ZERO) | shadow << PAYLOAD_SHIFT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, count {}, zero {}", self.view(), self.count(), self.is_zero())
    }
}

/// The words of one table, readable without a lock. Boxed, so that their 4096 bytes are a block of exactly that size.
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Word {
        Word(self.0[at].load(Ordering::Acquire))
    }

    #[inline]
    fn set(&self, at: usize, word: Word) {
        self.0[at].store(word.0, Ordering::Release);
    }

    /// Makes one word into another; `false`: it was not the first one.
    pub(crate) fn replace(&self, at: usize, from: Word, to: Word) -> bool {
        self.0[at].compare_exchange(from.0, to.0, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

/// 64-bit words of the bitmap of used slots.
pub const BITMAP: usize = CLUSTER_SLOTS.div_ceil(64);

/// What a cluster in use has: a bit for each slot that is not free, and the words. Protected by the cluster's lock.
pub(crate) struct Table {
    pub(crate) used: [u64; BITMAP],
    /// Number of the table in its pool.
    pub(crate) id: u32,
    words: Arc<Words>,
}

/// Bits of a bitmap that stand for no slot (only where a cluster has fewer than 64).
const NO_SLOT: u64 = if CLUSTER_SLOTS < 64 { !0 << (CLUSTER_SLOTS % 64) } else { 0 };

impl Table {
    #[inline]
    pub(crate) fn word(&self, at: usize) -> Word {
        self.words.get(at)
    }

    /// Writes a word and its bit.
    #[inline]
    pub(crate) fn set(&mut self, at: usize, word: Word) {
        let bit = 1 << (at % 64);
        if word == Word::FREE {
            self.used[at / 64] &= !bit;
        } else {
            self.used[at / 64] |= bit;
        }
        self.words.set(at, word);
    }

    /// The only reference of a swapped-out slot goes. If it has become pending meanwhile, two freed the slot: it is
    /// free once.
    #[inline]
    pub(crate) fn free_last(&mut self, at: usize) {
        if cfg!(loom) {
            // For loom, a store may come before an exchange that it did not know of and that read what was there
            // before.
            self.words.0[at].swap(0, Ordering::Release);
        }
        self.set(at, Word::FREE);
    }

    /// Makes the word of a slot in use into another such word, unless the slot has become pending.
    #[cfg(feature = "seed")]
    pub(crate) fn replace(&mut self, at: usize, from: Word, to: Word) -> bool {
        self.words.replace(at, from, to)
    }

    /// See [`find_block`].
    #[inline]
    pub(crate) fn find(&self, from: usize, order: usize) -> Option<usize> {
        find_block(&self.used, from, order)
    }

    /// A free slot of a block of `2^order` slots that has a used one: from place `from` on, then from the start.
    pub(crate) fn find_broken(&self, from: usize, order: usize) -> Option<usize> {
        let mut keep = !0 << (from % 64);
        for i in (from / 64..BITMAP).chain(0..=from / 64) {
            let free = !self.used[i];
            let mut whole = 0;
            if order < 6 {
                whole = block_starts(free, order);
                (0..order).for_each(|shift| whole |= whole << (1 << shift));
            } else if self.is_block_free(((i * 64) >> order) << order, order) {
                whole = !0;
            }
            let broken = free & !whole & keep;
            if broken != 0 {
                return Some(i * 64 + broken.trailing_zeros() as usize);
            }
            keep = !0;
        }
        None
    }

    /// Whether the block of `2^order` slots at `at`, which is aligned to it, is free.
    pub(crate) fn is_block_free(&self, at: usize, order: usize) -> bool {
        if order < 6 {
            let mask = !(!0 << (1u64 << order)) << (at % 64);
            return self.used[at / 64] & mask == 0;
        }
        self.used[at / 64..(at + (1 << order)) / 64].iter().all(|&w| w == 0)
    }

    /// Makes every word free again.
    #[cfg(feature = "seed")]
    pub(crate) fn clear(&mut self) {
        for at in 0..CLUSTER_SLOTS {
            if self.word(at) != Word::FREE {
                self.set(at, Word::FREE);
            }
        }
    }
}

/// In a bitmap of used slots, the first free block of `2^order` slots, aligned to its size, from place `from` on and
/// then from the start. `order` is at most 9.
#[inline]
pub fn find_block(used: &[u64; BITMAP], from: usize, order: usize) -> Option<usize> {
    let n = 1 << order;
    let from = from.next_multiple_of(n) % CLUSTER_SLOTS;
    if n >= 64 {
        let block = |at: usize| used[at / 64..(at + n) / 64].iter().all(|&w| w == 0);
        let starts = (from..CLUSTER_SLOTS).step_by(n).chain((0..from).step_by(n));
        return starts.into_iter().find(|&at| block(at));
    }
    let first = from / 64;
    let mut keep = !0 << (from % 64);
    for i in (first..BITMAP).chain(0..=first) {
        let starts = block_starts(!used[i], order) & keep;
        if starts != 0 {
            return Some(i * 64 + starts.trailing_zeros() as usize);
        }
        keep = !0;
    }
    None
}

/// Where blocks of `2^order` (below 64) set bits start, aligned to their size.
#[inline]
fn block_starts(free: u64, order: usize) -> u64 {
    const ALIGNED: [u64; 6] = [
        !0,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
    ];
    let mut free = free;
    for shift in 0..order {
        free &= free >> (1 << shift);
    }
    free & ALIGNED[order]
}

/// All tables of a [`crate::cluster::Swap`]: those in use, and spare ones. Keeps their memory until it is dropped.
pub(crate) struct TablePool<M> {
    /// By number; what readers without a lock go through.
    all: Chunked<OnceLock<Arc<Words>>>,
    spare: Lock<Spare, M>,
}

#[expect(clippy::vec_box, reason = "clusters hold them in boxes: a pointer where there is none")]
struct Spare {
    tables: Vec<Box<Table>>,
    made: u32,
}

impl<M: Meter> TablePool<M> {
    pub(crate) fn new() -> TablePool<M> {
        TablePool { all: Chunked::new(), spare: Lock::new(Spare { tables: Vec::new(), made: 0 }) }
    }

    /// A table whose words are all free. Allocates if there is no spare one.
    pub(crate) fn take(&self) -> Box<Table> {
        let id = {
            let mut spare = self.spare.lock(&sites::POOL);
            if let Some(table) = spare.tables.pop() {
                return table;
            }
            spare.made += 1;
            spare.made - 1
        };
        let words = Arc::new(Words((0..CLUSTER_SLOTS).map(|_| AtomicU64::new(0)).collect()));
        // No other thread knows the number yet, so the place is empty.
        let _ = self.all.get_or_make(id as usize).set(words.clone());
        let mut used = [0; BITMAP];
        used[BITMAP - 1] |= NO_SLOT;
        Box::new(Table { used, id, words })
    }

    /// Takes back a table whose words are all free, and which no cluster names any more.
    pub(crate) fn give(&self, table: Box<Table>) {
        self.spare.lock(&sites::POOL).tables.push(table);
    }

    /// The words of table number `id`.
    pub(crate) fn words(&self, id: u32) -> Option<&Words> {
        self.all.get(id as usize)?.get().map(Arc::as_ref)
    }

    /// (tables made, of them spare now).
    pub(crate) fn counts(&self) -> (u64, u64) {
        let spare = self.spare.lock(&sites::POOL);
        (u64::from(spare.made), spare.tables.len() as u64)
    }

    /// Bytes of the pool's own directory.
    pub(crate) fn directory_bytes(&self) -> usize {
        self.all.bytes()
    }
}

/// Bytes of one table.
pub(crate) const TABLE_BYTES: usize =
    CLUSTER_SLOTS * size_of::<Word>() + size_of::<Table>() + size_of::<Words>() + 2 * size_of::<usize>();
