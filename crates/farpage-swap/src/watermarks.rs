//! How much memory is kept free, and what reclaim is to do at each level.
//!
//! Pure. Callers: the pager and the writer of `run`; in regions faulting threads, and reclaim before each step.
//!
//! ```text
//!   room in the budget, pages   ...... 0 ............... low ............... high
//!   background reclaim           goes on               begins               ends
//!   free frames                 ...... 0 ......... half of `frames` ...... `frames`
//!   storing pages                goes on              is urgent             ends
//! ```
//! In `run`, low is high: its pager looks at each turn anyway. In regions, faulting threads take room and frames by
//! themselves, so as much is kept of the one as of the other.
//!
//! Regions empty a batch of pages with one system call and one interrupt of the other CPUs, so a large batch costs less
//! a page. A thread that waits is told when the batch is done.

/// Pages of a batch that leaves regions at least.
const EVICT_MIN: usize = 64;
/// Pages of a batch that leaves regions at most.
pub const EVICT_MAX: usize = 256;

/// Where reclaim of one engine begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Room below which reclaim begins, pages.
    pub low: i64,
    /// Room from which on it ends, pages.
    pub high: i64,
    /// Free frames that are kept in reserve.
    pub frames: usize,
}

/// What there is.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// What there should be.
    pub marks: Watermarks,
    /// Room in the budget, pages; negative above it.
    pub room: i64,
    /// Frames that are free and have a page; where no page is used twice, also what may be taken from the kernel.
    pub free: usize,
}

impl Watermarks {
    /// Of a program whose pages are exchanged in `movable` pages, and that is told `gap` pages late of what it grew.
    pub fn of_program(gap: i64, movable: i64) -> Watermarks {
        Watermarks { low: gap, high: gap, frames: (movable as usize / 128).clamp(64, 1024) }
    }

    /// Of regions with a budget of `limit` pages, and `frames` frames in all.
    pub fn of_regions(limit: i64, frames: usize) -> Watermarks {
        let high = (limit as usize / 128).clamp(32, 512).min(frames / 4);
        Watermarks { low: high as i64 / 2, high: high as i64, frames: high }
    }

    /// With these, and the room that there is.
    pub fn at(self, room: i64, free: usize) -> Level {
        Level { marks: self, room, free }
    }

    /// Reclaim is to begin.
    pub fn begins(self, room: i64) -> bool {
        room < self.low
    }

    /// Reclaim that is under way is to go on.
    pub fn goes_on(self, room: i64) -> bool {
        room < self.high
    }

    /// Pages that leave regions at a time: as many as are missing.
    pub fn batch(self, room: i64) -> usize {
        ((self.high - room).max(0) as usize).clamp(EVICT_MIN, EVICT_MAX)
    }
}

/// Pages above the budget.
pub fn excess(room: i64) -> i64 {
    (-room).max(0)
}

impl Level {
    /// Frames are few: a thread that needs some may soon have to wait.
    pub fn is_few(self) -> bool {
        self.free < self.marks.frames / 2
    }

    /// Frames are few, or the budget is used up: storing is urgent.
    pub fn is_short(self) -> bool {
        self.is_few() || excess(self.room) > 0
    }

    /// Frames that storing pages is to free.
    pub fn missing(self) -> usize {
        self.marks.frames.saturating_sub(self.free) + excess(self.room) as usize
    }

    /// Of `stored` frames whose pages have just been stored, those that go back to the kernel; the others become free.
    /// The budget comes first; then there is to be as much room as there are free frames.
    pub fn to_give_back(self, stored: usize) -> usize {
        let (wanted, frames) = (self.marks.high - self.room, self.marks.frames as i64);
        let spare = self.free as i64 + stored as i64 - frames;
        let n = if self.room < 0 { -self.room } else { spare.min(wanted) };
        n.clamp(0, stored as i64) as usize
    }

    /// Free frames that are never needed again (copies leave them so). They go back to the kernel before any page does.
    pub fn surplus(self) -> usize {
        let surplus = self.free.saturating_sub(self.marks.frames) as i64;
        surplus.min(self.marks.high - self.room).max(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_of_regions_begins_low_and_ends_high() {
        let marks = Watermarks::of_regions(1 << 16, 8192);
        assert_eq!(marks, Watermarks { low: 256, high: 512, frames: 512 });
        assert_eq!([255, 256, -9].map(|room| marks.begins(room)), [true, false, true]);
        assert_eq!([256, 511, 512].map(|room| marks.goes_on(room)), [true, true, false]);
        assert_eq!(Watermarks::of_regions(1, 1024).frames, 32);
        assert_eq!(Watermarks::of_regions(1 << 30, 1024).frames, 256);
    }

    #[test]
    fn batches_are_as_large_as_what_is_missing() {
        let marks = Watermarks::of_regions(1 << 16, 8192);
        assert_eq!([512, 400, 300, 100, -10_000].map(|room| marks.batch(room)), [64, 112, 212, 256, 256]);
    }

    #[test]
    fn reclaim_of_a_program_has_one_mark() {
        let marks = Watermarks::of_program(300, 1 << 16);
        assert_eq!((marks.frames, Watermarks::of_program(300, -5).frames), (512, 1024));
        assert_eq!([299, 300].map(|room| (marks.begins(room), marks.goes_on(room))), [(true, true), (false, false)]);
    }

    #[test]
    fn what_is_missing_are_frames_and_what_is_above_the_budget() {
        let marks = Watermarks::of_program(300, 1 << 16);
        assert_eq!((marks.at(9, 512).missing(), marks.at(9, 500).missing(), marks.at(-9, 600).missing()), (0, 12, 9));
        assert!(marks.at(9, 255).is_short() && marks.at(-1, 999).is_short() && !marks.at(0, 256).is_short());
    }

    #[test]
    fn regions_keep_as_much_room_as_free_frames() {
        let marks = Watermarks::of_regions(1 << 16, 8192);
        assert_eq!([(0, 512), (0, 600), (500, 600), (512, 600)].map(|(r, f)| marks.at(r, f).surplus()), [0, 88, 12, 0]);
        let back = |room, free| marks.at(room, free).to_give_back(16);
        assert_eq!([back(-3, 0), back(-99, 999), back(0, 500), back(0, 600), back(505, 600)], [3, 16, 4, 16, 7]);
        assert_eq!([back(0, 400), back(900, 900)], [0, 0]);
    }
}
