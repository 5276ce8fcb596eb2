//! Whether pages of main are in use: how old those that are still mapped may be.
//!
//! A page that is mapped tells nothing. But others of its queue were unmapped before it, and were wanted back or not.
//! Pure; the working set has it.

/// So many pages of main tell whether the others are in use, the latest ones.
const TESTED: u32 = 256;
/// At least this part of the time in which others were found in use counts as a page's age.
const AGE_PART: u32 = 8;

/// Pages of main of which it was found out lately whether they are in use: all, and those that were wanted back while
/// they were cached. When the last one was, by the clock of the tree.
#[derive(Debug)]
pub(super) struct Tested {
    all: u32,
    kept: u32,
    last: u32,
}

impl Tested {
    /// Nothing is known.
    pub(super) const fn new() -> Tested {
        Tested { all: 0, kept: 0, last: 0 }
    }

    /// One more, at `now`.
    pub(super) fn note(&mut self, kept: bool, now: u32) {
        if self.all >= TESTED {
            (self.all, self.kept) = (self.all / 2, self.kept / 2);
        }
        self.all += 1;
        self.kept += u32::from(kept);
        self.last = now;
    }

    /// How long a page that came at `came` has not been used by now, by what was found of others: those that were
    /// wanted back had been in use until then. Nothing is known of the time since the last one: the program may sleep.
    pub(super) fn unused_for(&self, came: u32, now: u32) -> u32 {
        let time = now.wrapping_sub(came);
        let unknown = now.wrapping_sub(self.last).min(time);
        let all = self.all.max(1);
        let left = (all - self.kept).max(all.div_ceil(AGE_PART));
        unknown + (u64::from(time - unknown) * u64::from(left) / u64::from(all)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_use_grows_old_when_it_sleeps() {
        let age = |tested: &Tested, now: u32| tested.unused_for(u32::MAX - 999, now);
        let mut tested = Tested::new();
        assert_eq!(age(&tested, 7000), 8000, "nothing is known");
        (0..100).for_each(|_| tested.note(true, 7000));
        assert_eq!((age(&tested, 7000), age(&tested, 9000)), (8000 * 13 / 100, 8000 * 13 / 100 + 2000));
        (0..300).for_each(|_| tested.note(false, 9000));
        assert!(age(&tested, 9000) > 10_000 * 4 / 5);
        assert_eq!(tested.unused_for(9005, 9010), 5, "it came after the last one");
    }
}
