//! What measured runs say: a curve that does not fall with less memory, and the answer, which is one of the budgets
//! that were measured. What was predicted is only shown between them, or says which budget to measure next. Numbers
//! only; called by [`super`]. Budgets are bytes.

use super::budgets::{self, KNEES, RAM_MIN};
use super::model::{Model, Run, Work};

/// Without predictions: budgets that are looked for are tried at such parts of one that was fast enough.
const LESS: f64 = 0.7;
const FIRST: f64 = 0.75;
/// So near to one that is too small, one that is not need not be any smaller.
const NEAR: f64 = 1.08;
/// Most runs without predictions.
const SEARCHED_MOST: usize = 8;

/// A line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub ram: f64,
    pub seconds: f64,
    pub work: Work,
    /// Else it was predicted.
    pub measured: bool,
}

/// What was measured, the largest budget first, none faster than a larger one. The first is the program as it is.
pub struct Measured {
    points: Vec<Row>,
}

impl Measured {
    /// Of a program that takes `plain_s` seconds and `peak` bytes as it is. One that was stopped took for ever.
    pub fn new((plain_s, peak): (f64, f64), runs: impl Iterator<Item = (Run, bool)>) -> Measured {
        let point = |(run, stopped): (Run, bool)| Row {
            ram: run.ram,
            seconds: if stopped { f64::INFINITY } else { run.seconds },
            work: run.work(),
            measured: true,
        };
        let plain = Row { ram: peak, seconds: plain_s, work: Work::default(), measured: true };
        let mut points: Vec<Row> = runs.map(point).collect();
        points.sort_by(|a, b| b.ram.total_cmp(&a.ram));
        points.insert(0, plain);
        Measured { points: rising(points) }
    }

    /// The smallest budget that was measured, of those with which the program ended.
    pub fn least(&self) -> f64 {
        self.ended().last().map_or(0.0, |point| point.ram)
    }

    fn ended(&self) -> impl Iterator<Item = &Row> {
        self.points.iter().filter(|point| point.seconds.is_finite())
    }

    /// The smallest budget at which it takes at most `times` as long as it is.
    pub fn knee(&self, times: f64) -> f64 {
        self.points[..self.fast(times)].last().map_or(0.0, |point| point.ram)
    }

    /// How many are at most `times` as long.
    fn fast(&self, times: f64) -> usize {
        let plain = self.points.first().map_or(0.0, |point| point.seconds);
        self.points.partition_point(|point| point.seconds <= times * plain)
    }

    /// The budget to measure next, where nothing is predicted: less than all, or [`Measured::between`].
    pub fn next(&self) -> Option<f64> {
        let (peak, least) = (self.points.first()?.ram, self.points.last()?.ram);
        if self.points.len() > SEARCHED_MOST {
            return None;
        }
        if self.points.len() == 1 {
            return Some(budgets::up(FIRST * peak, peak));
        }
        if self.fast(KNEES[0]) == self.points.len() && least > budgets::least(peak) {
            return Some(budgets::up(LESS * least, least).min((least - budgets::MIB).max(RAM_MIN)));
        }
        self.between()
    }

    /// Between a budget that is too small and the next one that is not, if these are far from each other.
    pub fn between(&self) -> Option<f64> {
        let peak = self.points.first()?.ram;
        KNEES.iter().find_map(|times| {
            let (small, enough) = (self.points.get(self.fast(*times))?.ram, self.knee(*times));
            let between = budgets::up((small * enough).sqrt(), peak);
            (enough > NEAR * small && between > small && between < enough).then_some(between)
        })
    }

    /// The table: what was measured, and between that what `model` expects.
    pub fn rows(&self, model: Option<&Model>) -> Vec<Row> {
        let mut rows: Vec<Row> = self.ended().copied().collect();
        let peak = rows.first().map_or(0.0, |row| row.ram);
        for (ram, model) in budgets::steps(peak, self.least()).into_iter().zip(model.into_iter().cycle()) {
            let after = self.points.partition_point(|point| point.ram > ram);
            let (Some(below), Some(above)) = (self.points.get(after), self.points.get(after.max(1) - 1)) else {
                continue;
            };
            if budgets::are_same(ram, below.ram) || budgets::are_same(ram, above.ram) {
                continue;
            }
            let expected = model.expect(ram);
            let seconds = expected.seconds.clamp(above.seconds, below.seconds);
            rows.push(Row { ram, seconds, work: expected.work, measured: false });
        }
        rows.sort_by(|a, b| b.ram.total_cmp(&a.ram));
        rising(rows)
    }
}

/// Each has as much to do as the one before it, or more.
fn rising(mut rows: Vec<Row>) -> Vec<Row> {
    for i in 1..rows.len() {
        let more = rows[i - 1];
        rows[i].seconds = rows[i].seconds.max(more.seconds);
        rows[i].work = rows[i].work.each(more.work, f64::max);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::budgets::MIB;
    use super::*;

    fn measured(runs: &[(f64, f64)]) -> Measured {
        let run = |(ram, seconds): &(f64, f64)| {
            (Run { ram: ram * MIB, seconds: *seconds, pages_in: *seconds, ..Run::default() }, *seconds > 90.0)
        };
        Measured::new((2.0, 100.0 * MIB), runs.iter().map(run))
    }

    #[test]
    fn the_answer_was_measured_and_so_was_all_above_it() {
        let all = measured(&[(80.0, 2.9), (40.0, 2.1), (30.0, 7.0), (90.0, 2.1), (20.0, 99.0)]);
        assert_eq!([1.5, 1.1, 1.01].map(|times| all.knee(times) / MIB), [40.0, 90.0, 100.0]);
        assert_eq!(all.least(), 30.0 * MIB, "with less it did not end");
        let rows = all.rows(None);
        assert_eq!(rows.iter().map(|row| row.seconds).collect::<Vec<_>>(), [2.0, 2.1, 2.9, 2.9, 7.0]);
        assert!(rows.is_sorted_by(|a, b| a.ram > b.ram && a.work.pages_in <= b.work.pages_in));
    }

    #[test]
    fn what_is_looked_for_is_found() {
        // It needs 50 MiB; with less it takes ten times as long.
        let (mut runs, mut tried) = (Vec::new(), Vec::new());
        while let Some(ram) = measured(&runs).next() {
            let ram = ram / MIB;
            tried.push(ram);
            runs.push((ram, if ram >= 50.0 { 2.1 } else { 20.0 }));
        }
        assert_eq!(tried, [75.0, 53.0, 38.0, 45.0, 49.0, 51.0]);
        assert_eq!(measured(&runs).knee(1.1), 51.0 * MIB);
        // It needs nothing; it needs all.
        let last = |seconds| {
            let mut runs: Vec<(f64, f64)> = Vec::new();
            while let Some(ram) = measured(&runs).next() {
                runs.push((ram / MIB, seconds));
            }
            (runs.len(), measured(&runs).knee(1.5) / MIB, runs.iter().fold(100.0, |least: f64, run| least.min(run.0)))
        };
        assert_eq!(last(2.0), (6, 16.0, 16.0));
        let (runs, knee, least) = last(99.0);
        assert!(runs <= 4 && knee == 100.0 && least == 75.0, "{runs} {knee} {least}");
    }
}
