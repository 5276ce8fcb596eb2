//! `farpage bench`: it measures, and whatever ends it, nothing of what it set up stays behind.

mod common;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The tests count the machine's zram devices, so they run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn bench(data: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    // The engine has tests of its own; here it is the bench that is tested.
    command.env("FARPAGE_PRELOAD", common::inert());
    command.args(["bench", "compare", "--ram", "16M", "--data", data, "--rounds", "1"]).args(arguments);
    command
}

#[test]
fn rows_have_both_sides() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output =
        bench("40M", &["--workload", "fill,rand-rmw,mix", "--json", "-"]).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["farpage"]["us_per_page"].as_f64().unwrap() > 0.0, "{row}");
        if common::obstacle_to_swap().is_none() {
            assert!(row["kernel"]["us_per_page"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["kernel"]["pool_bytes"].as_u64().unwrap() > 4 << 20, "it did not swap: {row}");
            assert!(row["kernel"]["peak_rss_anon"].as_u64().unwrap() <= 16 << 20, "no limit: {row}");
            assert!(row["ratio_median"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn all_workloads_are_one_document_and_one_page() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let mut command = bench("20M", &["--no-kernel", "--json", "-", "--html", page.to_str().unwrap()]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = value["rows"].as_array().unwrap().iter().map(|r| r["workload"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 9, "{names:?}");
    let page = fs::read_to_string(page).unwrap();
    assert!(names.iter().all(|name| page.contains(name)) && page.contains("<svg"), "{page}");
    assert!(page.contains("--no-kernel"), "it does not say why a side is missing");
    // One file that needs no other.
    assert!(!["src=", "href=", "@import", "url("].iter().any(|part| page.contains(part)), "{page}");
}

#[test]
fn a_plain_process_can_be_measured_under_run() {
    if !common::works_here() {
        eprintln!("skipped: no full userfaultfd here");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = bench("40M", &["--mode", "run", "--workload", "rand-rmw", "--no-kernel", "--json", "-"]);
    command.env("FARPAGE_PRELOAD", common::preload());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &value["rows"][0];
    assert_eq!(row["mode"], "run");
    assert!(row["farpage"]["major_faults"].as_u64().unwrap() > 100, "it did not swap: {row}");
}

#[test]
fn ways_of_linking_are_rows_of_their_own() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let ways = ["--no-kernel", "--workload", "fault", "--linking", "one-by-one,batched,spliced", "--json", "-"];
    let output = bench("24M", &ways).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let locks = |i: usize, variant: &str| {
        let row = &value["rows"][i];
        assert_eq!((&row["variant"], &row["workload"]), (&variant.into(), &"fault".into()), "{row}");
        row["lru_locks_per_page"].as_f64().unwrap()
    };
    let (single, batched, spliced) = (locks(0, "one-by-one"), locks(1, "batched"), locks(2, "spliced"));
    assert!(single >= 1.0 && batched < 0.2 && spliced < 0.2, "{single} {batched} {spliced}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for arguments in [
        &["--ram", "1M"][..],
        &["--data", "1K"],
        &["--threads", "0"],
        &["--rounds", "0"],
        &["--workload", "sleep"],
        &["--idle-poll", "never"],
        &["--mode", "run", "--idle-poll", "often"],
        &["--against", "mmap", "--workload", "fault"],
        &["--linking", "sorted"],
        &["--mode", "run", "--linking", "spliced"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        let output = command.args(["bench", "compare", "--no-kernel"]).args(arguments).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// Runs the bench, and gives its only row.
fn row(arguments: &[&str]) -> Value {
    row_of(&mut bench("24M", arguments))
}

fn row_of(bench: &mut Command) -> Value {
    let output = bench.args(["--json", "-"]).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{bench:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["rows"].as_array().unwrap().len(), 1);
    value["rows"][0].clone()
}

#[test]
fn a_swap_file_and_a_mapped_file_can_be_compared_with() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let swaps = || fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = swaps();
    for against in ["file", "mmap"] {
        // Not as the kernel would write it: relative, through a link, with a blank.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = dir.path().join("a place");
        fs::create_dir(&place).unwrap();
        std::os::unix::fs::symlink("a place", dir.path().join("a link")).unwrap();
        let mut command = bench("24M", &["--workload", "seq-rw", "--against", against, "--dir", "./a link"]);
        let row = row_of(command.current_dir(dir.path()));
        assert_eq!(row["against"], against);
        // The device is a file: nothing is compressed.
        assert_eq!((&row["farpage"]["pool_bytes"], &row["farpage_ram_bytes"]), (&0.into(), &(16u64 << 20).into()));
        assert!(row["farpage"]["major_faults"].as_u64().unwrap() > 0, "{row}");
        if common::obstacle_to_swap().is_none() {
            assert!(row["ratio_median"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["kernel"]["pool_bytes"], 0, "{row}");
            // Mapped files are not anonymous.
            let rss = row["kernel"]["peak_rss_anon"].as_u64().unwrap();
            assert_eq!(rss > 8 << 20, against == "file", "{row}");
        }
        assert_eq!(swaps(), before, "a swap file stayed on");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "a file stayed behind");
    }
}

#[test]
fn data_compress_as_they_are_asked_to() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus");
    // Compresses to nearly nothing.
    fs::write(&corpus, b"the same again and again. ".repeat(4000)).unwrap();
    let ratio = |more: &[&str]| {
        let row = row(&[&["--workload", "rand-rmw", "--no-kernel", "--swap", "zram"], more].concat());
        assert_eq!(row["kernel"], Value::Null);
        row["farpage"]["pool_ratio"].as_f64().unwrap()
    };
    let (default, plain) = (ratio(&[]), ratio(&["--entropy", "0"]));
    let (random, text) = (ratio(&["--entropy", "0.4"]), ratio(&["--corpus", corpus.to_str().unwrap()]));
    assert!((2.0..4.0).contains(&default), "{default}");
    assert!(random < default && default < plain && plain < text && text > 8.0, "{random} {default} {plain} {text}");
    let refused =
        |arguments: &[&str]| !bench("24M", arguments).stderr(Stdio::null()).output().unwrap().status.success();
    assert!(refused(&["--corpus", "/nowhere", "--no-kernel", "--workload", "fill"]));
    assert!(refused(&["--corpus", "/dev/null", "--entropy", "0.5"]));
    assert!(refused(&["--entropy", "1.5", "--no-kernel", "--workload", "fill"]));
}

/// What a bench has made: its cgroup, and swap devices.
fn left() -> Vec<PathBuf> {
    let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let all = tops.into_iter().flat_map(|top| fs::read_dir(top).into_iter().flatten().flatten());
    all.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("/farpage-bench-")).collect()
}

fn zram_devices() -> usize {
    fs::read_dir("/sys/block")
        .unwrap()
        .flatten()
        .filter(|d| d.file_name().to_string_lossy().starts_with("zram"))
        .count()
}

struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_stays_behind_when_it_is_interrupted_or_killed() {
    if let Some(obstacle) = common::obstacle_to_swap() {
        eprintln!("skipped: {obstacle}");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        let zrams = zram_devices();
        let mut command = bench("600M", &["--workload", "rand-read"]);
        let mut child = Ended(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let pid = child.0.id();
        common::wait_for("the cgroup is made", || !left().is_empty() && zram_devices() > zrams);
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(pid as i32, signal) };
        let status = child.0.wait().unwrap();
        assert!(!status.success());
        common::wait_for("cgroup and zram device are gone", || left().is_empty() && zram_devices() <= zrams);
    }
}

#[test]
fn readahead_rows_have_what_they_are_for() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args([
        "bench",
        "readahead",
        "--ram",
        "8M",
        "--seconds",
        "1",
        "--background",
        "1",
        "--seek",
        "100",
        "--no-zram",
    ]);
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

/// Runs `bench io`: its rows, and what it said besides.
fn io_rows(dir: &Path, path: Option<&str>) -> (Vec<Value>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args(["bench", "io", "--pages", "1024", "--rounds", "2", "--json", "-", "--dir"]).arg(dir);
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
        assert!(row.get("allocs_per_op").is_none(), "nobody counts them: {row}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a file stayed behind");
}
