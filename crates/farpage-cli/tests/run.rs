//! `farpage run` without `--stats`: the program is exec'ed and finds everything as if started directly.

mod common;

use common::{farpage, quiet, refused, run, text};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

#[test]
fn exit_statuses() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 125", 125)] {
        assert_eq!(run().args(["sh", "-c", script]).status().unwrap().code(), Some(code));
    }
    assert_eq!(run().args(["sh", "-c", "kill -SEGV $$"]).status().unwrap().signal(), Some(libc::SIGSEGV));
}

#[test]
fn arguments_and_output_are_the_programs_own() {
    let out = quiet(run().args(["--", "printf", "%s|", "-x", "--ram", "", "a b", "--"]));
    assert_eq!(out, "-x|--ram||a b|--|");
    // Options stop at the first non-option.
    assert_eq!(quiet(run().args(["printf", "%s|", "-v", "--stats"])), "-v|--stats|");
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    assert_eq!(run().arg("printf").arg("%s").arg(odd).output().unwrap().stdout, b"\xff\xfe");
}

#[test]
fn argv0_is_what_was_typed_and_the_pid_is_ours() {
    assert_eq!(quiet(run().args(["sh", "-c", "echo $0"])), "sh\n");
    let child = run().args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout).trim(), pid);
}

#[test]
fn environment() {
    let mut command = run();
    command.env("KEEP", "a=b c").env("LD_PRELOAD", "").args([
        "--verify",
        "--swap",
        "zram,alg=zstd,size=1G",
        "--idle-poll",
        "never",
        "env",
    ]);
    let out = quiet(&mut command);
    let has = |line: &str| out.lines().any(|l| l == line);
    assert!(has("KEEP=a=b c"), "{out}");
    assert!(has("FARPAGE_CONF=ram:67108864;swap:zram,alg=zstd,size=1073741824;idle-poll:never;verify"), "{out}");
    assert!(has(&format!("LD_PRELOAD={}", common::inert().display())), "{out}");
    assert!(!out.contains("FARPAGE_STAT_FD"), "{out}");
}

#[test]
fn the_budget_has_the_names_that_others_give_it() {
    for budget in [&["-m", "32M"][..], &["-m32M"], &["--memory", "32M"], &["--memory=32M"]] {
        let out = quiet(farpage().args(["run", "--force", "-q"]).args(budget).arg("env"));
        assert!(out.contains("FARPAGE_CONF=ram:33554432"), "{budget:?}: {out}");
    }
    assert!(quiet(farpage().args(["run", "--help"])).contains("--memory"));
}

#[test]
fn limits_above_what_there_is_are_warned_of() {
    let dir = common::public_tempdir();
    let said = |ram: &str, size: &str, more: &[&str]| {
        let mut command = farpage();
        command.args(["run", "--force", "--ram", ram, "--swap"]);
        command.arg(format!("file:{},size={size}", dir.path().display()));
        let out = command.args(more).arg("true").output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let error = said("100T", "900T", &[]);
    let lines = |part: &str| error.lines().filter(|line| line.contains(part)).count();
    assert_eq!(
        (lines("will never act"), lines("budget of 100.0 TiB (--ram 100T) will never act: th")),
        (2, 1),
        "{error}"
    );
    assert_eq!(lines(": the size of 900.0 TiB will never act: its filesystem has "), 1, "{error}");
    assert_eq!(said("100T", "900T", &["-q"]), "");
    for ram in ["100%", "64M"] {
        assert!(!said(ram, "1M", &[]).contains("never act"), "{ram}");
    }
    let error = said("64M", "1M", &["--ram-per-process", "100T"]);
    assert!(error.contains("budget of 100.0 TiB (--ram-per-process 100T)"), "{error}");
}

#[test]
fn other_preloads_stay() {
    let out = quiet(run().env("LD_PRELOAD", common::fake()).args(["env"]));
    let want = format!("LD_PRELOAD={}:{}", common::inert().display(), common::fake().display());
    assert!(out.lines().any(|l| l == want), "{out}");
}

#[test]
fn nested_runs_share_the_device_and_replace_the_budget() {
    let inner = format!("{} run --ram 32M env", env!("CARGO_BIN_EXE_farpage"));
    let out = run().args(["sh", "-c", &inner]).output().unwrap();
    let out = text(&out.stdout);
    assert_eq!(out.matches("FARPAGE_CONF=").count(), 1, "{out}");
    assert!(out.contains("ram:33554432"), "{out}");
    assert!(out.contains(&format!("LD_PRELOAD={}\n", common::inert().display())), "{out}");
}

#[test]
fn signal_dispositions_and_standard_descriptors_are_untouched() {
    let script = "grep SigIgn /proc/self/status; grep SigBlk /proc/self/status; test -e /proc/self/fd/0; echo $?";
    for ignore in [false, true] {
        let start = |command: &mut Command| {
            command.args(["-c", script]).stdin(Stdio::null());
            // SAFETY: sigaction and close are async-signal-safe.
            unsafe {
                command.pre_exec(move || {
                    libc::signal(libc::SIGPIPE, if ignore { libc::SIG_IGN } else { libc::SIG_DFL });
                    libc::close(0);
                    Ok(())
                });
            }
            text(&command.output().unwrap().stdout)
        };
        let plain = start(&mut Command::new("sh"));
        assert!(plain.ends_with("1\n"), "{plain}");
        assert_eq!(start(run().arg("sh")), plain, "SIGPIPE ignored: {ignore}");
        assert_eq!(start(run().args(["-q", "--stats-json", "/dev/null", "sh"])), plain, "supervised");
    }
}

#[test]
fn the_device_is_inherited_with_a_high_number() {
    if farpage_run::probe::open_device().is_err() {
        println!("skipped: /dev/userfaultfd cannot be opened here");
        return;
    }
    let script = "echo $FARPAGE_UFFD_FD; readlink /proc/self/fd/$FARPAGE_UFFD_FD";
    assert_eq!(quiet(run().args(["sh", "-c", script])), "457\n/dev/userfaultfd\n");
    let low = format!("ulimit -n 64; exec {} run --ram 64M sh -c '{script}'", env!("CARGO_BIN_EXE_farpage"));
    let out = Command::new("sh").args(["-c", &low]).env("FARPAGE_PRELOAD", common::inert()).output().unwrap();
    assert_eq!(text(&out.stdout), "56\n/dev/userfaultfd\n", "{}", text(&out.stderr));
}

#[test]
fn scripts_are_followed() {
    let dir = common::public_tempdir();
    let script = |name: &str, body: &str| common::executable(&dir.path().join(name), body);
    assert_eq!(quiet(run().arg(script("a", "#!/bin/sh\necho $1\n")).arg("x")), "x\n");
    assert_eq!(quiet(run().arg(script("b", "#!/usr/bin/env sh\necho $1\n")).arg("x")), "x\n");
    assert_eq!(quiet(run().arg(script("c", "echo shell $1\n")).arg("x")), "shell x\n");
    refused(run().arg(script("d", "#!/no/such/shell\n")), 127, "interpreter /no/such/shell does not exist");
    refused(run().arg(script("e", "#!/etc/passwd\n")), 126, "interpreter /etc/passwd cannot be executed");
    let file = dir.path().join("f");
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    refused(run().arg(&file), 126, "ermission denied");
}

#[test]
fn verbose_says_what_is_done_on_stderr_only() {
    let out = farpage().args(["run", "-v", "--force", "--ram", "100000001", "true"]).output().unwrap();
    let error = text(&out.stderr);
    assert_eq!(text(&out.stdout), "");
    for part in ["budget 95.4 MiB", "rounded up to pages", "preload library", "FARPAGE_CONF=ram:100003840;"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn version_and_help() {
    let out = quiet(farpage().arg("--version"));
    assert_eq!(out, format!("farpage {}\n", env!("CARGO_PKG_VERSION")));
    for args in [&["--help"][..], &["run", "--help"], &["stat", "--help"], &["doctor", "-h"]] {
        assert!(quiet(farpage().args(args)).contains("Examples:"), "{args:?}");
    }
}
