//! Shares of one number of pages, claimed by several processes without a lock, a counter or a server.
//!
//! Each member has a place in memory that all of them map. What it may hold at most, its *claim*, is one word there.
//! To get more it publishes first and looks then:
//!
//! ```text
//!   my claim := my claim + want
//!   over     := sum of all claims - limit
//!   my claim := my claim - min(over, want)        what is left of want is granted
//! ```
//! Of two that do so at once, the later publication in the order of all these operations is seen by its own look
//! together with the earlier one, so the sum of what is *granted* never passes the limit. Both may get less than there
//! is; they ask again. A member that is killed or stopped anywhere in this leaves a word behind, and no member waits
//! for it.
//!
//! Which member's word it is: a place has an *owner* (the id of a thread; the kernel sets [`DIED`] in it when that
//! thread ends) and an *epoch*, one more with each owner. A claim has its epoch in the same word, and counts nothing in
//! another one: else the next owner would have the last one's claim for a moment. What the dead had is given back by
//! the kernel after it has marked the place, so it counts on for a while and fades ([`FADE_PAGES_US`]).
//!
//! Memory that a hostile member can write: every number is clamped where it is read, and there is nothing else.
//!
//! Callers: `farpage`'s `tree`. Lock-free; all operations on words that others read are sequentially consistent.

use crate::sync::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// In an owner: its thread has ended. (Linux' `FUTEX_OWNER_DIED`.)
pub const DIED: u32 = 0x4000_0000;
/// Bits of a claim that are pages; the rest is the epoch.
const PAGES_BITS: u32 = 40;
const PAGES: u64 = (1 << PAGES_BITS) - 1;
const EPOCHS: u32 = (1 << (64 - PAGES_BITS)) - 1;
/// Pages of a dead member that stop counting in a microsecond: 2 GiB a second, slower than any kernel frees.
const FADE_PAGES_US: u64 = 1;

/// A member's place. The owner writes the claim; another only while it has not changed ([`Claim::set_if`]).
#[repr(C)]
#[derive(Debug)]
pub struct Claim {
    /// 0: none. The kernel writes here when the owner's thread ends.
    pub owner: AtomicU32,
    epoch: AtomicU32,
    word: AtomicU64,
    /// When a member first saw that the owner has died, microseconds of a clock that all share; 0: none has.
    died_us: AtomicU64,
}

impl Claim {
    /// Without an owner.
    #[allow(clippy::new_without_default, reason = "places lie in memory that is all zero")]
    pub fn new() -> Claim {
        Claim {
            owner: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            word: AtomicU64::new(0),
            died_us: AtomicU64::new(0),
        }
    }

    /// Takes the place for `owner` (not 0, without [`DIED`]) if it has no owner, or if its owner has died and all that
    /// it had has faded. The new claim is 0.
    pub fn take(&self, owner: u32, now_us: u64) -> bool {
        let before = self.owner.load(SeqCst);
        if before != 0 && (before & DIED == 0 || self.pages(now_us) > 0) {
            return false;
        }
        if self.owner.compare_exchange(before, owner, SeqCst, SeqCst).is_err() {
            return false;
        }
        self.begin();
        true
    }

    /// The caller, which owns the place or takes over what was its own before an exec, begins anew with nothing.
    pub fn begin(&self) {
        let epoch = self.epoch.load(SeqCst).wrapping_add(1) & EPOCHS;
        self.epoch.store(epoch, SeqCst);
        self.word.store(u64::from(epoch) << PAGES_BITS, SeqCst);
        self.died_us.store(0, SeqCst);
    }

    /// The owner leaves; what it had fades.
    pub fn leave(&self) {
        self.owner.store(DIED, SeqCst);
    }

    /// Another has seen that `owner` has left. Not if the place has a new owner since.
    pub fn owner_has_left(&self, owner: u32) {
        let _ = self.owner.compare_exchange(owner, DIED, SeqCst, SeqCst);
    }

    /// The place of `from` is that of `to` from now on; false: it has another owner by now, or none.
    pub fn hand_over(&self, from: u32, to: u32) -> bool {
        from & DIED == 0 && self.owner.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// Whether the place has an owner that lives.
    pub fn is_live(&self) -> bool {
        let owner = self.owner.load(SeqCst);
        owner != 0 && owner & DIED == 0
    }

    /// What its owner has claimed, whether it lives or not.
    pub fn held(&self) -> u64 {
        pages_in(self.word())
    }

    /// Pages that are claimed here, also for what the dead still have.
    pub fn pages(&self, now_us: u64) -> u64 {
        let owner = self.owner.load(SeqCst);
        if owner == 0 {
            return 0;
        }
        let word = self.word.load(SeqCst);
        if word >> PAGES_BITS != u64::from(self.epoch.load(SeqCst)) {
            return 0;
        }
        let pages = word & PAGES;
        if owner & DIED == 0 || pages == 0 {
            return pages;
        }
        let _ = self.died_us.compare_exchange(0, now_us.max(1), SeqCst, SeqCst);
        // A member that writes nonsense there makes its own pages count shorter or longer.
        let gone = now_us.saturating_sub(self.died_us.load(SeqCst)).saturating_mul(FADE_PAGES_US);
        pages.saturating_sub(gone)
    }

    /// Adds to the claim, whatever the others have. Owner only (any of its threads).
    pub fn add(&self, pages: u64) {
        self.change(|now| now.saturating_add(pages).min(PAGES));
    }

    /// Gives back up to `pages`. Owner only.
    pub fn sub(&self, pages: u64) {
        self.change(|now| now.saturating_sub(pages));
    }

    /// The claim is so many pages, whatever the others have. By the owner, or the process that speaks for it.
    pub fn set(&self, pages: u64) {
        self.change(|_| pages.min(PAGES));
    }

    /// The claim is so many pages at most. Owner only.
    pub fn at_most(&self, pages: u64) {
        self.change(|now| now.min(pages));
    }

    /// The claim as one word, which changes when it does: its pages are [`pages_in`] that.
    pub fn word(&self) -> u64 {
        self.word.load(SeqCst)
    }

    /// By another than the owner: the claim is so many pages, if it is `word` still. The new word.
    pub fn set_if(&self, word: u64, pages: u64) -> Option<u64> {
        let new = (word & !PAGES) | pages.min(PAGES);
        self.word.compare_exchange(word, new, SeqCst, SeqCst).is_ok().then_some(new)
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        let next = |word| Some((word & !PAGES) | to(word & PAGES));
        let _ = self.word.fetch_update(SeqCst, SeqCst, next);
    }
}

/// Pages of a claim that was read as one word ([`Claim::word`]).
pub fn pages_in(word: u64) -> u64 {
    word & PAGES
}

/// The sum of all claims, each clamped to `most`.
pub fn total<'a>(claims: impl Iterator<Item = &'a Claim>, most: u64, now_us: u64) -> u64 {
    claims.map(|claim| claim.pages(now_us).min(most)).sum()
}

/// `mine` wants `want` pages more of `limit`; how many it gets. `claims`: all, `mine` among them.
pub fn grow<'a>(mine: &Claim, claims: impl Iterator<Item = &'a Claim>, limit: u64, want: u64, now_us: u64) -> u64 {
    mine.add(want);
    // One's own is not clamped: else what is above the limit would not be seen.
    let others = total(claims.filter(|claim| !std::ptr::eq(*claim, mine)), limit, now_us);
    let over = others.saturating_add(mine.pages(now_us)).saturating_sub(limit).min(want);
    if over > 0 {
        mine.sub(over);
    }
    want - over
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places(n: usize) -> Vec<Claim> {
        (0..n).map(|_| Claim::new()).collect()
    }

    #[test]
    fn what_is_there_is_granted_and_no_more() {
        let all = places(3);
        assert!(all[0].take(7, 1) && !all[0].take(8, 1) && all[1].take(8, 1));
        assert_eq!(grow(&all[0], all.iter(), 100, 70, 1), 70);
        assert_eq!(grow(&all[1], all.iter(), 100, 70, 1), 30);
        assert_eq!(grow(&all[1], all.iter(), 100, 1, 1), 0);
        all[0].sub(20);
        assert_eq!(grow(&all[1], all.iter(), 100, 50, 1), 20);
        assert_eq!(total(all.iter(), 1000, 1), 100);
        all[2].add(5);
        assert_eq!(total(all.iter(), 1000, 1), 100, "a place without an owner counts nothing");
    }

    #[test]
    fn what_the_dead_had_fades_and_then_the_place_is_free() {
        let all = places(2);
        assert!(all[0].take(7, 1));
        all[0].add(1000);
        all[0].owner.fetch_or(DIED, SeqCst);
        assert_eq!((all[0].pages(50), all[0].pages(550)), (1000, 500));
        assert!(!all[0].take(8, 550), "not while it counts");
        assert!(all[0].take(8, 1051));
        assert_eq!(all[0].pages(1051), 0);
    }

    #[test]
    fn a_member_that_sees_late_that_an_owner_has_left_takes_nothing_from_the_next_one() {
        let place = Claim::new();
        assert!(place.take(7, 1));
        place.leave();
        assert!(!place.hand_over(7, 9) && place.take(8, 1));
        place.owner_has_left(7);
        assert!(place.is_live());
        assert!(!place.hand_over(7, 9) && place.hand_over(8, 9));
        place.owner_has_left(9);
        assert!(!place.is_live());
    }

    #[test]
    fn a_late_word_of_the_last_owner_counts_nothing() {
        let place = Claim::new();
        assert!(place.take(7, 1));
        let late = u64::from(place.epoch.load(SeqCst)) << PAGES_BITS | 500;
        place.leave();
        assert!(place.take(8, 1));
        place.word.store(late, SeqCst);
        assert_eq!(place.pages(1), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Grow(usize, u64),
        Give(usize, u64),
        Publish(usize, u64),
        Die(usize),
        Take(usize),
        Time(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6usize, 0..400u64).prop_map(|(i, n)| Step::Grow(i, n)),
            (0..6usize, 0..400u64).prop_map(|(i, n)| Step::Give(i, n)),
            (0..6usize, 0..400u64).prop_map(|(i, n)| Step::Publish(i, n)),
            (0..6usize).prop_map(Step::Die),
            (0..6usize).prop_map(Step::Take),
            (0..3000u64).prop_map(Step::Time),
        ]
    }

    proptest! {
        /// Also of members that die between publishing and looking.
        #[test]
        fn the_living_never_hold_more_than_the_limit(steps in prop::collection::vec(step(), 1..200)) {
            const LIMIT: u64 = 1000;
            let all = places(6);
            let mut held = [0u64; 6];
            let (mut now, mut alive) = (1, [false; 6]);
            for step in steps {
                match step {
                    Step::Grow(i, n) if alive[i] => held[i] += grow(&all[i], all.iter(), LIMIT, n, now),
                    Step::Give(i, n) if alive[i] => {
                        let n = n.min(held[i]);
                        held[i] -= n;
                        all[i].sub(n);
                    }
                    Step::Publish(i, n) if alive[i] => {
                        all[i].add(n);
                        all[i].owner.fetch_or(DIED, SeqCst);
                        (alive[i], held[i]) = (false, 0);
                    }
                    Step::Die(i) if alive[i] => {
                        all[i].owner.fetch_or(DIED, SeqCst);
                        (alive[i], held[i]) = (false, 0);
                    }
                    Step::Take(i) if !alive[i] => alive[i] = all[i].take(i as u32 + 1, now),
                    Step::Time(us) => now += us,
                    _ => {}
                }
                prop_assert!(held.iter().sum::<u64>() <= LIMIT);
                for (i, claim) in all.iter().enumerate() {
                    prop_assert!(!alive[i] || claim.pages(now) == held[i]);
                }
            }
            // Nothing cleans up: with all dead, everything is there again after a while.
            all.iter().for_each(|claim| _ = claim.owner.fetch_or(DIED, SeqCst));
            total(all.iter(), LIMIT, now);
            prop_assert_eq!(total(all.iter(), LIMIT, now + 2 * LIMIT), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn two() -> Arc<Vec<Claim>> {
        let all: Vec<Claim> = (0..2).map(|_| Claim::new()).collect();
        all.iter().enumerate().for_each(|(i, claim)| assert!(claim.take(i as u32 + 1, 1)));
        Arc::new(all)
    }

    /// Two that want all: together they never get more than there is.
    #[test]
    fn two_claims_at_once() {
        loom::model(|| {
            let all = two();
            let (held, other) = (Arc::new(AtomicU32::new(0)), all.clone());
            let others = held.clone();
            let thread = thread::spawn(move || {
                let got = grow(&other[1], other.iter(), 3, 2, 1) as u32;
                others.fetch_add(got, SeqCst);
            });
            let got = grow(&all[0], all.iter(), 3, 2, 1) as u32;
            held.fetch_add(got, SeqCst);
            thread.join().unwrap();
            assert!(held.load(SeqCst) <= 3);
            assert_eq!(u64::from(held.load(SeqCst)), total(all.iter(), 3, 1));
        });
    }

    /// One gives back, the other asks: what was given back before it was asked for is there.
    #[test]
    fn a_claim_and_a_release() {
        loom::model(|| {
            let all = two();
            assert_eq!(grow(&all[1], all.iter(), 3, 3, 1), 3);
            let other = all.clone();
            let thread = thread::spawn(move || other[1].sub(2));
            let got = grow(&all[0], all.iter(), 3, 2, 1);
            thread.join().unwrap();
            assert!(got <= 2 && total(all.iter(), 3, 1) <= 3);
        });
    }

    /// A dead member's place is taken while another adds up: the sum is never less than what is held.
    #[test]
    fn a_place_is_taken_over_while_another_claims() {
        loom::model(|| {
            let all = two();
            all[1].leave();
            let (held, other) = (Arc::new(AtomicU32::new(0)), all.clone());
            let others = held.clone();
            let thread = thread::spawn(move || {
                if other[1].take(3, 1) {
                    let got = grow(&other[1], other.iter(), 2, 2, 1) as u32;
                    others.fetch_add(got, SeqCst);
                }
            });
            let got = grow(&all[0], all.iter(), 2, 1, 1) as u32;
            held.fetch_add(got, SeqCst);
            thread.join().unwrap();
            assert!(held.load(SeqCst) <= 2);
        });
    }
}
