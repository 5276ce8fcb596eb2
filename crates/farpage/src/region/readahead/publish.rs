//! What readers outside see of readahead, by region.
//!
//! Called by `stat` in whatever thread publishes, and after forks. Locks: `maps` for reading.

use super::{Map, RegionReadahead};
use farpage_ipc::stat::{MappingReadahead, READAHEADS};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl RegionReadahead {
    /// The regions that fault most, for readers outside; `base`: the number of page 0.
    pub fn publish(&self, base: u64, to: &[MappingReadahead; READAHEADS]) {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let mut most: [Option<&Map>; READAHEADS] = [None; READAHEADS];
        let faults = |m: Option<&Map>| m.map_or(0, |m| m.faults.load(Relaxed));
        for map in maps.iter().map(|m| &**m) {
            let least = most.iter_mut().min_by_key(|m| faults(**m));
            if let Some(least) = least.filter(|least| faults(**least) < faults(Some(map))) {
                *least = Some(map);
            }
        }
        // By address, so that a region keeps its entry as long as they are the same regions.
        most.sort_unstable_by_key(|m| m.map_or(u32::MAX, |m| m.first));
        for (entry, map) in to.iter().zip(most) {
            let Some(m) = map else {
                entry.pages.store(0, Relaxed); // not in use
                continue;
            };
            let hit = m.hit.load(Relaxed); // in this order: what is a hit was read before
            for (value, now) in [
                (&entry.start, base + u64::from(m.first)),
                (&entry.faults, m.faults.load(Relaxed)),
                (&entry.swap_ra, m.ra.load(Relaxed)),
                (&entry.swap_ra_hit, hit),
                (&entry.window, m.window.load(Relaxed).into()),
                (&entry.pages, m.pages.into()),
            ] {
                value.store(now, Relaxed);
            }
        }
    }

    /// In a forked child, which counts from zero.
    pub fn forget_counts(&self) {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        maps.iter().flat_map(|m| [&m.faults, &m.ra, &m.hit]).for_each(|n| n.store(0, Relaxed));
    }
}
