//! Keys, and what they do to what is shown.

use super::*;
use crate::page::Page;
use crate::top::reading::Rates;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

fn program(pid: u32, tree: Option<u32>, mib: u64) -> Program {
    let page = Page::for_test(|stat| {
        stat.rss_anon_bytes.store(mib << 20, Relaxed);
        stat.swapped_bytes.store((100 - mib) << 20, Relaxed);
    });
    let rates = Some(Rates { faults: mib as f64, ..Rates::default() });
    let id = Id { pid, pager: 0 };
    let (command, user) = (format!("p{pid}"), String::new());
    Program {
        id,
        command,
        user,
        is_parked: false,
        waits_its_turn: false,
        tree,
        claim: None,
        page: Rc::new(page),
        rates,
    }
}

fn tree(pid: u32) -> TreeRow {
    let (budget, command, user) = (Some(100 << 20), format!("p{pid}"), String::new());
    TreeRow { pid, command, user, is_parked: pid == 20, budget, claimed: 0, swapped: 0, processes: 2 }
}

fn reading(programs: Vec<Program>) -> Reading {
    Reading { at: Instant::now(), trees: vec![tree(10), tree(20)], programs, hidden: 0 }
}

fn some() -> State {
    State::new(reading(vec![
        program(10, Some(10), 3),
        program(11, Some(10), 9),
        program(15, None, 50),
        program(20, Some(20), 7),
    ]))
}

fn press(state: &mut State, keys: &str) -> Wish {
    let mut wish = Wish::Nothing;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            '^' => KeyCode::Up,
            'v' => KeyCode::Down,
            c => KeyCode::Char(c),
        };
        wish = state.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    wish
}

fn shown(state: &State) -> String {
    let name = |row: &ListRow<'_>| match row {
        ListRow::Tree(tree) => format!("t{}", tree.pid),
        ListRow::Program(program) => program.id.pid.to_string(),
    };
    state.rows().iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn trees_come_with_their_programs_in_order() {
    let mut state = some();
    assert_eq!(shown(&state), "t10 10 11 t20 20 15");
    press(&mut state, "s");
    assert_eq!((shown(&state).as_str(), state.sort.0), ("t10 11 10 t20 20 15", Sort::Resident));
    press(&mut state, "r");
    assert_eq!(shown(&state), "t10 10 11 t20 20 15");
    press(&mut state, "rs");
    assert_eq!((shown(&state).as_str(), state.sort.0), ("t10 10 11 t20 20 15", Sort::Swapped));
    (0..Sort::ALL.len() - 1).for_each(|_| drop(press(&mut state, "s")));
    assert_eq!(state.sort.0, Sort::Resident);
    // Every program is there whatever the order.
    assert_eq!(state.rows().len(), 6);
}

#[test]
fn the_selection_follows_its_program_and_stays_on_the_screen() {
    let mut state = some();
    assert_eq!(state.selected, Some(RowId::Tree(10)));
    press(&mut state, "vv");
    assert_eq!(state.selected, Some(RowId::Program(Id { pid: 11, pager: 0 })));
    press(&mut state, "s");
    assert_eq!((state.selected_place(), press(&mut state, "^^^^^^")), (Some(1), Wish::Nothing));
    assert_eq!(state.selected_place(), Some(0));
    press(&mut state, "G");
    assert_eq!(state.selected_place(), Some(5));
    state.take(Reading { trees: Vec::new(), ..reading(Vec::new()) });
    assert_eq!((state.selected, shown(&state).as_str()), (None, ""));
    for keys in ["v", "^", "G", "g", "\n", "b", "+", "-", "s", "r", "?", "x", "b12\n", "p", "y"] {
        assert_eq!(press(&mut state, keys), Wish::Nothing, "{keys:?}");
    }
    assert!(state.view == View::List && state.prompt.is_none());
}

#[test]
fn details_of_one_end_with_it() {
    let mut state = some();
    let of = |pid| View::Details(Id { pid, pager: 0 });
    assert_eq!((press(&mut state, "\n"), state.view), (Wish::Nothing, of(10)));
    assert_eq!((press(&mut state, "vvv^"), state.first_mapping), (Wish::Nothing, 0));
    assert_eq!((press(&mut state, "q"), state.view), (Wish::Nothing, View::List));
    press(&mut state, "G\n");
    assert_eq!(state.view, of(15));
    state.take(reading(vec![program(10, Some(10), 3)]));
    assert_eq!((state.view, state.selected), (View::List, Some(RowId::Tree(10))));
    assert!(state.message.as_deref().is_some_and(|words| words.starts_with("process 15 (p15) has ended")));
    assert_eq!((press(&mut state, "v"), state.message.is_none()), (Wish::Nothing, true));
    // A tree of which no program can be seen.
    press(&mut state, "G\n");
    assert!(state.view == View::List && state.message.is_some());
}

#[test]
fn a_budget_is_typed_and_asked_for() {
    let mut state = some();
    let asked = |pid, text: &str| Wish::Budget(Prompt { pid, text: text.into() });
    assert_eq!(press(&mut state, "vb6x\x084M\n"), asked(10, "64M"));
    assert_eq!((state.prompt.clone(), press(&mut state, "+\n")), (None, asked(10, "110M")));
    assert_eq!(press(&mut state, "-\n"), asked(10, "90M"));
    // Given up: by Esc, or with nothing typed. Keys mean letters meanwhile.
    assert_eq!((press(&mut state, "bq\x1b"), state.prompt.clone()), (Wish::Nothing, None));
    assert_eq!((press(&mut state, "b\n"), state.prompt.clone()), (Wish::Nothing, None));
    press(&mut state, "b");
    press(&mut state, &"9".repeat(1000));
    assert_eq!(state.prompt.as_ref().map(|prompt| prompt.text.len()), Some(PROMPT_CHARS));
    press(&mut state, "\x1bG");
    press(&mut state, "b");
    assert!(state.prompt.is_none() && state.message.as_deref().is_some_and(|words| words.contains("in no tree")));
}

#[test]
fn a_tree_is_parked_or_brought_back_if_that_is_confirmed() {
    let mut state = some();
    let wish = |pid, is_back| Wish::Park(Parking { pid, is_back });
    // Of a program, and of a tree, in the list and in detail.
    for keys in ["py", "p\n", "vvpy", "\npy"] {
        assert_eq!(press(&mut state, keys), wish(10, false), "{keys:?}");
        assert_eq!(state.parking, None);
    }
    // Any other key is a no, and does nothing else.
    for key in ["n", "q", "p", "b", "\x1b", "x"] {
        assert_eq!((press(&mut state, "p"), press(&mut state, key)), (Wish::Nothing, Wish::Nothing), "{key:?}");
        assert!(state.parking.is_none() && state.prompt.is_none() && state.view != View::List);
    }
    press(&mut state, "qG^");
    assert_eq!((state.selected_place(), press(&mut state, "py")), (Some(4), wish(20, true)));
    assert_eq!(press(&mut state, "vp"), Wish::Nothing);
    let refused = "process 15 is in no tree of farpage run, and cannot be parked";
    assert_eq!((state.parking, state.message.as_deref()), (None, Some(refused)));
}

#[test]
fn it_ends_when_it_is_told_to() {
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    let mut state = some();
    assert_eq!(press(&mut state, "?q"), Wish::Nothing, "any key closes the help");
    assert_eq!(press(&mut state, "q"), Wish::Quit);
    for keys in ["", "?", "b", "\n"] {
        let mut state = some();
        press(&mut state, keys);
        assert_eq!(state.key(control('z')), Wish::Suspend);
        assert_eq!(state.key(control('c')), Wish::Quit);
    }
}
