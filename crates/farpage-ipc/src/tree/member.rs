//! A member of a tree: what a process says of itself, in its place in the segment.
//!
//! Callers: [`super`], and what looks at the places. No locks.

use farpage_base::sys::clock::now_us;
use farpage_base::sys::futex;
use farpage_swap::claims::Claim;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// A member that has not looked for so long is stopped, or waits for a CPU: no other counts on it. Microseconds.
const ABSENT_US: u64 = 300_000;
/// One that has looked within so long is not woken to look again. Microseconds.
const JUST_US: u64 = 2_000;
/// How long room for a child is kept after the fork at most, until it has claimed it. Microseconds.
pub(super) const CHILD_CLAIMS_US: u64 = 20_000;
/// Swap devices whose size is for the tree: the first ones.
pub(super) const FILES: usize = 4;

/// A number of pages in memory that a hostile member can write: what is read is clamped, so that sums and products of
/// what all members say do not overflow.
#[repr(transparent)]
#[derive(Debug)]
pub struct ClampedPages(AtomicU64);

impl ClampedPages {
    /// More than any machine has.
    pub const MOST: u64 = 1 << 40;

    /// The number.
    pub fn load(&self) -> u64 {
        self.0.load(SeqCst).min(ClampedPages::MOST)
    }

    /// It is `pages` from now on.
    pub fn store(&self, pages: u64) {
        self.0.store(pages, SeqCst);
    }

    /// It is `pages` from now on; what it was.
    pub(super) fn swap(&self, pages: u64) -> u64 {
        self.0.swap(pages, SeqCst).min(ClampedPages::MOST)
    }

    /// It is `pages` at least.
    pub(super) fn at_least(&self, pages: u64) {
        self.0.fetch_max(pages, Relaxed);
    }
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MemberKind {
    /// It has the library and no engine: it claims what it could fill, and gives nothing.
    Dormant = 1,
    /// Its engine watches it, and manages nothing yet.
    Watched = 2,
    /// Its memory is managed.
    Managed = 3,
    /// It is about to become another program, which may have the library or not.
    Leaving = 4,
    /// It has no library: others look what it has.
    Stranger = 5,
    /// The first process of a tree within this one, on behalf of which its launcher claims that tree's budget.
    Nested = 6,
}

impl MemberKind {
    fn of(number: u32) -> MemberKind {
        match number {
            2 => MemberKind::Watched,
            3 => MemberKind::Managed,
            4 => MemberKind::Leaving,
            5 => MemberKind::Stranger,
            6 => MemberKind::Nested,
            _ => MemberKind::Dormant,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            MemberKind::Dormant => "small",
            MemberKind::Watched => "watched",
            MemberKind::Managed => "managed",
            MemberKind::Leaving => "starting",
            MemberKind::Stranger => "stranger",
            MemberKind::Nested => "nested",
        }
    }
}

/// A member's place. All numbers are pages where nothing else is said.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Member {
    /// What it may hold.
    pub claim: Claim,
    /// Its process id, as it sees itself.
    pub pid: AtomicU32,
    kind: AtomicU32,
    /// The process that has forked it, until it becomes another program; 0: none.
    pub(super) parent: AtomicU32,
    /// Children that it has forked, or is about to, and that have not taken a place yet.
    pub(super) unborn: AtomicU32,
    /// The pid namespace of that id (its inode).
    pub(super) namespace: AtomicU64,
    /// When the place was taken or last looked at by others, microseconds.
    pub since_us: AtomicU64,
    /// What it steers at: the claim, or less while it gives.
    pub target: ClampedPages,
    /// What it has. Without an engine: as far as it is known.
    pub used: ClampedPages,
    /// Of its resident memory, what others pay for.
    pub shared: ClampedPages,
    /// Of what it pays for, what cannot be taken out.
    pub immovable: ClampedPages,
    /// What it has swapped out.
    pub swapped: ClampedPages,
    /// Its faults that had to wait for reclaim so far (a number).
    pub stalls: AtomicU64,
    /// What it is not asked to go below.
    pub floor: ClampedPages,
    /// What it was refused, while it still wants it.
    pub wants: ClampedPages,
    /// When the page that it would give next was last seen in use, by the tree's clock ([`super::Segment::departed`]).
    pub seen: AtomicU64,
    /// When it last looked, or will look again if it is idle, microseconds.
    pub looked_us: AtomicU64,
    /// Pages that it needs to get on, while it reads pages again that it had before; else 0.
    pub need: ClampedPages,
    /// Since when it waits for its turn: the member that has waited longest comes first.
    pub turn_us: AtomicU64,
    /// Without an engine: what it could fill, which it claims unless it has been still (`still`).
    pub reach: ClampedPages,
    /// Its claim at the look before, as one word.
    pub(super) claim_word: AtomicU64,
    /// Until then pages are kept free for a child that it forks, microseconds.
    pub for_child_until_us: AtomicU64,
    /// What it has begun to pay for, of the pages that it shares with the process that has forked it.
    pub(super) took_over: ClampedPages,
    /// Slots that its files have, by swap device.
    pub(super) files: [ClampedPages; FILES],
    /// 1: it waits for others.
    pub held: AtomicU32,
    /// See `farpage_run::budget::park`.
    pub park: AtomicU32,
    /// Its engine waits here.
    pub wake: AtomicU32,
}

impl Member {
    /// A process takes the place.
    pub(super) fn begin(&self, pid: u32, namespace: u64, kind: MemberKind) {
        let numbers = [
            &self.target,
            &self.used,
            &self.shared,
            &self.immovable,
            &self.swapped,
            &self.floor,
            &self.reach,
            &self.took_over,
        ];
        numbers.iter().for_each(|number| number.store(0));
        self.claim_word.store(0, Relaxed);
        self.stalls.store(0, Relaxed);
        self.says_nothing();
        self.park.store(0, SeqCst);
        self.pid.store(pid, Relaxed);
        self.parent.store(0, Relaxed);
        self.unborn.store(0, Relaxed);
        self.namespace.store(namespace, Relaxed);
        self.since_us.store(now_us(), Relaxed);
        self.looked_us.store(now_us(), Relaxed);
        self.set_kind(kind);
    }

    /// What it is.
    pub fn kind(&self) -> MemberKind {
        MemberKind::of(self.kind.load(SeqCst))
    }

    /// It is something else now.
    pub fn set_kind(&self, kind: MemberKind) {
        self.kind.store(kind as u32, SeqCst);
    }

    /// Its engine looks, so that what it wants and needs is true.
    pub fn is_looking(&self, now_us: u64) -> bool {
        let has_engine = matches!(self.kind(), MemberKind::Watched | MemberKind::Managed);
        has_engine && now_us.saturating_sub(self.looked_us.load(Relaxed)) < ABSENT_US
    }

    /// Process `pid` has no thread that looks any more, and goes on: others look how much it has.
    pub fn is_left_to_others(&self, pid: u32) {
        self.claim.owner.store(pid, SeqCst);
        self.says_nothing();
        self.set_kind(MemberKind::Stranger);
    }

    /// It wants and needs nothing, and has nothing in files.
    fn says_nothing(&self) {
        [&self.wants, &self.need].iter().for_each(|number| number.store(0));
        self.held.store(0, Relaxed);
        [&self.seen, &self.for_child_until_us].iter().for_each(|number| number.store(0, Relaxed));
        self.files.iter().for_each(|slots| slots.store(0));
    }

    /// Whether it is this process.
    pub(super) fn is(&self, pid: u32, namespace: u64) -> bool {
        self.pid.load(Relaxed) == pid && self.namespace.load(Relaxed) == namespace
    }

    /// A process without an engine is about to fork a child, which will take a place.
    pub fn forks(&self) {
        self.unborn.fetch_add(1, SeqCst);
    }

    /// A child was forked: it will claim for itself in a moment.
    pub fn has_forked(&self) {
        self.for_child_until_us.store(now_us() + CHILD_CLAIMS_US, SeqCst);
    }

    /// Its engine is to look; not if it has just done so: where many want what one has, all say so at each look. The
    /// caller says so again if nothing has come of it.
    pub fn nudge(&self) {
        if !self.looks_soon(now_us()) {
            self.ring();
        }
    }

    /// One that rests has noted when it will look.
    pub(super) fn looks_soon(&self, now_us: u64) -> bool {
        now_us.checked_sub(self.looked_us.load(Relaxed)).is_some_and(|us| us < JUST_US)
    }

    /// Its engine is to look.
    pub fn ring(&self) {
        self.wake.fetch_add(1, SeqCst);
        futex::wake_shared(&self.wake);
    }
}
