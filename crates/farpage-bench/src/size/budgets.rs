//! Which budgets are run and shown: those that calibrate, those that check, the rows of the table. Numbers only; called
//! by [`super`]. Budgets are bytes.

use super::model::Model;
use farpage_ipc::conf;

/// Bytes.
pub const MIB: f64 = 1048576.0;
/// Least budget.
pub const RAM_MIN: f64 = conf::RAM_MIN as f64;
/// Budgets go down to this part of the peak; steps of the table.
const ROW_LEAST: f64 = 0.15;
const ROWS: i32 = 10;
/// The knees, in multiples of the plain time.
pub const KNEES: [f64; 2] = [1.5, 1.1];
/// What the two runs should take that calibrate, in multiples of the plain time.
const FIRST_TIMES: f64 = 2.0;
const SECOND_TIMES: f64 = 4.0;
/// The first budget is at most this part of the peak, the second this part of the first one; at least that.
const FIRST_MOST: f64 = 0.96;
const SECOND_MOST: f64 = 0.94;
const SECOND_LEAST: f64 = 0.3;
/// Where there is no other to check, one that is this part of the smallest that was measured.
const LESS: f64 = 0.93;
/// Above this part of the peak there is no room for a second one.
const NEAR: f64 = 0.9;
/// Where one takes so many times as long as the other, a third one in the middle calibrates, too.
const WIDE: f64 = 2.5;
/// A run is to fall short of a knee by so much, or it would be slower every other time.
const SURE: f64 = 0.9;
/// Budgets that differ by less are the same.
const SAME: f64 = 0.015;

/// The smallest budget that is worth a run.
pub fn least(peak: f64) -> f64 {
    (ROW_LEAST * peak).max(RAM_MIN)
}

/// The first budget that calibrates.
pub fn first(model: &Model, peak: f64) -> f64 {
    whole(model.knee(FIRST_TIMES, SECOND_LEAST * peak).min(FIRST_MOST * peak), peak)
}

/// The second budget that calibrates: less than the first, or more, if that was slow (it took `times` the plain time),
/// or the least that there is.
pub fn second(model: &Model, first: f64, times: f64, peak: f64) -> f64 {
    let is_end = times > SECOND_TIMES || first <= RAM_MIN;
    if is_end && first < NEAR * peak {
        let more = model
            .knee(FIRST_TIMES, first)
            .max(first / SECOND_MOST)
            .min(f64::midpoint(first, peak).max(FIRST_MOST * peak));
        return whole(more, peak);
    }
    whole(model.knee(SECOND_TIMES, SECOND_LEAST * peak).min(SECOND_MOST * first), first)
}

/// A third one, between two that were measured (bytes, seconds), if these are far from each other.
pub fn third((first, seconds): (f64, f64), (second, other): (f64, f64), peak: f64) -> Option<f64> {
    let wide = seconds.max(other) > WIDE * seconds.min(other) && (first / second - 1.0).abs() > 4.0 * SAME;
    wide.then(|| up(f64::midpoint(first, second), peak))
}

/// More than one that did not end in time, up to `most`, if that is more.
pub fn more(ram: f64, most: f64) -> Option<f64> {
    Some(whole(f64::midpoint(ram, most), most)).filter(|more| more / ram >= 1.0 + SAME)
}

/// Two budgets that were not `measured` yet: the knee, and one between those that were.
pub fn checks(model: &Model, measured: &[f64], peak: f64) -> Vec<f64> {
    let (low, high) = measured.iter().fold((peak, 0.0f64), |(low, high), ram| (low.min(*ram), high.max(*ram)));
    let is_new = |ram: f64, others: &[f64]| others.iter().all(|other| !are_same(ram, *other));
    let mut chosen: Vec<f64> = Vec::new();
    let knees = KNEES.map(|times| model.knee(surely(times), RAM_MIN.max(low)));
    // Far from the others: between the slowest and the next one, and at last between that and the fastest.
    let next = measured.iter().copied().filter(|ram| *ram > low).fold(high, f64::min);
    let between = f64::midpoint(low, next);
    let middles = [f64::midpoint(low, high), f64::midpoint(high, peak)];
    let last = f64::midpoint(between, high);
    let all = [knees[0], knees[1], between, middles[0], middles[1], LESS * low, LESS * LESS * low, last];
    for ram in all.map(|ram| up(ram, peak)) {
        let others: Vec<f64> = measured.iter().chain(&chosen).copied().chain([peak]).collect();
        if chosen.len() < 2 && is_new(ram, &others) {
            chosen.push(ram);
        }
    }
    chosen
}

/// The first knee that was not `measured` yet, nor a budget that is as good.
pub fn knee_to_check(model: &Model, measured: &[f64], peak: f64) -> Option<f64> {
    let low = measured.iter().fold(peak, |low, ram| low.min(*ram));
    let knees = KNEES.map(|times| up(model.knee(surely(times), RAM_MIN.max(low)), peak));
    knees.into_iter().find(|knee| measured.iter().chain([&peak]).all(|other| !are_same(*knee, *other)))
}

/// So many times are expected of a budget that is to take no longer than `times`.
fn surely(times: f64) -> f64 {
    1.0 + SURE * (times - 1.0)
}

/// Whole mebibytes, at least the least budget and at most `most`.
fn whole(ram: f64, most: f64) -> f64 {
    ((ram / MIB).round() * MIB).min(most).max(RAM_MIN)
}

/// The same, no less than it was.
pub fn up(ram: f64, most: f64) -> f64 {
    whole((ram / MIB).ceil() * MIB, most)
}

/// Even steps of the table, from the peak to the least.
pub fn steps(peak: f64, least: f64) -> Vec<f64> {
    let step = |i: i32| whole(peak * (least / peak).powf(f64::from(i) / f64::from(ROWS - 1)), peak);
    let mut all: Vec<f64> = (1..ROWS - 1).map(step).collect();
    all.dedup();
    all
}

/// Whether what is measured with one is as good as with the other.
pub fn are_same(ram: f64, other: f64) -> bool {
    (ram / other - 1.0).abs() <= SAME
}

#[cfg(test)]
mod tests {
    use super::super::model::Curve;
    use super::*;
    use farpage_swap::sim::Counts;

    /// As slow as makes a run slow.
    const SLOW: f64 = SECOND_TIMES + 1.0;

    #[test]
    fn steps_are_between_peak_and_least() {
        let (peak, least) = (200.0 * MIB + 1.0, 30.0 * MIB);
        let all = steps(peak, least);
        assert!(all.len() == 8 && all.is_sorted_by(|a, b| a > b) && all[0] < peak && all[7] > least, "{all:?}");
        let few = steps(24.0 * MIB, RAM_MIN);
        assert!(few.iter().all(|ram| *ram >= RAM_MIN) && few.is_sorted_by(|a, b| a > b), "{few:?}");
    }

    #[test]
    fn the_second_run_is_on_the_other_side_of_a_slow_one() {
        let curve = Curve::new(
            (1..=10u32).map(|i| (2560 * i, Counts { reads: 9000 * u64::from(10 - i), ..Counts::default() })).collect(),
        );
        let model = Model::new(curve, (1.0, 100.0 * MIB), 25600.0, 30e-6, false);
        assert!(second(&model, 50.0 * MIB, SECOND_TIMES, 100.0 * MIB) < 50.0 * MIB);
        assert!(second(&model, 96.0 * MIB, SLOW, 100.0 * MIB) < 91.0 * MIB, "there is no room above");
        for first in [20.0, 50.0, 89.0] {
            let more = second(&model, first * MIB, SLOW, 100.0 * MIB);
            assert!(more > first * MIB && more < 100.0 * MIB, "{first}: {more}");
        }
        assert!(second(&model, RAM_MIN, 1.0, 100.0 * MIB) > RAM_MIN, "there is no room below");
    }

    #[test]
    fn a_knee_is_checked_where_nothing_was_measured() {
        let curve = Curve::new(
            (1..=10u32).map(|i| (2560 * i, Counts { reads: 9000 * u64::from(10 - i), ..Counts::default() })).collect(),
        );
        let model = Model::new(curve, (1.0, 100.0 * MIB), 25600.0, 30e-6, false);
        let [knee, other] = KNEES.map(|times| up(model.knee(surely(times), RAM_MIN), 100.0 * MIB));
        let known = |near: &[f64]| knee_to_check(&model, &[&[40.0 * MIB], near].concat(), 100.0 * MIB);
        assert_eq!([known(&[50.0 * MIB]), known(&[knee]), known(&[knee, other])], [Some(knee), Some(other), None]);
    }

    #[test]
    fn checks_are_where_nothing_was_measured() {
        let curve = Curve::new(
            (1..=10u32).map(|i| (2560 * i, Counts { reads: 9000 * u64::from(10 - i), ..Counts::default() })).collect(),
        );
        let model = Model::new(curve, (1.0, 100.0 * MIB), 25600.0, 30e-6, false);
        for measured in [[50.0, 30.0], [90.0, 85.0], [96.0, 40.0], [97.0, 98.0]] {
            let chosen = checks(&model, &measured.map(|ram| ram * MIB), 100.0 * MIB);
            assert_eq!(chosen.len(), 2, "{measured:?}: {chosen:?}");
            for ram in &chosen {
                assert!(measured.iter().all(|m| (ram / MIB / m - 1.0).abs() > SAME), "{measured:?}: {chosen:?}");
            }
        }
        // Where faults are dear, and nearly all memory, the least and their middle were measured: between these.
        let curve = Curve::new(vec![(2560, Counts { reads: 9000, ..Counts::default() }), (25600, Counts::default())]);
        let dear = Model::new(curve, (1.0, 100.0 * MIB), 25600.0, 1.0, false);
        let chosen = checks(&dear, &[98.0, 57.0, 16.0].map(|ram| ram * MIB), 100.0 * MIB);
        assert_eq!(chosen, [37.0, 68.0].map(|ram| ram * MIB));
    }
}
