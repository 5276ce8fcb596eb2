//! Medians and ranges of the rounds, as a table and as JSON.

use super::requests::RequestTimes;
use super::side::Ended;
use crate::compare::row::Spread;
use serde_json::{Value, json};
use std::ffi::OsString;

/// One of each.
#[derive(Debug, Clone)]
pub struct Round {
    /// The program as it is.
    pub plain: Ended,
    /// On the kernel's swap, where that is measured.
    pub kernel: Option<Ended>,
    /// Under farpage.
    pub farpage: Ended,
    /// farpage's budget, bytes.
    pub ram: u64,
}

impl Round {
    /// farpage's largest resident anonymous memory, as a part of its budget.
    pub fn peak_share(&self) -> f64 {
        self.farpage.peak_rss_anon as f64 / self.ram.max(1) as f64
    }
}

/// What was measured so far.
#[derive(Debug, Default)]
pub struct Rows {
    /// At least one.
    pub rounds: Vec<Round>,
    /// Output of a run as it is, before the first round.
    pub first_output: (u64, u64),
}

const HEADER: &str =
    "side       seconds  (from     to)  CPU s     majflt  RssAnon MiB  pool MiB  speed: kernel's time / farpage's";
const REQUESTS_HEADER: &str = "requests    p50 ms    p99 ms    max ms    bad  p99: kernel's / farpage's";

impl Rows {
    /// The table.
    pub fn table(&self) -> String {
        let mut lines = vec![HEADER.to_owned()];
        for (name, runs) in self.sides() {
            let of = |f: fn(&Ended) -> f64| spread(runs.iter().map(|run| f(run)));
            let wall = of(|e| e.wall_s);
            let mut line = format!(
                "{name:<8} {:>9.2}  ({:>5.2} {:>6.2}) {:>6.2} {:>10.0} {:>12.1} {:>9.1}",
                wall.median,
                wall.min,
                wall.max,
                of(|e| e.cpu_s).median,
                of(|e| e.major_faults as f64).median,
                of(|e| mib(e.peak_rss_anon)).median,
                of(|e| mib(e.pool_peak_bytes)).median,
            );
            if let (true, Some(ratio)) = (name == "farpage", self.ratio()) {
                line.push_str(&shown(ratio));
            }
            lines.push(line);
        }
        lines.extend(self.requests_table());
        lines.join("\n")
    }

    /// Latencies of requests: no line where the program has none.
    fn requests_table(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, runs) in self.sides() {
            let Some(RequestTimes { p50_ms, p99_ms, max_ms, bad }) = requests(&runs) else { continue };
            if lines.is_empty() {
                lines.push(REQUESTS_HEADER.to_owned());
            }
            let mut line = format!("{name:<8} {p50_ms:>9.1} {p99_ms:>9.1} {max_ms:>9.1} {bad:>6}");
            if let (true, Some(ratio)) = (name == "farpage", self.p99_ratio()) {
                line.push_str(&shown(ratio));
            }
            lines.push(line);
        }
        lines
    }

    /// What must not be: a side that ended otherwise than the program as it is, or farpage's output another one
    /// although the program's own is always the same.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (i, round) in self.rounds.iter().enumerate() {
            for (name, run) in [("the kernel's swap", round.kernel.as_ref()), ("farpage", Some(&round.farpage))] {
                let Some(run) = run.filter(|run| run.end() != round.plain.end()) else { continue };
                let (ended, plain) = (run.status, round.plain.status);
                complaints.push(format!("round {}: with {name} it ended with {ended}, as it is with {plain}", i + 1));
            }
            let output = round.plain.output;
            if round.farpage.output != output && round.farpage.end() == round.plain.end() && self.is_steady() {
                complaints.push(format!(
                    "round {}: under farpage its output was another one: {} bytes, as it is {}",
                    i + 1,
                    round.farpage.output.0,
                    output.0
                ));
            }
            if !round.farpage.managed {
                complaints
                    .push(format!("round {}: farpage did not start in its first process: nothing was managed", i + 1));
            }
        }
        complaints
    }

    /// What else should be known.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if !self.is_steady() {
            remarks.push(String::from("the program's output is not the same each time, so it was not compared"));
        }
        if self.rounds.iter().any(|r| r.farpage.managed && r.farpage.major_faults == 0) {
            remarks.push(String::from("farpage had nothing to read back in the first process"));
        }
        remarks
    }

    /// Puts the whole result into an object; `ram`: the kernel's limit, bytes.
    pub fn put(&self, object: &mut Value, program: &[OsString], notes: &[String], ram: u64) {
        object["program"] = program.iter().map(|a| a.to_string_lossy()).collect();
        object["notes"] = notes.into();
        object["ram_bytes"] = ram.into();
        object["farpage_ram_bytes"] = self.ram().into();
        object["rounds"] = self.rounds.len().into();
        let ratio = self.ratio();
        object["ratio_median"] = json!(ratio.map(|r| r.median));
        object["ratio_min"] = json!(ratio.map(|r| r.min));
        object["ratio_max"] = json!(ratio.map(|r| r.max));
        if let Some(ratio) = self.p99_ratio() {
            object["p99_ratio_median"] = ratio.median.into();
            object["p99_ratio_min"] = ratio.min.into();
            object["p99_ratio_max"] = ratio.max.into();
        }
        object["farpage_peak_share"] = self.peak_share().into();
        object["farpage_file_pages"] = json!(self.file_pages());
        object["output_compared"] = self.is_steady().into();
        object["complaints"] = json!(self.complaints());
        object["rows"] = self.sides().iter().map(|(name, runs)| json_side(name, runs)).collect();
    }

    /// The median of something of one side's runs; `None`: that side was not measured.
    pub fn median(&self, side: &str, of: impl Fn(&Ended) -> f64) -> Option<f64> {
        let sides = self.sides();
        let (_, runs) = sides.iter().find(|(name, _)| *name == side)?;
        Spread::of(runs.iter().map(|run| of(run))).map(|spread| spread.median)
    }

    /// farpage's budget, bytes: the largest of all rounds.
    pub fn ram(&self) -> u64 {
        self.rounds.iter().map(|r| r.ram).max().unwrap_or(0)
    }

    /// Pages that farpage wrote to files, median: all that was written to files, less what the program writes as it is.
    pub fn file_pages(&self) -> u64 {
        let written = |side: &str| self.median(side, |run| run.written_bytes as f64).unwrap_or(0.0);
        (written("farpage") - written("plain")).max(0.0) as u64 / farpage::PAGE_SIZE as u64
    }

    /// The runs of each side that was measured.
    fn sides(&self) -> Vec<(&'static str, Vec<&Ended>)> {
        let kernel: Vec<&Ended> = self.rounds.iter().filter_map(|r| r.kernel.as_ref()).collect();
        let mut sides = vec![("plain", self.rounds.iter().map(|r| &r.plain).collect())];
        if !kernel.is_empty() {
            sides.push(("kernel", kernel));
        }
        sides.push(("farpage", self.rounds.iter().map(|r| &r.farpage).collect()));
        sides
    }

    /// The kernel's time divided by farpage's, of the same round.
    pub fn ratio(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|r| Some(r.kernel.as_ref()?.wall_s / r.farpage.wall_s)))
    }

    /// The kernel's 99th percentile of latency divided by farpage's, of the same round.
    pub fn p99_ratio(&self) -> Option<Spread> {
        let p99 = |run: &Ended| run.requests.map(|times| times.p99_ms);
        Spread::of(self.rounds.iter().filter_map(|r| Some(p99(r.kernel.as_ref()?)? / p99(&r.farpage)?.max(1e-3))))
    }

    /// The largest [`Round::peak_share`].
    pub fn peak_share(&self) -> f64 {
        self.rounds.iter().map(Round::peak_share).fold(0.0, f64::max)
    }

    /// Whether all runs as it is wrote the same: at least two.
    fn is_steady(&self) -> bool {
        self.rounds.iter().all(|round| round.plain.output == self.first_output)
    }
}

fn json_side(name: &str, runs: &[&Ended]) -> Value {
    let of = |f: fn(&Ended) -> f64| spread(runs.iter().map(|run| f(run)));
    let wall = of(|e| e.wall_s);
    let mut object = json!({
        "side": name,
        "seconds_median": wall.median,
        "seconds_min": wall.min,
        "seconds_max": wall.max,
        "cpu_s": of(|e| e.cpu_s).median,
        "major_faults": of(|e| e.major_faults as f64).median as u64,
        "peak_rss_anon": of(|e| e.peak_rss_anon as f64).median as u64,
        "written_bytes": of(|e| e.written_bytes as f64).median as u64,
        "pool_bytes": of(|e| e.pool_peak_bytes as f64).median as u64,
    });
    if let Some(requests) = requests(runs) {
        object["requests"] = json!(requests);
    }
    object
}

/// Medians of the runs that have any.
fn requests(runs: &[&Ended]) -> Option<RequestTimes> {
    RequestTimes::medians(&runs.iter().filter_map(|run| run.requests).collect::<Vec<_>>())
}

fn shown(ratio: Spread) -> String {
    format!("  {:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
}

fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    Spread::of(values).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::super::side::Counted;
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(wall_s: f64, output: u64, status: i32) -> Ended {
        let status = ExitStatus::from_raw(status);
        let (cpu_s, output) = (wall_s, (10, output));
        let managed = true;
        let (written_bytes, peak_rss_anon) = (output.1 << 12, 1 << 20);
        let pool_peak_bytes = 0;
        Ended {
            wall_s,
            cpu_s,
            major_faults: 1,
            written_bytes,
            peak_rss_anon,
            pool_peak_bytes,
            status,
            output,
            managed,
            counted: Counted::default(),
            stopped: false,
            requests: None,
        }
    }

    /// The output before the first round, and those of the three sides.
    fn rows([first, outputs @ ..]: [u64; 4], statuses: [i32; 3]) -> Rows {
        let [plain, kernel, farpage] = std::array::from_fn(|i| ended(i as f64 + 1.0, outputs[i], statuses[i]));
        Rows { rounds: vec![Round { plain, kernel: Some(kernel), farpage, ram: 5 }], first_output: (10, first) }
    }

    #[test]
    fn another_output_is_a_complaint_where_the_programs_own_is_steady() {
        assert!(rows([7; 4], [0; 3]).complaints().is_empty());
        assert_eq!(rows([7, 7, 7, 8], [0; 3]).complaints().len(), 1);
        let killed = rows([7, 7, 6, 8], [0, 9, 0]).complaints();
        assert_eq!(killed.len(), 2, "a kernel's run that was cut off says nothing of the program: {killed:?}");
        let unsteady = rows([6, 7, 7, 8], [0; 3]);
        assert!(unsteady.complaints().is_empty() && unsteady.remarks().iter().any(|r| r.contains("not compared")));
    }

    #[test]
    fn another_end_is_a_complaint() {
        assert!(rows([7; 4], [256; 3]).complaints().is_empty(), "as it is, it fails, too");
        assert!(rows([7; 4], [134, 134, 6]).complaints().is_empty(), "without the core dump");
        let killed = rows([7; 4], [0, 9, 0]).complaints();
        assert!(
            killed.len() == 1 && killed[0].contains("kernel's swap") && killed[0].contains("signal: 9"),
            "{killed:?}"
        );
        assert_eq!(rows([7; 4], [0, 0, 256]).complaints().len(), 1);
        let mut unmanaged = rows([7; 4], [0; 3]);
        unmanaged.rounds[0].farpage.managed = false;
        assert!(unmanaged.complaints()[0].contains("did not start"));
    }

    #[test]
    fn what_the_program_writes_itself_is_not_farpages() {
        assert_eq!(rows([7, 7, 7, 7], [0; 3]).file_pages(), 0);
        assert_eq!(rows([7, 7, 7, 9], [0; 3]).file_pages(), 2);
        assert_eq!(rows([7, 7, 7, 6], [0; 3]).file_pages(), 0, "it wrote less");
    }

    #[test]
    fn the_table_and_the_object_have_the_ratio() {
        let rows = rows([7; 4], [0; 3]);
        let table = rows.table();
        assert!(table.lines().count() == 4 && table.ends_with("0.67 (0.67 to 0.67)"), "{table}");
        let mut value = json!({});
        rows.put(&mut value, &["p".into()], &[], 3);
        assert_eq!((value["rows"].as_array().unwrap().len(), &value["rows"][1]["side"]), (3, &"kernel".into()));
        assert!((value["ratio_median"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
        assert!(value["rows"][0].get("requests").is_none() && value.get("p99_ratio_median").is_none());
    }

    #[test]
    fn the_table_and_the_object_have_latencies_of_requests() {
        let mut rows = rows([7; 4], [0; 3]);
        let times = |p99_ms| Some(RequestTimes { p50_ms: 1.0, p99_ms, max_ms: 9000.5, bad: 0 });
        let round = &mut rows.rounds[0];
        (round.plain.requests, round.farpage.requests) = (times(2.0), times(8.0));
        let ours = rows.table();
        let lines: Vec<&str> = ours.lines().skip(4).collect();
        assert!(lines.len() == 3 && lines[0] == REQUESTS_HEADER, "a kernel's run that was killed has none: {ours}");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["farpage", "1.0", "8.0", "9000.5", "0"]);
        rows.rounds[0].kernel.as_mut().unwrap().requests = times(24.0);
        let all = rows.table();
        assert!(all.lines().count() == 8 && all.ends_with("3.00 (3.00 to 3.00)"), "{all}");
        let mut value = json!({});
        rows.put(&mut value, &["p".into()], &[], 3);
        let again: Value = serde_json::from_str(&value.to_string()).unwrap();
        let kernel: RequestTimes = serde_json::from_value(again["rows"][1]["requests"].clone()).unwrap();
        assert_eq!((Some(kernel), &again["p99_ratio_median"]), (times(24.0), &3.0.into()));
        assert_eq!(again["farpage_peak_share"], json!((1 << 20) as f64 / 5.0));
    }
}
