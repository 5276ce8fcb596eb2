//! `farpage-bench compare`: it measures, and whatever ends it, nothing of what it set up stays behind.

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
    let mut command = Command::new(common::bench());
    // The engine has tests of its own; here it is the bench that is tested.
    command.env("FARPAGE_PRELOAD", common::inert());
    command.args(["compare", "--ram", "16M", "--data", data, "--rounds", "1"]).args(arguments);
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
fn all_workloads_are_one_document() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = bench("20M", &["--no-kernel", "--json", "-"]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = value["rows"].as_array().unwrap().iter().map(|r| r["workload"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 9, "{names:?}");
    assert!(value["notes"].to_string().contains("--no-kernel"), "it does not say why a side is missing: {value}");
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
    ] {
        let mut command = Command::new(common::bench());
        let output = command.args(["compare", "--no-kernel"]).args(arguments).output().unwrap();
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
        let (swaps, name) = (fs::read_to_string("/proc/swaps").unwrap(), dir.path().file_name().unwrap());
        assert!(!swaps.contains(name.to_str().unwrap()), "a swap file stayed on: {swaps}");
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
