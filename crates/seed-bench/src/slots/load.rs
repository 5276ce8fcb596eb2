//! The load: threads that allocate and free at random around a fixed share of the device.
//!
//! A thread keeps the pages it has in objects (a page, or 16 of them if the order is mixed) and replaces a random one
//! at each step. Every few thousand steps it gives an eighth of them to the next thread and takes as many, so that
//! slots are freed by other threads than those that allocated them.

use super::{Block, Fallback, Slots};
use crate::meter::{self, Counts};
use farpage_swap::sim::{Random, mix};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LARGE: u8 = 4;
/// One object in so many is large in the mixed load. The share changes as the load goes on, for all threads at once:
/// that is what breaks blocks.
const LARGE_EVERY: [u64; 2] = [4, 64];
const EXCHANGE_EVERY: u64 = 4096;

/// What is done.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Slots of the device.
    pub slots: u64,
    /// Share of them in use.
    pub fill_pct: u64,
    /// Orders 0 and 4; else 0 only.
    pub mixed: bool,
    /// Threads.
    pub threads: usize,
    /// How long it is measured, after a warm-up.
    pub time: Duration,
    /// With mixed orders: measured until all threads together went through so many changes of the share of large
    /// objects and back, after four times as many, whatever the time: what is free falls to pieces slowly. 0: by time.
    pub periods: u64,
}

impl Load {
    /// Allocations of a phase of the mixed load: it replaces about half of the pages if large objects are frequent.
    fn phase(&self) -> u64 {
        (self.slots * self.fill_pct / 800).max(1)
    }

    /// As in the tables: `0 60%`, `0+4 95%`.
    pub fn name(&self) -> String {
        format!("{} {}%", if self.mixed { "0+4" } else { "0" }, self.fill_pct)
    }
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Allocations and frees of blocks.
    pub ops: u64,
    pub seconds: f64,
    /// Large allocations asked for, and those that had to be made of smaller blocks.
    pub large: u64,
    pub fallback: u64,
    /// Blocks that large allocations consist of.
    pub large_blocks: u64,
    pub clusters: u64,
    pub counts: Counts,
}

impl Outcome {
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.seconds
    }

    pub fn fallback_pct(&self) -> f64 {
        100.0 * self.fallback as f64 / self.large.max(1) as f64
    }
}

enum Object {
    One(Block),
    /// A large one in pieces.
    Many(Vec<Block>),
}

impl Object {
    fn pages(&self) -> u64 {
        match self {
            Object::One(block) => 1 << block.order,
            Object::Many(blocks) => blocks.iter().map(|block| 1 << block.order).sum(),
        }
    }
}

#[derive(Default)]
struct Tally {
    ops: u64,
    large: u64,
    fallback: u64,
    large_blocks: u64,
}

struct Worker<'a, S: Slots> {
    slots: &'a S,
    local: S::Local,
    load: Load,
    objects: Vec<Object>,
    pages: u64,
    /// Allocations of all threads, which says what phase the load is in; and this thread's that are not in it yet.
    progress: &'a AtomicU64,
    allocs: u64,
    random: Random,
    tally: Tally,
}

impl<S: Slots> Worker<'_, S> {
    fn block(&mut self, order: u8) -> Option<Block> {
        self.tally.ops += 1;
        self.slots.alloc(&mut self.local, super::cpu(), order)
    }

    fn alloc(&mut self) {
        let large = self.load.mixed && {
            self.allocs += 1;
            if self.allocs == 64 {
                self.progress.fetch_add(std::mem::take(&mut self.allocs), Relaxed);
            }
            let phase = self.progress.load(Relaxed) / self.load.phase();
            self.random.bits().is_multiple_of(LARGE_EVERY[phase as usize % 2])
        };
        if !large {
            if let Some(block) = self.block(0) {
                self.pages += 1;
                self.objects.push(Object::One(block));
            }
            return;
        }
        self.tally.large += 1;
        let object = match self.block(LARGE) {
            Some(block) => Object::One(block),
            None => {
                self.tally.fallback += 1;
                let mut blocks = Vec::with_capacity(16);
                let (mut left, mut order) =
                    (1u64 << LARGE, if S::FALLBACK == Fallback::Smaller { LARGE - 1 } else { 0 });
                while left > 0 {
                    match self.block(order) {
                        Some(block) => {
                            left -= 1 << order;
                            blocks.push(block);
                        }
                        None if order == 0 => break,
                        None => order -= 1,
                    }
                    while order > 0 && 1 << order > left {
                        order -= 1;
                    }
                }
                Object::Many(blocks)
            }
        };
        self.tally.large_blocks += match &object {
            Object::One(_) => 1,
            Object::Many(blocks) => blocks.len() as u64,
        };
        self.pages += object.pages();
        self.objects.push(object);
    }

    fn free(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let at = self.random.index(self.objects.len());
        let object = self.objects.swap_remove(at);
        self.pages -= object.pages();
        match object {
            Object::One(block) => {
                self.tally.ops += 1;
                self.slots.free(&mut self.local, block);
            }
            Object::Many(blocks) => {
                self.tally.ops += blocks.len() as u64;
                blocks.into_iter().for_each(|block| self.slots.free(&mut self.local, block));
            }
        }
    }

    fn step(&mut self, target: u64) {
        if self.pages >= target {
            self.free();
        } else {
            self.alloc();
        }
    }

    fn exchange(&mut self, market: &Mutex<Vec<Object>>) {
        let n = self.objects.len() / 8;
        let mut mine = Vec::with_capacity(n);
        for _ in 0..n {
            let at = self.random.index(self.objects.len());
            mine.push(self.objects.swap_remove(at));
        }
        let Ok(mut market) = market.lock() else { return };
        std::mem::swap(&mut *market, &mut mine);
        drop(market);
        self.objects.append(&mut mine);
        self.pages = self.objects.iter().map(Object::pages).sum();
    }
}

/// Runs the load.
pub fn run<S: Slots>(slots: &S, load: Load) -> Outcome {
    // What is on the market is in use too: an eighth of a thread's share.
    let shares = 8 * load.threads as u64 + u64::from(load.threads > 1);
    let target = load.slots * load.fill_pct / 100 * 8 / shares;
    let (market, progress) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let (ready, go, stop) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let mut outcome = Outcome {
        ops: 0,
        seconds: 0.0,
        large: 0,
        fallback: 0,
        large_blocks: 0,
        clusters: 0,
        counts: [meter::Count::default(); farpage_swap::lock::SITES],
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|i| {
                let (market, progress, ready, go, stop) = (&market, &progress, &ready, &go, &stop);
                scope.spawn(move || {
                    let random = Random(mix(i as u64));
                    let tally = Tally::default();
                    let mut worker = Worker {
                        slots,
                        local: slots.local(),
                        load,
                        objects: Vec::new(),
                        pages: 0,
                        progress,
                        allocs: 0,
                        random,
                        tally,
                    };
                    // Fill, then churn until every slot was used several times: the steady state.
                    while worker.pages < target && worker.tally.ops < 4 * target + 64 {
                        worker.alloc();
                    }
                    let warm = Instant::now();
                    let churn = 4 * worker.objects.len() as u64;
                    let mut steps = 0;
                    let by_time = load.periods == 0;
                    let is_warm = || match by_time {
                        true => warm.elapsed() >= load.time / 2,
                        false => progress.load(Relaxed) >= 8 * load.periods * load.phase(),
                    };
                    while !is_warm() || (by_time && steps < churn) {
                        worker.step(target);
                        steps += 1;
                        if steps.is_multiple_of(EXCHANGE_EVERY) && load.threads > 1 {
                            worker.exchange(market);
                        }
                    }
                    worker.tally = Tally::default();
                    meter::take();
                    ready.fetch_add(1, Relaxed);
                    while !go.load(Relaxed) {
                        std::thread::yield_now();
                    }
                    let mut steps = 0u64;
                    while !stop.load(Relaxed) {
                        for _ in 0..64 {
                            worker.step(target);
                        }
                        steps += 64;
                        if steps.is_multiple_of(EXCHANGE_EVERY) && load.threads > 1 {
                            worker.exchange(market);
                        }
                    }
                    let counts = meter::take();
                    let Worker { local, tally, objects, .. } = worker;
                    (tally, counts, local, objects)
                })
            })
            .collect();
        while (ready.load(Relaxed) as usize) < load.threads {
            std::thread::sleep(Duration::from_millis(1));
        }
        go.store(true, Relaxed);
        let from = Instant::now();
        if load.periods > 0 {
            let until = progress.load(Relaxed) + 2 * load.periods * load.phase();
            while progress.load(Relaxed) < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            std::thread::sleep(load.time);
        }
        stop.store(true, Relaxed);
        let mut locals = Vec::new();
        for thread in threads {
            let Ok((tally, counts, local, _)) = thread.join() else { continue };
            outcome.ops += tally.ops;
            outcome.large += tally.large;
            outcome.fallback += tally.fallback;
            outcome.large_blocks += tally.large_blocks;
            meter::add(&mut outcome.counts, &counts);
            locals.push(local);
        }
        outcome.seconds = from.elapsed().as_secs_f64();
        outcome.clusters = slots.clusters_in_use();
        locals.into_iter().for_each(|local| slots.finish(local));
    });
    outcome
}

/// Operations a second of as many single threads as the load says, each with an allocator and an equal part of the
/// device to itself: what the processors give where nothing is shared.
pub fn apart<S: Slots>(new: impl Fn(u64) -> S + Sync, load: Load) -> f64 {
    let own = Load { slots: load.slots / load.threads as u64, threads: 1, ..load };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..load.threads).map(|_| scope.spawn(|| run(&new(own.slots), own).ops_per_s())).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}

/// Nanoseconds of an order-0 allocation and its free, by one thread, with no other there: 60 % full, the slot is freed
/// at once. The median of 9 rounds.
pub fn pair_ns<S: Slots>(slots: &S, device_slots: u64) -> f64 {
    let mut local = slots.local();
    // Each CPU is in the middle of a cluster: with an empty one the pair would take and give back the cluster each
    // time.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for i in 0..device_slots as usize * 6 / 10 {
        slots.alloc(&mut local, i % cpus, 0);
    }
    const PAIRS: u32 = 200_000;
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let from = Instant::now();
            for _ in 0..PAIRS {
                if let Some(block) = slots.alloc(&mut local, super::cpu(), 0) {
                    slots.free(&mut local, block);
                }
            }
            from.elapsed().as_nanos() as f64 / f64::from(PAIRS)
        })
        .collect();
    rounds.sort_unstable_by(f64::total_cmp);
    slots.finish(local);
    rounds[4]
}
