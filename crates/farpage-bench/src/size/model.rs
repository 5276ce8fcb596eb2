//! What a program does in less memory, from its trace and from runs that were measured. Pure; called by [`super`].
//!
//! The simulator says what a memory of so many pages would have had to do ([`Curve`]). Of a budget, a part is memory
//! and the rest is the compressed pool, and a fault has a price; neither is known beforehand. Both are taken from
//! measured runs ([`Anchor`]): the memory in which the simulator reads as many pages as the run did, and the run's
//! additional time, divided by its work. Between two anchors both are interpolated.

use farpage_swap::sim::Counts;

/// A page of zeros that is touched for the first time, and a page that comes in with another one: parts of a fault.
const LIGHT: f64 = 0.1;
/// A fault that waits for a file, in faults, besides itself.
const FILE: f64 = 2.0;
/// Memory is managed from this part of the budget on.
const ACTIVE: f64 = 0.875;
/// As long as no run was measured: so many pages are missing for each that the budget is short of, as the pool takes
/// some; and this part of the budget is memory at least.
const POOL: f64 = 1.5;
const MEMORY_LEAST: f64 = 0.4;
/// Steps from the least budget to the peak, where a knee is looked for.
const STEPS: u32 = 400;

/// What a run has to do for its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Faults on pages that have to be read.
    pub reads: f64,
    /// Faults on pages that are still there.
    pub minor: f64,
    /// Pages of zeros.
    pub first: f64,
    /// Pages that come in.
    pub pages_in: f64,
    /// Pages that go out.
    pub pages_out: f64,
}

impl Work {
    fn of(counts: &Counts) -> Work {
        Work {
            reads: counts.reads as f64,
            minor: counts.minor as f64,
            first: counts.first as f64,
            pages_in: (counts.reads + counts.ahead) as f64,
            pages_out: counts.out as f64,
        }
    }

    /// Each number by itself.
    pub fn each(self, other: Work, f: impl Fn(f64, f64) -> f64) -> Work {
        Work {
            reads: f(self.reads, other.reads),
            minor: f(self.minor, other.minor),
            first: f(self.first, other.first),
            pages_in: f(self.pages_in, other.pages_in),
            pages_out: f(self.pages_out, other.pages_out),
        }
    }

    /// In faults; `file`: part of the reads that wait for a file; `before`: pages that come before memory is managed.
    fn faults(self, file: f64, before: f64) -> f64 {
        let light = (self.pages_in - self.reads) + (self.first - before).max(0.0);
        self.reads * (1.0 + FILE * file) + self.minor + LIGHT * light
    }
}

/// What memories of some sizes would have had to do.
#[derive(Debug)]
pub struct Curve {
    /// By pages of memory, the smallest first; a larger one has not more to do.
    points: Vec<(f64, Work)>,
}

impl Curve {
    /// Of simulated memories: pages, and what was counted.
    pub fn new(mut simulated: Vec<(u32, Counts)>) -> Curve {
        simulated.sort_by_key(|(pages, _)| *pages);
        let mut points: Vec<(f64, Work)> =
            simulated.iter().map(|(pages, counts)| (f64::from(*pages), Work::of(counts))).collect();
        for i in (1..points.len()).rev() {
            points[i - 1].1 = points[i - 1].1.each(points[i].1, f64::max);
        }
        Curve { points }
    }

    /// What so many pages of memory have to do.
    pub fn at(&self, pages: f64) -> Work {
        let after = self.points.partition_point(|(at, _)| *at < pages);
        let (Some(above), Some(below)) = (self.points.get(after), self.points.get(after.max(1) - 1)) else {
            return self.points.last().map(|(_, work)| *work).unwrap_or_default();
        };
        if after == 0 {
            return above.1;
        }
        let part = (pages - below.0) / (above.0 - below.0);
        below.1.each(above.1, |low, high| geometric(low, high, part))
    }

    /// The memory that reads so many pages.
    pub fn memory_for(&self, pages_in: f64) -> f64 {
        let (mut low, mut high) = match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => (first.0, last.0),
            _ => return 0.0,
        };
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if self.at(middle).pages_in > pages_in { low = middle } else { high = middle }
        }
        high
    }
}

/// Between two numbers that are not negative, by their logarithms.
fn geometric(from: f64, to: f64, part: f64) -> f64 {
    ((from + 1.0).ln() * (1.0 - part) + (to + 1.0).ln() * part).exp() - 1.0
}

/// A measured run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// Its budget, bytes.
    pub ram: f64,
    /// How long it took.
    pub seconds: f64,
    /// Pages that came in.
    pub pages_in: f64,
    /// Faults that read, and those of them that waited for a file.
    pub reads: f64,
    pub file_reads: f64,
    /// Faults on pages that were still there.
    pub minor: f64,
    /// Pages that went out.
    pub pages_out: f64,
}

impl Run {
    /// What it had to do.
    pub fn work(&self) -> Work {
        let Run { pages_in, reads, minor, pages_out, .. } = *self;
        Work { reads, minor, first: 0.0, pages_in, pages_out }
    }
}

/// What a measured run says of its budget.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    ram: f64,
    /// Pages of the simulator's that are as good.
    memory: f64,
    /// What it had to do, in faults, and seconds for each.
    faults: f64,
    price: f64,
    /// Part of the reads that wait for a file.
    file: f64,
}

/// Seconds for each of so many faults: between two anchors by the logarithm of how many there are.
fn price(below: &Anchor, above: &Anchor, faults: f64) -> f64 {
    let whole = (below.faults / above.faults).ln();
    if !(whole > 0.0 && whole.is_finite() && above.price > 0.0 && below.price > 0.0) {
        return f64::midpoint(below.price, above.price);
    }
    let part = ((faults / above.faults).ln() / whole).clamp(0.0, 1.0);
    above.price * (below.price / above.price).powf(part)
}

/// What is expected of a budget.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub seconds: f64,
    pub work: Work,
}

/// A program in less memory.
#[derive(Debug)]
pub struct Model {
    curve: Curve,
    plain_s: f64,
    peak: f64,
    /// Pages that the trace has at most, at a time.
    pages: f64,
    /// Seconds for a fault, as long as no run was measured.
    price: f64,
    /// The largest budget first.
    anchors: Vec<Anchor>,
    /// The trace ends before the program: pages read cannot be compared, only times.
    partial: bool,
}

impl Model {
    /// Of a program that takes `plain_s` seconds and `peak` bytes as it is.
    pub fn new(curve: Curve, (plain_s, peak): (f64, f64), pages: f64, price: f64, partial: bool) -> Model {
        Model { curve, plain_s, peak, pages, price, anchors: Vec::new(), partial }
    }

    /// Goes by a measured run, too.
    pub fn calibrate(&mut self, run: &Run) {
        let memory = match self.partial {
            true => self.memory(run.ram),
            false => self.curve.memory_for(run.pages_in),
        };
        let file = if run.reads > 0.0 { (run.file_reads / run.reads).min(1.0) } else { 0.0 };
        let faults = self.curve.at(memory).faults(file, self.before(run.ram));
        let price = if faults >= 1.0 { (run.seconds - self.plain_s).max(0.0) / faults } else { self.price };
        self.anchors.push(Anchor { ram: run.ram, memory, faults, price, file });
        self.anchors.sort_by(|a, b| b.ram.total_cmp(&a.ram));
    }

    /// Pages that come before memory is managed.
    fn before(&self, ram: f64) -> f64 {
        self.pages * (ram / self.peak * ACTIVE).min(1.0)
    }

    /// The anchors around a budget, and where between them it is.
    fn around(&self, ram: f64) -> Option<(Anchor, Anchor, f64)> {
        let below = self.anchors.iter().position(|anchor| anchor.ram <= ram);
        let (above, below) = match below {
            Some(0) => (self.anchors[0], self.anchors[0]),
            Some(i) => (self.anchors[i - 1], self.anchors[i]),
            None => (*self.anchors.last()?, *self.anchors.last()?),
        };
        let part = if above.ram > below.ram { (ram - below.ram) / (above.ram - below.ram) } else { 0.0 };
        Some((below, above, part))
    }

    /// Pages of the simulator's that are as good as a budget.
    fn memory(&self, ram: f64) -> f64 {
        let whole = (self.peak, self.pages);
        let Some((below, above, part)) = self.around(ram) else {
            let missing = (1.0 - ram / whole.0) * POOL;
            return whole.1 * (1.0 - missing).max(ram / whole.0 * MEMORY_LEAST);
        };
        if ram < below.ram {
            return below.memory * ram / below.ram;
        }
        if ram > above.ram {
            // What the engine takes for itself it takes up to the last page: there is a step at the peak.
            return (above.memory + (ram - above.ram) / whole.0 * whole.1).min(whole.1);
        }
        below.memory + (above.memory - below.memory) * part
    }

    /// What is expected of a budget, bytes.
    pub fn expect(&self, ram: f64) -> Expected {
        if ram >= self.peak {
            return Expected { seconds: self.plain_s, work: Work::default() };
        }
        let work = self.curve.at(self.memory(ram));
        let Some((below, above, part)) = self.around(ram) else {
            let seconds = self.plain_s + self.price * work.faults(0.0, self.before(ram));
            return Expected { seconds, work };
        };
        let file = below.file + (above.file - below.file) * part;
        let faults = work.faults(file, self.before(ram));
        Expected { seconds: self.plain_s + price(&below, &above, faults) * faults, work }
    }

    /// The knee: the smallest budget, of `least` and more, at which the run and those in all larger ones take at most
    /// `times` as long as with all memory.
    pub fn knee(&self, times: f64, least: f64) -> f64 {
        let mut knee = self.peak;
        for step in (0..=STEPS).rev() {
            let ram = least + (self.peak - least) * f64::from(step) / f64::from(STEPS);
            if self.expect(ram).seconds > times * self.plain_s {
                return knee;
            }
            knee = ram;
        }
        knee
    }
}

#[cfg(test)]
mod tests {
    use super::super::budgets::MIB;
    use super::*;

    /// Pages of 100 MiB.
    const PAGES: f64 = 25600.0;

    /// Twice as many reads for each tenth of memory less.
    fn curve() -> Curve {
        let simulated = (1..=10u32).map(|tenths| {
            let reads = if tenths == 10 { 0 } else { 1000 << (10 - tenths) };
            (2560 * tenths, Counts { first: 25600, reads, ahead: reads, out: reads, ..Counts::default() })
        });
        Curve::new(simulated.collect())
    }

    fn model() -> Model {
        Model::new(curve(), (2.0, 100.0 * MIB), PAGES, 30e-6, false)
    }

    #[test]
    fn a_curve_is_read_both_ways() {
        let curve = curve();
        assert!((curve.at(2560.0 * 5.0).reads - 32000.0).abs() < 0.1);
        assert!((curve.at(2560.0 * 4.5).reads - 45254.0).abs() < 10.0, "{:?}", curve.at(2560.0 * 4.5));
        assert_eq!(curve.at(1e9).reads, 0.0);
        assert_eq!(curve.at(1.0), curve.at(2560.0), "less than was simulated");
        assert!((curve.memory_for(2.0 * 32000.0) - 12800.0).abs() < 1.0);
        assert_eq!(curve.memory_for(0.0), PAGES);
    }

    #[test]
    fn a_larger_memory_has_not_more_to_do() {
        let of = |reads| Counts { reads, ..Counts::default() };
        let curve = Curve::new(vec![(30, of(7)), (10, of(5)), (20, of(9))]);
        assert_eq!([10.0, 20.0, 30.0].map(|pages| curve.at(pages).reads.round()), [9.0, 9.0, 7.0]);
    }

    #[test]
    fn what_was_measured_is_expected() {
        let mut model = model();
        let runs = [(80.0, 3.0, 9000.0, 100.0), (50.0, 9.0, 90000.0, 9000.0)];
        for (ram, seconds, pages_in, file_reads) in runs {
            model.calibrate(&Run {
                ram: ram * MIB,
                seconds,
                pages_in,
                reads: pages_in / 2.0,
                file_reads,
                ..Run::default()
            });
        }
        for (ram, seconds, pages_in, _) in runs {
            let expected = model.expect(ram * MIB);
            assert!((expected.seconds - seconds).abs() < 0.01, "{expected:?}");
            assert!((expected.work.pages_in / pages_in - 1.0).abs() < 0.01, "{expected:?}");
        }
        let between = model.expect(65.0 * MIB);
        assert!(between.seconds > 3.0 && between.seconds < 9.0, "{between:?}");
        assert_eq!(model.expect(100.0 * MIB).seconds, 2.0);
    }

    #[test]
    fn what_a_budget_lacks_it_lacks_up_to_the_peak() {
        let mut model = model();
        // As much as 80 MiB would read.
        let pages_in = model.curve.at(PAGES * 0.8).pages_in;
        model.calibrate(&Run {
            ram: 90.0 * MIB,
            seconds: 4.0,
            pages_in,
            reads: pages_in,
            file_reads: 0.0,
            ..Run::default()
        });
        let close = model.expect(99.0 * MIB).work.reads;
        assert!((close - model.curve.at(PAGES * 0.89).reads).abs() < 1.0, "{close}");
        assert_eq!(model.expect(100.0 * MIB).work.reads, 0.0);
    }

    #[test]
    fn a_part_of_a_trace_is_scaled_by_time() {
        let mut model = Model { partial: true, ..model() };
        model.calibrate(&Run {
            ram: 50.0 * MIB,
            seconds: 12.0,
            pages_in: 1e9,
            reads: 1e9,
            file_reads: 0.0,
            ..Run::default()
        });
        let expected = model.expect(50.0 * MIB);
        assert!(
            (expected.seconds - 12.0).abs() < 0.01 && (expected.work.reads - 181_019.4).abs() < 1.0,
            "{expected:?}"
        );
    }

    #[test]
    fn a_knee_is_the_last_budget_that_is_fast_enough() {
        let model = model();
        let knee = model.knee(1.5, 16.0 * MIB);
        assert!(model.expect(knee).seconds <= 3.0, "{knee}");
        assert!(model.expect(knee - MIB).seconds > 3.0, "{knee}");
        assert!(model.knee(1.1, 16.0 * MIB) > knee);
        assert_eq!(model.knee(1e6, 16.0 * MIB), 16.0 * MIB, "any will do");
    }
}
