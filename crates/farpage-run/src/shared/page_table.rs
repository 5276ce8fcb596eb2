//! One word per managed page: where its content is.
//!
//! ```text
//!   None       |0 .......................................| 0   never touched, or zero: an absent page reads as zeros
//!   Mapped     | slot entry:48 (0: no copy)   |0:10|rank:3| 1  in the program; maybe a clean copy on a device
//!   Cached     | frame:48                |A| 0:9 |rank:3| 2  in the swap cache: content in a frame, not in the program
//!                                                            (A: read ahead, not touched yet)
//!   Writeback  | frame:48                     | 0:13     | 3   as Cached, and a writer is storing it
//!   Swapped    | slot entry:48          |R| 0:12     | 4   content on a device only (R: being read)
//! ```
//!
//! Who may change a word: the *pager* thread (any change), and *writers*, by compare-and-swap only:
//! `Cached -> Writeback -> Swapped | None`. So the pager's own changes need a compare-and-swap only from `Cached`, and
//! a writer that loses its page (the program wanted it back) sees that in its last step. No other thread writes words,
//! and there is no lock.
//!
//! The table has three levels: an array of pieces, each of which is a directory of 32 GiB of address space and names
//! leaves, of 512 pages (2 MiB). Pieces and leaves are taken one after the other, and their memory is opened as it is
//! taken ([`farpage_base::mem::open`]): so an untouched gigabyte costs nothing and a touched 2 MiB costs one leaf of 8
//! KiB. A leaf also holds the list links of its pages; a [`Node`] names a page by leaf and index in 32 bits. A page
//! that is on no list because it leaves memory keeps its *shadow* in the place of a link
//! ([`farpage_swap::workingset`]).

use farpage_base::mem::arena::Part;
use farpage_base::mem::open::Opening;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_device::Entry;
use farpage_swap::lru::Links;
use farpage_swap::workingset::{Pages, Rank, Shadow};
use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Pages of a leaf.
pub const LEAF_PAGES: usize = 512;
const LEAF_BITS: u32 = 9;
/// Leaves that a piece of the directory names.
const PIECE_BITS: u32 = 14;
const PIECE: usize = 1 << PIECE_BITS;
const PIECES: usize = 1 << (47 - PAGE_SHIFT - LEAF_BITS - PIECE_BITS);
const DIR_BYTES: usize = PIECES * PIECE * 4;
const LEAVES_MAX: usize = 1 << 21;
/// Bits of the word of a page in memory: its rank.
const RANK_SHIFT: u32 = 3;
const RANK_MASK: u64 = 7 << RANK_SHIFT;
/// Bit of the word of a cached page: it was read ahead, see [`PageTable::set_ahead`].
const AHEAD: u64 = 1 << 15;
/// Bit of the word of a swapped page: its content is being read, see [`PageTable::mark_reading`].
const READING: u64 = 1 << 15;

/// A page that has a word: leaf number and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(pub u32);

/// Decoded word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Never touched or zero.
    None,
    /// In the program, with a clean copy in the slot if there is one.
    Mapped(Option<Entry>),
    /// In the swap cache.
    Cached(FrameNo),
    /// In the swap cache, being stored.
    Writeback(FrameNo),
    /// On a device.
    Swapped(Entry),
}

/// The bits of a word that say which [`State`] it is.
const KIND_MASK: u64 = 7;
const MAPPED: u64 = 1;
const SWAPPED: u64 = 4;

impl State {
    fn encode(self) -> u64 {
        match self {
            State::None => 0,
            State::Mapped(e) => e.map_or(0, Entry::raw) << 16 | MAPPED,
            State::Cached(f) => u64::from(f.number()) << 16 | 2,
            State::Writeback(f) => u64::from(f.number()) << 16 | 3,
            State::Swapped(e) => e.raw() << 16 | SWAPPED,
        }
    }

    fn decode(word: u64) -> State {
        let payload = word >> 16;
        match word & KIND_MASK {
            MAPPED => State::Mapped(Entry::from_raw(payload)),
            2 => State::Cached(FrameNo::new(payload as u32)),
            3 => State::Writeback(FrameNo::new(payload as u32)),
            SWAPPED => Entry::from_raw(payload).map_or(State::None, State::Swapped),
            _ => State::None,
        }
    }
}

/// Place of a page's leaf in the directory, and the page's in the leaf.
#[inline]
fn place_of(vpn: Vpn) -> (usize, u32) {
    ((vpn.number() >> LEAF_BITS) as usize, vpn.number() as u32 & (LEAF_PAGES as u32 - 1))
}

/// The first page of the leaf that `vpn` belongs to.
#[inline]
pub fn leaf_start(vpn: Vpn) -> Vpn {
    Vpn::new(vpn.number() & !(LEAF_PAGES as u64 - 1))
}

/// One past the last page of the leaf that `vpn` belongs to.
#[inline]
pub fn leaf_end(vpn: Vpn) -> Vpn {
    leaf_start(vpn) + LEAF_PAGES
}

/// One past the last page of the piece of the directory that `vpn` belongs to.
fn piece_end(vpn: Vpn) -> Vpn {
    const PAGES: u64 = 1 << (LEAF_BITS + PIECE_BITS);
    Vpn::new((vpn.number() / PAGES + 1) * PAGES)
}

#[repr(C)]
struct Leaf {
    words: [AtomicU64; LEAF_PAGES],
    links: [[AtomicU32; 2]; LEAF_PAGES],
}

const _: () = assert!(size_of::<Leaf>() == 2 * PAGE_SIZE);

/// Addresses the table needs, bytes.
pub const TABLE_BYTES: usize = DIR_BYTES + LEAVES_MAX * (4 + size_of::<Leaf>());

/// Leaves that are open beyond those that are taken: what is managed can move (`mremap`) where no more memory is to be
/// had.
const LEAVES_AHEAD: usize = 64;

/// See the module documentation.
pub struct PageTable {
    /// The piece of each 32 GiB and one; 0: none.
    pieces: Box<[AtomicU16]>,
    /// Where pieces, the homes of leaves, and leaves are.
    dir: usize,
    home: usize,
    leaves: usize,
    dir_opening: Opening,
    home_opening: Opening,
    leaf_opening: Opening,
    /// Pieces ever taken.
    pieces_taken: AtomicUsize,
    /// Leaves ever taken; leaf 0 is never given out, so that a zero directory word means "no leaf".
    taken: AtomicUsize,
    /// First free leaf (0: none); a free leaf's first link names the next one. Pager only.
    free: AtomicU32,
    live: AtomicUsize,
    /// Pages that are `Swapped`.
    swapped: AtomicU64,
    /// Pages that are `Mapped` and have a clean copy.
    copies: AtomicU64,
}

impl PageTable {
    /// A table in `part`.
    ///
    /// # Safety
    /// `part` is at least [`TABLE_BYTES`] that begin with a page, as [`Opening::new`] takes them, zeroed, and used by
    /// nobody else.
    pub unsafe fn new(part: Part) -> PageTable {
        let leaves = part.base;
        let dir = leaves + LEAVES_MAX * size_of::<Leaf>();
        let home = dir + DIR_BYTES;
        let end = home + LEAVES_MAX * 4;
        // SAFETY: the three arrays lie one behind the other inside the part (TABLE_BYTES is their sum), and begin with
        // a page.
        let opening = |base, end| unsafe { Opening::new(base, end) };
        PageTable {
            // SAFETY: all zero bits are such a word. Not written here: few of them are used.
            pieces: unsafe { Box::new_zeroed_slice(PIECES).assume_init() },
            dir,
            home,
            leaves,
            dir_opening: opening(dir, home),
            home_opening: opening(home, end).ahead(LEAVES_AHEAD * 4),
            leaf_opening: opening(leaves, dir).ahead(LEAVES_AHEAD * size_of::<Leaf>()),
            pieces_taken: AtomicUsize::new(0),
            taken: AtomicUsize::new(1),
            free: AtomicU32::new(0),
            live: AtomicUsize::new(0),
            swapped: AtomicU64::new(0),
            copies: AtomicU64::new(0),
        }
    }

    /// The directory's word for the leaf at `at`, if there is a piece for it.
    #[inline]
    fn slot(&self, at: usize) -> Option<&AtomicU32> {
        let piece = usize::from(self.pieces.get(at >> PIECE_BITS)?.load(Ordering::Acquire)).checked_sub(1)?;
        let index = piece << PIECE_BITS | at & (PIECE - 1);
        // SAFETY: a piece that was taken is open, for good; all-zero bytes are valid atomics.
        Some(unsafe { &*(self.dir as *const AtomicU32).add(index) })
    }

    /// The same; takes a piece, if there is none. Pager only.
    fn slot_or_take(&self, at: usize) -> Option<&AtomicU32> {
        let piece = self.pieces.get(at >> PIECE_BITS)?;
        if piece.load(Ordering::Relaxed) == 0 {
            let taken = self.pieces_taken.load(Ordering::Relaxed) + 1;
            if !self.dir_opening.reach(self.dir + taken * PIECE * 4) {
                return None;
            }
            self.pieces_taken.store(taken, Ordering::Relaxed);
            piece.store(taken as u16, Ordering::Release);
        }
        self.slot(at)
    }

    /// A leaf that was taken.
    #[inline]
    fn leaf(&self, number: u32) -> &Leaf {
        // SAFETY: nodes and the directory name leaves that were taken, and those are open for good; all-zero bytes are
        // valid atomics.
        unsafe { &*(self.leaves as *const Leaf).add(number as usize) }
    }

    /// The place in the directory of a leaf that was taken.
    #[inline]
    fn home(&self, number: u32) -> &AtomicU32 {
        // SAFETY: as for `leaf`.
        unsafe { &*(self.home as *const AtomicU32).add(number as usize) }
    }

    /// The node of a page, if its leaf exists.
    #[inline]
    pub fn node(&self, vpn: Vpn) -> Option<Node> {
        let (at, in_leaf) = place_of(vpn);
        let leaf = self.slot(at)?.load(Ordering::Acquire);
        (leaf != 0).then_some(Node(leaf << LEAF_BITS | in_leaf))
    }

    /// The node of a page; makes its leaf. `None`: address out of reach, the table is full, or
    /// no memory for it. Pager only.
    pub fn node_or_create(&self, vpn: Vpn) -> Option<Node> {
        if let Some(node) = self.node(vpn) {
            return Some(node);
        }
        let (at, _) = place_of(vpn);
        let slot = self.slot_or_take(at)?;
        let leaf = match self.free.load(Ordering::Relaxed) {
            0 => {
                let leaf = self.taken.load(Ordering::Relaxed);
                if leaf == LEAVES_MAX || !self.open_leaf(leaf) {
                    return None;
                }
                self.taken.store(leaf + 1, Ordering::Relaxed);
                leaf as u32
            }
            leaf => {
                self.free.store(self.leaf(leaf).links[0][0].load(Ordering::Relaxed), Ordering::Relaxed);
                leaf
            }
        };
        self.live.fetch_add(1, Ordering::Relaxed);
        self.home(leaf).store(at as u32, Ordering::Relaxed);
        slot.store(leaf, Ordering::Release);
        self.node(vpn)
    }

    /// Whether a leaf and what belongs to it can be written now.
    fn open_leaf(&self, leaf: usize) -> bool {
        self.leaf_opening.reach(self.leaves + (leaf + 1) * size_of::<Leaf>())
            && self.home_opening.reach(self.home + (leaf + 1) * 4)
    }

    /// Whether pages of two leaves, those of `first` and `last`, can have words: there are leaves, or could be. Pager
    /// only.
    pub fn has_room(&self, first: Vpn, last: Vpn) -> bool {
        let pieces = [first, last].iter().all(|vpn| self.slot_or_take(place_of(*vpn).0).is_some());
        pieces && self.open_leaf((self.taken.load(Ordering::Relaxed) + 1).min(LEAVES_MAX - 1))
    }

    /// Whether no more memory is to be had for leaves: what is left is for pages that have words.
    pub fn is_short(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        self.free.load(Ordering::Relaxed) == 0 && self.leaf_opening.is_short(self.leaves + taken * size_of::<Leaf>())
    }

    /// Gives the leaves of `[first, last)` back that have no page with a state any more. Pager only.
    pub fn drop_empty_leaves(&self, first: Vpn, last: Vpn) {
        let mut leaf = leaf_start(first);
        while leaf < last {
            self.drop_leaf_if_empty(leaf);
            leaf += LEAF_PAGES;
        }
    }

    /// The same for the leaf of `vpn`.
    fn drop_leaf_if_empty(&self, vpn: Vpn) {
        let Some(slot) = self.slot(place_of(vpn).0) else { return };
        let leaf = slot.load(Ordering::Relaxed);
        if leaf == 0 || self.leaf(leaf).words.iter().any(|w| w.load(Ordering::Relaxed) != 0) {
            return;
        }
        slot.store(0, Ordering::Release);
        self.leaf(leaf).links[0][0].store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(leaf, Ordering::Relaxed);
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// The page of a node.
    #[inline]
    pub fn vpn(&self, node: Node) -> Vpn {
        let home = self.home(node.0 >> LEAF_BITS).load(Ordering::Relaxed);
        Vpn::new(u64::from(home) << LEAF_BITS | u64::from(node.0 & (LEAF_PAGES as u32 - 1)))
    }

    #[inline]
    fn word(&self, node: Node) -> &AtomicU64 {
        &self.leaf(node.0 >> LEAF_BITS).words[node.0 as usize & (LEAF_PAGES - 1)]
    }

    /// What is known of the page.
    #[inline]
    pub fn state(&self, node: Node) -> State {
        State::decode(self.word(node).load(Ordering::Acquire))
    }

    /// Sets the word. Pager only, and not while a writer may change it (states Cached and Writeback: use
    /// [`PageTable::change`]).
    #[inline]
    pub fn set(&self, node: Node, to: State) {
        self.store(node, to.encode());
    }

    /// Sets the word of a page that is, or comes, into memory, with its rank. As [`PageTable::set`].
    #[inline]
    pub fn set_ranked(&self, node: Node, to: State, rank: Rank) {
        self.store(node, to.encode() | u64::from(rank.bits()) << RANK_SHIFT);
    }

    /// Leaves the shadow of a page that is on no list; lost when it is put on one.
    pub fn set_shadow(&self, node: Node, shadow: Shadow) {
        self.links(node.0)[0].store(shadow.bits(), Ordering::Relaxed);
    }

    /// What [`PageTable::set_shadow`] left.
    pub fn shadow(&self, node: Node) -> Shadow {
        Shadow::from_bits(self.links(node.0)[0].load(Ordering::Relaxed))
    }

    /// Changes the word if it still is `from`, whatever its rank; the rank is the lowest afterwards.
    #[inline]
    pub fn change(&self, node: Node, from: State, to: State) -> bool {
        let word = self.word(node);
        let mut seen = word.load(Ordering::Acquire);
        while State::decode(seen) == from {
            match word.compare_exchange(seen, to.encode(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.count(seen, to.encode());
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    #[inline]
    fn store(&self, node: Node, to: u64) {
        let word = self.word(node);
        self.count(word.load(Ordering::Relaxed), to);
        word.store(to, Ordering::Release);
    }

    /// A word has become `to`.
    #[inline]
    fn count(&self, from: u64, to: u64) {
        let is_swapped = |word: u64| word & KIND_MASK == SWAPPED;
        let has_copy = |word: u64| word & KIND_MASK == MAPPED && word >> 16 != 0;
        let count = |counter: &AtomicU64, before: bool, now: bool| match (before, now) {
            (false, true) => counter.fetch_add(1, Ordering::Relaxed),
            (true, false) => counter.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        count(&self.swapped, is_swapped(from), is_swapped(to));
        count(&self.copies, has_copy(from), has_copy(to));
    }

    /// Pages in the program of which there is a clean copy, too.
    pub fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Pages in the program lose their clean copies: the entries go to `out`, until it has `want`, and are the caller's
    /// to free. Goes on at `hand`, and around the table once at most. Pager only.
    pub fn take_clean_slots(&self, hand: &mut u32, want: usize, out: &mut Vec<Entry>) {
        let nodes = (self.taken.load(Ordering::Relaxed) << LEAF_BITS) as u32;
        for _ in 0..nodes {
            if out.len() >= want || self.copies() == 0 {
                return;
            }
            // Leaf 0 is none.
            *hand = if (1 << LEAF_BITS..nodes).contains(hand) { *hand } else { 1 << LEAF_BITS };
            let node = Node(*hand);
            *hand += 1;
            if let State::Mapped(Some(entry)) = self.state(node) {
                out.push(entry);
                self.set_ranked(node, State::Mapped(None), self.rank(node.0));
            }
        }
    }

    /// Pages whose only copy is on a device.
    pub fn swapped_pages(&self) -> u64 {
        self.swapped.load(Ordering::Relaxed)
    }

    /// Whether a page is in the swap cache, and not because it was read ahead.
    pub fn is_cached(&self, node: Node) -> bool {
        matches!(self.state(node), State::Cached(_)) && !self.is_ahead(node)
    }

    /// Whether a page has content and is in memory: in the program, or in the swap cache.
    pub fn is_there(&self, vpn: Vpn) -> bool {
        let state = self.node(vpn).map(|node| self.state(node));
        matches!(state, Some(State::Mapped(_) | State::Cached(_) | State::Writeback(_)))
    }

    /// The slot of a page whose content is on a device only.
    #[inline]
    pub fn swapped(&self, vpn: Vpn) -> Option<Entry> {
        match self.state(self.node(vpn)?) {
            State::Swapped(entry) => Some(entry),
            _ => None,
        }
    }

    /// Sets the word of a page that comes into the swap cache although no thread has asked for it. Any change of the
    /// word takes the mark away. Pager only.
    pub fn set_ahead(&self, node: Node, frame: FrameNo) {
        self.store(node, State::Cached(frame).encode() | AHEAD);
    }

    /// Whether the page is in the swap cache and nothing has happened to it since [`PageTable::set_ahead`].
    pub fn is_ahead(&self, node: Node) -> bool {
        let word = self.word(node).load(Ordering::Acquire);
        matches!(State::decode(word), State::Cached(_)) && word & AHEAD != 0
    }

    /// Notes in the word of a page that is `Swapped` to `entry` that its content is being read. Any change of the word
    /// takes the note away, also one back to the same entry. Pager only.
    pub fn mark_reading(&self, node: Node, entry: Entry) {
        if self.state(node) == State::Swapped(entry) {
            self.word(node).store(State::Swapped(entry).encode() | READING, Ordering::Release);
        }
    }

    /// Whether nothing has happened to the page since [`PageTable::mark_reading`].
    pub fn is_reading(&self, node: Node, entry: Entry) -> bool {
        self.word(node).load(Ordering::Acquire) == State::Swapped(entry).encode() | READING
    }

    /// Calls `each` for every page in `[start, end)` that has a leaf, in address order; pages without one are `None`
    /// by definition. Pager only.
    pub fn for_each(&self, start: Vpn, end: Vpn, mut each: impl FnMut(Vpn, Node)) {
        let mut at = start;
        while at < end {
            let stop = leaf_end(at).min(end);
            if let Some(first) = self.node(at) {
                for i in 0..stop - at {
                    each(at + i, Node(first.0 + i as u32));
                }
            }
            at = stop;
        }
    }

    /// The parts of `[start, end)` in which not all pages are in the program, as the words say: of each leaf from the
    /// first page that is not to the last. Pager only.
    pub fn out_parts(&self, start: Vpn, end: Vpn) -> Vec<(Vpn, Vpn)> {
        let mut parts: Vec<(Vpn, Vpn)> = Vec::new();
        let mut at = start;
        while at < end {
            let (first, last, stop) = match self.node(at) {
                Some(node) => {
                    let stop = leaf_end(at).min(end);
                    let is_out =
                        |i: &usize| self.word(Node(node.0 + *i as u32)).load(Ordering::Acquire) & KIND_MASK != MAPPED;
                    let mut pages = 0..stop - at;
                    match (pages.find(is_out), pages.rfind(is_out)) {
                        (Some(first), last) => (at + first, at + last.unwrap_or(first) + 1, stop),
                        (None, _) => (stop, stop, stop),
                    }
                }
                None => {
                    let stop = if self.slot(place_of(at).0).is_some() { leaf_end(at) } else { piece_end(at) };
                    (at, stop.min(end), stop.min(end))
                }
            };
            match parts.last_mut() {
                _ if first == last => {}
                Some((_, before)) if *before == first => *before = last,
                _ => parts.push((first, last)),
            }
            at = stop;
        }
        parts
    }

    /// Bytes of RAM the table takes: leaves in use, directory pages not counted.
    pub fn bytes(&self) -> usize {
        self.live.load(Ordering::Relaxed) * size_of::<Leaf>()
    }
}

impl Links for PageTable {
    fn prev(&self, n: u32) -> u32 {
        self.links(n)[0].load(Ordering::Relaxed)
    }
    fn next(&self, n: u32) -> u32 {
        self.links(n)[1].load(Ordering::Relaxed)
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.links(n)[0].store(to, Ordering::Relaxed);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.links(n)[1].store(to, Ordering::Relaxed);
    }
}

impl Pages for PageTable {
    fn rank(&self, n: u32) -> Rank {
        let word = self.word(Node(n)).load(Ordering::Acquire);
        Rank::from_bits(((word & RANK_MASK) >> RANK_SHIFT) as u8)
    }
    fn set_rank(&self, n: u32, rank: Rank) {
        let word = self.word(Node(n));
        let mut seen = word.load(Ordering::Acquire);
        // Only of a page that is on a list: what has become of it meanwhile has no rank.
        while matches!(State::decode(seen), State::Mapped(_) | State::Cached(_)) {
            let to = seen & !RANK_MASK | u64::from(rank.bits()) << RANK_SHIFT;
            match word.compare_exchange(seen, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

impl PageTable {
    #[inline]
    fn links(&self, n: u32) -> &[AtomicU32; 2] {
        &self.leaf(n >> LEAF_BITS).links[n as usize & (LEAF_PAGES - 1)]
    }
}

#[cfg(test)]
pub(crate) mod tests;
