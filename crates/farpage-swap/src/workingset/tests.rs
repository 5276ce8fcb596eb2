//! A memory of fixed size under the policy, against plain least-recently-used order: by counts of faults.

use super::*;
use std::cell::Cell;

struct Store(Vec<[Cell<u32>; 2]>);

impl Links for Store {
    fn prev(&self, n: u32) -> u32 {
        self.0[n as usize][0].get()
    }
    fn next(&self, n: u32) -> u32 {
        self.0[n as usize][1].get()
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.0[n as usize][0].set(to);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.0[n as usize][1].set(to);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum At {
    New,
    Mapped(bool),
    Cached,
    Out(Shadow),
}

/// A memory for `size` pages, a sixteenth of it cached, as the engine has it.
struct Memory {
    set: WorkingSet,
    links: Store,
    at: Vec<At>,
    size: u32,
    major: u64,
    minor: u64,
}

impl Memory {
    fn new(pages: usize, size: u32) -> Memory {
        let links = Store((0..pages).map(|_| Default::default()).collect());
        Memory { set: WorkingSet::new(), links, at: vec![At::New; pages], size, major: 0, minor: 0 }
    }

    fn touch(&mut self, n: u32) {
        let hot = match self.at[n as usize] {
            At::Mapped(_) => return,
            At::New => false,
            At::Cached => {
                self.minor += 1;
                self.set.uncache(&self.links, n);
                true
            }
            At::Out(shadow) => {
                self.major += 1;
                self.set.is_near(shadow)
            }
        };
        self.set.map(&self.links, n, hot);
        self.at[n as usize] = At::Mapped(hot);
        while self.set.mapped() + self.set.cached() > self.size || self.set.cached() < self.size / 16 {
            if self.set.mapped() + self.set.cached() <= self.size && self.set.mapped() < self.size / 2 {
                break;
            }
            let mut oldest = [0];
            if self.set.cached() < self.size / 16 && self.set.oldest(&self.links, &mut oldest) == 1 {
                let At::Mapped(hot) = self.at[oldest[0] as usize] else { panic!("{oldest:?} is not mapped") };
                self.set.cache(&self.links, oldest[0], hot);
                self.at[oldest[0] as usize] = At::Cached;
                continue;
            }
            let (n, shadow) = self.set.depart(&self.links).unwrap();
            assert_eq!(self.at[n as usize], At::Cached);
            self.at[n as usize] = At::Out(shadow);
        }
    }
}

/// Major faults of exact least-recently-used order (first touches not counted).
fn lru_faults(size: usize, trace: &[u32]) -> u64 {
    let pages = *trace.iter().max().unwrap() as usize + 1;
    let mut order = List::new();
    let links = Store((0..pages).map(|_| Default::default()).collect());
    let (mut inside, mut seen, mut faults) = (vec![false; pages], vec![false; pages], 0);
    for &n in trace {
        if inside[n as usize] {
            order.move_to_front(&links, n);
            continue;
        }
        faults += u64::from(std::mem::replace(&mut seen[n as usize], true));
        order.push_front(&links, n);
        inside[n as usize] = true;
        if order.len() as usize > size {
            inside[order.pop_back(&links).unwrap() as usize] = false;
        }
    }
    faults
}

fn run(size: u32, trace: &[u32]) -> (u64, u64) {
    let mut memory = Memory::new(*trace.iter().max().unwrap() as usize + 1, size);
    trace.iter().for_each(|&n| memory.touch(n));
    (memory.major, memory.minor)
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

#[test]
fn a_pass_over_much_data_leaves_the_hot_set_alone() {
    // Half of the memory is hot and touched at random; between, four times the memory is read once.
    let (size, mut seed) = (4096, 1);
    let mut memory = Memory::new(2048 + 4 * 4096, size);
    let mut hot = |memory: &mut Memory, n: usize| {
        (0..n).for_each(|_| memory.touch((random(&mut seed) % 2048) as u32));
    };
    hot(&mut memory, 40_000);
    (2048..2048 + 3 * 4096).for_each(|n| {
        memory.touch(n);
        hot(&mut memory, 4);
    });
    let before = memory.major;
    (2048..2048 + 4 * 4096).for_each(|n| {
        memory.touch(n);
        hot(&mut memory, 4);
    });
    let hot_faults = memory.major - before - 3 * 4096;
    assert!(hot_faults < 2048 / 20, "the pass cost {hot_faults} faults on hot pages");
}

#[test]
fn a_loop_larger_than_memory_keeps_a_part_of_itself() {
    let trace: Vec<u32> = (0..20).flat_map(|_| 0..6000).collect();
    let (ours, lru) = (run(4096, &trace).0, lru_faults(4096, &trace));
    assert_eq!(lru, 19 * 6000, "least recently used always fails here");
    assert!(ours < lru * 3 / 4, "{ours} of {lru}");
}

#[test]
fn skewed_access_is_about_as_good_as_least_recently_used() {
    let mut seed = 7;
    // A rough power law: page n is touched about 1/n as often as page 1.
    let trace: Vec<u32> = (0..400_000)
        .map(|_| ((16384f64.powf(random(&mut seed) as f64 / (1u64 << 31) as f64)) as u32).wrapping_mul(7919) % 16384)
        .collect();
    let ((major, _), lru) = (run(4096, &trace), lru_faults(4096, &trace));
    assert!(major * 10 <= lru * 11, "{major} against {lru}");
}

#[test]
fn a_new_hot_set_replaces_the_old_one() {
    let (mut memory, mut seed) = (Memory::new(8192, 4096), 3);
    let mut phase = |memory: &mut Memory, from: u32| {
        let before = memory.major;
        (0..100_000).for_each(|_| memory.touch(from + (random(&mut seed) % 3000) as u32));
        memory.major - before
    };
    phase(&mut memory, 0);
    phase(&mut memory, 5000);
    let back = phase(&mut memory, 0);
    assert!(back < 3 * 3000, "{back} faults until the hot set was in memory again");
    let again = phase(&mut memory, 0);
    assert!(again < 300, "{again} faults with a hot set that fits");
}

#[test]
fn oldest_names_each_page_once() {
    let links = Store((0..300).map(|_| Default::default()).collect());
    let mut set = WorkingSet::new();
    (0..100).for_each(|n| set.map(&links, n, false));
    (100..130).for_each(|n| set.map(&links, n, true));
    let mut out = [0; 300];
    let n = set.oldest(&links, &mut out);
    assert_eq!(n, 130);
    let mut seen: Vec<u32> = out[..n].to_vec();
    seen.sort_unstable();
    assert_eq!(seen, (0..130).collect::<Vec<_>>());
    // Probation above its share first, oldest first; then main; then the rest.
    assert_eq!((out[0], out[35], out[36], out[65], out[66]), (0, 35, 100, 129, 36));
}
