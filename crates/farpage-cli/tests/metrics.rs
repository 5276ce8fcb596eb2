//! `farpage stat --openmetrics` and `farpage exporter`, on a library that fakes an engine. What the text has to be like
//! is tested beside its source.

mod common;

use common::{fake, farpage, quiet, refused, run, text, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.spawn().unwrap())
}

/// A program under the fake engine, and the sample that shows it.
fn program() -> (Running, String) {
    let program = start(run().env("FARPAGE_PRELOAD", fake()).args(["sleep", "60"]).stdout(Stdio::null()));
    let pid = program.0.id();
    let begin = format!("farpage_budget_bytes{{tree=\"{pid}\",command=\"sleep\",user=\"");
    let mut sample = String::new();
    wait_for("the fake engine starts", || {
        let out = text(&metrics().output().unwrap().stdout);
        sample = out.lines().find(|line| line.starts_with(&begin)).map_or(String::new(), |line| format!("{line}\n"));
        !sample.is_empty()
    });
    assert!(sample.contains("\",cgroup=\"/") && sample.ends_with("\",pager=\"\"} 1000\n"), "{sample}");
    let each = text(&metrics().arg("--per-process").output().unwrap().stdout);
    assert!(each.contains(&format!(",pid=\"{pid}\",pager=\"\"}} 1000\n")), "{each}");
    (program, sample)
}

fn metrics() -> Command {
    let mut command = farpage();
    command.args(["stat", "--openmetrics"]);
    command
}

#[test]
fn a_file_is_replaced_as_a_whole() {
    let (_program, sample) = program();
    let dir = tempfile::tempdir().unwrap();
    // As a name in the directory where it runs, and as a path.
    for name in ["farpage.prom", dir.path().join("farpage.prom").to_str().unwrap()] {
        let out = quiet(metrics().args(["--output", name]).current_dir(dir.path()));
        assert_eq!(out, "");
        let file = std::fs::read_to_string(dir.path().join("farpage.prom")).unwrap();
        assert!(file.contains(&sample) && file.contains("# TYPE farpage_pgfault_total counter\n"), "{file}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    let out = quiet(&mut metrics());
    assert!(out.ends_with("# EOF\n") && out.contains("# TYPE farpage_pgfault counter\n"), "{out}");
    let nowhere = dir.path().join("no/farpage.prom");
    refused(metrics().arg("--output").arg(&nowhere), 1, "cannot write the metrics to ");
    refused(metrics().args(["--output", "/dev/null"]), 1, "cannot write the metrics to /dev/null: not a file");
}

/// An exporter on a port that the kernel has chosen, and its address.
fn exporter() -> (Running, String) {
    let mut exporter = start(farpage().args(["exporter", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("farpage: metrics are at http://").and_then(|at| at.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}")).to_string();
    (exporter, address)
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_exporter_answers_in_the_form_that_is_asked_for() {
    let (_program, sample) = program();
    let (exporter, address) = exporter();
    let plain = ask(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;"), "{plain}");
    assert!(plain.contains(&sample) && !plain.contains("# EOF"), "{plain}");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let open = ask(&address, &format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n"));
    assert!(
        open.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0;"),
        "{open}"
    );
    assert!(open.contains(&sample) && open.ends_with("# EOF\n"), "{open}");
    assert!(ask(&address, "GET / HTTP/1.1\r\n\r\n").contains("href=\"/metrics\""));
    assert!(ask(&address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let error = refused(farpage().args(["exporter", "--listen", &address]), 1, "address already in use");
    assert!(error.starts_with(&format!("farpage: cannot listen on {address}: ")), "{error}");
    // What it has opened it gives back.
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", exporter.0.id())).unwrap().count();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", exporter.0.id())).unwrap();
    let before = descriptors();
    (0..20).for_each(|_| drop(ask(&address, "GET /metrics HTTP/1.1\r\n\r\n")));
    wait_for("descriptors are closed", || descriptors() <= before);
    wait_for("trees are unmapped", || !maps().contains("farpage-tree"));
}

/// What Prometheus's own reader says of a text: it takes it, and has no complaints.
fn promtool(arguments: &[&str], input: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{arguments:?}: {said}{}\n{input}", text(&output.stdout));
}

#[test]
fn prometheus_has_nothing_to_say_about_it() {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("skipped: promtool is not installed (Debian: prometheus)");
        return;
    }
    let (_program, sample) = program();
    let (_exporter, address) = exporter();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("farpage.prom");
    quiet(metrics().arg("--output").arg(&file));
    let answer = ask(&address, "GET /metrics HTTP/1.1\r\n\r\n");
    for plain in [std::fs::read_to_string(file).unwrap().as_str(), answer.split_once("\r\n\r\n").unwrap().1] {
        assert!(plain.contains(&sample), "{plain}");
        promtool(&["check", "metrics"], plain);
    }
    // It does not check the other form, but takes it where samples have times.
    let open = quiet(&mut metrics());
    let timed = |line: &str| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") };
    let open: String = open.lines().map(timed).collect();
    let [file, blocks] = ["open", "blocks"].map(|name| dir.path().join(name));
    std::fs::write(&file, open).unwrap();
    let [file, blocks] = [&file, &blocks].map(|path| path.to_str().unwrap());
    promtool(&["tsdb", "create-blocks-from", "openmetrics", file, blocks], "");
}

#[test]
fn addresses_that_are_none() {
    for listen in ["9797", "localhost", "127.0.0.1:x", ""] {
        refused(farpage().args(["exporter", "--listen", listen]), 2, "not an address with a port");
    }
    for args in [&["stat", "--output", "x"][..], &["stat", "--openmetrics", "1"], &["stat", "--openmetrics", "--json"]]
    {
        assert_eq!(farpage().args(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
}
