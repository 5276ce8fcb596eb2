//! What the policy knows of a page: its rank while it is in memory, its shadow while it is out; and where both are
//! kept.

use crate::lru::Links;

/// How hot a page in memory proved: new ones are on probation, all others on main. The caller keeps it while the page
/// is in memory (3 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rank(pub(super) u8);

impl Rank {
    /// On probation.
    pub const NEW: Rank = Rank(0);
    /// On main, just come there.
    pub const HOT: Rank = Rank(1);
    /// The highest.
    pub const MAX: Rank = Rank(4);

    /// Of the number that [`Rank::bits`] gave; what is too high is the highest.
    pub fn from_bits(bits: u8) -> Rank {
        Rank(bits).min(Rank::MAX)
    }

    /// As a number below 8.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether a page of this rank is on main.
    pub fn is_hot(self) -> bool {
        self >= Rank::HOT
    }

    /// The rank of a page that was wanted back while it was cached.
    #[must_use]
    pub fn raised(self) -> Rank {
        Rank(self.0 + 1).min(Rank::MAX)
    }
}

/// Where the ranks of the pages live, beside their links. Setters take `&self`, as in [`Links`].
pub trait Pages: Links {
    /// The rank of `n`, which is cached.
    fn rank(&self, n: u32) -> Rank;
    /// Sets the rank of `n`, which is cached and stays so.
    fn set_rank(&self, n: u32, rank: Rank);
}

/// What is noted of a page that leaves: count of departures by then, and the queue it was on.
///
/// ```text
///   | departures:31 | main:1 |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shadow(pub(super) u32);

impl Shadow {
    /// Of the number that [`Shadow::bits`] gave.
    pub fn from_bits(bits: u32) -> Shadow {
        Shadow(bits)
    }

    /// As a number.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether the page was on main.
    pub(super) fn was_hot(self) -> bool {
        self.0 & 1 != 0
    }
}
