//! How much of the budget compressed pages get.
//!
//! RAM can hold a page as it is, or two to three compressed ones. Which is worth more depends on the program: what does
//! not compress, or has a hot set that just fits, makes the pool a waste of RAM; data that compresses and is used at
//! random is better kept compressed than read from a file. So the program is asked: of every page that comes back from
//! a device, the refault distance tells how large memory would have had to be for it to stay ([`Distances`], its
//! histogram). From that follows what the faults would have cost with any division of the budget: pages that would have
//! stayed nothing, those that the pool would have held a load from memory, the others a read from a file. The limit
//! moves in steps towards the cheapest division.
//!
//! The pool is not simply what memory would hold if it were larger: what does not compress never gets there, however
//! often it is wanted, and what does may never be wanted. So how many of the faults that it should have served it did
//! serve is measured, and expected of any other size, too (GNU sort's text and index in 41 MiB: 13 MiB of the budget
//! held index that hardly one fault in fifty was for, while the text went through a file).
//!
//! A pool with room for more than what is out also keeps copies of pages that came back, and one that leaves as it came
//! is not compressed again. Beside a fault for each page that is little; where windows bring them in, most of the cost.
//! So the price of a division has the stores that its copies would not spare (512 MiB read round and round in 310: pool
//! of 157 MiB and most pages compressed each time before, 174 MiB and hardly any now).
//!
//! A program that goes round and round through more than memory and pool hold wants each page just after it has moved
//! on: of what the pool passes on by age nothing is ever found there, and each page is written and read for each round.
//! A pool that keeps what it has, and refuses the rest, serves its part of every round. So both are priced, and where
//! it is cheaper the pool is *steady* ([`PoolShare::is_steady`]). What either way serves of what it should is
//! measured while it is in use; what was measured long ago means less and less.
//!
//! What the histogram cannot show: faults that do not happen, because the page did stay. A smaller main memory is
//! assumed to miss as much per MiB as the next MiB above it does.
//!
//! Memory that the program has locked, or that cannot be managed, is not divided: the pool's largest share shrinks by
//! it, so that the rest of the program keeps its part of the budget to run in. With less, every fault would wait for a
//! page of the few that can go.
//!
//! While pages go out and hardly any comes back, as when a program makes its data, the histogram says nothing, and
//! moving compressed pages on to a file is all that costs anything: so the limit rises then.
//!
//! Not local: deciding by what the *last* MiB of either side earns left memory all to the pool where a hot set needed
//! much more than the little it had (sqlite, 16 MiB of 58: 1.2 million major faults; all to pages: 0.45 million).
//!
//! Pure arithmetic; called by the monitor of `run`, and in regions by reclaim (`region/division`). Ideas: stack
//! distances (Mattson et al., 1970), shadow entries of Linux' workingset code as the measure of them.

use crate::tuning::{Controller, Controls};
use crate::workingset::Distances;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Moving means of what loading one page takes; written by the pager, read by the monitor.
#[derive(Debug)]
pub struct LoadTimes {
    pool_ns: AtomicU64,
    file_ns: AtomicU64,
}

impl Default for LoadTimes {
    /// What was measured on the machine this was written on, until there is something better.
    fn default() -> LoadTimes {
        LoadTimes { pool_ns: AtomicU64::new(4_000), file_ns: AtomicU64::new(80_000) }
    }
}

impl LoadTimes {
    /// A single page was loaded, `from_file` or from memory, in `ns`.
    pub fn note(&self, from_file: bool, ns: u64) {
        let mean = if from_file { &self.file_ns } else { &self.pool_ns };
        let old = mean.load(Relaxed);
        // A thread that has lost its CPU meanwhile says nothing about the pool. What a disk takes may differ that much.
        let most = if from_file { 10_000_000 } else { 8 * old };
        mean.store(old - old / 64 + ns.min(most) / 64, Relaxed);
    }

    /// Means for the pool and for files, ns.
    pub fn means(&self) -> (u64, u64) {
        (self.pool_ns.load(Relaxed), self.file_ns.load(Relaxed))
    }
}

/// Share of the limit, in eighths, above which pages should move on.
pub const SHARE_EIGHTHS: u64 = 7;
/// Share of the limit, in eighths, above which the pool does not keep what is also in memory.
pub const TIGHT_EIGHTHS: u64 = 6;
/// The largest share of the budget, in eighths: what runs needs the rest.
const MOST_EIGHTHS: u64 = 6;

/// How many of the program's pages cannot be taken out. Reclaim tries the oldest of those that have yet to prove hot,
/// and one that stays is the youngest of them then: so in a round of as many tries as there are such pages, each is
/// tried once. Not before a round is over does the share say anything, because pages that stay are neighbours.
#[derive(Debug, Default)]
pub struct UnevictableEstimate {
    taken: u64,
    skipped: u64,
    /// Of 1024, the mean of rounds, the last one half of it.
    share: u64,
}

/// Least pages of a round.
const ROUND_MIN: u64 = 256;

impl UnevictableEstimate {
    /// The estimate, of `cold` pages that are mapped and have yet to prove hot; `taken` and `skipped` since the start.
    pub fn estimate(&mut self, taken: u64, skipped: u64, cold: u64) -> u64 {
        let (went, stayed) = (taken.wrapping_sub(self.taken), skipped.wrapping_sub(self.skipped));
        if went + stayed >= cold.max(ROUND_MIN) {
            (self.taken, self.skipped) = (taken, skipped);
            self.share = (self.share + stayed * 1024 / (went + stayed)) / 2;
        }
        cold * self.share / 1024
    }
}

/// Counters and levels at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Faults that loaded a page so far.
    pub major: u64,
    /// Of these, from a file.
    pub major_file: u64,
    /// Pages loaded so far, those read ahead with them included.
    pub loaded: u64,
    /// Pages stored so far.
    pub stored: u64,
    /// Pages in memory now, mapped or in the swap cache.
    pub pages: u64,
    /// Of these, pages that cannot be taken out (locked, other access rights): an estimate.
    pub stuck: u64,
    /// Besides these, pages that are not managed at all.
    pub unmanaged: u64,
    /// RAM of the pool now, bytes.
    pub pool_bytes: u64,
    /// What it holds, uncompressed, bytes.
    pub pool_orig_bytes: u64,
    /// Of both, pages that are there as they are.
    pub pool_raw_bytes: u64,
    /// Mean time to load a page from the pool, ns.
    pub pool_load_ns: u64,
    /// Mean time to load a page from a file, ns.
    pub file_load_ns: u64,
    /// Pages that are out, on whatever device.
    pub out: u64,
    /// Of pages that left while their copy had been kept, the share that was as in the copy, 0 to 1.
    pub unchanged: f64,
}

impl Sample {
    /// Pages in memory that can be taken out.
    fn have(&self) -> f64 {
        self.pages.saturating_sub(self.stuck) as f64
    }

    /// These, and those that are out.
    fn all(&self) -> f64 {
        self.have() + self.out as f64
    }
}

/// The pool's limit and what it is steered by.
#[derive(Debug)]
pub struct PoolShare {
    /// The least limit, a sixteenth of the budget.
    min: u64,
    /// The largest one, in eighths of the budget.
    most_eighths: u64,
    step: u64,
    limit: u64,
    /// What a fault costs besides the load, ns: the way to the thread that serves it and back, and the page that has to
    /// leave.
    fault_ns: f64,
    /// Of the faults that the pool should serve by what it holds, the share that it does: fading means, of a pool that
    /// passes on and of a steady one.
    worth: [f64; 2],
    /// Pages loaded for a fault, with what was read ahead.
    window: f64,
    /// The pool keeps what it has.
    steady: bool,
    /// Since then, or since a round is over: pages loaded, faults that the pool should serve, those that it did.
    round: [f64; 3],
    last: Sample,
}

const PAGE: f64 = crate::PAGE_SIZE as f64;
/// Pages loaded between two decisions, and faults among them: enough for the histogram to mean something.
const WINDOW: u64 = 2048;
const FAULTS_MIN: u64 = 128;
/// What a fault costs besides the load where another thread serves it, ns.
const FAULT_NS: f64 = 25_000.0;
/// What it costs to compress and store a page, ns.
const STORE_NS: f64 = 4_000.0;
/// By this factor another division must be cheaper than the present one.
const MARGIN: f64 = 0.98;
/// And the other way to use the pool.
const MARGIN_OF_WAYS: f64 = 0.95;
/// Of what a steady pool should serve, what it must serve to be or become one. What is known comes from the faults,
/// and windows from the pool and from a file are of different lengths: a loop's pool may seem to be worth half.
const STEADY_WORTH: f64 = 0.125;
/// Decisions after which two thirds of what is known of the way that is not in use are forgotten.
const FORGET: f64 = 64.0;
/// Uncompressed pages per page of the pool, as long as it holds too little to tell.
const RATIO: f64 = 2.0;

/// And as few as make a page in the pool worth its room.
const RATIO_MIN: f64 = 1.5;

/// Least share of all faults that the pool should serve for what it does serve to say anything.
const TELLING: f64 = 1.0 / 32.0;

/// Bytes of a pool that holds `held` bytes of pages in `bytes`, once it holds `more` of them, too. What it holds is a
/// sample, and what went first may be unlike the rest: a sixteenth of what is yet to go is added to it, halved, and at
/// most half is expected of the rest. So it is tried as long as that can be worth something.
pub fn pool_for(held: u64, bytes: u64, more: u64) -> u64 {
    let guessed = more as f64 / 16.0;
    let ratio = (bytes as f64 + guessed / RATIO) / (held as f64 + guessed).max(1.0);
    bytes + (more as f64 * ratio.min(1.0 / RATIO)) as u64
}

impl PoolShare {
    /// For a budget of `ram` bytes, with the pool's limit at `limit`, which stays between 1/16 and 3/4 of it, or what
    /// [`PoolShare::with_most`] says.
    pub fn new(ram: u64, limit: u64) -> PoolShare {
        PoolShare {
            min: ram / 16,
            most_eighths: MOST_EIGHTHS,
            step: ram / 32,
            limit,
            fault_ns: FAULT_NS,
            worth: [1.0; 2],
            window: 1.0,
            steady: false,
            round: [0.0; 3],
            last: Sample::default(),
        }
    }

    /// Where a fault costs something else besides the load.
    pub fn with_fault_ns(self, fault_ns: f64) -> PoolShare {
        PoolShare { fault_ns, ..self }
    }

    /// With another largest share, in eighths of the budget.
    pub fn with_most(self, most_eighths: u64) -> PoolShare {
        PoolShare { most_eighths, ..self }
    }

    /// The largest limit.
    fn max(&self) -> u64 {
        self.min * 2 * self.most_eighths
    }

    /// Half of the budget: where a program starts.
    pub const fn initial_limit(ram: u64) -> u64 {
        ram / 2
    }

    /// The limit of a budget of `ram` bytes: as it is held, else as `turn` says; what to tell the pool if that changes.
    pub fn decide(
        &mut self,
        controls: &Controls,
        ram: u64,
        turn: impl FnOnce(&mut PoolShare) -> Option<u64>,
    ) -> Option<u64> {
        let before = self.to_apply();
        match controls.pinned(Controller::Pool) {
            // Held, for an experiment.
            Some(percent) => (self.limit, self.steady) = (ram / 100 * percent, false),
            None => _ = turn(self),
        }
        controls.value_for(Controller::Pool, self.limit * 100 / ram.max(1));
        (self.to_apply() != before).then_some(self.to_apply())
    }

    /// The limit that the pool gets: a steady one is filled to it, one that passes on to 7/8 of it.
    fn to_apply(&self) -> u64 {
        if self.steady { self.limit / 8 * SHARE_EIGHTHS } else { self.limit }
    }

    /// The budget is another one now: the limit keeps its part of it. The new limit, if it changes.
    pub fn resize(&mut self, ram: u64) -> Option<u64> {
        let part = self.limit as f64 / (self.min * 16).max(1) as f64;
        let before = self.to_apply();
        (self.min, self.step) = (ram / 16, ram / 32);
        self.limit = ((ram as f64 * part) as u64).clamp(self.min, self.max().max(self.min));
        (self.to_apply() != before).then_some(self.to_apply())
    }

    /// All counters begin at zero again: in a forked child.
    pub fn forget_counts(&mut self) {
        self.last = Sample::default();
    }

    /// The most that the limit can be now.
    fn most(&self, now: &Sample) -> u64 {
        self.max().saturating_sub((now.stuck + now.unmanaged) * PAGE as u64).max(self.min)
    }

    /// Whether so much has happened since the last decision that [`PoolShare::turn`] may decide something.
    pub fn is_due(&self, now: &Sample) -> bool {
        let loaded = now.loaded.saturating_sub(self.last.loaded);
        let stored = now.stored.saturating_sub(self.last.stored);
        self.limit > self.most(now) || loaded.max(stored) >= WINDOW
    }

    /// Looks at what happened since the last decision; the new limit if it changes.
    pub fn turn(&mut self, now: Sample, distances: &mut Distances) -> Option<u64> {
        let most = self.most(&now);
        if self.limit > most {
            // Not step by step: what is missing is missing now.
            self.limit = most;
            return Some(most);
        }
        let major = now.major.saturating_sub(self.last.major);
        let loaded = now.loaded.saturating_sub(self.last.loaded);
        // Where readahead brings in nearly all, there are few faults in a whole round.
        let least = if loaded as f64 >= now.all() { FAULTS_MIN / 16 } else { FAULTS_MIN };
        if loaded < WINDOW || major < least {
            return self.grow(now, loaded, most);
        }
        let from_pool = 1.0 - now.major_file.saturating_sub(self.last.major_file) as f64 / major as f64;
        let should = self.would_serve(now, distances, now.pool_bytes as f64, self.steady) / distances.total().max(1.0);
        if self.steady {
            self.note_round(now, loaded as f64, should * major as f64, from_pool * major as f64);
            self.worth[0] += (1.0 - self.worth[0]) / FORGET;
        } else {
            if should >= TELLING {
                self.worth[0] = f64::midpoint(self.worth[0], (from_pool / should).clamp(0.0, 1.0));
            }
            self.worth[1] += (1.0 - self.worth[1]) / FORGET;
        }
        // What it holds may not be wanted any more: pages move on by age, until that is as good as forgotten.
        let is_wanted = self.worth[1] >= STEADY_WORTH;
        if self.steady && !is_wanted {
            (self.steady, self.round) = (false, [0.0; 3]);
        }
        // Where it holds hardly more than its room, memory keeps what it has as well.
        let may_be_steady = is_wanted && (self.steady || self.ratio(&now) >= RATIO_MIN);
        self.window = loaded as f64 / major as f64;
        self.last = now;
        // A limit that the pool never reached has kept nothing out.
        let here = self.limit.min((now.pool_bytes / SHARE_EIGHTHS * 8).max(self.min));
        let mut best = (here, self.steady, self.cost(now, distances, here, self.steady) * MARGIN);
        for steady in [false, true] {
            if steady && !may_be_steady {
                continue;
            }
            let margin = if steady == self.steady { 1.0 } else { MARGIN_OF_WAYS };
            let mut other = self.min;
            while other <= most {
                let cost = self.cost(now, distances, other, steady);
                if cost < best.2 * margin {
                    best = (other, steady, cost);
                }
                other += self.step;
            }
        }
        if best.1 != self.steady {
            (self.steady, self.round) = (best.1, [0.0; 3]);
        }
        distances.fade();
        let before = self.limit;
        // A step at a time, because moving costs writes, and because the answer may be another one on the way.
        if best.0 < here {
            self.limit = best.0.max(here.saturating_sub(self.step));
        } else if best.0 > here {
            self.limit = best.0.min(self.limit + self.step).min(most);
        }
        (self.limit != before).then_some(self.limit)
    }

    /// What a steady pool serves of what it should. What it holds was stored together and is wanted together, so
    /// nothing is said before as many pages were loaded as there are.
    fn note_round(&mut self, now: Sample, loaded: f64, should: f64, served: f64) {
        let round = [self.round[0] + loaded, self.round[1] + should, self.round[2] + served];
        self.round = round;
        if round[0] >= now.all() {
            self.worth[1] = f64::midpoint(self.worth[1], (round[2] / round[1].max(1.0)).min(1.0));
            self.round = [0.0; 3];
        }
    }

    /// Whether the pool has more than the least that it can have: where that is too much already, nothing is to wait
    /// there that memory could hold as well.
    pub fn is_worth_room(&self) -> bool {
        self.limit > self.min
    }

    /// Whether the pool keeps what it has: nothing moves on, and what finds no room goes past it.
    pub fn is_steady(&self) -> bool {
        self.steady
    }

    /// Nothing comes back: the pool may have another step if it fills the present limit with pages that compress.
    fn grow(&mut self, now: Sample, loaded: u64, most: u64) -> Option<u64> {
        let stored = now.stored.saturating_sub(self.last.stored);
        let full = now.pool_bytes > self.limit / 4 * 3;
        let raw = now.pool_raw_bytes;
        let packed = now.pool_bytes.saturating_sub(raw) as f64;
        let worth = now.pool_orig_bytes.saturating_sub(raw) as f64 >= packed * RATIO_MIN;
        if stored < WINDOW || loaded > stored / 8 || !full || !worth || self.limit >= most {
            return None;
        }
        self.last = now;
        self.limit = (self.limit + self.step).min(most);
        Some(self.limit)
    }

    /// Pages that memory would keep beside a pool of so many bytes, and these with what the pool would hold.
    fn divide(&self, now: Sample, pool: f64) -> (f64, f64) {
        let pages = (now.have() + (now.pool_bytes as f64 - pool) / PAGE).max(0.0);
        (pages, pages + pool / PAGE * self.ratio(&now))
    }

    /// Uncompressed pages per page of the pool.
    fn ratio(&self, now: &Sample) -> f64 {
        match now.pool_bytes {
            bytes if bytes < self.min / 4 => RATIO,
            bytes => (now.pool_orig_bytes as f64 / bytes as f64).max(1.0),
        }
    }

    /// How many of the histogram's faults a memory of `pages` would have spared. One that holds all there is spares
    /// all: then a distance beyond that says only that the page was away for long, and it may have been as deep as any
    /// that is out.
    fn spared(&self, now: Sample, distances: &Distances, pages: f64) -> f64 {
        let (have, all) = (now.have(), now.all());
        let known = distances.within(pages.min(all));
        let depth = ((pages - have) / (all - have).max(1.0)).clamp(0.0, 1.0);
        known + depth * (distances.total() - distances.within(all))
    }

    /// How many of the histogram's faults a pool of so many bytes would serve if what it holds were as likely to be
    /// wanted as anything else.
    fn would_serve(&self, now: Sample, distances: &Distances, pool: f64, steady: bool) -> f64 {
        let (pages, kept) = self.divide(now, pool);
        let spared = self.spared(now, distances, pages);
        if steady {
            // Copies of pages that came back take room.
            let part = (kept - pages * (1.0 + now.unchanged)) / (now.all() - pages).max(1.0);
            return (distances.total() - spared) * part.clamp(0.0, 1.0);
        }
        self.spared(now, distances, kept) - spared
    }

    /// What the histogram's faults would have cost with this limit of the pool, ns.
    fn cost(&self, now: Sample, distances: &Distances, limit: u64, steady: bool) -> f64 {
        // Above that, pages move on to a file, or go past a steady pool.
        let pool = (limit / 8 * SHARE_EIGHTHS) as f64;
        let (pages, _) = self.divide(now, pool);
        let (from_pool, from_file) = (self.fault_ns + now.pool_load_ns as f64, self.fault_ns + now.file_load_ns as f64);
        // Faults of pages that stay now and would not then.
        let have = now.have();
        let reach = 2.0 * f64::from(distances.width);
        let density = (self.spared(now, distances, have + reach) - self.spared(now, distances, have)) / reach;
        let lost = density * (have - pages).max(0.0);
        let faults = distances.total() - self.spared(now, distances, pages) + lost;
        let served = (self.would_serve(now, distances, pool, steady) + lost) * self.worth[usize::from(steady)];
        // A steady pool keeps the copies of pages that came back.
        let stores = if steady { 0.0 } else { self.stores(now, limit) };
        served * from_pool + (faults - served) * from_file + faults * stores * STORE_NS
    }

    /// Of the pages that leave for one fault, with this limit of the pool, those that have to be stored only because
    /// their copy was not kept. Copies are kept in what the pool has left beside the pages that are out.
    fn stores(&self, now: Sample, limit: u64) -> f64 {
        let pool = (limit / 8 * TIGHT_EIGHTHS) as f64;
        let (pages, kept) = self.divide(now, pool);
        let copies = ((kept - now.all()) / pages.max(1.0)).clamp(0.0, 1.0);
        self.window * now.unchanged * (1.0 - copies)
    }
}

#[cfg(test)]
mod tests;
