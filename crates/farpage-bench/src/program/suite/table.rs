//! The suite's table, one line a program, and its JSON.

use super::programs::SuiteProgram;
use crate::compare::row::{Spread, or_dash};
use crate::output::SCHEMA;
use crate::program::report::Rows;
use serde_json::{Value, json};
use std::ffi::OsString;

/// Above the lines.
pub const HEADER: &str = concat!(
    "            MiB:        seconds:                  kernel's time /        major faults:           pages     com-\n",
    "program    plain    ram    plain  kernel farpage  farpage's (range)         kernel    farpage  to file  plaints"
);

/// What is known of a program of the suite.
#[derive(Debug)]
pub struct SuiteRow {
    /// Which one.
    pub program: &'static SuiteProgram,
    /// How it went.
    pub outcome: SuiteOutcome,
}

/// How it went with a program of the suite.
#[derive(Debug)]
pub enum SuiteOutcome {
    /// Something that it needs is not there.
    NotInstalled,
    /// It could not be measured: why.
    Failed(String),
    /// It was measured.
    Measured(Box<SuiteRounds>),
}

/// A program's rounds, and what belongs to them.
#[derive(Debug)]
pub struct SuiteRounds {
    /// The rounds: at least one.
    pub rows: Rows,
    /// What was run.
    pub argv: Vec<OsString>,
    /// The kernel's limit, bytes.
    pub ram: u64,
    /// What else should be known.
    pub notes: Vec<String>,
}

impl SuiteRow {
    /// Whether all went as it should; a program that is not installed does not count.
    pub fn is_clean(&self) -> bool {
        match &self.outcome {
            SuiteOutcome::NotInstalled => true,
            SuiteOutcome::Failed(_) => false,
            SuiteOutcome::Measured(rounds) => rounds.rows.complaints().is_empty(),
        }
    }

    /// Its line of the table.
    pub fn line(&self) -> String {
        let name = self.program.name;
        match &self.outcome {
            SuiteOutcome::NotInstalled => format!("{name:<9} not installed: {}", self.program.install),
            SuiteOutcome::Failed(why) => format!("{name:<9} not measured: {why}"),
            SuiteOutcome::Measured(rounds) => format!("{name:<9} {}", rounds.line()),
        }
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let mut object = json!({
            "name": self.program.name,
            "installed": !matches!(self.outcome, SuiteOutcome::NotInstalled),
        });
        match &self.outcome {
            SuiteOutcome::NotInstalled => object["install"] = self.program.install.into(),
            SuiteOutcome::Failed(why) => object["failure"] = why.as_str().into(),
            SuiteOutcome::Measured(rounds) => {
                rounds.rows.put(&mut object, &rounds.argv, &rounds.notes, rounds.ram);
            }
        }
        object
    }

    /// The kernel's time divided by farpage's; `None`: not both were measured.
    fn ratio(&self) -> Option<Spread> {
        match &self.outcome {
            SuiteOutcome::Measured(rounds) => rounds.rows.ratio(),
            _ => None,
        }
    }
}

impl SuiteRounds {
    fn line(&self) -> String {
        let rows = &self.rows;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let seconds = |side: &str| or_dash(rows.median(side, |run| run.wall_s), 2);
        let faults = |side: &str| or_dash(rows.median(side, |run| run.major_faults as f64), 0);
        let ratio = rows.ratio().map(|r| format!("{:.2} ({:.2} to {:.2})", r.median, r.min, r.max));
        let complaints = rows.complaints().len();
        format!(
            "{:>6} {:>6.0} {:>8} {:>7} {:>7}  {:<22} {:>9} {:>10} {:>8} {:>8}",
            or_dash(rows.median("plain", |run| mib(run.peak_rss_anon as f64)), 0),
            mib(rows.ram() as f64),
            seconds("plain"),
            seconds("kernel"),
            seconds("farpage"),
            ratio.unwrap_or_else(|| "-".to_owned()),
            faults("kernel"),
            faults("farpage"),
            rows.file_pages(),
            if complaints > 0 { complaints.to_string() } else { "-".to_owned() },
        )
    }
}

/// The line below the table.
pub fn summary(rows: &[SuiteRow]) -> String {
    let ratios = medians(rows);
    let Some(mean) = geometric_mean(&ratios) else {
        return String::from("no program was measured on both sides");
    };
    let below: Vec<&str> = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).map(|(name, _)| *name).collect();
    let names = if below.is_empty() { String::new() } else { format!(" ({})", below.join(", ")) };
    format!("geometric mean of {} programs: {mean:.2}; below 1.0: {}{names}", ratios.len(), below.len())
}

/// The whole result.
pub fn json(rows: &[SuiteRow], notes: &[String]) -> Value {
    let ratios = medians(rows);
    json!({
        "schema": SCHEMA,
        "notes": notes,
        "ratio_geometric_mean": geometric_mean(&ratios),
        "ratios": ratios.len(),
        "below_one": ratios.iter().filter(|(_, ratio)| *ratio < 1.0).count(),
        "programs": rows.iter().map(SuiteRow::json).collect::<Vec<_>>(),
    })
}

/// Names and median ratios of those that were measured on both sides.
fn medians(rows: &[SuiteRow]) -> Vec<(&'static str, f64)> {
    rows.iter().filter_map(|row| Some((row.program.name, row.ratio()?.median))).collect()
}

fn geometric_mean(ratios: &[(&str, f64)]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|(_, ratio)| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::super::programs::PROGRAMS;
    use super::*;
    use crate::program::{Counted, Ended, Round};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(wall_s: f64, major_faults: u64, written_pages: u64) -> Ended {
        Ended {
            wall_s,
            cpu_s: wall_s,
            major_faults,
            written_bytes: written_pages << 12,
            peak_rss_anon: 4000 << 20,
            pool_peak_bytes: 0,
            status: ExitStatus::from_raw(0),
            output: (10, 7),
            managed: true,
            counted: Counted::default(),
            stopped: false,
            requests: None,
        }
    }

    fn row(at: usize, kernel: Option<f64>) -> SuiteRow {
        let (plain, farpage) = (ended(100.0, 0, 1), ended(100.0, 20_000_000, 1_000_001));
        let kernel = kernel.map(|wall_s| ended(wall_s, 30_000_000, 0));
        let rounds = vec![Round { plain, kernel, farpage, ram: 1500 << 20 }];
        let rows = Rows { rounds, first_output: (10, 7) };
        let rounds = SuiteRounds { rows, argv: vec!["p".into()], ram: 1000 << 20, notes: Vec::new() };
        SuiteRow { program: &PROGRAMS[at], outcome: SuiteOutcome::Measured(Box::new(rounds)) }
    }

    fn other(at: usize, outcome: SuiteOutcome) -> SuiteRow {
        SuiteRow { program: &PROGRAMS[at], outcome }
    }

    #[test]
    fn lines_lie_below_the_header() {
        let (heads, line) = (HEADER.lines().map(str::len).max().unwrap(), row(0, Some(2500.0)).line());
        assert!((80..=120).contains(&heads) && line.len() == heads, "{HEADER}\n{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let wanted = ["sort", "4000", "1500", "100.00", "2500.00", "100.00", "25.00", "(25.00", "to", "25.00)"];
        assert_eq!((&words[..10], &words[10..]), (&wanted[..], &["30000000", "20000000", "1000000", "-"][..]));
        let alone = row(1, None).line();
        assert_eq!(alone.len(), heads, "{alone}");
        assert_eq!(alone.matches(" - ").count(), 3, "{alone}");
        for program in &PROGRAMS {
            let line = SuiteRow { program, outcome: SuiteOutcome::NotInstalled }.line();
            assert!(line.len() < 80 && line[..10].ends_with(' '), "{line}");
        }
    }

    #[test]
    fn the_summary_counts_what_has_both_sides() {
        let rows = [
            row(0, Some(400.0)),
            row(1, Some(25.0)),
            row(2, None),
            other(3, SuiteOutcome::NotInstalled),
            other(4, SuiteOutcome::Failed("it is broken".into())),
        ];
        assert_eq!(summary(&rows), "geometric mean of 2 programs: 1.00; below 1.0: 1 (perl)");
        assert_eq!(summary(&rows[2..]), "no program was measured on both sides");
        assert_eq!(rows.iter().map(SuiteRow::is_clean).collect::<Vec<_>>(), [true, true, true, true, false]);
    }

    #[test]
    fn the_object_has_one_for_each_program() {
        let rows =
            [row(0, Some(400.0)), other(3, SuiteOutcome::NotInstalled), other(4, SuiteOutcome::Failed("no".into()))];
        let value = json(&rows, &["a note".into()]);
        let programs = value["programs"].as_array().unwrap();
        let names: Vec<_> = programs.iter().map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(
            (names, &value["below_one"], &value["ratios"]),
            (vec!["sort", "gather", "passes"], &0.into(), &1.into())
        );
        assert_eq!((&programs[0]["installed"], &programs[0]["ratio_median"]), (&true.into(), &4.0.into()));
        assert_eq!(programs[0]["farpage_file_pages"], 1_000_000);
        assert!(!programs[1]["installed"].as_bool().unwrap() && programs[1]["install"].is_string(), "{value}");
        assert_eq!(programs[2]["failure"], "no");
    }
}
