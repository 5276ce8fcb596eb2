//! Which process gets which budget, so that memory is not exhausted. Numbers only.
//!
//! As few as possible are cut, the largest first; those that are, to the same size, none below half of what it has now
//! and none below its floor. Where nothing has to be given back yet and memory fills fast, the one that grows fastest
//! gets a budget that it can grow into, if it has none.
//!
//! Caller: [`super`]. No locks.

/// One that can be cut: a process, or a tree that has a budget already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// What it has, bytes.
    pub has: u64,
    /// What it may have, bytes, if it has a budget.
    pub budget: Option<u64>,
    /// It is never cut below this, bytes.
    pub floor: u64,
    /// By how much it has grown since the last look, bytes.
    pub grown: u64,
}

/// A budget, bytes, for one of the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Which.
    pub index: usize,
    /// Bytes.
    pub budget: u64,
}

impl Candidate {
    /// What it has and will give, as its budget is smaller.
    fn excess(&self) -> u64 {
        self.budget.map_or(0, |budget| self.has.saturating_sub(budget))
    }

    /// How much more it may have.
    fn may_grow(&self) -> u64 {
        self.budget.map_or(0, |budget| budget.saturating_sub(self.has))
    }

    /// What it will have when it is within its budget.
    fn keeps(&self) -> u64 {
        self.has - self.excess()
    }

    /// The least that it may be cut to at once.
    fn least(&self) -> u64 {
        self.floor.max(self.has / 2)
    }

    fn gives_down_to(&self, level: u64) -> u64 {
        self.keeps().saturating_sub(level.max(self.least()))
    }
}

/// Cuts that free `missing` bytes more than what is on its way already, or as much as is possible. A cut of less than
/// `worth` bytes is not made.
pub fn cuts(candidates: &[Candidate], missing: u64, worth: u64) -> Vec<Cut> {
    let coming: u64 = candidates.iter().map(Candidate::excess).sum();
    let missing = missing.saturating_sub(coming);
    if missing == 0 {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..candidates.len()).filter(|i| candidates[*i].gives_down_to(0) >= worth).collect();
    order.sort_by_key(|i| std::cmp::Reverse(candidates[*i].keeps()));
    let mut gives = 0;
    let enough = order.iter().position(|i| {
        gives += candidates[*i].gives_down_to(0);
        gives >= missing
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    let freed = |level: u64| order.iter().map(|i| candidates[*i].gives_down_to(level)).sum::<u64>();
    // The highest level that frees enough.
    let (mut low, mut high) = (0, order.first().map_or(0, |i| candidates[*i].keeps()));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match freed(middle) >= missing {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    let cut = |i: usize| Cut { index: i, budget: candidates[i].keeps() - candidates[i].gives_down_to(low) };
    order.into_iter().filter(|i| candidates[*i].gives_down_to(low) >= worth).map(cut).collect()
}

/// A budget for the one without that grows fastest, where `room` bytes may still be filled: what the others may still
/// grow into is not there for it. It may grow to half of what the largest has all the same: that one gives first.
pub fn ahead(candidates: &[Candidate], room: u64, least: u64) -> Option<Cut> {
    let growing = |(_, one): &(usize, &Candidate)| one.budget.is_none() && one.grown > 0 && one.has >= least;
    let (index, fastest) = candidates.iter().enumerate().filter(growing).max_by_key(|(_, one)| one.grown)?;
    let half = candidates.iter().map(Candidate::keeps).max().unwrap_or(0) / 2;
    let room = candidates.iter().fold(room, |room, one| room.saturating_sub(one.may_grow()));
    Some(Cut { index, budget: fastest.has.saturating_add(room).max(half).max(fastest.floor) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn free(has: u64) -> Candidate {
        Candidate { has, budget: None, floor: 16, grown: 0 }
    }

    fn budgets(candidates: &[Candidate], missing: u64) -> Vec<(usize, u64)> {
        cuts(candidates, missing, 5).into_iter().map(|cut| (cut.index, cut.budget)).collect()
    }

    #[test]
    fn the_largest_first_and_equals_equally() {
        assert_eq!(budgets(&[free(100), free(400), free(90)], 150), [(1, 250)]);
        assert_eq!(budgets(&[free(200), free(190)], 60), [(0, 140)]);
        assert_eq!(budgets(&[free(200), free(190)], 110), [(0, 140), (1, 140)]);
        assert_eq!(budgets(&[free(200), free(190)], 500), [(0, 100), (1, 95)]);
        assert_eq!(budgets(&[], 500), []);
    }

    #[test]
    fn what_comes_already_is_not_asked_for_again() {
        let cut = Candidate { budget: Some(120), ..free(200) };
        assert_eq!(budgets(&[cut, free(90)], 80), []);
        assert_eq!(budgets(&[cut, free(90)], 100), [(0, 100)]);
        // Half of what it has now, and no less.
        assert_eq!(budgets(&[cut, free(90)], 130), [(0, 100), (1, 60)]);
        let full = Candidate { budget: Some(200), floor: 190, ..free(200) };
        assert_eq!(budgets(&[full, free(90)], 30), [(0, 190), (1, 70)]);
    }

    #[test]
    fn ahead_of_need() {
        let grows = |has, grown| Candidate { grown, ..free(has) };
        let has_one = Candidate { budget: Some(350), ..free(300) };
        let got = |all: &[Candidate], room| ahead(all, room, 20).map(|cut| (cut.index, cut.budget));
        assert_eq!(got(&[has_one, grows(50, 9), grows(60, 8), free(90)], 300), Some((1, 300)));
        // Room is there once, and the largest gives before the small ones.
        assert_eq!(got(&[has_one, grows(60, 1)], 70), Some((1, 150)));
        assert_eq!(got(&[has_one, grows(10, 5), free(90)], 100), None);
    }

    proptest! {
        #[test]
        fn enough_or_all_and_never_below_a_floor(
            sizes in prop::collection::vec((0_u64..10_000, prop::option::of(0_u64..12_000), 0_u64..10_000), 0..20),
            missing in 0_u64..50_000,
        ) {
            let all: Vec<Candidate> =
                sizes.into_iter().map(|(has, budget, floor)| Candidate { has, budget, floor, grown: 0 }).collect();
            let cuts = cuts(&all, missing, 1);
            let coming: u64 = all.iter().map(Candidate::excess).sum();
            let freed: u64 = cuts.iter().map(|cut| all[cut.index].keeps() - cut.budget).sum();
            let possible: u64 = all.iter().map(|one| one.gives_down_to(0)).sum();
            let wanted = missing.saturating_sub(coming);
            prop_assert!(freed >= wanted.min(possible));
            // No more than what is asked for, but for what cannot be divided among equals.
            prop_assert!(freed < wanted.min(possible) + 20);
            for cut in &cuts {
                let one = &all[cut.index];
                prop_assert!(cut.budget >= one.floor.min(one.keeps()) && cut.budget < one.keeps());
            }
        }
    }
}
