//! `--user`, and what an unprivileged user sees. Needs root.

mod common;

use common::{farpage, quiet, refused, root, text};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// A copy of the command that every user can run.
fn public_copy() -> (TempDir, PathBuf) {
    let dir = common::public_tempdir();
    let exe = dir.path().join("farpage");
    common::install(env!("CARGO_BIN_EXE_farpage"), &exe);
    (dir, exe)
}

fn device() -> bool {
    let here = farpage_run::probe::open_device().is_ok();
    if !here {
        println!("skipped: /dev/userfaultfd cannot be opened here");
    }
    here && root()
}

#[test]
fn the_program_is_the_user_and_keeps_no_privilege() {
    if !device() {
        return;
    }
    let script =
        "id -u; id -g; grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb):' /proc/self/status; echo $USER $LOGNAME $HOME";
    let out = quiet(farpage().args(["run", "--ram", "64M", "--user", "nobody", "sh", "-c", script]));
    assert!(out.starts_with("65534\n65534\nUid:\t65534\t65534\t65534\t65534\n"), "{out}");
    assert!(out.contains("Gid:\t65534\t65534\t65534\t65534\nGroups:\t65534"), "{out}");
    for caps in ["CapPrm", "CapEff", "CapAmb"] {
        assert!(out.contains(&format!("{caps}:\t0000000000000000\n")), "{out}");
    }
    assert!(out.contains("\nnobody nobody /"), "{out}");
    let out = quiet(farpage().args(["run", "--ram", "64M", "--user", "12345:54321", "sh", "-c", script]));
    assert!(out.contains("Uid:\t12345\t12345") && out.contains("Gid:\t54321\t54321"), "{out}");
    assert!(out.contains("Groups:\t \n") || out.contains("Groups:\t\n"), "{out}");
}

#[test]
fn a_group_has_a_name() {
    if !device() {
        return;
    }
    let out = quiet(farpage().args(["run", "--ram", "64M", "--user", "nobody:root", "sh", "-c", "id -u; id -gn"]));
    assert_eq!(out, "65534\nroot\n");
}

#[test]
fn the_inherited_device_gives_that_user_a_full_userfaultfd() {
    if !device() {
        return;
    }
    let (_dir, exe) = public_copy();
    let mut command = farpage();
    command.args(["run", "--ram", "64M", "--user", "nobody"]).arg(exe).args(["doctor", "--json"]);
    let out = text(&command.output().unwrap().stdout);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["uid"], NOBODY);
    assert_eq!(json["checks"]["uffd_full_inherited"]["works"], true, "{out}");
    assert_eq!(json["checks"]["uffdio_move"]["works"], true, "{out}");
    assert_eq!(json["works"], true, "{out}");
}

#[test]
fn statuses_with_stats() {
    if !device() {
        return;
    }
    let mut command = farpage();
    command.args(["run", "--ram", "64M", "--user", "nobody", "--stats", "sh", "-c", "id -u; exit 9"]);
    let out = command.output().unwrap();
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(9), "65534\n"), "{}", text(&out.stderr));
}

#[test]
fn refusals() {
    if !root() {
        refused(farpage().args(["run", "--user", "nobody", "true"]), 125, "only root");
        return;
    }
    refused(farpage().args(["run", "--user", "no-such-user", "true"]), 125, "no such user");
    refused(farpage().args(["run", "--user", "3999999999", "true"]), 125, "uid 3999999999");
    refused(farpage().args(["run", "--user", "nobody:no-such-group", "true"]), 125, "no such group");
    let (_dir, exe) = public_copy();
    let mut command = Command::new(&exe);
    command.uid(NOBODY).gid(NOBODY).args(["run", "--user", "root", "true"]);
    refused(&mut command, 125, "only root");
    let hidden = common::public_tempdir();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(hidden.path(), closed).unwrap();
    let library = hidden.path().join("l.so");
    std::fs::copy(common::inert(), &library).unwrap();
    refused(
        farpage().env("FARPAGE_PRELOAD", &library).args(["run", "--user", "nobody", "true"]),
        125,
        "may not read it",
    );
}

/// What an unprivileged user without access to the device reads, from `run` and from `doctor`.
#[test]
fn without_permission() {
    if !root() {
        println!("skipped: needs root to become a user without access to the device");
        return;
    }
    let (_dir, exe) = public_copy();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&exe);
        command.uid(NOBODY).gid(NOBODY).env("FARPAGE_PRELOAD", common::inert()).args(args);
        command
    };
    let doctor = as_nobody(&["doctor"]).output().unwrap();
    if doctor.status.code() == Some(0) {
        println!("skipped: everybody may have a userfaultfd here");
        return;
    }
    let error = refused(&mut as_nobody(&["run", "--ram", "64M", "true"]), 125, "cannot create a userfaultfd that also");
    for part in
        ["tried: /dev/userfaultfd (E", "userfaultfd(2) (E", "sudo sysctl vm.unprivileged_userfaultfd=1", "--user"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    let doctor = text(&doctor.stdout);
    let same = error.trim_start_matches("farpage: ");
    assert!(doctor.contains(same), "doctor:\n{doctor}\nrun:\n{error}");
}

/// Whether any user may have a userfaultfd for faults of their own code: all that regions in signal mode need.
fn user_mode_userfaultfd() -> bool {
    const USER_MODE_ONLY: usize = 1;
    // SAFETY: makes a descriptor, which is closed at once.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC as usize | USER_MODE_ONLY);
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// Regions in the default mode, signal, need no privilege: what the bench measures here is one of them at work. The
/// kernel's side does need it, and its absence is said.
#[test]
fn regions_and_their_bench_work_for_a_plain_user() {
    if !root() {
        println!("skipped: needs root to become another user");
        return;
    }
    if !user_mode_userfaultfd() {
        println!("skipped: no userfaultfd(2) here, not even for user mode");
        return;
    }
    let dir = common::public_tempdir();
    let exe = dir.path().join("farpage-bench");
    common::install(common::bench(), &exe);
    let mut command = Command::new(&exe);
    command.uid(NOBODY).gid(NOBODY).args(["compare", "--ram", "16M", "--data", "40M", "--rounds", "1"]);
    command.args(["--workload", "rand-rmw", "--swap", "zram", "--json", "-"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let bench = child.id();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    for row in rows {
        assert_eq!((&row["kernel"], &row["mode"]), (&Value::Null, &"region".into()), "{row}");
        assert!(row["farpage"]["major_faults"].as_u64().unwrap() > 100, "it did not swap: {row}");
    }
    let notes: Vec<_> = json["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let said = |note: &&str| note.starts_with("the kernel's side was not measured (not root)");
    assert_eq!(notes.iter().filter(|note| said(note)).count(), 1, "{notes:?}");
    for top in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"] {
        let group = Path::new(top).join(format!("farpage-bench-{bench}"));
        assert!(!group.exists(), "{} stayed behind", group.display());
    }
}
