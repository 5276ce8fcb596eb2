//! `farpage stat` and `farpage doctor`, on a library that fakes an engine.

mod common;

use common::{fake, farpage, quiet, refused, root, run, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A program under the fake engine; killed on drop.
struct Running(Child);

impl Running {
    fn start() -> Running {
        let mut command = run();
        command.env("FARPAGE_PRELOAD", fake()).args(["sleep", "60"]).stdout(Stdio::null());
        let child = Running(command.spawn().unwrap());
        let stat = || farpage().args(["stat", &child.pid()]).output().unwrap().status;
        common::wait_for("the fake engine has started", || stat().success());
        child
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn table_of_all() {
    let program = Running::start();
    let out = quiet(farpage().arg("stat"));
    let mut lines = out.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["PID", "COMMAND", "BUDGET", "RSS", "SWAPPED", "POOL", "FILE", "MAJFLT", "PAGER"]);
    let row = lines.find(|l| l.split_whitespace().next() == Some(&program.pid())).expect("our process is listed");
    assert!(row.contains("sleep") && row.contains("1000 B"), "{row}");
    let raw = quiet(farpage().args(["stat", "-b"]));
    let row = raw.lines().find(|l| l.split_whitespace().next() == Some(&program.pid())).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("1000"), "{row}");
    let all = json(&quiet(farpage().args(["stat", "--json"])));
    assert_eq!(all["schema"], 1);
    let ours = all["processes"].as_array().unwrap().iter().find(|p| p["pid"] == program.0.id()).unwrap();
    assert_eq!((&ours["command"], &ours["budget_bytes"]), (&"sleep".into(), &1000.into()));
}

#[test]
fn sheet_of_one() {
    let program = Running::start();
    let out = quiet(farpage().args(["stat", &program.pid()]));
    for part in ["sleep (", "memory", "faults", "swap\n", "pswpout", "events", "trouble", "fault_p99 "] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.lines().all(|l| l.len() <= 140), "{out}");
    let one = json(&quiet(farpage().args(["stat", "-J", &program.pid()])));
    assert_eq!((&one["schema"], &one["budget_bytes"]), (&1.into(), &1000.into()));
    assert!(one.get("per_second").is_none() && one.get("wp_fault").is_none() && one.get("used_bytes").is_none());
}

#[test]
fn watch_ends_with_the_process() {
    // As vmstat has it, and with "=".
    for interval in [&["--watch", "0.05"][..], &["--watch=0.05"]] {
        watch_ends(interval);
    }
}

fn watch_ends(interval: &[&str]) {
    let program = Running::start();
    let mut command = farpage();
    command.args(["stat", &program.pid()]).args(interval).arg("--json").stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap()).lines().map(|line| json(&line.unwrap()));
    let mut lines: Vec<Value> = out.by_ref().take(2).collect();
    drop(program);
    lines.extend(out);
    assert_eq!((watch.wait().unwrap().code(), lines.len() >= 2), (Some(0), true), "{lines:?}");
    assert!(["interval_s", "per_second"].iter().all(|key| lines[0].get(key).is_some_and(Value::is_null)));
    assert_eq!(lines[1]["per_second"]["pswpin"], 0.0);
    assert!(lines.iter().all(|line| line["pagers"] == Value::Array(Vec::new())));
}

#[test]
fn errors() {
    let own = std::process::id().to_string();
    refused(farpage().args(["stat", "4000000000"]), 1, "no such process");
    refused(farpage().args(["stat", &own]), 1, "does not run under farpage");
    if !root() {
        println!("skipped: a process of another user needs root");
        return;
    }
    let program = Running::start();
    let dir = common::public_tempdir();
    let exe = dir.path().join("farpage");
    common::install(env!("CARGO_BIN_EXE_farpage"), &exe);
    let as_nobody = |args: &[&str]| {
        let mut command = std::process::Command::new(&exe);
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        command.args(args);
        command
    };
    refused(&mut as_nobody(&["stat", &program.pid()]), 1, "permission denied");
    let out = as_nobody(&["stat"]).output().unwrap();
    let (table, note) = (text(&out.stdout), text(&out.stderr));
    assert_eq!((out.status.code(), note.lines().count()), (Some(0), 1), "{note}");
    assert!(note.starts_with("farpage: rows of dashes: ") && note.ends_with("    sudo farpage stat\n"), "{note}");
    assert_eq!(quiet(&mut as_nobody(&["stat", "--json"])).matches("\"schema\"").count(), 1);
    let row = table.lines().find(|l| l.split_whitespace().next() == Some(&program.pid())).expect("it is listed");
    assert!(row.ends_with('-'), "{row}");
}

#[test]
fn doctor_agrees_with_run() {
    let out = farpage().arg("doctor").output().unwrap();
    let works = common::works_here();
    assert_eq!(out.status.code(), Some(if works { 0 } else { 1 }));
    let screen = text(&out.stdout);
    let verdict =
        if works { "farpage run works here for this user" } else { "farpage run does not work here for this user" };
    assert_eq!(screen.lines().next(), Some(verdict), "the verdict first: {screen}");
    assert!(screen.lines().count() <= 20, "one screen: {screen}");
    for part in ["memory cgroup limit", "budget without --ram", "/var/tmp: "] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    let screen = text(&farpage().args(["doctor", "--verbose"]).output().unwrap().stdout);
    assert_eq!(screen.lines().next(), Some(verdict), "{screen}");
    assert!(screen.lines().count() <= 40, "{screen}");
    for part in [
        "UFFDIO_MOVE",
        "PAGEMAP_SCAN",
        "io_uring",
        "waking an idle CPU",
        "vm.max_map_count",
        "memory cgroup limit",
        "preload library",
    ] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    let object = json(&text(&farpage().args(["doctor", "--json"]).output().unwrap().stdout));
    assert_eq!((&object["schema"], &object["works"]), (&1.into(), &works.into()));
    let missing = farpage().env("FARPAGE_PRELOAD", "/no/lib.so").arg("doctor").output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stdout).contains("help: set FARPAGE_PRELOAD"));
}
