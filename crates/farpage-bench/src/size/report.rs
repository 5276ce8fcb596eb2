//! What was found out, as a table of 80 columns, and as JSON. Called by [`super`].

use super::answer::Row;
use super::budgets::MIB;
use super::{Checked, Found};
use crate::failure::Result;
use crate::output::SCHEMA;
use crate::output::bar;
use farpage::PAGE_SIZE;
use serde_json::{Value, json};
use std::path::Path;

/// A bar is as long as that at so many times the plain time.
const BAR: usize = 13;
const BAR_TIMES: f64 = 5.0;

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / MIB)
}

fn of_pages(pages: f64) -> f64 {
    pages * PAGE_SIZE as f64
}

impl Found {
    /// The table, what it means, and how well it fits.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:>10} {:>5} {:>9} {:>7} {:>10} {:>8} {:>8}",
            "RAM", "%", "seconds", "times", "faults", "MiB in", "MiB out"
        )];
        lines.extend(self.rows.iter().map(|row| self.line(row)));
        let [most, near] = self.knees.map(|knee| knee.0);
        lines.push(format!("*: the smallest that was measured with at most {near} and {most} times as long"));
        if self.rows.iter().any(|row| !row.measured) {
            lines.push(String::from("~: predicted; all others were measured"));
        }
        lines.push(String::new());
        for run in &self.runs {
            lines.push(self.run_line(run));
        }
        lines.push(String::new());
        lines.push(self.answer());
        lines.join("\n")
    }

    fn line(&self, row: &Row) -> String {
        let (work, times) = (&row.work, row.seconds / self.plain_s);
        let about = if row.measured { "" } else { "~" };
        let line = format!(
            "{} {:>8} {:>5.0} {:>9} {:>7} {:>10.0} {:>8.0} {:>8.0}  {}",
            if self.knees.iter().any(|knee| knee.1 == row.ram) { '*' } else { ' ' },
            mib(row.ram),
            100.0 * row.ram / self.peak,
            format!("{about}{:.1}", row.seconds),
            format!("{about}{times:.1}"),
            work.reads + work.minor,
            of_pages(work.pages_in) / MIB,
            of_pages(work.pages_out) / MIB,
            bar(times / BAR_TIMES, BAR)
        );
        line.trim_end().to_owned()
    }

    fn run_line(&self, run: &Checked) -> String {
        let what = match (run.check, run.predicted) {
            (true, _) => "checked",
            (false, Some(_)) => "calibrated",
            (false, None) => "measured",
        };
        let measured = match run.stopped {
            true => format!("stopped after {:.1} s", run.measured.seconds),
            false => format!("measured {:.1} s", run.measured.seconds),
        };
        let words = |predicted: f64| format!("predicted {predicted:.1} s, ");
        let predicted = run.predicted.filter(|_| run.check).map(words).unwrap_or_default();
        let error = match (run.check, run.stopped) {
            (true, false) if run.used => format!(" ({:+.0} %: calibrates)", 100.0 * run.error()),
            (true, false) => format!(" ({:+.0} %)", 100.0 * run.error()),
            _ => String::new(),
        };
        format!("{what:<10} at {:>9}: {predicted}{measured}{error}", mib(run.measured.ram))
    }

    /// The lines that answer the question.
    pub fn answer(&self) -> String {
        let [knee, near] = [&self.knees[0], &self.knees[1]];
        let program = self.program.first().map(String::as_str).unwrap_or_default();
        if knee.1 >= self.peak {
            let tried = self.runs.iter().map(|run| run.measured.ram);
            let (least, most) = tried.fold((self.peak, 0.0f64), |(least, most), ram| (least.min(ram), most.max(ram)));
            return format!(
                "{program} needs all of its {}, or nearly: it took more than {} times as long\nwith each budget that \
                 was tried, from {} down to {}.",
                mib(self.peak),
                knee.0,
                mib(most),
                mib(least)
            );
        }
        let less = if knee.1 <= self.least { "\nNo less was measured: less may do." } else { "" };
        format!(
            "{program} needs {} to run at most {} times as long as with all of its {},\nand {} for {} times.{less}",
            mib(knee.1),
            knee.0,
            mib(self.peak),
            mib(near.1),
            near.0
        )
    }

    /// What should be known besides.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.notes.clone();
        let most = self.runs.iter().filter(|run| run.is_missed()).map(|run| run.error().abs()).fold(0.0, f64::max);
        if most > 0.0 {
            remarks.push(format!("the prediction is off by up to {:.0} % here: go by what was measured", 100.0 * most));
        }
        remarks
    }

    fn json(&self) -> Value {
        let mut object = json!({
            "schema": SCHEMA,
            "program": self.program,
            "notes": self.remarks(),
            "plain_seconds": self.plain_s,
            "peak_bytes": self.peak as u64,
            "trace_seconds": self.recorded.as_ref().map(|record| record.seconds),
            "trace_accesses": self.recorded.as_ref().map(|record| record.accesses),
            "trace_is_partial": self.recorded.as_ref().map(|record| record.partial),
            "least_measured_bytes": self.least as u64,
        });
        let knee = |(times, ram): &(f64, f64)| json!({ "times": times, "ram_bytes": *ram as u64 });
        object["knees"] = self.knees.iter().map(knee).collect();
        let row = |row: &Row| {
            json!({
                "ram_bytes": row.ram as u64,
                "seconds": row.seconds,
                "times": row.seconds / self.plain_s,
                "major_faults": row.work.reads.round() as u64,
                "minor_faults": row.work.minor.round() as u64,
                "pages_in": row.work.pages_in.round() as u64,
                "pages_out": row.work.pages_out.round() as u64,
                "measured": row.measured,
            })
        };
        object["rows"] = self.rows.iter().map(row).collect();
        let run = |run: &Checked| {
            json!({
                "for": if run.check { "check" } else { "calibration" },
                "ram_bytes": run.measured.ram as u64,
                "predicted_seconds": run.predicted,
                "measured_seconds": run.measured.seconds,
                "then_calibrates": run.used,
                "error": run.predicted.filter(|_| !run.stopped).map(|_| run.error()),
                "stopped": run.stopped,
                "predicted_pages_in": run.predicted_pages.round() as u64,
                "measured_pages_in": run.measured.pages_in.round() as u64,
            })
        };
        object["runs"] = self.runs.iter().map(run).collect();
        object
    }

    /// Prints it, or writes JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, to: Option<&Path>) -> Result<()> {
        let table = || {
            println!("{}", self.text());
            self.remarks().iter().for_each(|remark| println!("{remark}"));
        };
        crate::output::table_or_json(to, table, || format!("{:#}", self.json()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Record;
    use super::super::model::{Run, Work};
    use super::*;

    #[test]
    fn the_table_fits_a_terminal_and_answers() {
        let work = Work { reads: 1e8, minor: 1e8, first: 0.0, pages_in: 2e9, pages_out: 2e9 };
        let row = |ram, seconds, measured| Row { ram: ram * MIB, seconds, work, measured };
        let run = |check, ram, predicted, seconds| Checked {
            check,
            used: false,
            predicted,
            predicted_pages: 1.0,
            measured: Run { ram: ram * MIB, seconds, pages_in: 1.0, ..Run::default() },
            stopped: false,
        };
        let mut found = Found {
            program: vec!["sort".into(), "-S1G".into()],
            notes: Vec::new(),
            plain_s: 1000.0,
            peak: 286.0 * MIB,
            recorded: Some(Record { seconds: 1.0, accesses: 7, partial: false }),
            knees: [(1.5, 160.0 * MIB), (1.1, 200.0 * MIB)],
            least: 100.0 * MIB,
            rows: vec![row(286.0, 1000.0, true), row(160.0, 1500.0, true), row(120.0, 99_000.0, false)],
            runs: vec![run(false, 100.0, None, 3.0), run(true, 150.0, Some(2.0), 3.0)],
        };
        let text = found.text();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(
            text.contains("sort needs 160 MiB to run at most 1.5 times as long as with all of its 286 MiB"),
            "{text}"
        );
        assert!(text.contains("~99000.0") && text.contains("###>") && text.contains("  ####\n"), "{text}");
        assert!(text.contains("*  160 MiB") && !text.contains("*  120 MiB") && !text.contains("less may do"), "{text}");
        assert!(text.contains("predicted 2.0 s, measured 3.0 s (-33 %)"), "{text}");
        assert!(text.contains("measured   at   100 MiB: measured 3.0 s\n"), "{text}");
        assert_eq!(found.remarks().len(), 1, "off by more than a quarter: {:?}", found.remarks());
        found.runs[1].used = true;
        assert!(found.text().contains("measured 3.0 s (-33 %: calibrates)") && found.remarks().is_empty());
        let json = found.json();
        assert_eq!((json["rows"].as_array().unwrap().len(), &json["runs"][1]["for"]), (3, &"check".into()));
        found.least = 160.0 * MIB;
        assert!(found.answer().ends_with("\nNo less was measured: less may do."), "{}", found.answer());
        found.knees[0].1 = 286.0 * MIB;
        let all = "sort needs all of its 286 MiB, or nearly: it took more than 1.5 times as long\n\
                   with each budget that was tried, from 150 MiB down to 100 MiB.";
        assert_eq!(found.answer(), all);
    }
}
