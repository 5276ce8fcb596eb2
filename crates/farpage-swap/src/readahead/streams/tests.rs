//! Streams against simple programs: how many windows, how large, how much in vain.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// What a program's accesses came to.
#[derive(Debug, Default)]
struct Played {
    /// Sizes of the windows at faults.
    windows: Vec<u32>,
    /// Pages brought in.
    brought: usize,
    /// Of them, pages read ahead.
    ahead: u64,
    /// Pages confirmed by the next fault.
    confirmed: u64,
    /// Windows asked for at markers, and faults that came too early for them.
    posted: usize,
    late: usize,
    /// Pages read ahead that were touched.
    used: usize,
}

impl Played {
    fn wasted_pct(&self) -> f64 {
        100.0 * (self.ahead as f64 - self.used as f64) / (self.ahead as f64).max(1.0)
    }
}

/// Plays accesses. `markers`: the middle page of every window of 4 and more is one, and what is asked for at a marker
/// arrives at once.
fn play_on(streams: &mut Streams, accesses: impl IntoIterator<Item = u64>, max: u32, markers: bool) -> Played {
    let [mut mapped, mut marked, mut ahead]: [HashSet<u64>; 3] = Default::default();
    let mut p = Played::default();
    for page in accesses {
        p.used += usize::from(ahead.remove(&page));
        if marked.remove(&page)
            && let Some(w) = streams.on_hit(page, max)
        {
            p.posted += 1;
            let new: Vec<u64> = w.iter().filter(|page| mapped.insert(*page)).collect();
            marked.extend(new.get(new.len() / 2));
            p.ahead += new.len() as u64;
            ahead.extend(new);
        } else if !mapped.contains(&page) {
            let w = streams.on_fault(page, max, |_| false);
            assert!(w.iter().any(|p| p == page) && (1..=max.max(1)).contains(&w.pages));
            p.windows.push(w.pages);
            p.late += usize::from(w.late);
            p.confirmed += u64::from(w.confirmed);
            let new: Vec<u64> = w.iter().filter(|other| mapped.insert(*other) && *other != page).collect();
            if markers && new.len() > 2 {
                marked.extend(new.get(new.len() / 2));
            }
            p.ahead += new.len() as u64;
            ahead.extend(new);
            if w.stride == 1 {
                streams.on_served(w.start, w.pages);
            }
        }
    }
    p.brought = mapped.len();
    p
}

fn play(accesses: impl IntoIterator<Item = u64>, max: u32) -> (Vec<u32>, usize) {
    let p = play_on(&mut Streams::new(), accesses, max, false);
    (p.windows, p.brought)
}

fn random(i: u64) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(i) >> 44
}

#[test]
fn sequential_streams_reach_the_largest_window() {
    for (windows, brought) in [play(10_000..14_096, 32), play((10_000..14_096).rev(), 32)] {
        assert_eq!((&windows[..6], windows.len()), (&[1, 4, 8, 16, 32, 32][..], 132));
        assert!(brought < 4096 + 32);
    }
    // Over borders of 2 MiB, up to 2 MiB.
    assert_eq!(play(0..4096, 512).0, [1, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512, 512, 512, 512, 512, 512]);
    assert_eq!(play((0..4096).flat_map(|i| [10_000 + i, 90_000 - i]), 32).0.len(), 2 * 132);
    // The random faults between its own do not push a stream out: a fifth of the accesses suffices.
    let noisy = (0..5 * 4096).map(|i| if i % 5 == 0 { i / 5 } else { 10_000 + random(i) });
    assert!(play(noisy, 32).0.iter().filter(|&&w| w == 32).count() >= 127);
}

#[test]
fn what_is_said_to_be_sequential_is_read_at_once() {
    let mut s = Streams::new();
    assert_eq!(s.on_sequential(10, 64), Window::of(10, 64));
    assert_eq!(s.on_hit(20, 64), Some(Window::of(74, 64)));
    assert_eq!(s.on_sequential(500, 64).pages, 64);
}

#[test]
fn touches_of_pages_brought_in_otherwise_make_streams_too() {
    let mut s = Streams::new();
    assert_eq!([10, 11].map(|p| s.on_touch(p, 64).map(|w| (w.start, w.pages))), [None, Some((11, 4))]);
    let late = s.on_fault(13, 64, |_| false);
    assert!(late.late && late.start == 13, "it is on its way: {late:?}");
    assert_eq!(s.on_touch(500, 64), None);
}

#[test]
fn several_streams_are_followed_at_once() {
    let starts = [0, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000];
    let accesses = (0..4096u64).flat_map(|i| starts.map(|s| s + i));
    let (windows, brought) = play(accesses, 128);
    assert!(windows.len() < 7 * 45 && brought < 7 * (4096 + 128), "{} {brought}", windows.len());
}

#[test]
fn random_and_strided_faults_stay_single() {
    let (windows, brought) = play((0..20_000).map(random), 32);
    assert!(windows.iter().filter(|&&w| w == 1).count() * 1000 > windows.len() * 999);
    assert!(brought < windows.len() * 1001 / 1000, "{brought}");
    (2..40).for_each(|k| assert!(play((0..).step_by(k).take(1000), 32).0.iter().all(|&w| w == 1)));
}

#[test]
fn strides_are_read_ahead_where_that_was_asked_for() {
    for markers in [false, true] {
        for k in [2usize, 7, 37, 512] {
            let up: Vec<u64> = (1 << 20..).step_by(k).take(1000).collect();
            let down: Vec<u64> = up.iter().rev().copied().collect();
            for accesses in [up, down] {
                let p = play_on(&mut Streams::with_strides(), accesses, 128, markers);
                assert!(p.windows.len() + p.posted < 50, "{k}: {p:?}");
                assert!(p.brought <= 1000 + 64 && p.wasted_pct() < 6.5, "{k}: {p:?}");
            }
        }
    }
    // Random faults are no strides: in 2^20 pages, and in a small mapping.
    for pages in [1 << 20, 2000] {
        let mut streams = Streams::with_strides();
        let faults = 20_000;
        let windows: Vec<u32> =
            (0..faults).map(|i| streams.on_fault(random(i) % pages, 128, |_| false).pages).collect();
        let extra = windows.iter().map(|w| u64::from(w - 1)).sum::<u64>();
        assert!(extra * 100 < faults * 3, "{extra} pages read ahead for {faults} random faults in {pages} pages");
    }
}

#[test]
fn markers_ask_for_the_next_window_in_time() {
    let p = play_on(&mut Streams::with_strides(), 0..100_000, 512, true);
    // Faults only until the first window that is large enough has a marker.
    assert_eq!((p.windows.as_slice(), p.late), (&[1, 4, 8, 16][..], 0), "{p:?}");
    assert!(p.posted > 190 && p.posted < 210 && p.wasted_pct() < 1.1, "{p:?}");
    let p = play_on(&mut Streams::with_strides(), (200_000..300_000).rev(), 512, true);
    assert_eq!((p.windows.as_slice(), p.late), (&[1, 4, 8, 16][..], 0), "{p:?}");
}

#[test]
fn a_fault_in_a_window_on_its_way_is_late_and_goes_on_from_there() {
    let mut s = Streams::new();
    assert_eq!([0, 1, 5, 13].map(|p| s.on_fault(p, 128, |_| false).pages), [1, 4, 8, 16]);
    let next = s.on_hit(20, 128).unwrap();
    assert_eq!((next.start, next.pages), (29, 32));
    assert_eq!(s.on_hit(22, 128), None, "it has been asked for already");
    let late = s.on_fault(40, 128, |_| false);
    assert!(late.late && late.start == 40 && late.confirmed == 0 && late.pages == 32);
    s.on_served(40, 32);
    let on = s.on_fault(72, 128, |_| false);
    assert!(!on.late && on.start == 72 && on.pages == 64);
}

#[test]
fn pages_that_are_there_already_do_not_end_a_run() {
    // Every other page is there, so that each window is cut short behind its first page; or is left out.
    let last = |there: bool| {
        let (mut s, mut last) = (Streams::new(), Window::single(0));
        for stream in 1..50u64 {
            for page in std::iter::once(0).chain((1..61).step_by(2)) {
                last = s.on_fault(1000 * stream + page, 8, |page| there && page % 2 == 0);
                s.on_served(last.start, 1);
            }
        }
        last.pages
    };
    assert_eq!((last(true), last(false)), (8, 1));
}

#[test]
fn what_was_read_upwards_proves_nothing_about_the_way_down() {
    let mut s = Streams::new();
    play_on(&mut s, (0..100).flat_map(|run| (0..64).map(move |i| 10_000 * run + i)), 32, false);
    let up = s.on_fault(5_000_000, 32, |_| false);
    assert!(up.pages > 1, "runs upwards are known: {up:?}");
    let below = s.clone().on_fault(4_999_999, 32, |_| false);
    assert!(!below.down && below.confirmed == 0, "{below:?}");
    // All of it but the first was there already.
    s.on_served(5_000_000, 1);
    assert!(!s.clone().on_fault(4_999_990, 32, |_| true).down, "the gap was above");
    assert_eq!(s.on_fault(4_999_999, 32, |_| false).pages, FIRST_WINDOW, "two pages, as if nothing were known");
}

#[test]
fn a_window_cut_short_goes_on_behind_the_cut() {
    let mut s = Streams::new();
    assert_eq!([10, 11, 15].map(|p| s.on_fault(p, 32, |_| false).pages), [1, 4, 8]);
    s.on_served(15, 3);
    let next = s.clone().on_fault(18, 32, |_| false);
    assert_eq!((next.start, next.pages, next.confirmed), (18, 16, 2), "the expected page: doubles");
    let next = s.clone().on_fault(27, 32, |_| false);
    assert_eq!((next.start, next.pages, next.confirmed), (27, 8, 0), "cut 5 and slack 5: goes on");
    assert_eq!(s.clone().on_fault(29, 32, |_| false), Window::single(29), "too far");
}

#[test]
fn runs_are_read_as_far_as_they_go_and_long_ones_are_trusted_again() {
    // Runs of 16 pages at random places: with windows that double, nearly half of what is read ahead is in vain.
    let runs = |n: u64| (0..n).flat_map(|i| (0..16).map(move |k| random(i) / 16 * 64 + k));
    let mut streams = Streams::new();
    play_on(&mut streams, runs(50), 128, false);
    let p = play_on(&mut streams, runs(400).skip(50 * 16), 128, false);
    let extra = p.ahead as usize - p.used;
    assert!(extra * 20 < p.brought, "{extra} of {} pages in vain", p.brought);
    assert!(p.windows.len() < p.brought / 5, "{} windows for {} pages", p.windows.len(), p.brought);
    // From there on a long stream reaches the largest window again, and the next one as fast as ever.
    let p = play_on(&mut streams, 1 << 30..(1 << 30) + 8192, 128, false);
    assert_eq!(p.windows.last(), Some(&128));
    assert!(p.windows.len() < 220, "{}", p.windows.len());
    let p = play_on(&mut streams, 1 << 31..(1 << 31) + 4096, 128, false);
    assert!(p.windows.len() < 50, "{p:?}");
}

#[test]
fn a_stream_that_leaves_out_a_part_each_time_reads_no_more_than_it_uses() {
    // Every seventh page, but it began with two neighbours: windows of four, three of which are in vain each time.
    let sparse = |stride: usize| std::iter::once(1000).chain((1001..).step_by(stride).take(1000));
    for stride in [5, 6, 7, 9] {
        let p = play_on(&mut Streams::new(), sparse(stride), 128, false);
        assert!(p.ahead < 40, "{stride}: {p:?}");
        let p = play_on(&mut Streams::with_strides(), sparse(stride), 128, false);
        assert!(p.wasted_pct() < 6.0 && p.windows.len() < 100, "{stride}: {p:?}");
    }
    // Pages that are there already, now and then, are no reason.
    let present = |page: &u64| page % 100 > 20;
    let p = play_on(&mut Streams::new(), (0..40_000).filter(present), 128, false);
    assert!(p.windows.len() < 1000, "{p:?}");
}

#[test]
fn random_access_ends_readahead_within_a_few_misses() {
    let mut streams = Streams::with_strides();
    play_on(&mut streams, 0..4096, 128, true);
    let after: Vec<u32> = (0..100).map(|i| streams.on_fault((1 << 32) + random(i), 128, |_| false).pages).collect();
    assert!(after.iter().all(|w| *w == 1), "{after:?}");
}

#[test]
fn what_the_next_fault_confirms_is_what_was_used() {
    // In order: all but the last window. Every k-th page: about a k-th on the average over many streams.
    let p = play_on(&mut Streams::new(), 0..10_000, 32, false);
    assert!(p.confirmed <= p.used as u64 && p.used as u64 - p.confirmed < 32);
    let p = play_on(&mut Streams::new(), (0..20_000).map(random), 32, false);
    assert!(p.confirmed <= p.ahead && p.ahead < 20);
}

proptest! {
    #[test]
    fn windows_contain_the_page_and_confirm_no_more_than_was_read(
        faults in prop::collection::vec((0..3usize, 0..60u64, 0..40u32, 0..40u64, any::<bool>()), 1..199),
        strides in any::<bool>(),
    ) {
        let mut s = if strides { Streams::with_strides() } else { Streams::new() };
        let (mut ahead, mut confirmed) = (0, 0);
        for (base, offset, max, cut, hit) in faults {
            let page = [0, 1 << 30, END - 60][base] + offset;
            if hit {
                if let Some(w) = s.on_hit(page, max) {
                    prop_assert!((1..=max).contains(&w.pages) && w.end() <= END);
                    prop_assert!(w.iter().all(|other| other != page));
                }
                continue;
            }
            let w = s.on_fault(page, max, |_| false);
            prop_assert!((1..=max.max(1)).contains(&w.pages) && w.end() <= END);
            prop_assert!(w.start == page || w.end() == page + 1);
            prop_assert!(w.stride == 1 || strides);
            confirmed += u64::from(w.confirmed);
            if w.stride == 1 {
                let (start, pages) = (w.start.max(page.saturating_sub(cut)), w.pages.min(cut as u32 + 1));
                s.on_served(start, pages);
                ahead += u64::from(pages - 1);
            } else {
                ahead += u64::from(w.pages - 1);
            }
            prop_assert!(confirmed <= ahead);
        }
    }
}
