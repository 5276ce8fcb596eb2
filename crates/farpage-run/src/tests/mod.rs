//! The engine on a small kernel ([`fake`]), step by step on one thread: faults, evictions, changes of mappings, full
//! devices.
//!
//! What must hold, whatever happens in whatever order: each page has the content that the program gave it; no fault is
//! left waiting; memory stays within the budget while the devices have room. A failure prints the seed;
//! `SEED=n cargo test -p farpage-run --lib tests` runs that one.

mod fake;

use crate::dormant::StartPlan;
use crate::mappings::thread_starts::ThreadStart;
use crate::monitor::build::{arena_sizes, build};
use crate::pager::start::pager_for_test;
use crate::pager::state::Pager;
use crate::shared::state::{Engine, SwapCache};
use crate::store;
use crate::threads::{helper, writer};
use fake::Fake;
use farpage_base::mem::arena::Arena;
use farpage_base::mem::heap::Heap;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{Page, Vpn};
use farpage_ipc::conf::Conf;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Where the program's memory begins. Nothing is mapped there.
const BASE: usize = 0x1000_0000_0000;
/// Pages of a mapping, and between the starts of two.
const LEN: usize = 1024;
const APART: usize = 4096;
/// Mappings; their places are twice as many, so that there is room to move to.
const MAPPINGS: usize = 10;
/// Mappings that are full of content at the start: one and a half times the budget.
const FULL: usize = 6;

/// A program and its engine.
struct World {
    e: &'static Engine,
    pager: Box<Pager>,
    kernel: Fake,
    /// Where each mapping is.
    at: Vec<usize>,
    /// What each page holds, by mapping and page: a version; none: zeros.
    holds: BTreeMap<(usize, usize), u64>,
    /// Pages that are guards, by mapping and page.
    guards: BTreeSet<(usize, usize)>,
    versions: u64,
    random: u64,
}

/// The content of a version: a fifth is the same word all over, a fifth does not compress.
fn content(version: u64) -> Page {
    let mut page = [0u8; PAGE_SIZE];
    let mut x = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8) {
        match version % 5 {
            0 => {}
            1 => x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(version),
            _ => x = x.rotate_left(1) & 0xffff_0000 | version,
        }
        word.copy_from_slice(&x.to_ne_bytes());
    }
    page
}

impl World {
    fn new(seed: u64, conf: &str, refuse: u64) -> World {
        let heap: &'static Heap = Box::leak(Box::new(Heap::empty()));
        let conf = Conf::parse(&format!("ram:16777216;idle-poll:never;verify;quiet;{conf}")).unwrap();
        let arena = Arena::reserve(arena_sizes(conf.ram)).unwrap();
        let e = build(Box::leak(Box::new(StartPlan::for_test(conf, heap, arena)))).unwrap();
        // Where there are to be helpers, the test has made them ([`with_helpers`]).
        e.helpers.never.store(true, Relaxed);
        let kernel = Fake::new(seed, refuse, e.arena);
        let pager = pager_for_test(e, Box::new(kernel.clone()), Box::new(kernel.clone()));
        let at: Vec<usize> = (0..MAPPINGS).map(|i| BASE + i * APART * PAGE_SIZE).collect();
        let mut world =
            World { e, pager, kernel, at, holds: BTreeMap::new(), guards: BTreeSet::new(), versions: 0, random: seed };
        for i in 0..MAPPINGS {
            world.kernel.map(world.at[i], world.end(i));
            // Some pages are there before they are managed.
            for page in (0..LEN / 8).filter(|page| page % 3 == 0) {
                world.write(i, page);
            }
            world.adopt(i);
        }
        // More than the budget, so that from now on something is out.
        (0..FULL).for_each(|i| world.fill(i));
        world
    }

    fn draw(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) as usize % n
    }

    fn end(&self, i: usize) -> usize {
        self.at[i] + LEN * PAGE_SIZE
    }

    fn addr(&self, i: usize, page: usize) -> usize {
        self.at[i] + page * PAGE_SIZE
    }

    fn adopt(&mut self, i: usize) {
        self.pager.adoption.adopt_mappings(&mut self.pager.cx, self.at[i], self.at[i] + LEN * PAGE_SIZE);
        self.pager.adoption.advise_adopted(&self.pager.cx);
    }

    /// What monitor and writer do now and then.
    fn background(&mut self) {
        let pool = (self.e.space.pool_bytes() / PAGE_SIZE as u64) as i64;
        self.e.budget.sample(self.kernel.resident() as i64 + pool, self.e.budget.grown());
        writer::turn(self.e);
    }

    /// Turns until no thread waits.
    fn serve(&mut self, waiting: &[usize]) {
        for turn in 0..2000 {
            if self.kernel.is_quiet() && waiting.iter().all(|at| self.kernel.was_woken(*at)) {
                return;
            }
            self.pager.turn();
            if turn % 4 == 3 {
                self.background();
            }
        }
        let left: Vec<_> = waiting.iter().filter(|at| !self.kernel.was_woken(**at)).collect();
        panic!("left waiting: {left:x?}");
    }

    fn write(&mut self, i: usize, page: usize) {
        if self.is_guard(i, page) {
            return;
        }
        self.versions += 1;
        let (at, new) = (self.addr(i, page), content(self.versions));
        while !self.kernel.store(at, &new) {
            self.kernel.fault(at, true, 7);
            self.serve(&[at]);
        }
        self.holds.insert((i, page), self.versions);
    }

    fn fill(&mut self, i: usize) {
        for page in 0..LEN {
            self.write(i, page);
            if page % 64 == 0 {
                self.background();
            }
        }
    }

    fn read(&mut self, i: usize, page: usize) {
        if self.is_guard(i, page) {
            return;
        }
        let at = self.addr(i, page);
        let got = loop {
            if let Some(got) = self.kernel.load(at) {
                break got;
            }
            self.kernel.fault(at, false, 8);
            self.serve(&[at]);
        };
        let want = self.holds.get(&(i, page)).map_or([0; PAGE_SIZE], |version| content(*version));
        assert!(got == want, "mapping {i} page {page} came back wrong: {:?}", self.holds.get(&(i, page)));
    }

    /// Several threads have faults at once; one of them for a page that comes meanwhile.
    fn crowd(&mut self) {
        let threads = if self.draw(4) == 0 { 80 } else { 6 };
        let places: Vec<(usize, usize)> = (0..threads).map(|_| (self.draw(MAPPINGS), self.draw(LEN))).collect();
        let absent: Vec<usize> = (places.iter())
            .filter(|(i, page)| !self.is_guard(*i, *page))
            .map(|(i, page)| self.addr(*i, *page))
            .filter(|at| !self.kernel.is_there(*at))
            .collect();
        for (n, at) in absent.iter().enumerate() {
            self.kernel.fault(*at, false, 20 + n as u32);
        }
        self.serve(&absent);
        places.into_iter().for_each(|(i, page)| self.read(i, page));
    }

    /// Whether the page is a guard, which it is if it was made one.
    fn is_guard(&self, i: usize, page: usize) -> bool {
        let is_guard = self.guards.contains(&(i, page));
        assert_eq!(self.kernel.is_guard(self.addr(i, page)), is_guard, "mapping {i} page {page}");
        is_guard
    }

    /// As the preload library does it.
    fn guard(&mut self, i: usize, from: usize, to: usize) {
        let (e, start, end) = (self.e, self.addr(i, from), self.addr(i, to));
        self.kernel.guard(start, end);
        // Meanwhile others have faults around it.
        self.near(i, from, to);
        e.guarded(|| {
            self.kernel.discard(start, end);
            self.serve(&[]);
            self.near(i, from, to);
            self.kernel.guard(start, end);
        });
        self.forget(i, from, to);
        self.guards.extend((from..to).map(|page| (i, page)));
    }

    fn near(&mut self, i: usize, from: usize, to: usize) {
        let around = [from.wrapping_sub(1), to].into_iter().filter(|page| *page < LEN);
        around.for_each(|page| self.read(i, page));
    }

    fn forget(&mut self, i: usize, from: usize, to: usize) {
        self.holds.retain(|(mapping, page), _| *mapping != i || !(from..to).contains(page));
    }

    fn step(&mut self) {
        let (i, page) = (self.draw(MAPPINGS), self.draw(LEN));
        match self.draw(42) {
            0..=9 => self.write(i, page),
            10..=17 => self.read(i, page),
            18..=23 => (page..(page + 24).min(LEN)).for_each(|page| self.write(i, page)),
            24..=29 => (page..(page + 24).min(LEN)).for_each(|page| self.read(i, page)),
            30 | 31 => {
                let to = (page + 1 + self.draw(64)).min(LEN);
                self.kernel.discard(self.addr(i, page), self.addr(i, to));
                self.forget(i, page, to);
                self.serve(&[]);
            }
            32 => {
                // Twice: what was just adopted is replaced before the pager has looked at it.
                for _ in 0..2 {
                    self.kernel.replace(self.at[i], self.end(i));
                    self.forget(i, 0, LEN);
                    self.guards.retain(|(mapping, _)| *mapping != i);
                    (0..LEN / 2).for_each(|page| self.write(i, page));
                    self.serve(&[]);
                    self.adopt(i);
                }
                self.fill(i);
            }
            33 => {
                let to = (0..2 * MAPPINGS).map(|n| BASE + n * APART * PAGE_SIZE).find(|to| !self.at.contains(to));
                let to = to.unwrap();
                self.kernel.remap(self.at[i], self.end(i), to);
                self.at[i] = to;
                self.serve(&[]);
            }
            34 => {
                let stays = self.draw(2) == 0;
                let at = self.addr(i, page);
                self.kernel.lock_page(at, stays && self.kernel.is_there(at));
            }
            35 => self.kernel.share(self.addr(i, page), self.addr(i, (page + 100).min(LEN))),
            37 => self.kernel.share(BASE, BASE + 2 * MAPPINGS * APART * PAGE_SIZE),
            36 => {
                // A message that is older than what happened since.
                let at = self.addr(i, page);
                self.kernel.fault(at, false, 9);
                self.serve(&[at]);
            }
            38 => {
                let to = (page + 1 + self.draw(8)).min(LEN);
                self.guard(i, page, to);
            }
            39 => {
                self.kernel.unguard(self.at[i], self.end(i));
                self.guards.retain(|(mapping, _)| *mapping != i);
            }
            _ => self.crowd(),
        }
        self.background();
    }

    fn check_all(&mut self) {
        for i in 0..MAPPINGS {
            (0..LEN).for_each(|page| self.read(i, page));
        }
    }

    /// Each slot belongs to one page: one that is out, or in the program or the swap cache with a clean copy.
    fn check_slots(&self) {
        let e = self.e;
        e.free_pending(usize::MAX);
        let of_frames = e.slots.frame_entries.count() as u64;
        let known = e.table.swapped_pages() + e.table.copies() + of_frames;
        assert_eq!(e.space.usage().slots_in_use, known, "slots that no page has, or that two pages have");
    }

    /// Memory above the promise, in pages.
    fn over(&self) -> i64 {
        let pool = (self.e.space.pool_bytes() / PAGE_SIZE as u64) as i64;
        self.kernel.resident() as i64 + pool - self.e.budget.promised()
    }
}

/// The seeds to run: `SEED`, or these.
fn seeds(default: std::ops::Range<u64>) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => default.collect(),
    }
}

fn run(conf: &str, refuse: u64, steps: usize, seeds: Vec<u64>) {
    for seed in seeds {
        println!("seed {seed}");
        run_world(&mut World::new(seed, conf, refuse), steps);
    }
}

fn run_world(world: &mut World, steps: usize) {
    for _ in 0..steps {
        world.step();
        assert!(world.over() <= 0, "{} pages above the budget", world.over());
    }
    world.check_all();
    world.check_slots();
    let stat: &Stat = world.e.stat;
    assert!(stat.pswpin.load(Relaxed) > 100 && stat.pgsteal_anon.load(Relaxed) > 100, "nothing was swapped");
}

/// Runs this while two threads load pages beside the pager; it is told how many they have loaded.
fn with_helpers(e: &'static Engine, f: impl FnOnce(&AtomicU64)) {
    let (over, helped) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for tid in &e.helpers.tids[..2] {
            threads.spawn(|| {
                while !over.load(Relaxed) {
                    helped.fetch_add(helper::help(e), Relaxed);
                    std::thread::yield_now();
                }
            });
            tid.store(u32::MAX, Relaxed);
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&helped)));
        over.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn content_is_right_and_the_budget_holds() {
    run("swap:zram", 0, 400, seeds(1..4));
}

#[test]
fn so_it_is_while_the_kernel_refuses_now_and_then() {
    run("swap:zram", 5, 400, seeds(11..13));
}

#[test]
fn so_it_is_with_a_file_that_fails_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    run(&format!("swap:zram;swap:file:{},fault=3", dir.path().display()), 50, 300, seeds(21..23));
}

#[test]
fn so_it_is_while_faults_of_several_threads_are_served_with_helpers() {
    for seed in seeds(41..45) {
        println!("seed {seed}, by which the threads are not bound");
        let mut world = World::new(seed, "swap:zram;tune:helpers=2", [0, 5, 20, 50][seed as usize % 4]);
        with_helpers(world.e, |helped| {
            run_world(&mut world, 400);
            // On a busy machine they have hardly run.
            let more = (0..100).take_while(|_| helped.load(Relaxed) == 0).map(|_| run_world(&mut world, 20)).count();
            assert!(more < 100, "the pager has loaded all pages itself");
        });
    }
}

#[test]
fn full_devices_cost_the_budget_and_no_byte() {
    for seed in seeds(31..33) {
        println!("seed {seed}");
        let mut world = World::new(seed, "swap:zram,size=1M", 0);
        (0..600).for_each(|_| world.step());
        world.check_all();
        world.check_slots();
        assert!(world.e.stat.swap_full.load(Relaxed) > 0, "the device was never full");
    }
}

#[test]
fn faults_of_many_threads_are_not_tried_in_vain_before_a_change_is_read() {
    let mut world = World::new(61, "swap:zram", 0);
    let absent: Vec<usize> =
        (0..LEN).map(|page| world.addr(0, page)).filter(|at| !world.kernel.is_there(*at)).collect();
    assert!(absent.len() > 300);
    absent.iter().enumerate().for_each(|(n, at)| world.kernel.fault(*at, false, n as u32));
    while world.pager.read_messages() > 0 {}
    world.kernel.discard(world.addr(1, 0), world.addr(1, 1));
    let before = world.kernel.lock().refused;
    world.pager.serve_waiting();
    let refused = world.kernel.lock().refused - before;
    assert!(refused < absent.len() as u64 / 2, "{refused} of {}", absent.len());
    world.serve(&absent);
}

/// Two threads have faults at the same time, for pages chosen at random.
fn pair_of_faults(world: &mut World) {
    let mut places = [0; 2];
    while places[0] == places[1] || places.iter().any(|at| world.kernel.is_there(*at)) {
        places = places.map(|_| {
            let (i, page) = (world.draw(FULL), world.draw(LEN));
            world.addr(i, page)
        });
    }
    for (thread, at) in places.iter().enumerate() {
        world.kernel.fault(*at, false, 20 + thread as u32);
    }
    world.serve(&places);
}

#[test]
fn pages_leave_while_all_that_could_be_interrupted_sleep() {
    let mut world = World::new(91, "swap:zram", 0);
    // How many pages left the program while neither thread waited, one, and both.
    let pairs = |world: &mut World, n: usize| {
        world.kernel.lock().left = [0; 3];
        for n in 0..n {
            pair_of_faults(world);
            if n % 8 == 0 {
                world.background();
            }
        }
        world.kernel.lock().left
    };
    // What was filled in order leaves in runs.
    pairs(&mut world, 2500);
    let [none, one, both] = pairs(&mut world, 1000);
    assert!(both > 1000 && (none + one) * 10 < both, "{none} {one} {both}");
    // As many as come, so that the swap cache stays as long as it should be.
    assert!(none + one + both > 1900, "{none} {one} {both}");
    let SwapCache { cached, target, .. } = world.e.swap_cache();
    assert!(cached > target / 2, "{cached} of {target}");
    // While the writer works, no moment is better than another.
    world.e.fork.gates.writer.lock();
    let [none, one, both] = pairs(&mut world, 1000);
    world.e.fork.gates.writer.unlock();
    assert!(none > 1000 && (one + both) * 10 < none, "{none} {one} {both}");
    // A smaller budget does not wait for faults.
    world.e.budget.promise(3072);
    for _ in 0..90 {
        world.background();
        if world.over() <= 0 {
            return;
        }
        world.pager.turn();
    }
    panic!("{} pages above the budget", world.over());
}

/// Whatever is in the way of a page in the discard area is dropped with the others, wherever it lies.
#[test]
fn what_lies_in_the_discard_area_does_not_stay() {
    let mut world = World::new(61, "swap:zram", 0);
    let e = world.e;
    for place in [0, 5] {
        while e.frames.spent_count() < 40 {
            pair_of_faults(&mut world);
            let _ = store::write_some(e, 32, 32);
        }
        let at = (e.arena.discard_area.base + place * PAGE_SIZE) as *mut u8;
        // SAFETY: the area is mapped, and no thread gives frames back now.
        unsafe { at.write_volatile(1) };
        let (mut left, mut turns) = (e.frames.spent_count(), 0);
        while left > 0 {
            store::release_unused(e);
            (left, turns) = (e.frames.spent_count(), turns + 1);
            assert!(turns < 4, "{left} frames cannot be given back: a page lies at place {place}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { at.read_volatile() }, 0, "place {place}");
    }
}

/// From its clone on, before `pthread_create` has told where it is, and afterwards.
#[test]
fn the_control_block_of_a_thread_that_is_being_started_stays() {
    const STACK: usize = 16;
    let mut world = World::new(71, "swap:zram", 0);
    let e = world.e;
    let start = BASE + 2 * MAPPINGS * APART * PAGE_SIZE;
    let end = start + STACK * PAGE_SIZE;
    let is_there = |world: &World, page: usize| world.kernel.is_there(start + page * PAGE_SIZE);
    let mut handle = 0usize;
    let begun = ThreadStart::begin(std::ptr::from_ref(&handle).addr());
    world.kernel.map(start, end);
    (0..STACK).for_each(|page| assert!(world.kernel.store(start + page * PAGE_SIZE, &content(1))));
    world.pager.adoption.adopt_mappings(&mut world.pager.cx, start, end);
    // SAFETY: a local variable; the pager reads it through `/proc/self/mem`.
    unsafe { std::ptr::from_mut(&mut handle).write_volatile(end - 0x940) };
    (0..FULL).for_each(|i| world.fill(i));
    assert!(is_there(&world, STACK - 1) && !is_there(&world, 0));
    e.thread_started(end - 0x940);
    drop(begun);
    (0..FULL).for_each(|i| world.fill(i));
    assert!(is_there(&world, STACK - 1));
    world.check_all();
}

/// Faults of so many threads, for pages that are out and have no neighbours that are wanted, are read and served in
/// one pass; how many threads are left waiting, and how often some were woken by themselves. `between`: what
/// happens once they are read.
fn pass(world: &mut World, threads: usize, between: impl Fn(&mut World)) -> (usize, u64) {
    let out = |at: &usize| world.e.table.swapped(Vpn::of(*at)).is_some();
    let absent: Vec<usize> =
        (0..FULL * LEN).step_by(61).map(|n| world.addr(n / LEN, n % LEN)).filter(out).take(threads).collect();
    assert_eq!(absent.len(), threads);
    absent.iter().enumerate().for_each(|(n, at)| world.kernel.fault(*at, false, 20 + n as u32));
    world.kernel.lock().wakes = 0;
    while world.pager.read_messages() > 0 && !world.pager.read_all {}
    between(world);
    world.pager.serve_waiting();
    let waiting = absent.iter().filter(|at| !world.kernel.was_woken(**at)).count();
    (waiting, world.kernel.lock().wakes)
}

#[test]
fn many_threads_are_woken_at_once_and_few_one_by_one() {
    let mut world = World::new(81, "swap:zram", 0);
    let majors = || world.e.stat.pgmajfault.load(Relaxed);
    let before = majors();
    world.e.budget.promise(1 << 20);
    assert_eq!(pass(&mut world, 5, |_| {}), (0, 0), "each with its page");
    assert_eq!(pass(&mut world, 24, |_| {}), (0, 1), "one look at all that wait");
    assert_eq!(majors() - before, 29);
    // While a change is pending, no thread is woken in vain.
    let change = |world: &mut World| world.kernel.discard(world.addr(FULL, 0), world.addr(FULL, 1));
    assert_eq!(pass(&mut world, 12, change), (12, 0));
    world.forget(FULL, 0, 1);
    world.check_all();
    world.check_slots();
}

#[test]
fn waiting_is_counted_from_the_message_on_and_by_thread() {
    let mut world = World::new(51, "swap:zram", 0);
    let stat = world.e.stat;
    let counted = || (stat.fault_wait_ns.load(Relaxed), stat.fault_threads.load(Relaxed), stat.pgfault.load(Relaxed));
    let before = counted();
    assert!(before.0 > 0 && before.1 == 1, "{before:?}");
    let at = world.addr(0, LEN / 2);
    let pause = std::time::Duration::from_millis(5);
    world.kernel.fault(at, false, 8);
    assert_eq!(world.pager.read_messages(), 1);
    std::thread::sleep(pause);
    world.serve(&[at]);
    let after = counted();
    assert_eq!((after.1, after.2), (2, before.2 + 1));
    assert!(after.0 - before.0 >= pause.as_nanos() as u64, "{before:?} {after:?}");
}

#[test]
fn what_was_let_go_and_is_taken_back_is_managed_again() {
    // Soon after its beginning, and when all was let go.
    for all in [false, true] {
        let mut world = World::new(71, "swap:zram", 0);
        let e = world.e;
        let (promised, out) = (e.budget.promised(), e.table.swapped_pages());
        e.budget.promise(1 << 40);
        e.stage.detaching.store(true, SeqCst);
        let is_far = || if all { e.stage.let_go.load(SeqCst) } else { e.table.swapped_pages() < out / 2 };
        while !is_far() {
            world.pager.turn();
        }
        e.stage.detaching.store(false, SeqCst);
        world.pager.turn();
        assert!(!e.stage.let_go.load(SeqCst));
        if all {
            assert_eq!(lock(&e.memory.managed).iter().count(), 0);
            (0..MAPPINGS).for_each(|i| world.adopt(i));
        }
        // What is on no list stays, however small the budget is.
        for budget in [promised, promised / 2] {
            e.budget.promise(budget);
            for _ in 0..2000 {
                world.pager.turn();
                world.background();
            }
            assert!(world.over() <= 0, "{} pages above the budget", world.over());
        }
        e.budget.promise(promised);
        world.check_all();
        world.check_slots();
    }
}
