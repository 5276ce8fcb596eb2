//! What the real allocator is compared with: the same clusters, lists and search order under one device lock; and the
//! same with 64 slots cached per thread on both sides, as kernels up to 6.12 did it. Kept for the bench only.

use super::{Block, Fallback, Slots, clusters_of};
use farpage_swap::cluster::CLUSTER_SLOTS;
use farpage_swap::lock::{Lock, Meter, Site};
use farpage_swap::table::{BITMAP, find_block};

const ORDERS: usize = farpage_swap::cluster::ORDERS;
const NIL: u32 = u32::MAX;
/// Slots that a thread keeps, on each side.
const CACHE: usize = 64;

pub static ALLOC: Site = Site { index: 24, lock: "device", name: "single: alloc" };
pub static FREE: Site = Site { index: 25, lock: "device", name: "single: free" };
pub static REFILL: Site = Site { index: 26, lock: "device", name: "cache: refill, large alloc" };
pub static FLUSH: Site = Site { index: 27, lock: "device", name: "cache: flush, large free" };
/// The sites of this file.
pub static SITES: [&Site; 4] = [&ALLOC, &FREE, &REFILL, &FLUSH];

struct Cluster {
    used: [u64; BITMAP],
    prev: u32,
    next: u32,
    count: u16,
    order: u8,
    list: u8,
}

/// All state of the device.
struct Device {
    clusters: Vec<Cluster>,
    /// References of each slot, a byte each, as kernels without a swap table keep them.
    map: Vec<u8>,
    heads: [(u32, u32); 2 + 2 * ORDERS],
    hints: Vec<[u64; ORDERS]>,
}

const FREE_LIST: u8 = 0;
const FULL_LIST: u8 = 1;

fn nonfull(order: u8) -> u8 {
    2 + order
}

fn frag(order: u8) -> u8 {
    2 + ORDERS as u8 + order
}

impl Device {
    fn new(clusters: usize, cpus: usize) -> Device {
        let mut device = Device {
            clusters: Vec::new(),
            map: vec![0; clusters * CLUSTER_SLOTS],
            heads: [(NIL, NIL); 2 + 2 * ORDERS],
            hints: Vec::new(),
        };
        device.hints.resize(cpus, [0; ORDERS]);
        for i in 0..clusters {
            // Slot 0 is the header.
            let (used, count, list) = if i == 0 { (1, 1, nonfull(0)) } else { (0, 0, FREE_LIST) };
            let mut bits = [0; BITMAP];
            bits[0] = used;
            device.clusters.push(Cluster { used: bits, prev: NIL, next: NIL, count, order: 0, list });
            device.push(i as u32, list);
        }
        device
    }

    fn push(&mut self, index: u32, list: u8) {
        let (head, tail) = &mut self.heads[usize::from(list)];
        let last = std::mem::replace(tail, index);
        if last == NIL {
            *head = index;
        } else {
            self.clusters[last as usize].next = index;
        }
        let cluster = &mut self.clusters[index as usize];
        (cluster.prev, cluster.next, cluster.list) = (last, NIL, list);
    }

    fn relocate(&mut self, index: u32, to: u8) {
        let Cluster { prev, next, list, .. } = self.clusters[index as usize];
        if list == to {
            return;
        }
        if prev == NIL {
            self.heads[usize::from(list)].0 = next
        } else {
            self.clusters[prev as usize].next = next
        }
        if next == NIL {
            self.heads[usize::from(list)].1 = prev
        } else {
            self.clusters[next as usize].prev = prev
        }
        self.push(index, to);
    }

    fn scan(&mut self, cpu: usize, index: u32, from: usize, order: u8) -> Option<u64> {
        let n = 1 << order;
        let cluster = &mut self.clusters[index as usize];
        if cluster.list == FULL_LIST || (order > 0 && cluster.count > 0 && cluster.order != order) {
            return None;
        }
        let Some(at) = find_block(&cluster.used, from, usize::from(order)) else {
            let to = frag(cluster.order);
            self.relocate(index, to);
            return None;
        };
        if cluster.count == 0 {
            cluster.order = order;
        }
        (at..at + n).for_each(|at| cluster.used[at / 64] |= 1 << (at % 64));
        cluster.count += n as u16;
        let first = index as usize * CLUSTER_SLOTS + at;
        self.map[first..first + n].fill(1);
        let (full, to) = (usize::from(cluster.count) == CLUSTER_SLOTS, frag(cluster.order));
        self.relocate(index, if full { FULL_LIST } else { to });
        let base = u64::from(index) * CLUSTER_SLOTS as u64;
        self.hints[cpu][usize::from(order)] = if full || at + n >= CLUSTER_SLOTS { 0 } else { base + (at + n) as u64 };
        Some(base + at as u64)
    }

    fn alloc(&mut self, cpu: usize, order: u8) -> Option<u64> {
        let hint = self.hints[cpu][usize::from(order)];
        if hint != 0 {
            let index = (hint / CLUSTER_SLOTS as u64) as u32;
            if let Some(slot) = self.scan(cpu, index, (hint % CLUSTER_SLOTS as u64) as usize, order) {
                return Some(slot);
            }
        }
        while self.heads[usize::from(nonfull(order))].0 != NIL {
            if let Some(slot) = self.scan(cpu, self.heads[usize::from(nonfull(order))].0, 0, order) {
                return Some(slot);
            }
        }
        let mut lists = vec![FREE_LIST, frag(order)];
        if order == 0 {
            lists.extend((1..ORDERS as u8).flat_map(|k| [frag(k), nonfull(k)]));
        }
        lists.into_iter().find_map(|list| {
            let head = self.heads[usize::from(list)].0;
            if head == NIL {
                return None;
            }
            let found = self.scan(cpu, head, 0, order);
            if found.is_none() && list == frag(order) {
                // One of them a search, another one next time.
                let (old, list) = (head, frag(order));
                self.relocate(old, FULL_LIST);
                self.relocate(old, list);
            }
            found
        })
    }

    fn free(&mut self, slot: u64, n: usize) {
        let index = (slot / CLUSTER_SLOTS as u64) as u32;
        let at = (slot % CLUSTER_SLOTS as u64) as usize;
        if self.map[slot as usize..slot as usize + n].iter().any(|&count| count != 1) {
            return;
        }
        self.map[slot as usize..slot as usize + n].fill(0);
        let cluster = &mut self.clusters[index as usize];
        (at..at + n).for_each(|at| cluster.used[at / 64] &= !(1 << (at % 64)));
        cluster.count -= n as u16;
        let to = if cluster.count == 0 { FREE_LIST } else { nonfull(cluster.order) };
        if cluster.count == 0 {
            cluster.order = 0;
        }
        self.relocate(index, to);
    }

    fn clusters_in_use(&self) -> u64 {
        self.clusters.iter().filter(|cluster| cluster.count > 0).count() as u64
    }
}

/// One lock for everything.
pub struct Single<M: Meter>(Lock<Device, M>);

impl<M: Meter> Single<M> {
    pub fn new(slots: u64, cpus: usize) -> Single<M> {
        Single(Lock::new(Device::new(clusters_of(slots), cpus)))
    }
}

impl<M: Meter> Slots for Single<M> {
    type Local = ();
    const FALLBACK: Fallback = Fallback::Single;

    fn local(&self) {}

    fn alloc(&self, _: &mut (), cpu: usize, order: u8) -> Option<Block> {
        self.0.lock(&ALLOC).alloc(cpu, order).map(|slot| Block { slot, order })
    }

    fn free(&self, _: &mut (), block: Block) {
        self.0.lock(&FREE).free(block.slot, 1 << block.order);
    }

    fn clusters_in_use(&self) -> u64 {
        self.0.lock(&FREE).clusters_in_use()
    }
}

/// One lock, and a cache of slots per thread.
pub struct Cached<M: Meter>(Lock<Device, M>);

/// A thread's slots: taken and not used yet, given back and not freed yet.
#[derive(Default)]
pub struct Cache {
    ready: Vec<u64>,
    freed: Vec<u64>,
}

impl<M: Meter> Cached<M> {
    pub fn new(slots: u64, cpus: usize) -> Cached<M> {
        Cached(Lock::new(Device::new(clusters_of(slots), cpus)))
    }
}

impl<M: Meter> Slots for Cached<M> {
    type Local = Cache;
    const FALLBACK: Fallback = Fallback::Single;

    fn local(&self) -> Cache {
        Cache::default()
    }

    fn alloc(&self, cache: &mut Cache, cpu: usize, order: u8) -> Option<Block> {
        if order > 0 {
            return self.0.lock(&REFILL).alloc(cpu, order).map(|slot| Block { slot, order });
        }
        if cache.ready.is_empty() {
            let mut device = self.0.lock(&REFILL);
            while cache.ready.len() < CACHE {
                let Some(slot) = device.alloc(cpu, 0) else { break };
                cache.ready.push(slot);
            }
            drop(device);
            cache.ready.reverse();
        }
        let slot = cache.ready.pop().or_else(|| cache.freed.pop())?;
        Some(Block { slot, order })
    }

    fn free(&self, cache: &mut Cache, block: Block) {
        if block.order > 0 {
            self.0.lock(&FLUSH).free(block.slot, 1 << block.order);
            return;
        }
        cache.freed.push(block.slot);
        if cache.freed.len() >= CACHE {
            let mut device = self.0.lock(&FLUSH);
            cache.freed.drain(..).for_each(|slot| device.free(slot, 1));
        }
    }

    fn finish(&self, cache: Cache) {
        let mut device = self.0.lock(&FLUSH);
        cache.freed.into_iter().chain(cache.ready).for_each(|slot| device.free(slot, 1));
    }

    fn clusters_in_use(&self) -> u64 {
        self.0.lock(&FLUSH).clusters_in_use()
    }
}
