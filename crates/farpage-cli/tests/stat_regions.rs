//! `farpage stat` on programs with pagers of their own: this test program, run once more as such a program.

mod common;

use common::{fake, farpage, quiet, refused, run};
use farpage::region::{Pager, Region};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const BUDGET: u64 = 4 << 20;
const REGION: usize = 16 << 20;

/// One of the ignored tests below, as a process; killed on drop.
struct Program {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start(name: &str) -> Program {
        Program::start_with(Command::new(std::env::current_exe().unwrap()), name)
    }

    fn start_with(mut command: Command, name: &str) -> Program {
        command.args(["--ignored", "--exact", "--nocapture", "--test-threads", "1", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Program { child, to, from }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// What the program says next.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() > 0 {
            // The test harness has its own to say.
            if let Some((_, said)) = line.split_once("SAID ") {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the program has ended")
    }

    /// Lets the program go on.
    fn go_on(&mut self) {
        self.to.write_all(b"\n").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the program: tells the test something, and waits until it lets it go on.
fn say(what: &str) {
    println!("SAID {what}");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0); // the test has ended
    }
}

/// Writes all of a region, and reads it twice in order.
fn use_all(region: &mut Region) {
    let words: &mut [u64] = region.view_mut();
    words.iter_mut().enumerate().for_each(|(i, w)| *w = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    for _ in 0..2 {
        let sum = words.iter().fold(0u64, |sum, w| sum.wrapping_add(*w));
        assert_ne!(std::hint::black_box(sum), 0);
    }
}

fn pager(budget: u64) -> Pager {
    Pager::builder().budget(budget).build().unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn stat_json(pid: &str) -> Value {
    json(&quiet(farpage().args(["stat", "--json", pid])))
}

/// Asks until `f` likes the answer: levels and readahead are some tenths of a second old.
#[track_caller]
fn soon(pid: &str, f: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    common::wait_for("the answer is as it should be", || {
        last = stat_json(pid);
        f(&last)
    });
    last
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

#[test]
#[ignore = "a program of these tests"]
fn program_with_one_pager() {
    let pager = pager(BUDGET);
    let mut region = pager.region(REGION).unwrap();
    use_all(&mut region);
    say(&format!("{}", region.as_ptr() as usize));
    use_all(&mut region);
    let stats = pager.stats().unwrap();
    say(&format!("{} {} {}", stats.pgfault, stats.pgmajfault, stats.wp_fault));
}

#[test]
fn one_pager_in_table_sheet_and_json() {
    let mut program = Program::start("program_with_one_pager");
    let at: u64 = program.hear().parse().unwrap();
    let pid = program.pid();
    let readahead = |one: &Value| one["pagers"][0]["readahead"].as_array().is_some_and(|list| list.len() == 1);
    let one = soon(&pid, |one| readahead(one) && number(&one["pagers"][0]["swapped_bytes"]) > REGION as u64 / 2);
    assert_eq!((&one["schema"], number(&one["pid"])), (&1.into(), pid.parse().unwrap()));
    for name in ["budget_bytes", "pgfault", "fault_p50_ns", "readahead"] {
        assert!(one.get(name).is_some_and(Value::is_null), "{name}: of an engine that there is not: {one:#}");
    }
    assert!(one.get("per_second").is_none());
    let pagers = one["pagers"].as_array().unwrap();
    let pager = &pagers[0];
    assert_eq!((pagers.len(), number(&pager["pager"]), number(&pager["budget_bytes"])), (1, 1, BUDGET));
    assert_eq!(number(&pager["managed_bytes"]), REGION as u64);
    for name in ["pgfault", "pgmajfault", "pswpin", "pswpout", "swap_ra", "swap_ra_hit", "used_bytes", "pool_bytes"] {
        assert!(number(&pager[name]) > 0, "{name}: {pager:#}");
    }
    assert!(pager.get("event_unmap").is_none() && pager.get("active").is_none(), "{pager:#}");
    let row = &pager["readahead"][0];
    assert_eq!((number(&row["start"]), number(&row["bytes"])), (at, REGION as u64));
    let all = number(&row["swap_ra"]);
    assert!(number(&row["pgmajfault"]) > 0 && all > 1000 && number(&row["window"]) >= 1, "{row}");
    assert!(row["ra_hit_pct"].as_f64().unwrap() > 50.0 && number(&row["swap_ra_hit"]) <= all, "{row}");

    let sheet = quiet(farpage().args(["stat", &pid]));
    for part in [": pager 1\n", "memory\n", "wp_fault", "readahead by region\n", "swap_ra_hit", &format!("{at:x} ")] {
        assert!(sheet.contains(part), "{part}: {sheet}");
    }
    for part in ["events", "fault_p99", "swap_full", "nothing is managed"] {
        assert!(!sheet.contains(part), "{part} is an engine's: {sheet}");
    }
    assert!(sheet.lines().all(|l| l.len() <= 140), "{sheet}");

    let table = quiet(farpage().args(["stat", "--bytes"]));
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    let row = rows.iter().find(|row| row[0] == pid).expect("the program is listed");
    let command = row.len() - 7; // the name may have spaces
    assert_eq!((row[command], row[row.len() - 1]), (BUDGET.to_string().as_str(), "1"), "{table}");
    let all = json(&quiet(farpage().args(["stat", "--json"])));
    let ours = all["processes"].as_array().unwrap().iter().find(|p| p["pid"] == program.child.id()).unwrap();
    assert_eq!(number(&ours["pagers"][0]["budget_bytes"]), BUDGET);

    // The counters are the program's own, without delay.
    program.go_on();
    let counters = program.hear();
    let seen = stat_json(&pid)["pagers"][0].clone();
    let seen = ["pgfault", "pgmajfault", "wp_fault"].map(|name| number(&seen[name]).to_string());
    assert_eq!(seen.join(" "), counters);
}

#[test]
#[ignore = "a program of these tests"]
fn program_that_goes_on() {
    let pager = pager(BUDGET);
    let mut region = pager.region(REGION).unwrap();
    use_all(&mut region);
    std::thread::spawn(|| {
        say("runs");
        std::process::exit(0);
    });
    loop {
        use_all(&mut region);
    }
}

#[test]
fn watching_has_the_same_shape_from_the_first_line_on() {
    let mut program = Program::start("program_that_goes_on");
    program.hear();
    let mut command = farpage();
    command.args(["stat", &program.pid(), "--watch=0.3", "--json"]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let out = BufReader::new(watch.stdout.take().unwrap()).lines().map(|line| json(&line.unwrap()));
    // It goes on until much came in between two lines: it may not have had a CPU before the first of them.
    let (mut lines, mut busy): (Vec<Value>, _) = (Vec::new(), None);
    for line in out {
        if busy.is_none() && line["pagers"][0]["per_second"]["pswpin"].as_f64().is_some_and(|rate| rate > 100.0) {
            busy = Some(lines.len());
            program.go_on();
        }
        assert!(lines.len() < 1000, "no pages come in: {line}");
        lines.push(line);
    }
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let keys = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for line in &lines {
        assert_eq!(keys(line), keys(&lines[0]));
        assert_eq!(keys(&line["pagers"][0]), keys(&lines[0]["pagers"][0]));
        assert!(line.get("per_second").is_some_and(Value::is_null), "there is no engine");
    }
    let of = |line: &Value| (line["interval_s"].clone(), line["pagers"][0]["per_second"].clone());
    assert_eq!(of(&lines[0]), (Value::Null, Value::Null));
    let (interval, rates) = of(&lines[busy.expect("pages came in")]);
    assert!(interval.as_f64().unwrap() > 0.2, "{interval}");
    assert!(rates.get("budget_bytes").is_none(), "a level has no rate");
}

#[test]
#[ignore = "a program of these tests"]
fn program_with_two_pagers() {
    let (first, second) = (pager(BUDGET), pager(2 * BUDGET));
    let (mut small, mut large) = (first.region(REGION).unwrap(), second.region(2 * REGION).unwrap());
    use_all(&mut small);
    use_all(&mut large);
    say("both");
    drop((small, first));
    say("the second");
}

#[test]
fn two_pagers_are_two_rows_and_two_sheets() {
    let mut program = Program::start("program_with_two_pagers");
    program.hear();
    let pid = program.pid();
    let one = soon(&pid, |one| number(&one["pagers"][1]["swapped_bytes"]) > REGION as u64);
    let pagers = one["pagers"].as_array().unwrap();
    let what = |p: &Value| [&p["pager"], &p["budget_bytes"], &p["managed_bytes"]].map(number);
    let wanted = [[1, BUDGET, REGION as u64], [2, 2 * BUDGET, 2 * REGION as u64]];
    assert_eq!(pagers.iter().map(what).collect::<Vec<_>>(), wanted);
    let sheet = quiet(farpage().args(["stat", &pid]));
    assert!(sheet.contains(": pager 1\n") && sheet.contains("\n\n") && sheet.contains(": pager 2\n"), "{sheet}");
    let table = quiet(farpage().arg("stat"));
    let rows = table.lines().filter(|l| l.split_whitespace().next() == Some(&pid)).count();
    assert_eq!(rows, 2, "{table}");
    program.go_on();
    program.hear();
    let one = stat_json(&pid);
    assert_eq!(one["pagers"].as_array().unwrap().iter().map(what).collect::<Vec<_>>(), wanted[1..]);
}

/// Forks a child that tells its number, waits for a line, uses the region, or a pager of its own if it does not have
/// it, tells again, and waits.
fn child_of(inherit: bool) {
    let pager = Pager::builder().budget(BUDGET).inherit(inherit).build().unwrap();
    let mut region = pager.region(REGION).unwrap();
    use_all(&mut region);
    say("before the fork");
    // SAFETY: this thread is the only one of the program that has locks of libc's.
    match unsafe { libc::fork() } {
        0 => {
            say(&format!("{}", std::process::id()));
            if inherit {
                use_all(&mut region);
                say("used");
            } else {
                let _own = self::pager(2 * BUDGET);
                say("built");
            }
            std::process::exit(0);
        }
        child => {
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}

#[test]
#[ignore = "a program of these tests"]
fn program_with_a_child() {
    child_of(false);
}

#[test]
#[ignore = "a program of these tests"]
fn program_with_a_child_that_inherits() {
    child_of(true);
}

#[test]
fn a_child_without_the_regions_is_not_shown() {
    let mut program = Program::start("program_with_a_child");
    program.hear();
    assert_eq!(stat_json(&program.pid())["pagers"].as_array().unwrap().len(), 1);
    program.go_on();
    let child = program.hear();
    refused(farpage().args(["stat", &child]), 1, "has no pager");
    let table = quiet(farpage().arg("stat"));
    assert!(table.lines().all(|l| l.split_whitespace().next() != Some(&child)), "{table}");
    assert_eq!(stat_json(&program.pid())["pagers"].as_array().unwrap().len(), 1);
    program.go_on();
    program.hear();
    // It has its parent's page open too.
    let pagers = stat_json(&child)["pagers"].clone();
    let budgets: Vec<u64> = pagers.as_array().unwrap().iter().map(|p| number(&p["budget_bytes"])).collect();
    assert_eq!(budgets, [2 * BUDGET]);
    program.go_on();
}

#[test]
fn a_child_with_the_regions_counts_for_itself() {
    let mut program = Program::start("program_with_a_child_that_inherits");
    program.hear();
    let faults = |one: &Value| number(&one["pagers"][0]["pgfault"]);
    let parent = program.pid();
    let before = faults(&stat_json(&parent));
    program.go_on();
    let child = program.hear();
    let start = stat_json(&child);
    assert_eq!(start["pagers"].as_array().unwrap().len(), 1, "{start:#}");
    assert!(before > 100 && faults(&start) < before, "it counts from zero: {start:#}");
    assert!(number(&start["pagers"][0]["swapped_bytes"]) > REGION as u64 / 2, "but has the pages: {start:#}");
    program.go_on();
    program.hear();
    assert!(faults(&stat_json(&child)) > faults(&start) + 100);
    assert_eq!(faults(&stat_json(&parent)), before, "the child counted for its parent");
    program.go_on();
}

#[test]
fn an_engine_and_a_pager_in_one_process() {
    let mut command = run();
    command.env("FARPAGE_PRELOAD", fake());
    command.arg(std::env::current_exe().unwrap());
    let mut program = Program::start_with(command, "program_with_one_pager");
    program.hear();
    let one = stat_json(&program.pid());
    // The first level of the faked engine is 0, the second 1000.
    assert_eq!((number(&one["active"]), number(&one["budget_bytes"])), (0, 1000));
    let pagers = one["pagers"].as_array().unwrap();
    assert_eq!((pagers.len(), number(&pagers[0]["budget_bytes"])), (1, BUDGET));
    let sheet = quiet(farpage().args(["stat", &program.pid()]));
    assert!(sheet.find("nothing is managed").unwrap() < sheet.find(": pager 1").unwrap(), "{sheet}");
}

#[test]
fn a_page_of_another_version_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #define _GNU_SOURCE
        #include <sys/mman.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main() {
            int fd = memfd_create("farpage-stat", 0);
            if (ftruncate(fd, 16384) || write(fd, "farpage1", 8) != 8) return 1;
            prctl(PR_SET_NAME, "farpage-reclaim");
            if (write(1, "x", 1) != 1) return 1;
            pause();
        }"#;
    let program = common::cc(dir.path(), "old", source, &[]).unwrap();
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    refused(farpage().args(["stat", &child.id().to_string()]), 1, "of another version");
    child.kill().unwrap();
    child.wait().unwrap();
}
