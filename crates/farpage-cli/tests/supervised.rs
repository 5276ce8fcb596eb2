//! `farpage run --stats`: the command stays as the parent; status and signals pass through it.

mod common;

use common::{fake, refused, run, text};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::ptr;

#[test]
fn statuses_pass_through() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("echo out; exit 255", 255)] {
        let out = run().args(["--stats", "sh", "-c", script]).output().unwrap();
        assert_eq!(out.status.code(), Some(code));
        assert!(text(&out.stderr).contains(&format!("exit status {code}")), "{}", text(&out.stderr));
        assert_eq!(text(&out.stdout), if code == 255 { "out\n" } else { "" });
    }
    refused(run().args(["--stats", "no-such-program"]), 127, "not found");
    refused(run().args(["--stats", "/etc/passwd"]), 126, "ermission denied");
}

#[test]
fn death_by_signal_passes_through_with_one_core_at_most() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [libc::SIGSEGV, libc::SIGTERM, libc::SIGKILL, libc::SIGPIPE] {
        let script = format!("kill -{signal} $$");
        let out = run().current_dir(&dir).args(["--stats", "sh", "-c", &script]).output().unwrap();
        assert_eq!(out.status.signal(), Some(signal));
        assert!(!out.status.core_dumped(), "the launcher must not dump core too");
        assert!(text(&out.stderr).contains(&format!("killed by signal {signal}")));
    }
}

#[test]
fn exec_failure_after_fork_is_reported_as_such() {
    let dir = common::public_tempdir();
    let gone = common::cc(dir.path(), "gone", "int main(){}", &["-Wl,--dynamic-linker=/no/ld.so"]).unwrap();
    let error = refused(run().args(["--stats"]).arg(gone), 127, "cannot run");
    assert!(!error.contains("budget"), "{error}");
}

/// A shell that says "ready", then waits in small steps so that traps run.
fn trapping(script: &str) -> Child {
    let script = format!("{script}; echo ready; while :; do sleep 0.02; done");
    let mut command = run();
    command.args(["--stats", "sh", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    // What runs the tests may ignore signals (nohup, `&` in a script), a shell cannot trap what is ignored when it
    // starts.
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command.spawn().unwrap()
}

fn ready(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    out
}

fn send(child: &Child, signal: i32) {
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn signals_are_passed_on() {
    let mut child = trapping("trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo term; exit 3' TERM");
    let mut out = ready(&mut child);
    for (signal, word) in [(libc::SIGUSR1, "usr1\n"), (libc::SIGUSR2, "usr2\n"), (libc::SIGTERM, "term\n")] {
        send(&child, signal);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // Also those that are queued with a value.
    let script = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 3]); print('ready', flush=True); \
                  info = signal.sigwaitinfo([signal.SIGRTMIN + 3]); print(info.si_code, flush=True)";
    let mut command = run();
    let mut child = command
        .args(["--stats", "python3", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = ready(&mut child);
    let value = libc::sigval { sival_ptr: ptr::null_mut() };
    // SAFETY: our own child, not waited for yet.
    let sent = unsafe { libc::sigqueue(child.id() as i32, libc::SIGRTMIN() + 3, value) };
    assert_eq!(sent, 0);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{}\n", libc::SI_QUEUE));
    assert!(child.wait().unwrap().success());
    // Without a trap, the signal ends both.
    let mut child = trapping(":");
    ready(&mut child);
    send(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
}

#[test]
fn a_program_that_signals_its_group_gets_it_once() {
    let script = "n=0; trap 'n=$((n+1))' USR1; kill -USR1 0; sleep 0.2; echo $n";
    let out = run().args(["--stats", "sh", "-c", script]).process_group(0).output().unwrap();
    assert_eq!(text(&out.stdout), "1\n");
    assert_eq!(out.status.code(), Some(0));
}

#[test]
fn stop_and_continue() {
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    let until = |pid: u32, stopped: bool| {
        common::wait_for("it is stopped, or goes on", || (state(pid) == 'T') == stopped);
    };
    let mut child = trapping("echo $$ >&2");
    ready(&mut child);
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    send(&child, libc::SIGTSTP);
    until(pid, true);
    let program: Option<u32> = children.split_whitespace().next().and_then(|p| p.parse().ok());
    program.inspect(|p| until(*p, true));
    send(&child, libc::SIGCONT);
    until(pid, false);
    program.inspect(|p| until(*p, false));
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn an_ignored_sigchld_does_not_lose_the_status() {
    let mut command = run();
    command.args(["--stats", "sh", "-c", "exit 5"]).stderr(Stdio::null());
    // SAFETY: signal is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    assert_eq!(command.status().unwrap().code(), Some(5));
}

#[test]
fn a_closed_stderr_does_not_change_the_status() {
    let script = format!("exec {} run --ram 64M --force -q --stats sh -c 'exit 6' 2>&-", env!("CARGO_BIN_EXE_farpage"));
    let status = Command::new("sh").args(["-c", &script]).env("FARPAGE_PRELOAD", common::inert()).status().unwrap();
    assert_eq!(status.code(), Some(6));
}

#[test]
fn no_engine_is_said() {
    let out = run().args(["--stats", "true"]).output().unwrap();
    assert!(text(&out.stderr).contains("the preload library did not start in true"), "{}", text(&out.stderr));
}

#[test]
fn table_and_json_show_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    std::fs::write(&file, "old").unwrap();
    let mut command = run();
    command.env("FARPAGE_PRELOAD", fake()).arg("--stats").arg("--stats-json").arg(&file);
    let out = command.args(["sh", "-c", "exit 4"]).output().unwrap();
    assert_eq!(out.status.code(), Some(4));
    let table = text(&out.stderr);
    for part in [
        "budget",
        "64.0 MiB",
        "peak anonymous",
        "swapped out",
        "swapped in",
        "p99.9",
        "exit status 4",
        "waited for memory",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["exit_status"], 4);
    assert!(json["signal"].is_null());
    assert_eq!(json["budget_bytes"], 1000);
    assert_eq!(json["engine_started"], true);
    assert!(json["fault_wait_ns"].as_u64().unwrap() > 0 && json["wait_share"].as_f64().is_some(), "{json}");
    assert!(json["wall_ns"].as_u64().unwrap() > 0 && json["maxrss_bytes"].as_u64().unwrap() > 0);
    assert_eq!(json["fault_p99_ns"], farpage_ipc::stat::bucket_end(40));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn json_without_an_engine_has_the_same_keys() {
    let out = run().args(["--stats-json", "-", "-q", "sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGTERM));
    let json: serde_json::Value = serde_json::from_slice(&out.stderr).unwrap();
    assert_eq!((&json["engine_started"], &json["signal"]), (&false.into(), &libc::SIGTERM.into()));
    assert!(json["wait_share"].is_null() && json["fault_wait_ns"].is_null() && json.as_object().unwrap().len() > 50);
    assert!(json["exit_status"].is_null() && json.as_object().unwrap().contains_key("pswpin"));
}

#[test]
fn json_to_a_pipe_is_written_in_place() {
    let mut child = run();
    child.args(["-q", "--stats-json", "/dev/stdout", "true"]).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(out.starts_with('{') && out.ends_with("}\n"), "{out}");
}
