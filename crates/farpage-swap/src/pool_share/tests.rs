use super::*;

const MIB: u64 = 1 << 20;
const RAM: u64 = 64 * MIB;
const PAGES: usize = (RAM / 4096) as usize;

/// Where the limit ends for a program whose pages come back at distances drawn by `next`, of which those that
/// stay in memory are not seen, and whose pages compress to 1/`ratio`.
fn limit_for(ratio: u64, next: impl FnMut() -> u64) -> u64 {
    limit_for_part(ratio, 1, next)
}

/// The same if only one in `dead` of the faults that the pool should serve finds its page there.
fn limit_for_part(ratio: u64, dead: u64, mut next: impl FnMut() -> u64) -> u64 {
    let mut share = PoolShare::new(RAM, PoolShare::initial_limit(RAM));
    let mut distances = Distances::new(PAGES);
    let (mut major, mut major_file) = (0, 0);
    let mut limit = RAM / 2;
    for _ in 0..200 {
        let pool_bytes = limit / 8 * SHARE_EIGHTHS;
        let pages = (RAM - pool_bytes) / 4096;
        for _ in 0..8192 {
            let distance = next();
            if distance > pages {
                distances.note(distance as u32);
                major += 1;
                let held = distance < pages + pool_bytes / 4096 * ratio && major % dead == 0;
                major_file += u64::from(!held);
            }
        }
        let sample = Sample {
            major,
            major_file,
            loaded: major,
            stored: 0,
            pages,
            stuck: 0,
            unmanaged: 0,
            pool_bytes,
            pool_orig_bytes: pool_bytes * ratio,
            pool_raw_bytes: 0,
            pool_load_ns: 4_000,
            file_load_ns: 80_000,
            out: 8 * PAGES as u64,
            unchanged: 0.0,
        };
        limit = share.turn(sample, &mut distances).unwrap_or(limit);
    }
    limit / MIB
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed;
    move || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        x >> 33
    }
}

#[test]
fn what_compresses_and_is_used_at_random_is_kept_compressed() {
    let mut r = random(1);
    assert!(limit_for(3, move || r() % (3 * PAGES as u64)) >= 40);
}

#[test]
fn what_does_not_compress_leaves_the_room_to_pages() {
    let mut r = random(2);
    assert!(limit_for(1, move || r() % (3 * PAGES as u64)) <= 16);
}

#[test]
fn a_pool_of_pages_that_are_not_wanted_leaves_the_room_to_pages() {
    let mut r = random(4);
    assert!(limit_for_part(3, 32, move || r() % (3 * PAGES as u64)) <= 12);
    let mut r = random(5);
    assert!(limit_for_part(6, 2, move || r() % (6 * PAGES as u64)) >= 40, "half of so many is worth it");
}

#[test]
fn a_hot_set_larger_than_what_is_left_gets_its_room() {
    // Nine in ten accesses go round through 52 MiB of the budget's 64: the next MiB earns nothing, the last does.
    let mut r = random(3);
    let hot = 52 * MIB / 4096;
    let limit = limit_for(3, move || match r() % 10 {
        0 => r() % (8 * PAGES as u64),
        _ => hot - r() % 64,
    });
    assert!(RAM - limit * MIB / 8 * SHARE_EIGHTHS >= hot * 4096, "{limit}");
}

/// What goes round through a little more than memory holds is always wanted just after it went: nearly enough is of no
/// use.
#[test]
fn a_loop_that_fits_gets_all_the_room_it_needs() {
    let around = 9 * PAGES as u64 / 4;
    let pool = limit_for(3, || around) * MIB / 8 * SHARE_EIGHTHS;
    assert!((RAM + 2 * pool) / 4096 >= around, "{pool} bytes hold too little");
}

/// A loop through four times the budget, and then another one, while the first one's pages stay. A pool that moves
/// pages on by age serves nothing of it; a steady one what it holds, which are the pages that came when it had room,
/// and lie side by side. The part of the loop that the pool serves in the end of either, and whether it is steady.
fn go_round() -> [(f64, bool); 2] {
    let mut share = PoolShare::new(RAM, RAM / 2);
    let mut distances = Distances::new(PAGES);
    let mut now = Sample { pool_load_ns: 4_000, file_load_ns: 80_000, ..Sample::default() };
    let around = 4 * PAGES as u64;
    let (mut limit, mut held) = (RAM / 2, 0);
    [0, around].map(|others| {
        // Of the pool's pages, those of this loop.
        let (mut ours, mut part) = (0, 0.0);
        for turn in 0..1000 {
            now.pool_bytes = limit / 8 * SHARE_EIGHTHS;
            now.pool_orig_bytes = 3 * now.pool_bytes;
            now.pages = (RAM - now.pool_bytes) / 4096;
            now.out = around + others - now.pages;
            let room = now.pool_orig_bytes / 4096;
            // New room is for the loop; and what moves on by age makes room for it, but is never found.
            let moved = if share.is_steady() { 0 } else { 4096 };
            ours = (ours + moved + room.saturating_sub(held)).min(room);
            held = room;
            part = if share.is_steady() { ours as f64 / (around - now.pages) as f64 } else { 0.0 };
            (0..4096).for_each(|_| distances.note(around as u32));
            (now.major, now.loaded, now.stored) = (now.major + 4096, now.loaded + 4096, now.stored + 4096);
            let is_held = turn * 4096 % around < (part * around as f64) as u64;
            now.major_file += if is_held { 0 } else { 4096 };
            limit = share.turn(now, &mut distances).unwrap_or(limit);
        }
        (part, share.is_steady())
    })
}

#[test]
fn a_pool_is_steady_for_a_loop_that_nothing_holds() {
    let [first, second] = go_round();
    assert!(first.1 && first.0 > 0.5, "{first:?}");
    // It lets the first one's pages go by and by.
    assert!(second.1 && second.0 > 0.4, "{second:?}");
}

/// Where the limit ends for a program with five thirds of the budget, whose pages come back at distances drawn by
/// `next`, `window` of them a fault, and are, but for the share `unchanged`, written. They compress to 1/`ratio`. What
/// neither memory nor pool hold is on a file, and is wanted as often as what is in the pool.
fn limit_with_copies(ratio: u64, window: u64, unchanged: f64, mut next: impl FnMut() -> u64) -> u64 {
    let mut share = PoolShare::new(RAM, RAM / 2);
    let mut distances = Distances::new(PAGES);
    let mut limit = RAM / 2;
    let mut now = Sample { unchanged, pool_load_ns: 4_000, file_load_ns: 80_000, ..Sample::default() };
    for _ in 0..200 {
        now.pool_bytes = limit / 8 * TIGHT_EIGHTHS;
        now.pool_orig_bytes = now.pool_bytes * ratio;
        now.pages = (RAM - now.pool_bytes) / 4096;
        now.out = ALL - now.pages;
        let on_file = now.out.saturating_sub(now.pool_orig_bytes / 4096) as f64 / now.out as f64;
        let before = now.major;
        for _ in 0..2048 {
            let distance = next();
            if distance > now.pages {
                distances.note(distance as u32);
                (now.major, now.loaded) = (now.major + 1, now.loaded + window);
            }
        }
        now.major_file += ((now.major - before) as f64 * on_file) as u64;
        limit = share.turn(now, &mut distances).unwrap_or(limit);
    }
    limit
}

/// Pages of these programs.
const ALL: u64 = 5 * PAGES as u64 / 3;

#[test]
fn copies_that_spare_a_store_are_worth_room_where_faults_are_few() {
    assert!(limit_with_copies(3, 32, 1.0, || ALL) > RAM / 8 * 5);
    assert!(limit_with_copies(3, 32, 0.0, || ALL) <= RAM / 2, "all are written: no copy is of use");
    assert!(limit_with_copies(1, 32, 1.0, || ALL) <= RAM / 2, "there is room for none");
}

/// At random, a page is away for twice as many departures as there are pages now and then. That does not make memory
/// for all of them too small.
#[test]
fn a_program_that_fits_if_it_is_compressed_is_kept_whole() {
    let mut r = random(8);
    let distance = move || (-((1 + r() % (1 << 20)) as f64 / f64::from(1 << 20)).ln() * ALL as f64) as u64;
    let pool = limit_with_copies(2, 1, 0.0, distance) / 8 * SHARE_EIGHTHS;
    assert!((RAM + pool) / 4096 >= ALL * 63 / 64, "a pool of {} MiB", pool / MIB);
}

#[test]
fn copies_are_not_worth_room_where_each_page_is_a_fault() {
    let limits = [0.0, 1.0].map(|unchanged| {
        let mut r = random(7);
        limit_with_copies(3, 1, unchanged, move || r() % (2 * ALL))
    });
    assert!(limits[0].abs_diff(limits[1]) <= RAM / 32, "{limits:?}");
}

#[test]
fn while_nothing_comes_back_the_pool_grows_if_that_is_worth_it() {
    let fill = |ratio: u64, loaded_per_stored: f64| {
        let mut share = PoolShare::new(RAM, RAM / 2);
        let mut distances = Distances::new(PAGES);
        let mut limit = RAM / 2;
        for stored in (0..100_000).step_by(500) {
            let loaded = (stored as f64 * loaded_per_stored) as u64;
            let pool_orig_bytes = limit * ratio / 2;
            let mut sample = Sample { stored, loaded, pool_bytes: limit, pool_orig_bytes, ..Sample::default() };
            // Pages that wait there as they are, besides.
            (sample.pool_raw_bytes, sample.pool_bytes) = (limit / 2, limit + limit / 2);
            sample.pool_orig_bytes += limit / 2;
            limit = share.turn(sample, &mut distances).unwrap_or(limit);
        }
        limit
    };
    assert_eq!(fill(6, 0.0), RAM / 4 * 3);
    assert_eq!(fill(6, 0.01), RAM / 4 * 3);
    assert_eq!(fill(2, 0.0), RAM / 2, "does not compress");
    assert_eq!(fill(6, 0.5), RAM / 2, "comes back, though the faults are too few to tell from where");
}

#[test]
fn locked_memory_is_the_pools_loss_until_it_is_unlocked() {
    let mut share = PoolShare::new(RAM, RAM / 2);
    let mut distances = Distances::new(PAGES);
    let locked = |mib: u64| Sample { stuck: mib * MIB / 4096, ..Sample::default() };
    assert_eq!(share.turn(locked(8), &mut distances), None, "there is room for both");
    assert_eq!(share.turn(locked(32), &mut distances), Some(16 * MIB));
    assert_eq!(share.turn(locked(32), &mut distances), None);
    assert_eq!(share.turn(locked(60), &mut distances), Some(RAM / 16));
    let mut full = Sample { pool_bytes: RAM / 16, ..locked(0) };
    for _ in 0..100 {
        full.stored += WINDOW;
        full.pool_bytes = share.turn(full, &mut distances).unwrap_or(full.pool_bytes);
        full.pool_orig_bytes = full.pool_bytes * 3;
    }
    assert_eq!(full.pool_bytes, RAM / 4 * 3);
}

#[test]
fn what_cannot_go_is_found_by_trying() {
    let mut stuck = UnevictableEstimate::default();
    let (mut taken, mut skipped) = (0, 0);
    let mut often = |go, stay, active| {
        let mut last = 0;
        for _ in 0..30 {
            (taken, skipped) = (taken + go, skipped + stay);
            last = stuck.estimate(taken, skipped, active);
        }
        last
    };
    assert!((240..=250).contains(&often(300, 100, 1000)), "a quarter, rounded down");
    assert!((690..=700).contains(&often(0, 1000, 700)));
    assert_eq!(often(1000, 0, 700), 0);
    assert_eq!(often(0, 1, 700), 0, "too few to tell");
    let neighbours = [often(0, 30, 10_000), often(300, 0, 10_000)];
    assert!(neighbours.iter().all(|n| *n < 1200), "a tenth of a round, one after the other: {neighbours:?}");
}

#[test]
fn few_faults_change_nothing() {
    let mut share = PoolShare::new(RAM, RAM / 2);
    let mut distances = Distances::new(PAGES);
    distances.note(5);
    assert_eq!(share.turn(Sample { major: 100, loaded: 100, ..Sample::default() }, &mut distances), None);
}

#[test]
fn what_a_pool_will_take_is_not_decided_by_the_first_pages_of_many() {
    let all = 400 * MIB;
    assert_eq!(pool_for(0, 0, all), all / 2, "nothing is known");
    // What goes first does not compress: the rest is tried all the same, and then it is known.
    for gone in [MIB, 40 * MIB, 140 * MIB, 300 * MIB] {
        let least = pool_for(gone, gone, all - gone);
        assert_eq!(least, gone + (all - gone) / 2);
        assert!(least / 7 * 8 < all || gone > 290 * MIB, "there is something to give: {least}");
    }
    let half = pool_for(200 * MIB, 51 * MIB, 200 * MIB);
    assert!((102 * MIB..112 * MIB).contains(&half), "{half}");
    assert_eq!(pool_for(all, 101 * MIB, 0), 101 * MIB);
    assert_eq!(pool_for(0, 0, 0), 0);
    // Pages of one word take nothing.
    assert!(pool_for(all / 2, 0, all / 2) < all / 32);
}
