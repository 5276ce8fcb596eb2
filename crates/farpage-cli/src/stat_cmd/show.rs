//! How counters look: the table of all processes, the sheet of one, and both as JSON.

use super::find::Managed;
use crate::json::Object;
use crate::page::{Page, SHARES, duration};
use farpage::size;
use farpage::stat::Value;

/// Groups of the sheet, in order; values in none of them come under "other".
const GROUPS: [(&str, &[&str]); 4] = [
    ("faults", &["pgfault", "pgmajfault", "workingset_refault_cached", "allocstall"]),
    (
        "swap",
        &[
            "pswpin",
            "pswpout",
            "swpin_zero",
            "swpout_zero",
            "swpout_clean",
            "swap_ra",
            "swap_ra_hit",
            "swap_ra_windows",
            "swap_ra_windows_hit",
            "pgsteal_anon",
            "pool_writeback",
            "pool_recompressed",
            "pages_compacted",
            "incompressible_pages",
            "discarded_bytes",
            "idle_poll_ns",
            "verified",
        ],
    ),
    ("events", &["event_remove", "event_unmap", "event_remap", "adopted_ranges", "forks", "cow_unshared"]),
    (
        "trouble",
        &[
            "move_skipped",
            "over_budget_samples",
            "swap_full",
            "write_errors",
            "read_errors",
            "bad_slots",
            "drained_pages",
            "pages_lost",
        ],
    ),
];

/// A previous reading and the seconds since.
pub type Before<'a> = Option<(&'a Page, f64)>;

fn amount(bytes: u64, raw: bool) -> String {
    if raw { bytes.to_string() } else { size::format(bytes) }
}

/// The table of all processes, header included.
pub fn table(all: &[Managed], raw: bool) -> String {
    const HEAD: [&str; 8] = ["PID", "COMMAND", "BUDGET", "RSS", "SWAPPED", "POOL", "FILE", "MAJFLT"];
    let mut rows = vec![HEAD.map(String::from)];
    for one in all {
        let bytes = |name: &str| one.page.as_ref().map_or("-".into(), |p| amount(p.get(name), raw));
        rows.push([
            one.pid.to_string(),
            one.command.clone(),
            bytes("budget_bytes"),
            bytes("rss_anon_bytes"),
            bytes("swapped_bytes"),
            bytes("pool_bytes"),
            bytes("file_bytes"),
            one.page.as_ref().map_or("-".into(), |p| p.get("pgmajfault").to_string()),
        ]);
    }
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let w = widths[i];
            if i == 1 { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
        });
        out.push_str(&cells.collect::<Vec<_>>().join("  "));
        out.push('\n');
    }
    out
}

/// All counters of one process, grouped.
pub fn sheet(one: &Managed, page: &Page, before: Before<'_>, raw: bool) -> String {
    let state = if page.get("active") != 0 { "managed" } else { "below its budget, nothing is managed" };
    let mut out = format!("{} ({}): {state}\n", one.command, one.pid);
    let values: Vec<Value> = page.values().into_iter().filter(|v| v.name != "active").collect();
    let (levels, counters): (Vec<Value>, Vec<Value>) = values.into_iter().partition(|v| !v.counter);
    out.push_str("memory\n");
    for v in &levels {
        let shown = if v.name.ends_with("_bytes") { amount(v.value, raw) } else { v.value.to_string() };
        out.push_str(&row(v.name.trim_end_matches("_bytes"), &shown, None, v.help));
    }
    for (title, names) in GROUPS {
        let group: Vec<&Value> = counters.iter().filter(|v| names.contains(&v.name)).collect();
        out.push_str(&counter_group(title, &group, before));
        if title == "faults" {
            for (name, share) in SHARES {
                let shown = page.percentile(share).map_or("-".into(), duration);
                let name = name.trim_end_matches("_ns");
                out.push_str(&row(
                    name,
                    &shown,
                    before.map(|_| String::new()),
                    " Service time of this share of faults.",
                ));
            }
        }
    }
    let grouped = |v: &&Value| GROUPS.iter().any(|(_, names)| names.contains(&v.name));
    let other: Vec<&Value> = counters.iter().filter(|v| !grouped(v)).collect();
    if !other.is_empty() {
        out.push_str(&counter_group("other", &other, before));
    }
    let mappings = page.readahead();
    if !mappings.is_empty() {
        out.push_str("readahead by mapping\n");
        out.push_str("           address        size    majflt   swap_ra     hit %  window\n");
    }
    for m in mappings {
        let (size, hit) = (amount(m.bytes, raw), m.hit_pct().map_or("-".into(), |pct| format!("{pct:.1}")));
        let line = format!("{:>18x}{size:>12}{:>10}{:>10}{hit:>10}{:>8}\n", m.start, m.faults, m.swap_ra, m.window);
        out.push_str(&line);
    }
    out
}

fn counter_group(title: &str, group: &[&Value], before: Before<'_>) -> String {
    let mut out = format!("{title}\n");
    for v in group {
        let rate = before.map(|(old, seconds)| format!("{:.0}/s", rate(v, old, seconds)));
        out.push_str(&row(v.name, &v.value.to_string(), rate, v.help));
    }
    out
}

fn row(name: &str, value: &str, rate: Option<String>, help: &str) -> String {
    let rate = rate.map(|r| format!("{r:>12}")).unwrap_or_default();
    format!("  {name:<26}{value:>14}{rate}  {}\n", help.trim().trim_end_matches('.'))
}

fn rate(value: &Value, old: &Page, seconds: f64) -> f64 {
    // A program that exec's starts its counters again.
    value.value.saturating_sub(old.get(value.name)) as f64 / seconds.max(1e-9)
}

/// One process as JSON, appended to `object`.
pub fn json(one: &Managed, page: &Page, before: Before<'_>, object: &mut Object) {
    object.put("pid", one.pid);
    object.put("command", one.command.as_str());
    page.to_json(object);
    if let Some((old, seconds)) = before {
        let mut rates = Object::default();
        for v in page.values().iter().filter(|v| v.counter) {
            rates.put(v.name, rate(v, old, seconds));
        }
        object.put("interval_s", seconds);
        object.put_object("per_second", rates);
    }
}

/// A process whose page may not be readable: then every value is null.
pub fn json_of(one: &Managed, object: &mut Object) {
    match &one.page {
        Some(page) => json(one, page, None, object),
        None => {
            object.put("pid", one.pid);
            object.put("command", one.command.as_str());
            Page::nulls(object);
        }
    }
}
