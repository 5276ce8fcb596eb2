//! Screens: drawn for a terminal in memory, of every size, and whatever programs say of themselves.

use super::look::Look;
use super::reading::{Id, Monitor, Point};
use super::state::{Parking, State, View};
use super::{details, list};
use crate::mappings::Names;
use crate::page::Page;
use crate::stat_cmd::find::Managed;
use crate::trees::{self, Tree};
use farpage_ipc::stat::Stat;
use farpage_ipc::tree;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rustix::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const PLAIN: Look = Look { colour: false, braille: false };
const RICH: Look = Look { colour: true, braille: true };

/// A program that swaps, after so many seconds.
fn swapping(stat: &Stat, seconds: u64) {
    let set = |value: &std::sync::atomic::AtomicU64, to: u64| value.store(to, Relaxed);
    set(&stat.pid, 4711);
    set(&stat.active, 1);
    set(&stat.budget_bytes, 64 << 20);
    set(&stat.rss_anon_bytes, 62 << 20);
    set(&stat.hot_bytes, 30 << 20);
    set(&stat.resident_bytes, 40 << 20);
    set(&stat.cached_bytes, 5 << 20);
    set(&stat.pool_bytes, 12 << 20);
    set(&stat.pool_orig_bytes, 36 << 20);
    set(&stat.pool_compressed_bytes, 10 << 20);
    set(&stat.swapped_bytes, 90 << 20);
    set(&stat.file_bytes, 54 << 20);
    set(&stat.pgfault, seconds * 1500);
    set(&stat.pgmajfault, seconds * 300);
    set(&stat.pswpin, seconds * 800);
    set(&stat.fault_ns[20], seconds * 1500);
    set(&stat.fault_wait_ns, seconds * 400_000_000);
    set(&stat.alloc_wait_ns, seconds * 20_000_000);
    set(&stat.readahead[0].start, 0x7f00_0000_0000 >> 12);
    set(&stat.readahead[0].pages, 4096);
    set(&stat.readahead[0].faults, 77);
}

/// What there is after so many seconds.
fn found(seconds: u64) -> (Vec<Managed>, Tree) {
    let engine = Page::for_test(|stat| swapping(stat, seconds));
    let pager = Page::for_test(|stat| {
        stat.pager.store(1, Relaxed);
        stat.used_bytes.store(9 << 20, Relaxed);
        stat.write_errors.store(3, Relaxed);
    });
    let mut tree = trees::open(4711, tree::create(64 << 20, None).unwrap().as_fd()).unwrap();
    tree.processes = vec![4711];
    let hidden = Managed { pid: 4713, command: "theirs".into(), pages: None };
    let one = |pid, command: &str, page| Managed { pid, command: command.into(), pages: Some(vec![page]) };
    (vec![one(4711, "python3", engine), one(4712, "table", pager), hidden], tree)
}

/// Two minutes of it.
fn watched() -> (Monitor, State) {
    let (mut monitor, start) = (Monitor::default(), Instant::now());
    let mut last = None;
    for seconds in 0..120 {
        let (all, tree) = found(seconds);
        last = Some(monitor.take(all, &[tree], start + Duration::from_secs(seconds)));
    }
    let mut state = State::new(last.unwrap());
    let tree = &mut state.reading.trees[0];
    (tree.command, tree.user) = ("python3".into(), "nobody".into());
    let users = ["nobody", "a.long.name"];
    state.reading.programs.iter_mut().zip(users).for_each(|(program, user)| program.user = user.into());
    (monitor, state)
}

fn screen(monitor: &Monitor, state: &State, look: Look, (columns, rows): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        match state.view {
            View::List => list::draw(frame, state, look),
            View::Details(id) => {
                let history: Vec<Point> = monitor.history(id).copied().collect();
                let program = state.reading.program(id).unwrap();
                details::draw(frame, state, program, &history, &Names::default(), look);
            }
        }
        if state.help {
            list::draw_help(frame, look);
        }
    };
    terminal.draw(draw).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string() + "\n";
    (0..rows).map(line).collect()
}

fn details_of(pid: u32) -> View {
    View::Details(Id { pid, pager: if pid == 4712 { 1 } else { 0 } })
}

#[test]
fn the_list_says_all_of_it_in_80_columns() {
    let (monitor, mut state) = watched();
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    for part in [
        "farpage top  1 tree, 1 program, 1 pager, 1 of other users; by PID\n",
        "swapped 90M: pool 36M in 12M, files 54M   table (4712): write_errors 3\n",
        "    PID USER     COMMAND      BUDGET  USED        RSS  SWAP FAULT/s  MAJ/s WAIT%\n",
        "   tree nobody   python3 (0)     64M [        ]   62M     0    1500    300    42\n",
        "   4711 nobody    python3        64M [####=+%-]   62M   90M    1500    300    42\n",
        "   4712 a.long.+  pager 1          0 [        ]  9.0M     0       0      0     0\n",
        "up/down   Enter details   s sort   r reverse   b budget   p park   ? help   q\n",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(shown.is_ascii());
    let wide = screen(&monitor, &state, PLAIN, (120, 30));
    assert!(wide.contains(" SWAP TOTAL   POOL  FILES FAULT/s  MAJ/s WAIT%    P99\n"), "{wide}");
    assert!(
        wide.contains("  90M  152M    12M    54M    1500    300    42   80ns\n") && wide.contains(" a.long.name "),
        "{wide}"
    );
    let narrow = screen(&monitor, &state, PLAIN, (60, 24));
    assert!(narrow.contains("    PID USER     COMMAND      BUDGET  USED        RSS  SWAP\n"), "{narrow}");
    state.help = true;
    let help = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(help.contains("change the budget of the tree") && help.contains(" p    park the tree"), "{help}");
    assert!(help.contains("Any key closes this.") && help.is_ascii());
}

#[test]
fn what_is_parked_is_said_and_whether_it_is_to_be_is_asked() {
    let (monitor, mut state) = watched();
    state.parking = Some(Parking { pid: 4711, is_back: false });
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(shown.ends_with("\nPark the tree of 4711 (python3, 0 processes)? y: yes, n: no\n"), "{shown}");
    state.parking = Some(Parking { pid: 4711, is_back: true });
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(shown.contains("\nBring back the tree of 4711 (") && !shown.contains("parked"), "{shown}");
    state.reading.trees[0].is_parked = true;
    state.reading.programs[0].is_parked = true;
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(shown.contains("   tree nobody   python3 (0)     64M [ parked ]   62M "), "{shown}");
    assert!(shown.contains("   4711 nobody    python3        64M [ parked ]   62M "), "{shown}");
    state.view = details_of(4711);
    assert!(screen(&monitor, &state, PLAIN, (80, 24)).contains("python3 (4711): parked, may have 64.0 MiB"));
}

#[test]
fn a_program_that_waits_its_turn_says_so() {
    let (monitor, mut state) = watched();
    state.reading.programs[0].waits_its_turn = true;
    for (columns, said) in [(80, "  64M [its turn]   62M "), (140, "     waits its turn      ] ")] {
        let shown = screen(&monitor, &state, PLAIN, (columns, 24));
        assert!(shown.contains(said), "{shown}");
    }
    state.view = details_of(4711);
    assert!(screen(&monitor, &state, PLAIN, (80, 24)).contains("python3 (4711): waits its turn, may have 64.0 MiB"));
}

#[test]
fn the_details_say_all_of_it_in_80_columns() {
    let (monitor, mut state) = watched();
    state.view = details_of(4711);
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    for part in [
        "python3 (4711): managed, may have 64.0 MiB, in the tree of 4711\n",
        "Memory, 2 min:  - budget  s swap  # rss ",
        "Faults/s, 2 min:  f all  m major\n",
        "  90M|",
        " 1500|",
        "  62M + 90M swapped = 152M; hot 30M, cached 5.0M\n",
        "faults   1500/s, 300 major, 0 stalled, waits 42%\n",
        "latency  p50 80ns, p99 80ns, p99.9 80ns\n",
        "pages/s  in 800, of these 0 by readahead; out 0\n",
        "devices  pool 36M in 12M, 3.6 to 1, limit 0; files 54M; tables 0\n",
        "MAPPING                      ADDRESS   SIZE     MAJFLT    SWAP_RA   HIT%  WINDOW\n",
        " 7f0000000000    16M         77          0      -       0\n",
        "Esc back",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(shown.is_ascii() && shown.contains("ssssssss") && shown.contains("########"), "{shown}");
    let rich = screen(&monitor, &state, RICH, (80, 24));
    assert!(rich.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{rich}");
    state.view = details_of(4712);
    let pager = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(pager.contains("table (4712): pager 1") && pager.contains("trouble  write_errors 3"), "{pager}");
    assert!(!pager.contains("p99"), "{pager}");
}

#[test]
fn without_programs_it_says_so() {
    let mut monitor = Monitor::default();
    let state = State::new(monitor.take(Vec::new(), &[], Instant::now()));
    let shown = screen(&monitor, &state, PLAIN, (80, 24));
    assert!(shown.contains("no process that may be looked at runs under farpage or has a pager"), "{shown}");
}

#[test]
fn every_size_can_be_drawn() {
    let (monitor, mut state) = watched();
    for (view, help) in [(View::List, false), (details_of(4711), false), (View::List, true), (details_of(4712), true)] {
        (state.view, state.help) = (view, help);
        for columns in (0..30).chain([79, 80, 81, 101, 102, 200, 500]) {
            for rows in (0..20).chain([24, 25, 50, 100]) {
                screen(&monitor, &state, PLAIN, (columns, rows));
                screen(&monitor, &state, RICH, (columns, rows));
            }
        }
    }
}

/// A page that a broken or hostile process wrote is drawn in some way.
#[test]
fn any_number_will_do() {
    for word in [0, 1, u64::MAX, 1 << 63, u64::MAX / 4096] {
        let all = || {
            let page = Page::for_test(|stat| {
                let bytes = std::ptr::from_ref(stat).cast::<std::sync::atomic::AtomicU64>();
                // SAFETY: a Stat consists of these words.
                let words = unsafe { std::slice::from_raw_parts(bytes, size_of::<Stat>() / 8) };
                words.iter().for_each(|at| at.store(word, Relaxed));
            });
            vec![Managed { pid: 7, command: "x".repeat(300), pages: Some(vec![page]) }]
        };
        let (mut monitor, start) = (Monitor::default(), Instant::now());
        monitor.take(all(), &[], start);
        let mut state = State::new(monitor.take(all(), &[], start + Duration::from_millis(1)));
        let id = state.reading.programs[0].id;
        for view in [View::List, View::Details(id)] {
            state.view = view;
            for size in [(80, 24), (20, 5), (200, 60)] {
                screen(&monitor, &state, PLAIN, size);
                screen(&monitor, &state, RICH, size);
            }
        }
    }
}
