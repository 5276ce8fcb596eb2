//! The details of one program in `farpage top`: two charts of the last two minutes, latencies, devices, mappings.
//!
//! Callers: [`super`]. Draws what [`super::state`] and the monitor have; no state of its own.

use super::list::{draw_foot, trouble_of};
use super::look::{Look, bar, parts, short_duration, short_number, short_size};
use super::reading::{HISTORY, Point, Program, Rates};
use super::state::State;
use crate::mappings::Names;
use crate::page::MappingReadahead;
use farpage_ipc::conf::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Row, Table};
use std::time::Instant;

/// Points of a chart: seconds from now (so below 0), and how much.
type Points = Vec<(f64, f64)>;

/// A line of a chart: name, character without Braille, colour, points.
type Curve<'a> = (&'a str, char, Color, Points);

/// What the widget draws the axis of a chart with; not all terminals have it.
const AXIS: &str = ratatui::symbols::line::VERTICAL;

/// Draws the details of one.
pub fn draw(frame: &mut Frame<'_>, state: &State, program: &Program, history: &[Point], names: &Names, look: Look) {
    let area = frame.area();
    // The charts get what is left after nine mappings, and 9 to 16 lines of a screen that has them.
    let charts = area.height.saturating_sub(1 + 6 + 9 + 1).clamp(8, 16);
    let [title, charts, facts, mappings, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(charts),
        Constraint::Length(6),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(program, look)), title);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
    memory_chart(frame, left, state.reading.at, history, look);
    fault_chart(frame, right, state.reading.at, history, look);
    frame.render_widget(Paragraph::new(facts_of(program, look, facts.width)), facts);
    mapping_table(frame, mappings, state, program, names);
    draw_foot(
        frame,
        state,
        look,
        foot,
        &["up/down mappings", "b budget", "p park", "? help", "Esc back", "Ctrl-C quit"],
    );
}

fn heading(program: &Program, look: Look) -> Line<'static> {
    let what = match (program.id.pager, program.page.get("active")) {
        _ if program.is_parked => "parked".to_string(),
        _ if program.waits_its_turn => "waits its turn".into(),
        (0, 0) => "below its budget, nothing is managed".into(),
        (0, _) => "managed".into(),
        (pager, _) => format!("pager {pager}"),
    };
    let name = format!("{} ({})", program.command, program.id.pid);
    let name = Span::styled(name, look.style(Color::Cyan).add_modifier(Modifier::BOLD));
    let tree = program.tree.map_or(String::new(), |pid| format!(", in the tree of {pid}"));
    Line::from(vec![name, Span::raw(format!(": {what}, may have {}{tree}", size::format(program.budget())))])
}

fn memory_chart(frame: &mut Frame<'_>, area: Rect, now: Instant, history: &[Point], look: Look) {
    let curve = |of: fn(&Point) -> u64| -> Points { history.iter().map(|p| (seconds(p, now), of(p) as f64)).collect() };
    let curves = [
        ("budget", '-', Color::DarkGray, curve(|p| p.budget)),
        ("swap", 's', Color::Magenta, curve(|p| p.swapped)),
        ("rss", '#', Color::Green, curve(|p| p.resident)),
    ];
    chart(frame, area, "Memory", &curves, |bytes| short_size(bytes as u64), look);
}

fn fault_chart(frame: &mut Frame<'_>, area: Rect, now: Instant, history: &[Point], look: Look) {
    let curve = |of: fn((f64, f64)) -> f64| -> Points {
        history.iter().filter_map(|p| Some((seconds(p, now), of(p.rates?)))).collect()
    };
    let curves =
        [("all", 'f', Color::Cyan, curve(|(faults, _)| faults)), ("major", 'm', Color::Red, curve(|(_, major)| major))];
    chart(frame, area, "Faults/s", &curves, short_number, look);
}

fn seconds(point: &Point, now: Instant) -> f64 {
    -now.saturating_duration_since(point.at).as_secs_f64()
}

fn chart(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    curves: &[Curve<'_>],
    shown: impl Fn(f64) -> String,
    look: Look,
) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let mut legend = vec![Span::styled(format!("{title}, 2 min:"), Style::new().add_modifier(Modifier::BOLD))];
    for (name, character, colour, _) in curves {
        let mark = if look.braille { "*".to_string() } else { character.to_string() };
        legend.extend([Span::raw("  "), Span::styled(mark, look.style(*colour)), Span::raw(format!(" {name}"))]);
    }
    frame.render_widget(Paragraph::new(Line::from(legend)), head);
    let top = curves.iter().flat_map(|(_, _, _, points)| points).fold(1.0f64, |most, (_, value)| most.max(*value));
    let datasets = curves.iter().map(|(_, character, colour, points)| {
        let data = Dataset::default().data(points).graph_type(GraphType::Line).style(look.style(*colour));
        data.marker(look.marker(*character))
    });
    let quiet = look.style(Color::DarkGray);
    // Both charts begin in the same column.
    let label = |value: f64| Line::from(format!("{:>5}", shown(value)));
    let horizontal = Axis::default().bounds([-HISTORY.as_secs_f64(), 0.0]).style(quiet);
    let vertical = Axis::default().bounds([0.0, top]).labels([label(0.0), label(top / 2.0), label(top)]).style(quiet);
    frame.render_widget(Chart::new(datasets.collect()).x_axis(horizontal).y_axis(vertical).legend_position(None), body);
    if !look.braille {
        let buffer = frame.buffer_mut();
        for at in body.positions() {
            if let Some(cell) = buffer.cell_mut(at).filter(|cell| cell.symbol() == AXIS) {
                cell.set_symbol("|");
            }
        }
    }
}

/// Six lines: memory, faults, latencies, readahead, devices, trouble.
fn facts_of(program: &Program, look: Look, width: u16) -> Vec<Line<'static>> {
    let get = |name: &str| program.page.get(name);
    let rates = program.rates.unwrap_or_default();
    let name = |name: &str| Span::styled(format!("{name:<9}"), Style::new().add_modifier(Modifier::BOLD));
    let line = |title: &str, words: String| Line::from(vec![name(title), Span::raw(words)]);
    let mut memory = vec![name("memory")];
    memory.extend(bar(&parts(program), program.budget(), usize::from(width / 4).max(12), look).spans);
    memory.push(Span::raw(format!(
        "  {} + {} swapped = {}; hot {}, cached {}",
        short_size(program.resident()),
        short_size(get("swapped_bytes")),
        short_size(program.total()),
        short_size(get("hot_bytes")),
        short_size(get("cached_bytes"))
    )));
    let (orig, packed, pool) = (get("pool_orig_bytes"), get("pool_compressed_bytes"), get("pool_bytes"));
    let ratio = if packed > 0 { format!(", {:.1} to 1", orig as f64 / packed as f64) } else { String::new() };
    let devices = format!(
        "pool {} in {}{ratio}, limit {}; files {}; tables {}",
        short_size(orig),
        short_size(pool),
        short_size(get("pool_limit_bytes")),
        short_size(get("file_bytes")),
        short_size(get("meta_bytes"))
    );
    let trouble = trouble_of(program);
    vec![
        Line::from(memory),
        line("faults", faults(&rates)),
        line("latency", latencies(program, &rates)),
        line("pages/s", pages(program, &rates)),
        line("devices", devices),
        Line::styled(if trouble.is_empty() { String::new() } else { format!("trouble  {trouble}") }, look.alarm()),
    ]
}

fn faults(rates: &Rates) -> String {
    format!(
        "{}/s, {} major, {} stalled, waits {:.0}%",
        short_number(rates.faults),
        short_number(rates.major),
        short_number(rates.stalls),
        rates.wait_percent().min(99_999.0)
    )
}

/// Of the faults since the last look. Pagers do not time them.
fn latencies(program: &Program, rates: &Rates) -> String {
    let latency = |ns: Option<u64>| ns.map_or("-".into(), short_duration);
    match program.id.pager {
        0 => format!("p50 {}, p99 {}, p99.9 {}", latency(rates.p50), latency(rates.p99), latency(rates.p999)),
        _ => "-".into(),
    }
}

fn pages(program: &Program, rates: &Rates) -> String {
    let (ahead, hit) = (program.page.get("swap_ra"), program.page.get("swap_ra_hit"));
    // Hits are counted exactly, or not at all.
    let used =
        if hit > 0 { format!(" ({:.0}% used)", 100.0 * hit as f64 / ahead.max(1) as f64) } else { String::new() };
    format!(
        "in {}, of these {} by readahead{used}; out {}",
        short_number(rates.pages_in),
        short_number(rates.ahead),
        short_number(rates.pages_out)
    )
}

fn mapping_table(frame: &mut Frame<'_>, area: Rect, state: &State, program: &Program, names: &Names) {
    let head = ["MAPPING", "ADDRESS", "SIZE", "MAJFLT", "SWAP_RA", "HIT%", "WINDOW"];
    let row = |m: &MappingReadahead| {
        let name = if program.id.pager > 0 { "region" } else { names.at(m.start) };
        let numbers = [
            format!("{:x}", m.start),
            short_size(m.bytes),
            m.faults.to_string(),
            m.swap_ra.to_string(),
            m.hit_pct().map_or("-".into(), |percent| format!("{percent:.1}")),
            m.window.to_string(),
        ];
        let numbers = numbers.into_iter().map(|number| Line::from(number).right_aligned());
        Row::new([Line::from(name.to_string())].into_iter().chain(numbers))
    };
    let mappings = program.page.readahead();
    let widths = [20, 13, 6, 10, 10, 6, 7];
    let head = head.iter().enumerate().map(|(at, name)| {
        let name = Line::from(*name);
        if at == 0 { name } else { name.right_aligned() }
    });
    let widths = widths.iter().enumerate().map(|(at, width)| match at {
        0 => Constraint::Min(*width),
        _ => Constraint::Length(*width),
    });
    let rows = mappings.iter().skip(state.first_mapping).map(row).collect::<Vec<_>>();
    // Numbers stay near their names on a wide screen.
    let area = Rect { width: area.width.min(108), ..area };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Table::new(rows, widths).header(Row::new(head).style(bold)).column_spacing(1), area);
}
