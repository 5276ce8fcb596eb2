//! `farpage-bench sim` over the recorded traces of `tests/traces`: how good the engine's policy is, by counts.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn traces() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == "zst"));
    all.sort();
    all
}

fn sim(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage-bench"));
    let output = command.arg("sim").args(arguments).args(["--json", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap()
}

/// The goal: at most so many times the reads of exact least-recently-used order, in percent.
const GOAL: u64 = 110;
/// Where it is missed: trace, memory in percent of its pages, and the bound that is kept instead. Nearly everything is
/// hot there and hardly anything is read back, so a few hundred reads are a large ratio
/// (docs/measurements/2026-11-24-policy.md).
const MISSED: [(&str, u64, u64); 2] = [("sort", 50, 140), ("cc1", 50, 290)];

/// Recency is good in all of them.
#[test]
fn real_traces_are_about_as_good_as_least_recently_used() {
    let traces = traces();
    assert!(traces.len() >= 3);
    let mut missed = 0;
    for path in traces {
        for percent in [50u64, 25, 12] {
            let ram = if percent == 12 { "12.5%".to_string() } else { format!("{percent}%") };
            let value = sim(&["--trace", path.to_str().unwrap(), "--ram", &ram, "--policy", "ours"]);
            let row = &value["rows"][0];
            let (ours, lru, opt) = (number(row, "reads"), number(row, "lru_reads"), number(row, "opt_reads"));
            assert!(opt <= ours && opt <= lru, "{row}");
            let name = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap();
            let known = MISSED.iter().find(|(trace, at, _)| *trace == name && *at == percent);
            missed += usize::from(known.is_some());
            let most = known.map_or(GOAL, |(_, _, most)| *most);
            assert!(ours * 100 <= lru * most, "{name} in {ram}: {ours} reads, {lru} least recently used: {row}");
        }
    }
    assert_eq!(missed, MISSED.len(), "a name without its trace");
}

/// The same numbers each time: no hash order, no clock.
#[test]
fn a_trace_gives_the_same_numbers_again() {
    let path = traces().into_iter().find(|path| path.to_str().unwrap().contains("sort")).unwrap();
    let run = || sim(&["--trace", path.to_str().unwrap()]);
    let (first, again) = (run(), run());
    assert!(first["rows"].as_array().unwrap().len() > 10);
    assert_eq!(first, again);
}

#[test]
fn a_trace_that_is_saved_is_the_same_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (lackey, saved) = (dir.path().join("lackey"), dir.path().join("saved"));
    let lines: String =
        (0..5000u64).map(|i| format!(" {} {:08x},4\n", ["L", "S"][i as usize % 2], (i * i % 701) << 12)).collect();
    std::fs::write(&lackey, lines).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage-bench"));
    let save = command.args(["sim", "--trace"]).arg(&lackey).arg("--save").arg(&saved).output().unwrap();
    assert!(save.status.success(), "{}", String::from_utf8_lossy(&save.stderr));
    let rows = |path: &Path| {
        let mut value = sim(&["--trace", path.to_str().unwrap(), "--ram", "100"]);
        value["rows"].as_array_mut().unwrap().iter_mut().for_each(|row| row["trace"] = Value::Null);
        value
    };
    assert_eq!(rows(&lackey), rows(&saved));
    assert!(std::fs::metadata(&saved).unwrap().len() * 10 < std::fs::metadata(&lackey).unwrap().len());
}

#[test]
fn what_cannot_be_simulated_is_said() {
    const LOOP: [&str; 6] = ["--pages", "16", "--accesses", "100", "--synthetic", "loop"];
    for (arguments, status, says) in [
        (&[][..], 2, "nothing to simulate"),
        (&["--synthetic", "tape"], 2, "unknown workload"),
        (&[&LOOP[..], &["--ram", "tape"]].concat(), 2, "--ram: "),
        (&[&LOOP[..], &["--synthetic", "loop", "--save", "/nonexistent/saved"]].concat(), 2, "exactly one trace"),
        (&["--trace", "/nonexistent"], 1, "no such file"),
        (&["--trace", "/proc/cpuinfo"], 1, "access"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_farpage-bench")).arg("sim").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(says), "{arguments:?}: {text}");
    }
}
