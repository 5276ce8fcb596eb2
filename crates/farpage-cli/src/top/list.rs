//! The list of `farpage top`: trees, their programs, and the lines around them.
//!
//! Callers: [`super`]. Draws what [`super::state`] has; no state of its own.

use super::look::{Look, bar, parts, short_duration, short_number, short_size};
use super::reading::{Program, Rates, TreeRow};
use super::state::{ListRow, Parking, State};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Row, Table, TableState};

/// From this width on there is room for a sum, for what the devices have, and for latencies.
const WIDE: u16 = 108;
/// Columns of these, and of the space before each.
const MORE: u16 = 27;
/// Columns of the smallest bar, and what a wide terminal adds at most. So are the next two.
const BAR: (u16, u16) = (10, 40);
/// Of a process's name.
const NAME: (u16, u16) = (12, 8);
/// Of a user's name.
const USER: (u16, u16) = (8, 8);

/// What should not happen, and is said in red.
const TROUBLE: [&str; 7] =
    ["swap_full", "write_errors", "read_errors", "bad_slots", "drained_pages", "pages_lost", "over_budget"];

/// Draws the list.
pub fn draw(frame: &mut Frame<'_>, state: &State, look: Look) {
    let [head, devices, table, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(summary(state, look)), head);
    frame.render_widget(Paragraph::new(devices_line(state, look)), devices);
    if state.rows().is_empty() {
        let words = "no process that may be looked at runs under farpage or has a pager\n\n\
                     farpage run --ram 512M -- PROGRAM    starts one";
        frame.render_widget(Paragraph::new(words).alignment(Alignment::Center), table);
    } else {
        draw_table(frame, state, look, table);
    }
    draw_foot(
        frame,
        state,
        look,
        foot,
        &["up/down", "Enter details", "s sort", "r reverse", "b budget", "p park", "? help", "q"],
    );
}

fn summary(state: &State, look: Look) -> Line<'static> {
    let reading = &state.reading;
    let pagers = reading.programs.iter().filter(|program| program.id.pager > 0).count();
    let mut words = vec![count(reading.trees.len(), "tree"), count(reading.programs.len() - pagers, "program")];
    words.extend((pagers > 0).then(|| count(pagers, "pager")));
    words.extend((reading.hidden > 0).then(|| format!("{} of other users", reading.hidden)));
    let title = Span::styled("farpage top", look.style(Color::Cyan).add_modifier(Modifier::BOLD));
    let order = if state.sort.1 { ", reversed" } else { "" };
    Line::from(vec![title, Span::raw(format!("  {}; by {}{order}", words.join(", "), state.sort.0.name().trim()))])
}

/// `1 tree`, `2 processes`.
fn count(n: usize, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}

/// What is on devices; and what happened of what should not, of the first program that has something of it.
fn devices_line(state: &State, look: Look) -> Line<'static> {
    let programs = &state.reading.programs;
    let sum = |name: &str| short_size(programs.iter().fold(0u64, |sum, p| sum.saturating_add(p.page.get(name))));
    let [swapped, orig, pool, files] = ["swapped_bytes", "pool_orig_bytes", "pool_bytes", "file_bytes"].map(sum);
    let with = |program: &Program| {
        let list = trouble_of(program);
        (!list.is_empty()).then(|| format!("   {} ({}): {list}", program.command, program.id.pid))
    };
    let trouble = programs.iter().find_map(with).unwrap_or_default();
    Line::from(vec![
        Span::raw(format!("swapped {swapped}: pool {orig} in {pool}, files {files}")),
        Span::styled(trouble, look.alarm()),
    ])
}

/// What happened to a program of what should not.
pub fn trouble_of(program: &Program) -> String {
    let values = TROUBLE.iter().map(|name| (name, program.page.get(name)));
    values.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

/// Widths of the columns, and whether those for which there is room only on a wide terminal are among them.
fn widths(columns: u16) -> (Vec<u16>, bool) {
    let wide = columns >= WIDE;
    let spare = columns.saturating_sub(80 + if wide { MORE } else { 0 });
    let name = spare.min(NAME.1);
    let user = (spare - name).min(USER.1);
    let more = (spare - name - user).min(BAR.1);
    let mut widths = vec![7, USER.0 + user, NAME.0 + name, 6, BAR.0 + more, 5, 5];
    widths.extend(wide.then_some([5, 6, 6]).into_iter().flatten());
    widths.extend([7, 6, 5]);
    widths.extend(wide.then_some(6));
    // A heading that is cut off cannot be read: the last columns go.
    while widths.len() > 5 && widths.iter().sum::<u16>() + widths.len() as u16 - 1 > columns {
        widths.pop();
    }
    (widths, wide)
}

fn draw_table(frame: &mut Frame<'_>, state: &State, look: Look, area: Rect) {
    let (widths, wide) = widths(area.width);
    let mut head = vec!["PID", "USER", "COMMAND", "BUDGET", " USED", "RSS", "SWAP"];
    head.extend(wide.then_some(["TOTAL", "POOL", "FILES"]).into_iter().flatten());
    head.extend(["FAULT/s", "MAJ/s", "WAIT%"]);
    head.extend(wide.then_some("P99"));
    let marked = |name: &&str| {
        let sorted = *name == state.sort.0.name();
        let style = if sorted { Style::new().add_modifier(Modifier::UNDERLINED) } else { Style::new() };
        aligned(Line::styled(name.to_string(), style), name)
    };
    let head = Row::new(head.iter().map(marked)).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = state.rows().into_iter().map(|row| match row {
        ListRow::Tree(tree) => tree_row(tree, state, look, &widths, wide),
        ListRow::Program(program) => program_row(program, state, look, &widths, wide),
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths.iter().map(|w| Constraint::Length(*w)))
        .header(head)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut place = TableState::new().with_selected(state.selected_place());
    frame.render_stateful_widget(table, area, &mut place);
}

/// Words to the left, numbers to the right.
fn aligned<'a>(line: Line<'a>, column: &str) -> Line<'a> {
    if ["USER", "COMMAND", " USED"].contains(&column) { line } else { line.right_aligned() }
}

fn cells(texts: Vec<Line<'static>>, wide: bool) -> Row<'static> {
    let left = |at: usize| [1, 2, 4].contains(&at);
    let mut texts = texts;
    if !wide {
        texts.pop();
        texts.drain(7..10);
    }
    Row::new(texts.into_iter().enumerate().map(|(at, text)| if left(at) { text } else { text.right_aligned() }))
}

fn tree_row(tree: &TreeRow, state: &State, look: Look, widths: &[u16], wide: bool) -> Row<'static> {
    let members: Vec<&Program> = state.reading.programs.iter().filter(|p| p.tree == Some(tree.pid)).collect();
    let bytes = |name: &str| members.iter().fold(0u64, |sum, p| sum.saturating_add(p.page.get(name)));
    let rate = |of: fn(&Rates) -> f64| {
        members.iter().filter_map(|p| p.rates.as_ref().map(of)).reduce(|a, b| a + b).map_or("-".into(), short_number)
    };
    let resident = members.iter().fold(0u64, |sum, p| sum.saturating_add(p.resident()));
    let used = vec![('#', Color::Green, tree.claimed)];
    let texts = vec![
        Line::from("tree"),
        Line::from(cut(&tree.user, widths[1])),
        Line::from(counted(&tree.command, tree.processes, widths[2])),
        Line::from(tree.budget.map_or("none".into(), short_size)),
        match tree.is_parked {
            true => in_place_of_bar("parked", "parked", widths[4], look),
            false => bar(&used, tree.budget.unwrap_or(0), widths[4].into(), look),
        },
        Line::from(short_size(resident)),
        Line::from(short_size(tree.swapped)),
        Line::from(short_size(resident.saturating_add(tree.swapped))),
        Line::from(short_size(bytes("pool_bytes"))),
        Line::from(short_size(bytes("file_bytes"))),
        Line::from(rate(|rates| rates.faults)),
        Line::from(rate(|rates| rates.major)),
        Line::from(rate(Rates::wait_percent)),
        Line::from("-"),
    ];
    cells(texts, wide).style(Style::new().add_modifier(Modifier::BOLD))
}

/// `make (3)`, in so many columns.
fn counted(name: &str, number: usize, columns: u16) -> String {
    let number = format!(" ({number})");
    name.chars().take(usize::from(columns).saturating_sub(number.len())).chain(number.chars()).collect()
}

/// A name in so many columns; `+` at the end if it is longer.
fn cut(name: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    match name.chars().count() <= columns {
        true => name.into(),
        false => name.chars().take(columns.saturating_sub(1)).chain(['+']).collect(),
    }
}

/// What a program does, in the place of its bar; `short`: where there is no room for the whole of it.
fn in_place_of_bar(words: &str, short: &str, columns: u16, look: Look) -> Line<'static> {
    let columns = usize::from(columns).saturating_sub(2);
    let words = if words.len() <= columns { words } else { short };
    Line::styled(format!("[{words:^columns$}]"), look.style(Color::Blue))
}

fn program_row(program: &Program, state: &State, look: Look, widths: &[u16], wide: bool) -> Row<'static> {
    let tree = program.tree.and_then(|pid| state.reading.trees.iter().find(|tree| tree.pid == pid));
    let whole = tree.and_then(|tree| tree.budget).filter(|_| program.id.pager == 0).unwrap_or_else(|| program.budget());
    let name = match (program.id.pager, tree) {
        (0, None) => program.command.clone(),
        (0, Some(_)) => format!(" {}", program.command),
        (pager, _) => format!(" pager {pager}"),
    };
    let bytes = |name: &str| Line::from(short_size(program.page.get(name)));
    let rate = |of: fn(&Rates) -> f64| Line::from(program.rates.as_ref().map(of).map_or("-".into(), short_number));
    let p99 = program.rates.and_then(|rates| rates.p99).map_or("-".into(), short_duration);
    let texts = vec![
        Line::from(program.id.pid.to_string()),
        Line::from(cut(&program.user, widths[1])),
        Line::from(name),
        Line::from(short_size(program.budget())),
        match (program.is_parked, program.waits_its_turn) {
            (true, _) => in_place_of_bar("parked", "parked", widths[4], look),
            (_, true) => in_place_of_bar("waits its turn", "its turn", widths[4], look),
            _ => bar(&parts(program), whole, widths[4].into(), look),
        },
        Line::from(short_size(program.resident())),
        bytes("swapped_bytes"),
        Line::from(short_size(program.total())),
        bytes("pool_bytes"),
        bytes("file_bytes"),
        rate(|rates| rates.faults),
        rate(|rates| rates.major),
        rate(Rates::wait_percent),
        Line::from(p99),
    ];
    cells(texts, wide)
}

/// The last line: what is being typed, else what was said, else the keys.
pub fn draw_foot(frame: &mut Frame<'_>, state: &State, look: Look, area: Rect, keys: &[&str]) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let line = match (&state.prompt, &state.parking, &state.message) {
        (Some(prompt), _, _) => {
            let has = state.budget_of(prompt.pid);
            let question = format!("Budget of the tree of {} (now {has}), Esc: leave it: {}", prompt.pid, prompt.text);
            let column = area.x.saturating_add(question.chars().count() as u16);
            frame.set_cursor_position((column.min(area.right().saturating_sub(1)), area.y));
            Line::styled(question, bold)
        }
        (None, Some(parking), _) => Line::styled(parking_question(state, *parking), bold),
        (None, None, Some(message)) => Line::styled(message.clone(), look.style(Color::Yellow).patch(bold)),
        (None, None, None) => Line::styled(keys.join("   "), look.style(Color::DarkGray)),
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn parking_question(state: &State, parking: Parking) -> String {
    let tree = state.reading.trees.iter().find(|tree| tree.pid == parking.pid);
    let name = tree.map_or(String::new(), |tree| format!(" ({}, {})", tree.command, count(tree.processes, "process")));
    let what = if parking.is_back { "Bring back" } else { "Park" };
    format!("{what} the tree of {}{name}? y: yes, n: no", parking.pid)
}

/// Explains keys and columns, over everything else.
pub fn draw_help(frame: &mut Frame<'_>, look: Look) {
    const TEXT: &str = "\
 up, down, j, k, Home, End   select        Enter   details, or back
 s    sort by the next column              r       reverse the order
 b    change the budget of the tree        + -     by a tenth
 p    park the tree (swap out all that can go), or bring it back
 q    go back, quit   Ctrl-C quit          Ctrl-Z  suspend, until `fg`

 A tree is a program under farpage run and all that it started. The number
 after its name counts its processes. BUDGET: the tree's; for a process,
 what it may use of it now. USED: the used part of the budget, > if it is
 exceeded; `waits its turn`: other processes of the tree have the memory
 for now. TOTAL: RSS plus SWAP. FAULT/s: faults per second; MAJ/s: those
 that read a device. WAIT%: time that threads waited for memory, at least;
 200 means that two threads always waited. P99: 99 % of faults were served
 in less.

 # hot   = resident   + swap cache, free frames   % compressed   - other

 Any key closes this.";
    let area = frame.area();
    let (width, height) = (76.min(area.width), (TEXT.lines().count() as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height }.intersection(area);
    frame.render_widget(Clear, place);
    let block = ratatui::widgets::Block::bordered().title(" Keys and columns ").border_style(look.style(Color::Cyan));
    let block = if look.braille { block } else { block.border_set(ASCII_BORDER) };
    frame.render_widget(Paragraph::new(TEXT).block(block), place);
}

/// A frame that every terminal can show.
const ASCII_BORDER: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};
