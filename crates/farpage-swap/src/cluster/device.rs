//! One device: its clusters, its lists, and the two steps that move clusters between them.
//!
//! Callers: the rest of `cluster`. The device lock (`lists`) is inside a cluster's lock; `isolate` goes the other way
//! and therefore only tries. A cluster's flag changes under both, so it equals the list whenever either is free to
//! take.
//!
//! Clusters come into being in order, when the free list is empty: a device costs nothing for what was never used.

use super::live::Live;
use super::ready::Ready;
use super::usage::Usage;
use super::{CLUSTER_SLOTS, Cluster, Flag, NIL, ORDERS, State};
use crate::chunked::Chunked;
use crate::lock::{Guard, Lock, Meter, Site, sites};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::table::{TablePool, Word};
use std::collections::BTreeMap;

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

/// Number of a list.
type ListId = usize;
const FREE: ListId = 0;
const FULL: ListId = 1;
const DISCARD: ListId = 2;
const LISTS: usize = 3 + 2 * ORDERS;

/// The list for a flag and order.
fn list_of(flag: Flag, order: u8) -> Option<ListId> {
    match flag {
        Flag::None | Flag::Discarding => None,
        Flag::Free => Some(FREE),
        Flag::Full | Flag::Holes => Some(FULL),
        Flag::Discard => Some(DISCARD),
        Flag::Nonfull => Some(3 + usize::from(order)),
        Flag::Frag => Some(3 + ORDERS + usize::from(order)),
    }
}

/// What the device lock protects: the lists' ends and, through them, the clusters' links.
pub(super) struct Lists {
    lists: [List; LISTS],
    /// Clusters that exist: those below.
    pub(super) fresh: u32,
    /// Slots of the device, the header included.
    pub(super) limit: u64,
    /// Slots that must not be used, in ascending order.
    pub(super) bad: Vec<u64>,
}

/// A device. Its record is never freed, so a late reader always finds a device, though perhaps another one.
pub(super) struct Device<M: Meter> {
    pub(super) index: u8,
    pub(super) clusters: Chunked<Cluster<M>>,
    pub(super) lists: Lock<Lists, M>,
    /// Lengths of the lists, written under the device lock; read without it to pass over empty ones.
    lens: [AtomicU32; LISTS],
    /// Every cluster of the device exists. Written under the device lock.
    pub(super) all_made: AtomicBool,
    /// The last search for a larger block found none, not even an empty cluster: single slots are packed tightly.
    pub(super) short_of_blocks: AtomicBool,
    pub(super) usage: Usage,
    /// New slots may be given out. Cleared under the avail lock; seen by every thread that then takes a cluster's lock.
    pub(super) writable: AtomicBool,
    pub(super) rotational: AtomicBool,
    pub(super) discard: AtomicBool,
    /// As an i32; for the thread that puts it back on the list.
    pub(super) priority: AtomicU32,
    pub(super) live: Live,
    /// Clusters of the full list that have free slots; clusters of any list with pieces of larger blocks.
    pub(super) ready: Ready,
    /// Lazily freed slots: the sum over the clusters, so that no thread looks for them where there are none.
    pub(super) lazy: AtomicU64,
    /// Frees that met a lock, so far; and how many of them were certainly carried out at the last look.
    pub(super) left: AtomicU64,
    pub(super) carried_out: AtomicU64,
    /// Full clusters that the background worker has still to look into.
    pub(super) reclaim_left: AtomicU32,
    /// Where a rotational device goes on, per order.
    pub(super) next: Lock<[u64; ORDERS], M>,
    /// Counts that do not fit their words, by slot.
    pub(super) many: Lock<BTreeMap<u64, u64>, M>,
}

/// A cluster that was taken, locked.
pub(super) struct Taken<'a, M: Meter> {
    pub(super) index: u32,
    pub(super) cluster: &'a Cluster<M>,
    pub(super) state: Guard<'a, State, M>,
}

impl<M: Meter> Device<M> {
    pub(super) fn new(index: u8) -> Device<M> {
        Device {
            index,
            clusters: Chunked::new(),
            lists: Lock::new(Lists::new()),
            lens: std::array::from_fn(|_| AtomicU32::new(0)),
            all_made: AtomicBool::new(false),
            short_of_blocks: AtomicBool::new(false),
            usage: Usage::new(),
            writable: AtomicBool::new(false),
            rotational: AtomicBool::new(false),
            discard: AtomicBool::new(false),
            priority: AtomicU32::new(0),
            live: Live::dead(),
            ready: Ready::new(),
            lazy: AtomicU64::new(0),
            left: AtomicU64::new(0),
            carried_out: AtomicU64::new(0),
            reclaim_left: AtomicU32::new(0),
            next: Lock::new([0; ORDERS]),
            many: Lock::new(BTreeMap::new()),
        }
    }

    #[inline]
    pub(super) fn cluster(&self, index: u32) -> Option<&Cluster<M>> {
        self.clusters.get(index as usize)
    }

    /// Takes the first cluster of list (`from`, `order`) whose lock is free and moves it to the tail of (`to`,
    /// `order`). `None`: there is none, or all are busy.
    pub(super) fn isolate(&self, from: Flag, order: u8, to: Flag) -> Option<Taken<'_, M>> {
        let (Some(from), Some(to_list)) = (list_of(from, order), list_of(to, order)) else { return None };
        if self.looks_empty(from) {
            return None;
        }
        let mut lists = self.lists.lock(&sites::DEVICE_ISOLATE);
        let mut taken = self.first_unlocked(&lists, from)?;
        self.unlink(&mut lists, from, taken.index);
        self.push(&mut lists, to_list, taken.index);
        drop(lists);
        taken.state.flag = to;
        taken.state.order = order;
        Some(taken)
    }

    /// Takes the first cluster of the full list and puts it at the tail, as it is.
    pub(super) fn isolate_full(&self) -> Option<Taken<'_, M>> {
        if self.looks_empty(FULL) {
            return None;
        }
        let mut lists = self.lists.lock(&sites::DEVICE_ISOLATE);
        let taken = self.first_unlocked(&lists, FULL)?;
        self.unlink(&mut lists, FULL, taken.index);
        self.push(&mut lists, FULL, taken.index);
        Some(taken)
    }

    /// Takes a cluster of the full list that has free slots and serves `order`, and moves it to frag. Looks at `visits`
    /// clusters at most; those that do not fit go to the tail, and `passed` hears of those of them that it had locked.
    pub(super) fn isolate_few(
        &self,
        order: u8,
        visits: u32,
        passed: impl Fn(&Cluster<M>, u32),
    ) -> Option<Taken<'_, M>> {
        /// Clusters that one hold of the device lock looks at.
        const STEP: u32 = 32;
        let mut left = visits;
        while left > 0 && !self.looks_empty(FULL) {
            let mut seen = [NIL; STEP as usize];
            let mut lists = self.lists.lock(&sites::DEVICE_FEW);
            let mut found = None;
            for seen in seen.iter_mut().take(left as usize) {
                let index = lists.lists[FULL].head;
                let cluster = self.cluster(index)?;
                self.unlink(&mut lists, FULL, index);
                let state = cluster.state.try_lock(&sites::CLUSTER_ISOLATE);
                let fits =
                    |state: &Guard<'_, State, M>| state.flag == Flag::Holes && (order == 0 || state.order == order);
                match state.filter(fits) {
                    Some(mut state) => {
                        state.flag = Flag::Frag;
                        self.push(&mut lists, list_of(Flag::Frag, state.order)?, index);
                        found = Some(Taken { index, cluster, state });
                        break;
                    }
                    None => self.push(&mut lists, FULL, index),
                }
                *seen = index;
            }
            drop(lists);
            seen.into_iter()
                .filter_map(|index| Some((self.cluster(index)?, index)))
                .for_each(|(c, index)| passed(c, index));
            if found.is_some() {
                return found;
            }
            left = left.saturating_sub(STEP);
        }
        None
    }

    /// Takes a discard cluster off its list; its flag says that its discard is running.
    pub(super) fn isolate_discard(&self) -> Option<u32> {
        let from = list_of(Flag::Discard, 0)?;
        if self.looks_empty(from) {
            return None;
        }
        let mut lists = self.lists.lock(&sites::DEVICE_ISOLATE);
        let mut taken = self.first_unlocked(&lists, from)?;
        self.unlink(&mut lists, from, taken.index);
        drop(lists);
        taken.state.flag = Flag::Discarding;
        Some(taken.index)
    }

    /// Whether a list was empty a moment ago.
    fn looks_empty(&self, list: ListId) -> bool {
        self.lens[list].load(Ordering::Relaxed) == 0
    }

    fn first_unlocked(&self, lists: &Lists, list: ListId) -> Option<Taken<'_, M>> {
        let mut index = lists.lists[list].head;
        while index != NIL {
            let cluster = self.cluster(index)?;
            if let Some(state) = cluster.state.try_lock(&sites::CLUSTER_ISOLATE) {
                debug_assert_eq!(list_of(state.flag, state.order), Some(list));
                return Some(Taken { index, cluster, state });
            }
            index = cluster.links.get(lists).1;
        }
        None
    }

    /// Takes a cluster that was never used: its bad slots are marked, and it is on the list that its count asks for,
    /// with `order` if it is empty. `None`: every cluster exists.
    pub(super) fn take_fresh(&self, order: u8, pool: &TablePool<M>) -> Option<Taken<'_, M>> {
        loop {
            if self.all_made.load(Ordering::Relaxed) {
                return None;
            }
            // The records are made before the lock is taken.
            let index = {
                let lists = self.lists.lock(&sites::DEVICE_ISOLATE);
                if u64::from(lists.fresh) * CLUSTER_SLOTS as u64 >= lists.limit {
                    self.all_made.store(true, Ordering::Relaxed);
                    return None;
                }
                lists.fresh
            };
            self.clusters.ensure(index as usize, Cluster::new);
            let cluster = self.cluster(index)?;
            let table = pool.take();
            let mut lists = self.lists.lock(&sites::DEVICE_ISOLATE);
            let base = u64::from(index) * CLUSTER_SLOTS as u64;
            let mut taken = None;
            let beyond = base >= lists.limit;
            if lists.fresh == index && !beyond {
                taken = cluster.state.try_lock(&sites::CLUSTER_ISOLATE);
            }
            let Some(mut state) = taken else {
                let changed = lists.fresh != index;
                drop(lists);
                pool.give(table);
                // Another thread took this one, or has its lock for a moment (a resize, which will not need it again).
                if changed { continue } else { return None }
            };
            lists.fresh += 1;
            cluster.attach(&mut state, table);
            let end = lists.limit - base;
            let first_bad = lists.bad.get(lists.bad.partition_point(|&slot| slot < base));
            let any_bad = first_bad.is_some_and(|&slot| slot < base + CLUSTER_SLOTS as u64);
            if let (true, Some(table)) = (any_bad || index == 0 || end < CLUSTER_SLOTS as u64, &mut state.table) {
                let mut count = 0;
                for at in 0..CLUSTER_SLOTS {
                    let slot = base + at as u64;
                    if slot == 0 || at as u64 >= end || lists.bad.binary_search(&slot).is_ok() {
                        table.set(at, Word::BAD);
                        count += 1;
                    }
                }
                state.count = count;
            }
            state.order = if state.count == 0 { order } else { 0 };
            state.flag = match usize::from(state.count) {
                // Nothing but bad slots.
                CLUSTER_SLOTS => Flag::Full,
                _ if state.order != order => Flag::Nonfull,
                _ => Flag::Frag,
            };
            let (flag, now) = (state.flag, state.order);
            if let Some(list) = list_of(flag, now) {
                self.push(&mut lists, list, index);
            }
            drop(lists);
            if flag == Flag::Frag {
                return Some(Taken { index, cluster, state });
            }
        }
    }

    /// Puts a locked cluster at the tail of the list for `to`, unless it is on that list.
    pub(super) fn relocate(&self, index: u32, state: &mut State, to: Flag, site: &'static Site) {
        if list_of(state.flag, state.order) == list_of(to, state.order) {
            state.flag = to;
        } else {
            let mut lists = self.lists.lock(site);
            self.relocate_locked(&mut lists, index, state, to);
        }
    }

    /// The same for a cluster that became full, and takes the next one of nonfull\[order\] in the same hold of the
    /// device lock.
    pub(super) fn relocate_full_and_isolate(&self, index: u32, state: &mut State, order: u8) -> Option<Taken<'_, M>> {
        let (Some(from), Some(to)) = (list_of(Flag::Nonfull, order), list_of(Flag::Frag, order)) else { return None };
        if self.looks_empty(from) {
            self.relocate(index, state, Flag::Full, &sites::DEVICE_NEXT);
            return None;
        }
        let mut lists = self.lists.lock(&sites::DEVICE_NEXT);
        self.relocate_locked(&mut lists, index, state, Flag::Full);
        let mut taken = self.first_unlocked(&lists, from)?;
        self.unlink(&mut lists, from, taken.index);
        self.push(&mut lists, to, taken.index);
        taken.state.flag = Flag::Frag;
        Some(taken)
    }

    fn relocate_locked(&self, lists: &mut Lists, index: u32, state: &mut State, to: Flag) {
        let (from, list) = (list_of(state.flag, state.order), list_of(to, state.order));
        if from != list {
            from.into_iter().for_each(|from| self.unlink(lists, from, index));
            list.into_iter().for_each(|list| self.push(lists, list, index));
        }
        state.flag = to;
    }

    /// An empty cluster gives up its table and its order, and goes to the free or the discard list.
    pub(super) fn emptied(&self, index: u32, state: &mut State, pool: &TablePool<M>) {
        let Some(cluster) = self.cluster(index) else { return };
        let table = cluster.detach(state);
        state.leave();
        let discard = self.discard.load(Ordering::Relaxed) && self.writable.load(Ordering::Relaxed);
        self.relocate(index, state, if discard { Flag::Discard } else { Flag::Free }, &sites::DEVICE_RELOCATE);
        state.order = 0;
        table.into_iter().for_each(|table| pool.give(table));
    }

    /// Books `n` more lazily freed slots of a locked cluster.
    pub(super) fn add_lazy(&self, lazy: &mut u16, n: u16) {
        *lazy += n;
        self.lazy.fetch_add(u64::from(n), Ordering::Relaxed);
    }

    /// Books `n` fewer.
    pub(super) fn sub_lazy(&self, lazy: &mut u16, n: u16) {
        *lazy -= n;
        self.lazy.fetch_sub(u64::from(n), Ordering::Relaxed);
    }

    /// A cluster that has free slots according to its list, or may have; its lock may be held.
    pub(super) fn any_with_room(&self) -> Option<u32> {
        let lists = self.lists.lock(&sites::DEVICE_ISOLATE);
        let order = (0..LISTS).filter(|&list| !matches!(list, FULL | DISCARD)).chain([FULL]);
        let mut heads = order.map(|list| lists.lists[list].head);
        heads.find(|&head| head != NIL)
    }

    /// Length of a list, for limits: it may have changed since.
    pub(super) fn list_len(&self, flag: Flag, order: u8) -> u32 {
        list_of(flag, order).map_or(0, |list| self.lens[list].load(Ordering::Relaxed))
    }

    fn push(&self, lists: &mut Lists, list: ListId, index: u32) {
        let tail = lists.lists[list].tail;
        if let Some(cluster) = self.cluster(index) {
            cluster.links.set_prev(lists, tail);
            cluster.links.set_next(lists, NIL);
        }
        match self.cluster(tail) {
            Some(last) => last.links.set_next(lists, index),
            None => lists.lists[list].head = index,
        }
        lists.lists[list].tail = index;
        lists.lists[list].len += 1;
        self.lens[list].store(lists.lists[list].len, Ordering::Relaxed);
    }

    fn unlink(&self, lists: &mut Lists, list: ListId, index: u32) {
        let Some(cluster) = self.cluster(index) else { return };
        let (prev, next) = cluster.links.get(lists);
        match self.cluster(prev) {
            Some(cluster) => cluster.links.set_next(lists, next),
            None => lists.lists[list].head = next,
        }
        match self.cluster(next) {
            Some(cluster) => cluster.links.set_prev(lists, prev),
            None => lists.lists[list].tail = prev,
        }
        lists.lists[list].len -= 1;
        self.lens[list].store(lists.lists[list].len, Ordering::Relaxed);
    }

    /// Empty lists for a device of `limit` slots without the `bad` ones. No cluster is on a list.
    pub(super) fn reset_lists(&self, limit: u64, bad: Vec<u64>) {
        let mut lists = self.lists.lock(&sites::DEVICE_ADMIN);
        *lists = Lists { limit, bad, ..Lists::new() };
        self.lens.iter().for_each(|len| len.store(0, Ordering::Relaxed));
        self.all_made.store(false, Ordering::Relaxed);
        self.ready.reset();
    }

    /// The clusters of each list in order with the flag and order of the list; for tests.
    #[cfg(test)]
    pub(super) fn listed(&self) -> Vec<(Flag, u8, Vec<u32>)> {
        let lists = self.lists.lock(&sites::DEVICE_ADMIN);
        let orders = (0..ORDERS as u8).flat_map(|o| [(Flag::Nonfull, o), (Flag::Frag, o)]);
        let kinds = [Flag::Free, Flag::Full, Flag::Discard].into_iter().map(|f| (f, 0)).chain(orders);
        kinds
            .map(|(flag, order)| {
                let list = lists.lists[list_of(flag, order).unwrap()];
                let (mut at, mut prev, mut all) = (list.head, NIL, Vec::new());
                while at != NIL {
                    let (back, next) = self.cluster(at).unwrap().links.get(&*lists);
                    assert_eq!(back, prev);
                    all.push(at);
                    (prev, at) = (at, next);
                }
                assert_eq!((list.tail, list.len as usize), (prev, all.len()));
                assert_eq!(self.list_len(flag, order), list.len);
                (flag, order, all)
            })
            .collect()
    }
}

impl Lists {
    fn new() -> Lists {
        Lists { lists: [List { head: NIL, tail: NIL, len: 0 }; LISTS], fresh: 0, limit: 0, bad: Vec::new() }
    }
}
