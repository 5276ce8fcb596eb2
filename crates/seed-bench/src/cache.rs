//! `farpage-bench cache`: what it costs to know where a swapped-out page is.
//!
//! A page goes out and comes back: slot, bound to its frame, written (begin, end), unbound with a shadow; bound again,
//! unbound, freed. The swap table does that with the cluster's lock only. Two indexes of the kind that kernels up to
//! 6.17 had, a tree per 64 MiB of device under a lock, do the same with and without dirty and writeback tags.

use super::meter::{self, Counting};
use crate::failure::Result;
use crate::progress;
use clap::Args;
use farpage_swap::cluster::{DeviceOptions, Entry, Env, Fill, Swap};
use farpage_swap::lock::{Lock, Meter, Site, sites};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::process::ExitCode;
use std::time::Instant;

/// Slots of one tree: 64 MiB, as in the kernel.
const TREE_SLOTS: u64 = 1 << 14;
/// Pages a thread has out at a time.
const BATCH: usize = 64;

static INDEX: Site = Site { index: 28, lock: "index", name: "tree" };

/// `farpage-bench cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Pages that each thread moves out and in
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pages: u64,
    /// Measurements of each number; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

/// An index from slots to frames or shadows.
trait Index: Sync {
    /// The page is in the cache at this frame.
    fn insert(&self, entry: Entry, frame: u64);
    /// Its write begins or ends.
    fn write(&self, entry: Entry, begins: bool);
    /// Its frame is given back; the shadow stays.
    fn evict(&self, entry: Entry, frame: u64);
    /// It is wanted back, in this frame, and leaves the index.
    fn load(&self, entry: Entry, frame: u64);
}

struct Owner<M>(PhantomData<fn() -> M>);

impl<M: Meter> Env for Owner<M> {
    type Meter = M;
}

/// The swap table: slots are allocated bound to their frame, so `insert` has nothing to do.
struct Table<'a, M: Meter>(&'a Swap<Owner<M>>);

impl<M: Meter> Index for Table<'_, M> {
    fn insert(&self, entry: Entry, _frame: u64) {
        // One reference: the page table entry that now says where the page is.
        let _ = self.0.dup(entry, 1);
    }

    fn write(&self, _entry: Entry, _begins: bool) {}

    fn evict(&self, entry: Entry, frame: u64) {
        let _ = self.0.cache_remove(entry, 1, frame, 1);
    }

    fn load(&self, entry: Entry, frame: u64) {
        if self.0.cache_insert(entry, 1, frame).is_ok() {
            let _ = self.0.put(entry, 1);
            let _ = self.0.cache_remove(entry, 1, frame, 0);
        }
    }
}

#[derive(Clone, Copy)]
struct Node {
    value: u64,
    dirty: bool,
    writeback: bool,
}

/// A tree per 64 MiB. The slots come from the same allocator, with their references, as in the other variant.
struct Tree<'a, M: Meter> {
    swap: &'a Swap<Owner<M>>,
    trees: Vec<Lock<BTreeMap<u64, Node>, M>>,
    tags: bool,
}

impl<M: Meter> Tree<'_, M> {
    fn tree(&self, entry: Entry) -> &Lock<BTreeMap<u64, Node>, M> {
        &self.trees[(entry.slot / TREE_SLOTS) as usize]
    }
}

impl<M: Meter> Index for Tree<'_, M> {
    fn insert(&self, entry: Entry, frame: u64) {
        let node = Node { value: frame, dirty: self.tags, writeback: false };
        self.tree(entry).lock(&INDEX).insert(entry.slot, node);
    }

    fn write(&self, entry: Entry, begins: bool) {
        if self.tags
            && let Some(node) = self.tree(entry).lock(&INDEX).get_mut(&entry.slot)
        {
            node.writeback = begins;
            node.dirty &= !begins;
        }
    }

    fn evict(&self, entry: Entry, _frame: u64) {
        if let Some(node) = self.tree(entry).lock(&INDEX).get_mut(&entry.slot)
            && !node.dirty
            && !node.writeback
        {
            node.value = 1;
        }
    }

    fn load(&self, entry: Entry, frame: u64) {
        if let Some(node) = self.tree(entry).lock(&INDEX).get_mut(&entry.slot) {
            node.value = frame;
        }
        self.tree(entry).lock(&INDEX).remove(&entry.slot);
        let _ = self.swap.put(entry, 1);
    }
}

fn work<M: Meter>(swap: &Swap<Owner<M>>, index: &impl Index, table: bool, thread: u64, pages: u64) -> meter::Counts {
    let mut entries = Vec::with_capacity(BATCH);
    meter::take();
    for batch in 0..pages / BATCH as u64 {
        let frames = ((thread << 32) | (batch * BATCH as u64))..;
        for frame in frames.take(BATCH) {
            let fill = if table { Fill::Cached(frame) } else { Fill::Swapped };
            let Some(entry) = swap.alloc(super::slots::cpu(), 0, fill) else { continue };
            index.insert(entry, frame);
            entries.push((entry, frame));
        }
        entries.iter().for_each(|&(entry, _)| index.write(entry, true));
        entries.iter().for_each(|&(entry, _)| index.write(entry, false));
        entries.iter().for_each(|&(entry, frame)| index.evict(entry, frame));
        entries.drain(..).for_each(|(entry, frame)| index.load(entry, frame));
    }
    meter::take()
}

const VARIANTS: [&str; 3] = ["swap table", "tree", "tree with tags"];

/// (pages out and in a second, acquisitions of index locks a page, contended a page).
fn run<M: Meter>(variant: usize, args: &CacheArgs) -> (f64, f64, f64) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let swap = Swap::new(cpus, Owner::<M>(PhantomData));
    let slots = TREE_SLOTS * 16;
    // The first of 32 devices is never refused.
    let _ = swap.swapon(DeviceOptions { slots, ..DeviceOptions::default() });
    let trees = (0..16).map(|_| Lock::new(BTreeMap::new())).collect();
    let tree = Tree { swap: &swap, trees, tags: variant == 2 };
    let table = Table(&swap);
    let from = Instant::now();
    let mut counts = meter::Counts::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..u64::from(args.threads))
            .map(|i| {
                let (swap, tree, table) = (&swap, &tree, &table);
                scope.spawn(move || match variant {
                    0 => work(swap, table, true, i, args.pages),
                    _ => work(swap, tree, false, i, args.pages),
                })
            })
            .collect();
        for thread in threads {
            thread.join().iter().for_each(|c| meter::add(&mut counts, c));
        }
    });
    let pages = (args.pages / BATCH as u64 * BATCH as u64 * u64::from(args.threads)) as f64;
    // The table's lock is the cluster's, where the page's state is concerned: not for giving out and freeing the slot,
    // which all variants do.
    let index = if variant == 0 { &[&sites::CLUSTER_CACHE, &sites::CLUSTER_COUNT][..] } else { &[&INDEX][..] };
    let sum = |f: fn(&meter::Count) -> u64| index.iter().map(|site| f(&counts[site.index])).sum::<u64>() as f64 / pages;
    (pages / from.elapsed().as_secs_f64(), sum(|c| c.acquired), sum(|c| c.contended))
}

/// Runs the subcommand.
pub fn main(args: &CacheArgs) -> Result<ExitCode> {
    let mut rates: [Vec<f64>; 3] = Default::default();
    let progress = progress::begin("farpage-bench cache");
    for round in 1..=args.rounds {
        progress::step(format_args!("round {round} of {}", args.rounds));
        for (variant, rates) in rates.iter_mut().enumerate() {
            rates.push(run::<()>(variant, args).0);
        }
    }
    let counted = [0, 1, 2].map(|variant| run::<Counting>(variant, args));
    drop(progress);
    println!(
        "{} threads; a page goes out and comes back in; median (smallest, largest) of {} runs",
        args.threads, args.rounds
    );
    println!("{:<16} {:>26} {:>26} {:>20}", "index", "million pages/s", "index locks a page", "contended per 1,000");
    for (variant, (rates, (_, acquired, contended))) in rates.iter().zip(counted).enumerate() {
        let (median, low, high) = super::slots::spread(rates);
        let rate = format!("{:.2} ({:.2}, {:.2})", median / 1e6, low / 1e6, high / 1e6);
        println!("{:<16} {rate:>26} {acquired:>26.2} {:>20.2}", VARIANTS[variant], contended * 1e3);
    }
    Ok(ExitCode::SUCCESS)
}
