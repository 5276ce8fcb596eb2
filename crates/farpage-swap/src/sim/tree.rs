//! Several programs in one memory, each with lists of its own, as the processes of a tree have: whose page goes when
//! one of them needs one. And [`Mix`]es of programs to try that with.
//!
//! No member sees the others' lists. What each of them says is when the page that it would give next was last seen in
//! use, by a clock that counts the pages that have left ([`WorkingSet::next_seen`]). The member of the greatest age
//! gives.
//!
//! [`WorkingSet::next_seen`]: crate::workingset::WorkingSet::next_seen

use super::{Access, AccessKind, CachedLen, Met, Moved, Ours, Policy, Random, Synthetic};
use std::ops::Range;

/// How memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// Equal parts, for good.
    Equal,
    /// The member of the greatest age gives to the one that needs some.
    Ages,
}

/// Pages that are given at a time.
const STEP: u32 = 64;
/// A member keeps so many.
const FLOOR: u32 = 2 * STEP;

#[derive(Debug)]
struct Member {
    pages: Range<u32>,
    ours: Ours,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Tree {
    members: Vec<Member>,
    free: u32,
    departures: u32,
    division: Division,
}

impl Tree {
    /// A memory of `size` pages for members whose pages are these.
    pub fn new(size: u32, members: &[Range<u32>], division: Division) -> Tree {
        let (part, free) = match division {
            Division::Equal => (size / members.len().max(1) as u32, 0),
            Division::Ages => (0, size),
        };
        let member = |pages: &Range<u32>| Member {
            pages: pages.clone(),
            ours: Ours::new(part, pages.len() as u32, CachedLen::Adaptive),
        };
        Tree { members: members.iter().map(member).collect(), free, departures: 0, division }
    }

    fn age(&self, m: usize) -> u64 {
        self.departures.wrapping_sub(self.members[m].ours.set().next_seen()).into()
    }

    /// The member `m` needs a page more.
    fn make_room(&mut self, m: usize, moved: &mut Moved) {
        let ours = &mut self.members[m].ours;
        if self.division == Division::Equal || ours.has_room() {
            return;
        }
        let free = self.free.min(STEP);
        if free > 0 {
            self.free -= free;
            ours.resize(ours.size() + free, moved);
            return;
        }
        let can_give = |other: &usize| self.members[*other].ours.size() >= FLOOR + STEP;
        let Some(giver) = (0..self.members.len()).filter(can_give).max_by_key(|m| self.age(*m)) else { return };
        if self.age(giver) <= self.age(m) {
            return;
        }
        self.change(giver, moved, |ours, moved| ours.resize(ours.size() - STEP, moved));
        self.change(m, moved, |ours, moved| ours.resize(ours.size() + STEP, moved));
    }

    /// Does something with a member. What leaves it, leaves the tree.
    fn change<T>(&mut self, m: usize, moved: &mut Moved, what: impl FnOnce(&mut Ours, &mut Moved) -> T) -> T {
        let Member { pages, ours } = &mut self.members[m];
        let before = moved.out.len();
        ours.tick(self.departures);
        let done = what(ours, moved);
        moved.out[before..].iter_mut().for_each(|page| *page += pages.start);
        self.departures = self.departures.wrapping_add((moved.out.len() - before) as u32);
        done
    }
}

impl Policy for Tree {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        let Some(m) = self.members.iter().position(|member| member.pages.contains(&page)) else { return Met::Hit };
        let at = page - self.members[m].pages.start;
        if !self.members[m].ours.has(at) {
            self.make_room(m, moved);
        }
        self.change(m, moved, |ours, moved| ours.access(at, moved))
    }

    fn free(&mut self, page: u32) {
        if let Some(member) = self.members.iter_mut().find(|member| member.pages.contains(&page)) {
            member.ours.free(page - member.pages.start);
        }
    }
}

/// A program of a mix: what it does, to how many pages, how often beside the others, and in which parts of the time.
struct Load(&'static str, u32, u32, &'static [Range<f64>]);

/// Programs that run at the same time.
pub struct Mix {
    /// For the user.
    pub name: &'static str,
    loads: Vec<Load>,
}

const ALWAYS: &[Range<f64>] = &[0.0..1.0];
/// One after the other, each beside the one before it.
const WAKES: [&[Range<f64>]; 8] =
    [&[0.0..0.2], &[0.1..0.3], &[0.2..0.4], &[0.3..0.5], &[0.4..0.6], &[0.5..0.7], &[0.6..0.8], &[0.7..1.0]];

impl Mix {
    /// All that there are.
    pub fn all() -> Vec<Mix> {
        let mut small: Vec<Load> = (0..16).map(|_| Load("uniform", 512, 1, ALWAYS)).collect();
        small.push(Load("zipf", 32_768, 16, ALWAYS));
        let mix = |name, loads| Mix { name, loads };
        vec![
            mix("equal", vec![Load("zipf", 8192, 1, ALWAYS), Load("zipf", 8192, 1, ALWAYS)]),
            mix("large-slow", vec![Load("zipf", 16_384, 1, ALWAYS), Load("zipf", 4096, 4, ALWAYS)]),
            mix("uniform-zipf", vec![Load("uniform", 8192, 1, ALWAYS), Load("zipf", 8192, 1, ALWAYS)]),
            mix("loop-zipf", vec![Load("loop", 16_384, 1, ALWAYS), Load("zipf", 8192, 4, ALWAYS)]),
            mix("loops", vec![Load("loop", 3000, 1, ALWAYS), Load("loop", 16_384, 1, ALWAYS)]),
            mix("workers-wake", WAKES.map(|when| Load("zipf:0.8", 4096, 1, when)).into()),
            mix("sleeper", vec![Load("zipf", 8192, 1, &[0.0..0.3, 0.8..1.0]), Load("zipf", 8192, 1, ALWAYS)]),
            mix("phases", [1, 2, 1].map(|often| Load("phases", 8192, often, ALWAYS)).into()),
            mix("scans", [1, 1, 3, 1].map(|often| Load("scan", 8192, often, ALWAYS)).into()),
            mix("small-large", small),
        ]
    }

    /// So many accesses of all programs, and the pages of each.
    pub fn trace(&self, accesses: u64, seed: u64) -> (Vec<Access>, Vec<Range<u32>>) {
        let (mut pages, mut parts, mut from) = (Vec::new(), Vec::new(), 0);
        for (Load(rule, count, ..), seed) in self.loads.iter().zip(seed..) {
            pages.push(from..from + count);
            from += count;
            let trace = Synthetic::parse(rule).map(|rule| rule.trace(*count, accesses, seed)).unwrap_or_default();
            parts.push(trace.into_iter());
        }
        let mut random = Random(seed);
        let mut next = |i: u64| {
            let time = i as f64 / accesses as f64;
            let runs = |load: &Load| load.3.iter().any(|when| when.contains(&time));
            let often = |load: &Load| if runs(load) { load.2 } else { 0 };
            let mut turn = random.below(self.loads.iter().map(often).sum::<u32>().max(1));
            let m = self.loads.iter().position(|load| {
                let is_it = turn < often(load);
                turn = turn.saturating_sub(often(load));
                is_it
            })?;
            let access = parts[m].next()?;
            Some(Access::new(access.page() + pages[m].start, access.kind() == AccessKind::Write))
        };
        let trace = (0..accesses).filter_map(&mut next).collect();
        (trace, pages)
    }
}
