//! Random objects against a model; memory that comes back.

use super::*;
use crate::testing::Region;
use farpage_swap::sim::Random;
use std::collections::HashMap;

#[test]
fn device_pool_classes_cover_every_length() {
    for len in 1..=OBJECT_MAX {
        let size = class_size(CLASSES.of[len.div_ceil(16)]);
        assert!(size >= len && size < len + 512 && SPAN_BYTES / size <= OBJECTS_MAX, "{len} -> {size}");
        assert!(SPAN_BYTES % size * 50 < SPAN_BYTES, "rest of class {size}");
    }
}

#[test]
fn device_pool_keeps_contents_and_gives_memory_back() {
    let region = Region::new(64 << 20);
    // SAFETY: the region is private, zero memory that outlives the pool and is used by nothing else.
    let mut pool = unsafe { Pool::new(region.base(), region.bytes(), 24 << 20) };
    let mut live: HashMap<Handle, (usize, u8)> = HashMap::new();
    let mut order = Vec::new();
    let mut random = Random(0);
    let mut next = move || random.bits() as usize;
    let mut refused = 0;
    for step in 0..60_000 {
        // Grow, then churn, then shrink.
        let keep = [14_000, 14_000, 3000][step / 20_000];
        if order.len() > keep || (next() % 3 == 0 && !order.is_empty()) {
            let handle = order.swap_remove(next() % order.len());
            let (len, fill) = live.remove(&handle).unwrap();
            assert!(pool.bytes(handle, len).unwrap().iter().all(|&b| b == fill), "content of {handle:?}");
            assert!(pool.free(handle) && !pool.free(handle));
            while let Some(release) = pool.take_excess() {
                release.run();
                pool.released(release);
            }
        } else {
            let len = if next() % 8 == 0 { 4096 } else { 300 + next() % 2000 };
            let Some(handle) = pool.alloc(len) else {
                refused += 1;
                continue;
            };
            let fill = next() as u8;
            let at = pool.object(handle, len).unwrap();
            // Only where there is no room for a span more, holes of larger classes are filled.
            let is_full = pool.resident_bytes() + SPAN_BYTES as u64 > pool.limit();
            assert!(is_full || pool.objects().guess(handle, len) == at.as_ptr() as usize);
            // SAFETY: the object was allocated a line ago and nobody else knows it.
            unsafe { at.write_bytes(fill, len) };
            assert!(live.insert(handle, (len, fill)).is_none(), "given out twice");
            order.push(handle);
        }
        assert!(pool.resident_bytes() <= pool.limit());
        if step % 20_000 == 19_999 {
            let bytes: usize = live.values().map(|v| v.0).sum();
            println!(
                "{} objects: {bytes} bytes, {} in classes, {} resident, {refused} refused, {} meta",
                live.len(),
                pool.object_bytes(),
                pool.resident_bytes(),
                pool.meta_bytes()
            );
        }
    }
    // What random frees left sparse is drained by moving objects.
    assert!(pool.is_fragmented());
    for handle in &mut order {
        if let Some(new) = pool.relocate(*handle) {
            let (len, fill) = live.remove(handle).unwrap();
            assert!(pool.bytes(new, len).unwrap().iter().all(|&b| b == fill), "content of {new:?}");
            assert!(live.insert(new, (len, fill)).is_none());
            *handle = new;
        }
    }
    while let Some(release) = pool.take_excess() {
        release.run();
        pool.released(release);
    }
    println!("after compaction: {} in classes, {} resident", pool.object_bytes(), pool.resident_bytes());
    assert!(!pool.is_fragmented());
    for handle in order {
        assert!(pool.free(handle));
    }
    while let Some(release) = pool.take_excess() {
        release.run();
        pool.released(release);
    }
    assert_eq!(pool.object_bytes(), 0);
    assert_eq!(pool.resident_bytes(), (EMPTY_KEEP * SPAN_BYTES) as u64);
}

/// Spans with one object each, in any order of their last frees: none is fuller than the others, and each could take
/// the rest.
#[test]
fn device_pool_spans_that_are_equally_sparse_drain() {
    const LEN: usize = 2400;
    for upwards in [true, false] {
        let region = Region::new(8 << 20);
        // SAFETY: the region is private, zero memory that outlives the pool and is used by nothing else.
        let mut pool = unsafe { Pool::new(region.base(), region.bytes(), 8 << 20) };
        let all: Vec<Handle> = (0..1000).map(|_| pool.alloc(LEN).unwrap()).collect();
        let (mut left, mut rest): (Vec<Handle>, Vec<Handle>) = (Vec::new(), Vec::new());
        for handle in all {
            let span = |h: &Handle| pool.locate(*h).unwrap().0;
            let first = left.last().is_none_or(|last| span(last) != span(&handle));
            if first { &mut left } else { &mut rest }.push(handle);
        }
        if !upwards {
            rest.reverse();
        }
        rest.into_iter().for_each(|handle| assert!(pool.free(handle)));
        assert!(pool.is_loose());
        let mut moved = left.len();
        while pool.is_loose() && moved > 0 {
            moved = 0;
            for handle in &mut left {
                if let Some(new) = pool.relocate(*handle) {
                    (*handle, moved) = (new, moved + 1);
                }
            }
        }
        assert!(!pool.is_fragmented(), "{upwards}: {} of {} bytes", pool.object_bytes(), pool.resident_bytes());
    }
}
