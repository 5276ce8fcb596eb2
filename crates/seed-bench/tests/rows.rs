//! `farpage-bench`: it measures, its rows have what they are for, and no file stays behind.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Tests that measure do so alone.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn readahead_rows_have_what_they_are_for() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage-bench"));
    command.args(["readahead", "--ram", "8M", "--seconds", "1", "--background", "1", "--seek", "100", "--no-zram"]);
    command.args(["--variants", "none,vma", "--json", "-"]).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|r| (r["device"].as_str().unwrap(), r["variant"].as_str().unwrap())).collect();
    assert_eq!(names, [("file", "none"), ("file", "vma"), ("rotational", "none"), ("rotational", "vma")]);
    for row in rows {
        assert!(row["mib_per_s"].as_f64().unwrap() > 0.0, "{row}");
        let latency = |name: &str| row["latency_us"][name].as_f64().unwrap();
        let shares = ["p50", "p60", "p70", "p80", "p90", "p95", "p99"].map(latency);
        assert!(latency("avg") > 0.0 && shares.is_sorted() && shares[6] > 0.0, "{row}");
        let [ahead, hits] = ["swap_ra", "swap_ra_hit"].map(|name| row[name].as_u64().unwrap());
        assert!(hits <= ahead && (ahead > 0) == (row["variant"] == "vma"), "{row}");
        assert_eq!(row["ra_hit_pct"].is_null(), ahead == 0, "{row}");
    }
    let linpack = value["linpack"].as_array().unwrap();
    assert!(linpack.len() == 2 && linpack.iter().all(|row| row["elapsed_s"].as_f64().unwrap() > 0.0), "{linpack:?}");
}

/// Runs `io`: its rows, and what it said besides.
fn io_rows(dir: &Path, path: Option<&str>) -> (Vec<Value>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage-bench"));
    command.args(["io", "--pages", "1024", "--rounds", "2", "--json", "-", "--dir"]).arg(dir);
    path.iter().for_each(|path| _ = command.env("PATH", path));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["bench"], &value["pages"]), (&"io".into(), &1024.into()));
    (value["rows"].as_array().unwrap().clone(), said)
}

/// Device, path, op, batch.
fn name(row: &Value) -> (&str, &str, &str, u64) {
    let text = |field: &str| row[field].as_str().unwrap();
    (text("device"), text("path"), text("op"), row["batch"].as_u64().unwrap())
}

#[test]
fn io_rows_have_what_they_are_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (rows, said) = io_rows(dir.path(), Some("/nowhere"));
    assert!(said.contains("fio is not installed") && rows.iter().all(|row| row["device"] != "fio"), "{said}");
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("no {field}: {row}"));
        assert!(number("avg_ns") > 0.0 && number("mib_per_s") > 0.0, "{row}");
        assert!(number("p50_ns") <= number("p99_ns"), "{row}");
        // What is cheap about a synchronous device: nothing is allocated for a request. The device itself may take a
        // cluster's table for 512 slots, on a CPU where it has none yet.
        if row["path"] == "sync" && row["batch"] == 1 {
            assert!(number("allocs_per_op") < 0.02, "{row}");
        }
        // A request and its completion.
        if ["boxed", "queued"].iter().any(|path| row["path"] == *path) {
            assert!(number("allocs_per_op") >= 2.0, "{row}");
        }
    }
    let names: Vec<_> = rows.iter().map(name).collect();
    for device in ["ram", "zram"] {
        for op in ["write", "read rand", "free"] {
            assert_eq!(names.iter().filter(|name| **name == (device, "sync", op, 1)).count(), 1, "{device} {op}");
        }
    }
    for path in ["uring", "plain", "crypt"] {
        for op in ["write new", "write", "read seq", "read rand", "free"] {
            assert_eq!(names.iter().filter(|name| **name == ("file", path, op, 1)).count(), 1, "{path} {op}");
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a file stayed behind");
}

#[test]
fn io_rows_of_fio_are_beside_ours() {
    let works = |c: &mut Command| c.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if !works(Command::new("fio").arg("--version")) {
        eprintln!("skipped: no fio here");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // fio takes a colon for the end of a name.
    let dir = tempfile::Builder::new().prefix("a:b").tempdir_in("/var/tmp").unwrap();
    let (rows, said) = io_rows(dir.path(), None);
    assert_eq!(said, "");
    let names: Vec<_> = rows.iter().map(name).collect();
    let found: Vec<_> =
        (1..names.len()).filter(|at| names[*at].0 == "fio").map(|at| (names[at - 1], names[at])).collect();
    let pairs = [
        (("file", "ahead", "read seq", 32), ("fio", "depth4", "read seq", 32)),
        (("file", "ahead16", "read seq", 64), ("fio", "depth4", "read seq", 256)),
        (("file", "ahead16", "read rand", 2), ("fio", "depth32", "read rand", 1)),
    ];
    assert_eq!(found, pairs);
    for row in rows.iter().filter(|row| row["device"] == "fio") {
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("avg_ns") > 0.0 && number("mib_per_s") > 0.0 && number("p50_ns") <= number("p99_ns"), "{row}");
        assert!(row.get("allocs_per_op").is_none(), "not counted: {row}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a file stayed behind");
}
