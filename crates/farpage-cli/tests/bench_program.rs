//! `farpage bench program`: both sides are measured, what differs is said, and nothing stays behind.

mod common;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// One at a time: the kernel's side is there once.
static ALONE: Mutex<()> = Mutex::new(());

fn bench(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.env("FARPAGE_PRELOAD", common::fake()).args(["bench", "program"]);
    if !options.contains(&"--rounds") {
        command.args(["--rounds", "1"]);
    }
    command.args(options).arg("--").args(program);
    command
}

fn value(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn a_program_is_measured_on_each_side() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // One buffer of 48 MiB, which is full for most of the time: the bench looks now and then.
    let dd = ["dd", "if=/dev/urandom", "bs=48M", "count=4", "iflag=fullblock", "of=/dev/null", "status=none"];
    let output = bench(&["--ram", "20M", "--json", "-"], &dd).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value = value(&output);
    let rows = value["rows"].as_array().unwrap();
    let side = |name: &str| rows.iter().find(|row| row["side"] == name);
    let peak = |name: &str| side(name).unwrap()["peak_rss_anon"].as_u64().unwrap();
    assert!(rows.iter().all(|row| row["seconds_median"].as_f64().unwrap() > 0.0), "{value}");
    assert!((24 << 20..60 << 20).contains(&peak("plain")), "{value}");
    assert_eq!(value["complaints"].as_array().unwrap().len(), 0, "{value}");
    match common::obstacle_to_swap() {
        Some(obstacle) => eprintln!("the kernel's side is not tested: {obstacle}"),
        None => {
            assert!(peak("kernel") <= 20 << 20, "no limit: {value}");
            let pool = side("kernel").unwrap()["pool_bytes"].as_u64().unwrap();
            assert!(pool > 20 << 20, "it did not swap: {value}");
            assert_eq!(value["farpage_ram_bytes"].as_u64().unwrap(), (20 << 20) + pool, "{value}");
            assert!(value["ratio_median"].as_f64().unwrap() > 0.0, "{value}");
        }
    }
}

/// As in a container: farpage alone is measured, and that is said.
#[test]
fn where_no_memory_cgroup_is_mounted_the_kernel_is_left_out() {
    if !common::works_here() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, and full userfaultfd");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = r#"mount --make-rprivate / && umount -lR /sys/fs/cgroup && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh", env!("CARGO_BIN_EXE_farpage"), "bench", "program"]);
    command.args(["--rounds", "1", "--ram", "24M", "--", "true"]).env("FARPAGE_PRELOAD", common::preload());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("the kernel's side was not measured (no memory cgroup is mounted)"), "{told}");
}

#[test]
fn a_program_gets_its_budget_from_farpage() {
    if !common::works_here() {
        eprintln!("skipped: no full userfaultfd here");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, (0..5_000_000).map(|i| format!("{i}\n")).collect::<String>()).unwrap();
    // One buffer of all of it, which is read and then written.
    let input = format!("if={}", text.display());
    let dd = ["dd", &input, "bs=64M", "count=1", "iflag=fullblock", "status=none"];
    let mut command = bench(&["--no-kernel", "--ram", "24M", "--swap", "zram", "--json", "-"], &dd);
    command.env("FARPAGE_PRELOAD", common::preload());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let value = value(&output);
    let sides: Vec<_> = value["rows"].as_array().unwrap().iter().map(|row| row["side"].as_str().unwrap()).collect();
    assert_eq!((sides, &value["output_compared"]), (vec!["plain", "farpage"], &true.into()), "{value}");
    let farpage = &value["rows"][1];
    assert!(farpage["major_faults"].as_u64().unwrap() > 100, "{value}");
    assert!(farpage["peak_rss_anon"].as_u64().unwrap() < 30 << 20, "{value}");
    assert_eq!((&value["farpage_ram_bytes"], &value["ratio_median"]), (&(24u64 << 20).into(), &Value::Null));
}

fn suite(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args(["bench", "program", "--suite", "--no-kernel", "--rounds", "1"]).args(options);
    command.env("FARPAGE_PRELOAD", common::fake()).stderr(Stdio::inherit());
    command
}

/// A program that is called as one of the suite's: a buffer of 48 MiB, full for most of the time, and where it ran.
fn stand_in(dir: &Path, name: &str) -> String {
    let body = format!(
        "#!/bin/sh\necho $0 $* $PWD $TMPDIR >>{}/runs\nexec /usr/bin/dd if=/dev/urandom of=/dev/null bs=48M \
                        count=4 iflag=fullblock status=none\n",
        dir.display()
    );
    common::executable(&dir.join(name), body);
    format!("{}:/usr/bin:/bin", dir.display())
}

#[test]
fn a_program_of_the_suite_is_a_row() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = stand_in(dir.path(), "perl");
    let place = files.path().to_str().unwrap();
    let json = dir.path().join("suite.json");
    let arguments = ["--only", "perl", "--ram", "50%", "--dir", place, "--json", json.to_str().unwrap()];
    let output = suite(&arguments).env("PATH", path).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("perl ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >= 30, "{shown}");
    assert!(shown.lines().last().unwrap().contains("no program was measured on both sides"), "{shown}");
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let program = &value["programs"][0];
    assert_eq!((&program["name"], &program["installed"]), (&"perl".into(), &true.into()), "{value}");
    let peak = program["rows"][0]["peak_rss_anon"].as_u64().unwrap();
    let ram = program["ram_bytes"].as_u64().unwrap();
    assert!(ram.is_multiple_of(1 << 20) && ram >= 16 << 20 && ram < peak, "half of {peak}: {ram}");
    // Twice as it is, and once under farpage: in its directory, which is gone.
    let runs = fs::read_to_string(dir.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 3, "{runs}");
    for run in runs.lines() {
        let words: Vec<&str> = run.split(' ').collect();
        assert!(words[1] == "strings.pl" && words[2].starts_with(place) && words[2] == words[3], "{run}");
    }
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0);
}

#[test]
fn what_is_not_installed_is_a_row_and_no_failure() {
    let output = suite(&["--only", "sqlite,r", "--json", "-"]).env("PATH", "/nowhere").output().unwrap();
    assert!(output.status.success());
    let value = value(&output);
    let programs = value["programs"].as_array().unwrap();
    let missing = |p: &Value| p["installed"] == false && p["install"].as_str().unwrap().starts_with("apt-get install ");
    assert!(programs.len() == 2 && programs.iter().all(missing), "{value}");
    let shown = suite(&["--only", "r"]).env("PATH", "/nowhere").output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&shown).contains("\nr         not installed: apt-get install r-base-core\n"));
}

#[test]
fn a_program_of_the_suite_that_fails_is_a_failure() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    common::executable(&dir.path().join("perl"), "#!/bin/sh\nexit 3\n");
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let output = suite(&["--only", "perl"]).env("PATH", path).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && shown.contains("not measured: as it is it ended with exit status: 3"),
        "{shown}"
    );
}

#[test]
fn nothing_of_an_interrupted_suite_stays_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let started = dir.path().join("started");
    common::executable(&dir.path().join("perl"), format!("#!/bin/sh\necho >{}\nexec sleep 1000\n", started.display()));
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let arguments = ["--only", "perl", "--dir", files.path().to_str().unwrap()];
    let mut child = suite(&arguments).env("PATH", path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    common::wait_for("the program has begun", || started.exists());
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1);
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0);
}

#[test]
fn another_output_and_another_end_are_failures() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (script, complaint) in
        [("echo ${FARPAGE_CONF:+other}", "its output was another one"), ("test -z \"$FARPAGE_CONF\"", "it ended with")]
    {
        let output = bench(&["--no-kernel"], &["sh", "-c", script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(complaint), "{script}: {said}");
    }
    let mut command = bench(&["--no-kernel"], &["true"]);
    let unmanaged = command.env("FARPAGE_PRELOAD", common::inert()).output().unwrap();
    let said = String::from_utf8_lossy(&unmanaged.stderr);
    assert!(!unmanaged.status.success() && said.contains("did not start"), "{said}");
    // It fails as it is, too.
    assert!(bench(&["--no-kernel"], &["false"]).output().unwrap().status.success());
    let changing = bench(&["--no-kernel"], &["date", "+%s %N"]).output().unwrap();
    let said = String::from_utf8_lossy(&changing.stdout);
    assert!(changing.status.success() && said.contains("not compared"), "{said}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let refused = |options: &[&str], program: &[&str]| {
        let output = bench(options, program).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{options:?} {program:?}");
        output.status.code().unwrap()
    };
    for options in [
        &["--ram", "1M"][..],
        &["--ram", "x"],
        &["--ram", "101%"],
        &["--only", "sort"],
        &["--swap", "tape"],
        &["--idle-poll", "often"],
        &["--swap-size", "1K"],
        &["--json", "/nowhere/rows.json"],
    ] {
        refused(options, &["true"]);
    }
    refused(&["--suite"], &["true"]);
    assert!(!suite(&["--only", "sort,tape"]).output().unwrap().status.success());
    assert_eq!(refused(&[], &["/nowhere/program"]), 127);
    assert_eq!(refused(&[], &["/etc/passwd"]), 126);
}

#[test]
fn nothing_of_it_stays_behind() {
    if let Some(obstacle) = common::obstacle_to_swap() {
        eprintln!("skipped: {obstacle}");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let dir = tempfile::tempdir().unwrap();
        // The third run is the kernel's: it does not end.
        let script =
            format!("echo $$ >> {0}/runs; [ $(wc -l < {0}/runs) -lt 3 ] || exec sleep 1000", dir.path().display());
        let mut child = bench(&[], &["sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let runs = || fs::read_to_string(dir.path().join("runs")).unwrap_or_default();
        common::wait_for("the kernel's run has begun", || runs().lines().count() == 3);
        let program = runs().lines().last().unwrap().to_owned();
        let cgroups = || {
            let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
                .map(|top| fs::read_dir(top).into_iter().flatten().flatten());
            let all = tops.into_iter().flatten();
            all.filter(|dir| dir.file_name().to_string_lossy().starts_with("farpage-bench-")).count()
        };
        assert!(cgroups() > 0);
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert!(!child.wait().unwrap().success());
        common::wait_for("cgroup and program are gone", || {
            cgroups() == 0 && !Path::new("/proc").join(&program).exists()
        });
        let name = format!("farpage-bench-{}", child.id());
        let files = fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|file| file.file_name());
        assert_eq!(files.filter(|file| file.to_string_lossy().starts_with(&name)).count(), 0);
        let ours = |line: &str| line.split_whitespace().last() == Some("32000");
        common::wait_for("swap is off", || !fs::read_to_string("/proc/swaps").unwrap().lines().any(ours));
    }
}
