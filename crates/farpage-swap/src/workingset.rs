//! Which page leaves memory next, decided without accessed bits.
//!
//! User space does not see which pages a program touches. It sees *refaults*: a page that was unmapped and is wanted
//! back. So a page is first unmapped, stays in memory for a while (*cached*), and leaves only if it was not wanted. Two
//! queues of this kind tell the hot from the cold:
//!
//! ```text
//!   first touch, read ahead,                                       refault after short,
//!   refault after long                                             now and then one after long
//!         |                                                              |
//!         v                                                              v
//!     probation --oldest--> cached --> to a device          main --oldest--> cached --> to a device
//!                             |                              ^  ^              | '--------^
//!                             '------ touched: refault ------'  '-- touched ---'  rank > 1: once more
//! ```
//!
//! * *Probation* is small. What is touched once, as in a pass over much data, goes through it and disturbs nothing
//!   else.
//! * *Main* holds what proved hot. It gives pages up only while probation is at its share.
//! * *Cached* pages are unmapped but still in memory: a touch costs a fault without I/O and proves the page hot. Main
//!   has a cached list of its own: few pages go through it, so they stay there for long, and that is what tells a page
//!   that is touched every now and then from one that is not touched any more.
//! * Each refault from there raises the page's [`Rank`]; each time its turn to leave comes, a page of high rank loses
//!   one and goes round once more instead. That costs nothing, it is unmapped already.
//! * A page that leaves memory gets the count of all departures so far as its [`Shadow`]. When it comes back, the
//!   difference to the count by then says how many pages would have had to stay for it to stay too (its *refault
//!   distance*). See [`Ages::rank_of`] for what follows from that.
//! * The cached lists are longer the more they earn: [`WorkingSet::cached_target`].
//! * Main is *saturated* while three in four of the pages that it gives up come back soon. Whatever it takes in then
//!   takes the place of a page that is wanted sooner, as in a loop through a little more than memory holds. So hardly
//!   any page enters: [`WorkingSet::note_back`].
//!
//! Queues in the manner of S3-FIFO (Yang et al., SOSP 2023), a second list that finds out what is still in use as in
//! VMS (Turner and Levy, 1981), refault distance as in Linux' workingset code, lots as in BIP (Qureshi et al., ISCA
//! 2007). The numbers below were chosen with `farpage-bench sim` (docs/measurements: the pages about policy and loops
//! have the tables).
//! Pure; the caller locks.

mod ages;
mod ahead;
mod arrivals;
mod batch;
mod distances;
mod next;
mod page;
mod tested;

pub use ages::Ages;
pub use batch::Batch;
pub use distances::Distances;
pub use next::in_runs;
pub use page::{Pages, Rank, Shadow};

use crate::lru::{Links, List};
use arrivals::Arrivals;
use tested::Tested;

/// Probation's share of the pages in memory: one in this many.
const PROBATION_SHARE: u32 = 12;
/// Probation is at least this long, so that a page has time to be touched again...
const PROBATION_MIN: u32 = 32;
/// ... but not in a memory so small that this would be more than one page in so many.
const PROBATION_MOST: u32 = 8;
/// Their length is counted in so many parts of the pages in memory: at the beginning, at least, at most.
const CACHED_PARTS: u32 = 64;
const CACHED_START: u32 = 8;
const CACHED_MIN: u32 = 2;
const CACHED_MAX: u32 = 24;
/// Main's pages are unmapped at the pace of departures: so many for each page that leaves main, one for so many that
/// leave probation.
const MAIN_PACE: u32 = 12;
const PROBATION_PACE: u32 = 32;
/// The unit that this is counted in: parts of a page.
const CREDIT: u32 = 64;
/// What it costs to read a page, in faults without I/O.
const READ_COST: u32 = 4;
/// Main is saturated if so many percent of the pages that it gave up came back soon...
const SATURATED_PCT: u64 = 75;
/// ... of so many that it gave up: a part of memory, but at least so many.
const SATURATED_PART: u32 = 32;
const SATURATED_MIN: u32 = 64;
/// It is no longer if fewer than one in so many pages that leave is one of main that was wanted back meanwhile.
const IN_USE: u32 = 8;
/// This is looked at each time that such a part of memory has left: a loop has gone round by then.
const IN_USE_PART: u32 = 2;
/// Then probation's share is smaller: hardly any page of it is going to prove hot.
const SATURATED_SHARE: u32 = 64;
/// The cached lists earn something if one in so many of the pages that enter it is wanted back.
const EARNS: u32 = 16;
/// Under `farpage run` so many pages are taken out at a time.
pub const EVICT_BATCH: usize = 64;
/// There one in so many pages is cached at most: a minor fault costs the way to the pager and back, which is most of
/// what a load from the pool costs.
pub const STAGE_PART: u32 = 16;
/// ... but so many, where they may.
const STAGE_MIN: u32 = 128;

/// Pages on their way through memory.
#[derive(Debug)]
struct Queue {
    mapped: List,
    cached: List,
    arrivals: Arrivals,
}

impl Queue {
    const fn new() -> Queue {
        Queue { mapped: List::new(), cached: List::new(), arrivals: Arrivals::new() }
    }

    fn len(&self) -> u32 {
        self.mapped.len() + self.cached.len()
    }

    /// `n` pages have come.
    fn came(&mut self, n: u32, now: u32) {
        self.arrivals.came(n, self.len(), now);
    }
}

/// What has happened since the length of the cached lists was last looked at.
#[derive(Debug, Default)]
struct Earned {
    entered: u32,
    wanted_back: u32,
    read_back: u32,
}

/// Pages that main gave up lately, and those of them that came back soon.
#[derive(Debug, Default)]
struct GivenUp {
    gone: u32,
    back: u32,
    /// As of the last look.
    saturated: bool,
    /// All pages that left since it was last seen that main is in use, and pages of main that were wanted back.
    departed: u32,
    kept: u32,
    /// Pages of main are cached before they leave, so that it can be seen whether they are in use.
    is_seen: bool,
}

/// The lists.
#[derive(Debug)]
pub struct WorkingSet {
    /// Probation's share: one page in this many.
    share: u32,
    probation: Queue,
    main: Queue,
    /// Pages in the swap cache that wait for their first touch.
    ahead: List,
    departures: u32,
    /// See [`WorkingSet::tick`].
    now: u32,
    /// Length of the cached lists in parts of the pages in memory.
    cached_parts: u32,
    /// It stays as it is.
    cached_is_held: bool,
    /// How many pages of main may be unmapped to fill its cached list, in parts of a page.
    credit: u32,
    earned: Earned,
    given_up: GivenUp,
    tested: Tested,
    /// No page proves hot: see [`WorkingSet::keep_in_turn`].
    in_turn: bool,
    /// Of pages that came back because they were touched.
    pub distances: Distances,
}

impl Default for WorkingSet {
    fn default() -> WorkingSet {
        WorkingSet::new()
    }
}

impl WorkingSet {
    /// Empty lists.
    pub fn new() -> WorkingSet {
        WorkingSet::with_probation(PROBATION_SHARE)
    }

    /// Empty lists; one page in `share` is on probation.
    pub fn with_probation(share: u32) -> WorkingSet {
        WorkingSet {
            share,
            probation: Queue::new(),
            main: Queue::new(),
            ahead: List::new(),
            departures: 0,
            now: 0,
            cached_parts: CACHED_START,
            cached_is_held: false,
            credit: 0,
            earned: Earned { entered: 0, wanted_back: 0, read_back: 0 },
            given_up: GivenUp { gone: 0, back: 0, saturated: false, departed: 0, kept: 0, is_seen: false },
            tested: Tested::new(),
            in_turn: false,
            distances: Distances::new(0),
        }
    }

    /// From now on no page proves hot, so all leave in turn: for a record of what a program touches, where a page that
    /// stays would not be seen any more.
    pub fn keep_in_turn(&mut self) {
        self.in_turn = true;
    }

    fn pages(&self) -> u32 {
        self.probation.len() + self.main.len()
    }

    /// It is `now` by the clock of the tree: pages that have left the memory of any of its processes (it goes around).
    pub fn tick(&mut self, now: u32) {
        self.now = now;
    }

    /// When, by that clock, the page that leaves next was last in use, roughly. Of a page of main that is still mapped
    /// nobody knows: it is as old as those before it turned out to be. Otherwise a small process whose pages are all
    /// in use would have the oldest ones of a tree, and lose them again and again to one that has many.
    pub fn next_seen(&self) -> u32 {
        if self.probation.len() > self.probation_share() || self.main.len() == 0 {
            return self.probation.arrivals.of_oldest(self.probation.len());
        }
        let came = self.main.arrivals.of_oldest(self.main.len());
        self.now.wrapping_sub(self.tested.unused_for(came, self.now))
    }

    /// Pages in memory and mapped.
    pub fn mapped(&self) -> u32 {
        self.probation.mapped.len() + self.main.mapped.len()
    }

    /// Mapped pages that proved hot.
    pub fn hot(&self) -> u32 {
        self.main.mapped.len()
    }

    /// Pages unmapped, but still in memory.
    pub fn cached(&self) -> u32 {
        self.probation.cached.len() + self.main.cached.len()
    }

    /// What tells how long a page was away; also for threads that do not have the lock.
    pub fn ages(&self) -> Ages {
        Ages { departures: self.departures, pages: self.pages(), saturated: self.is_saturated() }
    }

    /// What main gives up comes back soon. (Main has to be full for that.)
    fn is_saturated(&self) -> bool {
        self.given_up.saturated && self.probation.len() <= 2 * self.share_of(self.share)
    }

    /// [`Ages::distance`].
    pub fn distance(&self, shadow: Shadow) -> u32 {
        self.ages().distance(shadow)
    }

    /// [`Ages::rank_of`].
    pub fn rank_of(&self, shadow: Shadow) -> Rank {
        if self.in_turn { Rank::NEW } else { self.ages().rank_of(shadow) }
    }

    /// A page that had left with this shadow was read because it was touched. Say so once for each, for the length of
    /// the stage.
    pub fn note_read(&mut self, shadow: Shadow) {
        self.distances.note(self.distance(shadow).saturating_add(self.pages()));
        self.earned.read_back += 1;
        self.tune_cached();
    }

    /// A page came back that had left with this shadow: touched, or read with one that was.
    pub fn note_back(&mut self, shadow: Shadow) {
        self.given_up.back += u32::from(self.ages().was_given_up(shadow));
    }

    /// Main gives a page up. Now and then: whether it is saturated.
    fn note_given_up(&mut self) {
        self.tested.note(false, self.now);
        self.given_up.gone += 1;
        let GivenUp { gone, back, .. } = self.given_up;
        if gone >= (self.pages() / SATURATED_PART).max(SATURATED_MIN) {
            let saturated = u64::from(back) * 100 >= u64::from(gone) * SATURATED_PCT;
            self.given_up = GivenUp { gone: gone / 2, back: back.min(gone) / 2, saturated, ..self.given_up };
        }
    }

    /// A page of main that was cached is mapped again: it is in use.
    pub fn note_kept(&mut self, rank: Rank) {
        if rank.is_hot() {
            self.given_up.kept += 1;
            self.tested.note(true, self.now);
        }
    }

    /// Hardly any page of main is wanted back while others leave: it is not in use any more, so it is not saturated.
    fn look_at_main(&mut self) {
        let GivenUp { departed, kept, is_seen, .. } = self.given_up;
        if departed >= (self.pages() / IN_USE_PART).max(SATURATED_MIN) {
            if is_seen && kept < departed / IN_USE {
                self.given_up = GivenUp { is_seen, ..GivenUp::default() };
            }
            (self.given_up.departed, self.given_up.kept) = (0, 0);
        }
    }

    /// A page is mapped that was on no list.
    pub fn map(&mut self, links: &impl Links, n: u32, rank: Rank) {
        let now = self.now;
        let queue = self.queue(rank);
        queue.mapped.push_front(links, n);
        queue.came(1, now);
    }

    /// A mapped page is gone, or goes elsewhere.
    pub fn unmap(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.queue(rank).mapped.remove(links, n);
    }

    /// A mapped page cannot leave now: it becomes the youngest of its list.
    pub fn rotate(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.queue(rank).mapped.move_to_front(links, n);
    }

    /// A mapped page was unmapped into the cache.
    pub fn cache(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.unmap(links, n, rank);
        self.cache_unlisted(links, n, rank);
    }

    /// The same, of a page that the caller has taken off its list before.
    pub fn cache_unlisted(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.queue(rank).cached.push_front(links, n);
        self.earned.entered += 1;
        if rank.is_hot() {
            self.credit = self.credit.saturating_sub(CREDIT);
            self.given_up.is_seen = true;
        }
    }

    /// A page that was on no list is cached: as the next to leave of its queue, or the last.
    pub fn recache(&mut self, links: &impl Links, n: u32, rank: Rank, oldest: bool) {
        let cached = &mut self.queue(rank).cached;
        if oldest {
            cached.push_back(links, n);
        } else {
            cached.push_front(links, n);
        }
    }

    /// A cached page is gone.
    pub fn uncache(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.queue(rank).cached.remove(links, n);
    }

    /// A cached page is mapped again because it was touched; its rank from now on.
    pub fn refault(&mut self, links: &impl Links, n: u32, rank: Rank) -> Rank {
        self.uncache(links, n, rank);
        self.earned.wanted_back += 1;
        self.note_kept(rank);
        self.tune_cached();
        let rank = if self.in_turn { rank } else { rank.raised() };
        self.map(links, n, rank);
        rank
    }

    /// The page that leaves memory now, and its shadow.
    pub fn evict_one(&mut self, pages: &impl Pages) -> Option<(u32, Shadow)> {
        self.evict_one_if(pages, &mut 0, |_, _| true)
    }

    /// The same; a page that `may` refuses becomes the youngest of its list instead. `None` also if that has happened
    /// `refusals` times, which is counted down.
    ///
    /// `may` is called while the page is on no list. It is told the shadow that the page leaves with. The shadow has to
    /// be kept before the word of the page is changed: from then on the page may come back, and be linked.
    pub fn evict_one_if(
        &mut self,
        pages: &impl Pages,
        refusals: &mut usize,
        may: impl Fn(u32, Shadow) -> bool,
    ) -> Option<(u32, Shadow)> {
        let cold = !self.probation.cached.is_empty();
        // Main's turn, or the pager has not come to unmap what is next.
        let hot = !cold || (self.probation.len() <= self.probation_share() && !self.main.cached.is_empty());
        let shadow = self.next_shadow(hot);
        let cached = if hot { &mut self.main.cached } else { &mut self.probation.cached };
        // Each page loses a rank a round, so this ends.
        loop {
            let n = cached.pop_back(pages)?;
            let rank = pages.rank(n);
            if rank > Rank::HOT {
                pages.set_rank(n, Rank(rank.0 - 1));
                cached.push_front(pages, n);
                continue;
            }
            if !may(n, shadow) {
                cached.push_front(pages, n);
                *refusals = refusals.checked_sub(1)?;
                continue;
            }
            self.departs();
            if hot {
                self.note_given_up();
            }
            let earned = if hot { CREDIT * MAIN_PACE } else { CREDIT / PROBATION_PACE };
            self.credit = self.credit.saturating_add(earned).min(CREDIT.saturating_mul(self.main.len()));
            return Some((n, shadow));
        }
    }

    /// The next page to leave is one of probation that is still mapped: a caller that goes on with
    /// [`WorkingSet::evict_one`] takes one of main in its place.
    pub fn is_behind(&self) -> bool {
        let Queue { mapped, cached, .. } = &self.probation;
        cached.is_empty() && !mapped.is_empty() && self.probation.len() > self.probation_share()
    }

    /// A page leaves memory that was on none of the lists; its shadow. `rank`: its rank while it was mapped, or the
    /// lowest.
    pub fn evict_unlisted(&mut self, rank: Rank) -> Shadow {
        let shadow = self.next_shadow(rank.is_hot());
        self.departs();
        if rank.is_hot() {
            self.note_given_up();
        }
        shadow
    }

    /// Of the next page to leave.
    fn next_shadow(&self, hot: bool) -> Shadow {
        Shadow(self.departures.wrapping_add(1) << 1 | u32::from(hot))
    }

    fn departs(&mut self) {
        self.departures = self.departures.wrapping_add(1);
        self.given_up.departed += 1;
        self.look_at_main();
    }

    /// Mapped pages of probation, and of main.
    pub fn mapped_lens(&self) -> (u32, u32) {
        (self.probation.mapped.len(), self.main.mapped.len())
    }

    /// How many pages are best cached now, at most `most`.
    ///
    /// The cached lists earn: each page that is wanted back from it would have been read sooner or later. And it costs:
    /// a fault for each. While hardly anything is wanted back, or the faults cost more than the reads that are left, it
    /// becomes shorter; while they cost less than half of those, longer.
    pub fn cached_target(&self, most: u32) -> u32 {
        let pages = self.pages();
        (pages / CACHED_PARTS * self.cached_parts).min(most).max(1)
    }

    /// The same under `farpage run`: enough for the writer's batches.
    pub fn stage_target(&self, most: u32) -> u32 {
        self.cached_target(most).clamp(STAGE_MIN.min(most), most)
    }

    /// Length of the cached lists, in 64ths of the pages in memory.
    pub fn stage_parts(&self) -> u32 {
        self.cached_parts
    }

    /// Holds them at this length from now on, whatever they earn: for an experiment.
    pub fn hold_stage(&mut self, parts: u32) {
        (self.cached_parts, self.cached_is_held) = (parts.clamp(CACHED_MIN, CACHED_MAX), true);
    }

    fn tune_cached(&mut self) {
        if self.cached_is_held {
            return;
        }
        let pages = self.pages();
        let Earned { entered, wanted_back, read_back } = self.earned;
        if wanted_back.saturating_add(read_back) < (pages / 16).max(32) {
            return;
        }
        let reads = read_back.saturating_mul(READ_COST);
        if wanted_back.saturating_mul(EARNS) < entered || wanted_back > reads {
            self.cached_parts = (self.cached_parts - 1).max(CACHED_MIN);
        } else if wanted_back < reads / 2 {
            self.cached_parts = (self.cached_parts + 1).min(CACHED_MAX);
        }
        self.earned = Earned::default();
    }

    /// The two parts of the target: of probation, of main.
    fn cached_targets(&self, target: u32) -> (u32, u32) {
        let cold = (target / 4).min(self.probation_share() / 2).max(1);
        (cold, target.saturating_sub(cold).max(1))
    }

    fn probation_share(&self) -> u32 {
        // Where pages are not cached before they leave, nothing tells when main is no longer in use.
        let small = self.given_up.is_seen && self.is_saturated();
        self.share_of(if small { self.share.max(SATURATED_SHARE) } else { self.share })
    }

    /// One page in `share`, but so many at least.
    fn share_of(&self, share: u32) -> u32 {
        let pages = self.pages();
        (pages / share.max(1)).max(PROBATION_MIN.min(pages / PROBATION_MOST))
    }

    fn queue(&mut self, rank: Rank) -> &mut Queue {
        if rank.is_hot() { &mut self.main } else { &mut self.probation }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
