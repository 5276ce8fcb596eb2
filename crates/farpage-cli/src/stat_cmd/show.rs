//! How counters look: the table of all processes, the sheet of one, and both as JSON.

use super::find::{Managed, printable};
use crate::page::{Page, SHARES, Tuned, duration};
use farpage_ipc::conf::size;
use farpage_ipc::stat::{Event, Value};
use serde_json::{Value as Json, json};
use std::fmt::Write as _;

/// Groups of counters in a sheet, in order.
const GROUPS: [&str; 5] = ["faults", "swap", "events", "trouble", "other"];

/// The feedback controllers of each page: where they are, whether they are held there, what they decide.
pub fn tuning(pages: &[Page]) -> String {
    let mut text = String::new();
    for page in pages {
        if let Some(number) = page.pager() {
            text.push_str(&format!("pager {number}\n"));
        }
        text.push_str(&format!(
            "{:<14} {:>12} {:<6} {:<16} {}\n",
            "controller", "now", "held", "unit", "what it decides"
        ));
        for Tuned { info, now, held } in page.tuning() {
            let (now, held) = (now.map_or("-".into(), |now| now.to_string()), if held { "held" } else { "" });
            text.push_str(&format!("{:<14} {now:>12} {held:<6} {:<16} {}\n", info.name, info.unit, info.what));
        }
    }
    text
}

/// The same, an object for each.
pub fn tuning_json(page: &Page) -> Vec<Json> {
    let object = |Tuned { info, now, held }| {
        let mut object = json!({});
        if let Some(number) = page.pager() {
            object["pager"] = number.into();
        }
        object["name"] = info.name.into();
        object["now"] = now.into();
        object["held"] = held.into();
        object["unit"] = info.unit.into();
        object["least"] = info.range.0.into();
        object["most"] = info.range.1.into();
        object
    };
    page.tuning().into_iter().map(object).collect()
}

/// The last events, one a line, the latest at the end: seconds before it, what, address of the first page, pages.
pub fn events(list: &[Event]) -> String {
    let last = list.last().map_or(0, |event| event.us);
    let mut text = format!("{:>14}  {:<8} {:>14} {:>8}\n", "s before last", "event", "first page", "pages");
    for event in list {
        let seconds = last.saturating_sub(event.us) as f64 / 1e6;
        let (place, pages) = (address(event).map(|at| format!("{at:x}")), event.pages);
        let place = place.unwrap_or_else(|| "-".into());
        // To a string: cannot fail.
        let _ = writeln!(text, "{seconds:>14.6}  {:<8} {place:>14} {pages:>8}", event.kind.name());
    }
    text
}

/// One of them.
pub fn event_json(event: &Event) -> Json {
    json!({
        "monotonic_us": event.us,
        "event": event.kind.name(),
        "address": address(event),
        "pages": event.pages,
    })
}

/// Of the first page, if it is known.
fn address(event: &Event) -> Option<u64> {
    (event.vpn > 0).then_some(event.vpn * farpage::PAGE_SIZE as u64)
}

/// Whether this is one of several readings.
#[derive(Debug, Clone, Copy)]
pub enum Watch<'a> {
    /// The only one.
    No,
    /// The first.
    Begun,
    /// Another one: the pages read before, and the seconds since.
    Since(&'a [Page], f64),
}

impl<'a> Watch<'a> {
    /// The reading of the same page before; `None`: there was none, or no such engine or pager yet.
    fn of(self, page: &Page) -> Before<'a> {
        let Watch::Since(pages, seconds) = self else { return None };
        pages.iter().find(|before| before.pager() == page.pager()).map(|before| (before, seconds))
    }
}

/// A previous reading and the seconds since.
type Before<'a> = Option<(&'a Page, f64)>;

fn amount(bytes: u64, raw: bool) -> String {
    if raw { bytes.to_string() } else { size::format(bytes) }
}

/// Sizes in the table of all processes: column, name. What a pager has in memory has another name.
const SIZES: [(&str, &str); 5] = [
    ("BUDGET", "budget_bytes"),
    ("RSS", "rss_anon_bytes"),
    ("SWAPPED", "swapped_bytes"),
    ("POOL", "pool_bytes"),
    ("FILE", "file_bytes"),
];

/// The table of all processes, header included: a row for each engine and each pager.
pub fn table(all: &[Managed], raw: bool) -> String {
    let head = ["PID", "COMMAND"].into_iter().chain(SIZES.map(|(head, _)| head)).chain(["MAJFLT", "PAGER"]);
    let mut rows: Vec<Vec<String>> = vec![head.map(String::from).collect()];
    for one in all {
        let name = [one.pid.to_string(), one.command.clone()];
        let cells = |page: &Page| -> Vec<String> {
            let bytes = |(_, name)| match (name, page.pager()) {
                ("rss_anon_bytes", Some(_)) => amount(page.get("used_bytes"), raw),
                _ => amount(page.get(name), raw),
            };
            let last = [page.get("pgmajfault").to_string(), page.pager().map_or("-".into(), |n| n.to_string())];
            name.iter().cloned().chain(SIZES.map(bytes)).chain(last).collect()
        };
        match &one.pages {
            Some(pages) => rows.extend(pages.iter().map(cells)),
            None => rows.push(name.iter().cloned().chain(vec!["-".into(); SIZES.len() + 2]).collect()),
        }
    }
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| match i {
            1 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        out.push_str(&cells.collect::<Vec<_>>().join("  "));
        out.push('\n');
    }
    out
}

/// How a sheet looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// Sizes in bytes, times in nanoseconds.
    pub raw: bool,
    /// Only what is not zero, of levels only those that are named for it, and without what it means.
    pub brief: bool,
}

/// All counters of one process, grouped: of its engine, then of its pagers.
pub fn sheets(one: &Managed, watch: Watch<'_>, look: Look) -> String {
    let pages = one.pages.iter().flatten();
    pages.map(|page| sheet(one, page, watch.of(page), look)).collect::<Vec<_>>().join("\n")
}

/// As much of a text as fits a terminal of so many columns and, if they are given, lines.
pub fn fitting(text: &str, columns: usize, lines: Option<usize>) -> String {
    let mut shown: Vec<String> = text.lines().map(|line| line.chars().take(columns).collect()).collect();
    if let Some(most) = lines.filter(|most| *most > 1 && shown.len() > *most) {
        shown.truncate(most - 1);
        shown.push("... the window is too small for the rest; farpage top fits any".chars().take(columns).collect());
    }
    shown.join("\n")
}

fn sheet(one: &Managed, page: &Page, before: Before<'_>, look: Look) -> String {
    let raw = look.raw;
    let state = match page.pager() {
        Some(number) => format!("pager {number}"),
        None if page.get("active") != 0 => "managed".into(),
        None => "below its budget, nothing is managed".into(),
    };
    let mut out = format!("{} ({}): {state}\n", one.command, one.pid);
    let (messages, last) = page.unsaid();
    if messages > 0 {
        let last = printable(last.trim_ascii_end());
        out.push_str(&format!(
            "{messages} messages not written (its standard error is another file), the last: {last}\n"
        ));
    }
    let values: Vec<Value> = page.values().into_iter().filter(|v| v.name != "active").collect();
    let (levels, counters): (Vec<Value>, Vec<Value>) = values.into_iter().partition(|v| !v.counter);
    out.push_str("memory\n");
    for v in levels.iter().filter(|v| worth(v, look) && (!look.brief || v.shown.brief)) {
        let shown = if v.name.ends_with("_bytes") { amount(v.value, raw) } else { v.value.to_string() };
        out.push_str(&row(v.name.trim_end_matches("_bytes"), &shown, None, look, v.help));
    }
    for title in GROUPS {
        let group: Vec<&Value> = counters.iter().filter(|v| v.shown.group == title && worth(v, look)).collect();
        if !group.is_empty() {
            out.push_str(&counter_group(title, &group, before, look));
        }
        if title == "faults" && page.pager().is_none() {
            for (name, share) in SHARES {
                let shown = page.percentile(share).map_or("-".into(), duration);
                let name = name.trim_end_matches("_ns");
                out.push_str(&row(
                    name,
                    &shown,
                    before.map(|_| String::new()),
                    look,
                    " Service time of this share of faults.",
                ));
            }
        }
    }
    let mappings = page.readahead();
    if !mappings.is_empty() {
        let what = if page.pager().is_some() { "region" } else { "mapping" };
        out.push_str(&format!("readahead by {what}\n"));
        out.push_str("           address        size    majflt   swap_ra     hit %  window\n");
    }
    for m in mappings {
        let (size, hit) = (amount(m.bytes, raw), m.hit_pct().map_or("-".into(), |pct| format!("{pct:.1}")));
        let line = format!("{:>18x}{size:>12}{:>10}{:>10}{hit:>10}{:>8}\n", m.start, m.faults, m.swap_ra, m.window);
        out.push_str(&line);
    }
    out
}

fn worth(value: &Value, look: Look) -> bool {
    !look.brief || value.value != 0
}

fn counter_group(title: &str, group: &[&Value], before: Before<'_>, look: Look) -> String {
    let mut out = format!("{title}\n");
    for v in group {
        let rate = before.map(|(old, seconds)| rate(v, old, seconds));
        let line = match v.name.strip_suffix("_ns") {
            // `420 ms/s`: for so long in each second, of all threads together.
            Some(name) if !look.raw => {
                let rate = rate.map(|ns| format!("{}/s", duration(ns as u64)));
                row(name, &duration(v.value), rate, look, v.help)
            }
            _ => row(v.name, &v.value.to_string(), rate.map(|rate| format!("{rate:.0}/s")), look, v.help),
        };
        out.push_str(&line);
    }
    out
}

fn row(name: &str, value: &str, rate: Option<String>, look: Look, help: &str) -> String {
    let rate = rate.map(|r| format!("{r:>12}")).unwrap_or_default();
    let help = if look.brief { "" } else { help.trim().trim_end_matches('.') };
    format!("{}\n", format!("  {name:<26}{value:>14}{rate}  {help}").trim_end())
}

fn rate(value: &Value, old: &Page, seconds: f64) -> f64 {
    // A program that exec's starts its counters again.
    value.value.saturating_sub(old.get(value.name)) as f64 / seconds.max(1e-9)
}

/// One process as JSON, appended to `object`: the engine's values (null where there is no engine, or its page may not
/// be read), then a list of pagers (null likewise).
pub fn json(one: &Managed, watch: Watch<'_>, object: &mut Json) {
    object["pid"] = one.pid.into();
    object["command"] = one.command.as_str().into();
    let engine = one.engine();
    match engine {
        Some(page) => page.to_json(object),
        None => Page::nulls(object),
    }
    match watch {
        Watch::No => {}
        Watch::Begun => object["interval_s"] = Json::Null,
        Watch::Since(_, seconds) => object["interval_s"] = seconds.into(),
    }
    put_rates(engine, watch, object);
    let Some(pages) = &one.pages else {
        object["pagers"] = Json::Null;
        return;
    };
    let pagers = pages.iter().filter_map(|page| {
        let mut row = json!({ "pager": page.pager()? });
        page.to_json(&mut row);
        put_rates(Some(page), watch, &mut row);
        Some(row)
    });
    object["pagers"] = pagers.collect();
}

/// While watching: how fast the counters grow; null as long as that is not known.
fn put_rates(page: Option<&Page>, watch: Watch<'_>, object: &mut Json) {
    let known = page.and_then(|page| Some((page, watch.of(page)?)));
    match (known, watch) {
        (_, Watch::No) => {}
        (None, _) => object["per_second"] = Json::Null,
        (Some((page, (old, seconds))), _) => {
            let mut rates = json!({});
            for v in page.values().iter().filter(|v| v.counter) {
                rates[v.name] = json!(rate(v, old, seconds));
            }
            object["per_second"] = rates;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn waiting_is_shown_as_a_time_and_by_the_second() {
        let page = |ns: u64| Page::for_test(|stat| stat.fault_wait_ns.store(ns, Relaxed));
        let before = [page(1_000_000_000)];
        let managed = |ns| Managed { pid: 7, command: "p".into(), pages: Some(vec![page(ns)]) };
        let watched = sheets(&managed(1_840_000_000), Watch::Since(&before, 2.0), Look::default());
        let words = |sheet: &str, name: &str| {
            let line = sheet.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
            line.split_whitespace().take(5).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&watched, "fault_wait "), "fault_wait 1.84 s 420.0 ms/s", "{watched}");
        let raw = sheets(&managed(1_840_000_000), Watch::Since(&before, 2.0), Look { raw: true, brief: false });
        assert!(words(&raw, "fault_wait_ns ").starts_with("fault_wait_ns 1840000000 420000000/s"), "{raw}");
    }

    #[test]
    fn a_brief_sheet_has_what_is_not_zero_and_fits_the_terminal() {
        let page = Page::for_test(|stat| stat.fault_wait_ns.store(7_000, Relaxed));
        let managed = Managed { pid: 7, command: "p".into(), pages: Some(vec![page]) };
        let full = sheets(&managed, Watch::Begun, Look::default());
        let brief = sheets(&managed, Watch::Begun, Look { raw: false, brief: true });
        assert!(full.contains("  alloc_wait ") && !brief.contains("  alloc_wait "), "{brief}");
        assert!(full.contains("  free_frames ") && !brief.contains("  free_frames "), "{brief}");
        assert!(brief.contains("  fault_wait ") && brief.lines().all(|line| line.len() < 80), "{brief}");
        assert!(full.lines().any(|line| line.len() > 80) && full.lines().count() > 24, "{full}");
        let fits = fitting(&full, 80, Some(24));
        assert_eq!((fits.lines().count(), fits.lines().map(str::len).max()), (24, Some(80)), "{fits}");
        assert_eq!(fitting(&brief, 80, None), brief.trim_end());
    }
}
