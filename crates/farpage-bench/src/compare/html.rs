//! The report as one self-contained page: bars of the ratios, latency distributions, the table.

use super::Setting;
use super::row::{Row, Side};
use std::fmt::Write;

const STYLE: &str = "\
:root{--ink:#1d2430;--soft:#68738a;--line:#dfe4ec;--ours:#0a7d6c;--theirs:#c4622d;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--soft:#98a3b8;--line:#333c4b;--ours:#3fc4ae;--theirs:#f0915a;--paper:#151a22}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:2.5em auto;padding:0 1.5em}
h1{font-size:1.7em;margin-bottom:.2em}h2{margin-top:2em;font-size:1.2em}p.note{color:var(--soft);margin:.2em 0}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg text.soft{fill:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(320px,1fr));gap:1.4em}figure{margin:0}figcaption{font-weight:600}
table{border-collapse:collapse;width:100%;font-size:.86em;font-variant-numeric:tabular-nums}
th,td{padding:.3em .55em;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
.ours{color:var(--ours)}.theirs{color:var(--theirs)}.scroll{overflow-x:auto}";

/// The page.
pub fn page(setting: &Setting, rows: &[Row]) -> String {
    let mut out = String::new();
    let size = farpage::internals::conf::size::format;
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>farpage against the kernel's swap</title><style>{STYLE}</style>\
         <h1><span class=ours>farpage</span> against <span class=theirs>the kernel's swap</span></h1>\
         <p class=note>{} of data over a limit of {}; farpage has the limit plus what the kernel's compressed pool \
         takes. Mode {}, against {}, {} thread{}, {} round{}, alternating.</p>",
        size(setting.data),
        size(setting.ram),
        setting.mode.name(),
        setting.against.name(),
        setting.threads,
        if setting.threads == 1 { "" } else { "s" },
        setting.rounds,
        if setting.rounds == 1 { "" } else { "s" },
    );
    for note in &setting.notes {
        let _ = write!(out, "<p class=note>{}</p>", escape(note));
    }
    out.push_str("<h2>Speed: the kernel's time divided by farpage's</h2>");
    out.push_str(&bars(rows));
    out.push_str("<h2>How long an access takes</h2><p class=note>Share of accesses that take at least so long; further left and lower is better.</p><div class=grid>");
    for row in rows {
        let _ = write!(out, "<figure><figcaption>{}</figcaption>{}</figure>", row.workload.name(), tail_plot(row));
    }
    out.push_str("</div><h2>Numbers</h2><p class=note>Medians over the rounds.</p><div class=scroll>");
    out.push_str(&table(rows));
    out.push_str("</div></html>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Bars on a logarithmic scale around 1, with the range over the rounds as a line.
fn bars(rows: &[Row]) -> String {
    let ratios: Vec<_> = rows.iter().filter_map(|r| Some((r, r.ratio()?))).collect();
    if ratios.is_empty() {
        return "<p>The kernel's side was not measured.</p>".into();
    }
    let (low, high) = ratios.iter().fold((0.5f64, 2.0f64), |(l, h), (_, r)| (l.min(r.min), h.max(r.max)));
    let (width, left, right, step) = (1000.0, 110.0, 150.0, 30.0);
    let x = |v: f64| left + (v / low).ln() / (high / low).ln() * (width - left - right);
    let height = step * ratios.len() as f64 + 30.0;
    let mut out = format!("<svg viewBox='0 0 {width} {height}' role=img aria-label='ratios'>");
    for tick in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if tick < low || tick > high {
            continue;
        }
        let (at, bottom, strong) = (x(tick), height - 22.0, if tick == 1.0 { "var(--ink)" } else { "var(--line)" });
        let _ = write!(
            out,
            "<line x1={at:.1} x2={at:.1} y1=0 y2={bottom} stroke='{strong}'/>\
             <text class=soft x={at:.1} y={} text-anchor=middle>{tick}&times;</text>",
            height - 6.0
        );
    }
    for (i, (row, r)) in ratios.iter().enumerate() {
        let y = i as f64 * step;
        let (from, to) = (x(1.0).min(x(r.median)), x(1.0).max(x(r.median)));
        let colour = if r.median >= 1.0 { "var(--ours)" } else { "var(--theirs)" };
        let _ = write!(
            out,
            "<text x={} y={} text-anchor=end>{}</text>\
             <rect x={from:.1} y={} width={:.1} height=18 rx=3 fill='{colour}'/>\
             <line x1={:.1} x2={:.1} y1={} y2={} stroke='var(--ink)' stroke-width=1.5 />\
             <text x={:.1} y={}>{:.2}&times; <tspan class=soft>({:.2} to {:.2})</tspan></text>",
            left - 8.0,
            y + 17.0,
            row.workload.name(),
            y + 4.0,
            to - from,
            x(r.min),
            x(r.max),
            y + 13.0,
            y + 13.0,
            x(r.max).max(to) + 8.0,
            y + 17.0,
            r.median,
            r.min,
            r.max
        );
    }
    out + "</svg>"
}

/// Both sides' distributions: latency (logarithmic) against the share of accesses above it (logarithmic).
fn tail_plot(row: &Row) -> String {
    let (width, height, left, bottom, top) = (400.0, 240.0, 44.0, 26.0, 8.0);
    let (x_min, x_max, y_min) = (0.01f64, 1e5f64, 1e-5f64);
    let x = |us: f64| left + (us.clamp(x_min, x_max) / x_min).ln() / (x_max / x_min).ln() * (width - left - 8.0);
    let y = |share: f64| top + share.clamp(y_min, 1.0).ln() / y_min.ln() * (height - bottom - top);
    let mut out = format!("<svg viewBox='0 0 {width} {height}' role=img aria-label='latencies'>");
    for (us, label) in
        [(0.01, "10 ns"), (0.1, ""), (1.0, "1 us"), (10.0, ""), (100.0, "100 us"), (1e3, ""), (1e4, "10 ms")]
    {
        let at = x(us);
        let _ = write!(
            out,
            "<line x1={at:.1} x2={at:.1} y1={top} y2={} stroke='var(--line)'/>\
             <text class=soft x={at:.1} y={} text-anchor=middle>{label}</text>",
            height - bottom,
            height - 8.0
        );
    }
    for (share, label) in [(1.0, "all"), (0.1, "10 %"), (0.01, "1 %"), (1e-3, "0.1 %"), (1e-4, "0.01 %"), (1e-5, "")] {
        let at = y(share);
        let _ = write!(
            out,
            "<line x1={left} x2={} y1={at:.1} y2={at:.1} stroke='var(--line)'/>\
             <text class=soft x={} y={:.1} text-anchor=end>{label}</text>",
            width - 8.0,
            left - 4.0,
            at + 4.0
        );
    }
    let mut curve = |side: &Side, colour: &str| {
        let mut points = String::new();
        let mut above = 1.0;
        for (ns, below) in side.latencies.distribution() {
            let at = x(ns / 1e3);
            let _ = write!(points, "{at:.1},{:.1} ", y(above));
            above = 1.0 - below;
            let _ = write!(points, "{at:.1},{:.1} ", y(above));
        }
        let _ = write!(out, "<polyline points='{points}' fill=none stroke='{colour}' stroke-width=2 />");
    };
    if let Some(kernel) = row.kernel() {
        curve(&kernel, "var(--theirs)");
    }
    curve(&row.farpage(), "var(--ours)");
    out + "</svg>"
}

fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "<table><tr><th>workload<th>side<th>ops/s<th>us/page<th>CPU s/GiB<th>user<th>sys<th>major faults<th>p50 us\
         <th>p99 us<th>p99.9 us<th>max us<th>pool MiB<th>ratio<th>peak RssAnon MiB",
    );
    for row in rows {
        let name = row.workload.name();
        if let Some(kernel) = row.kernel() {
            table_row(&mut out, &name, "theirs", "kernel", &kernel);
        }
        table_row(&mut out, &name, "ours", "farpage", &row.farpage());
    }
    out + "</table>"
}

fn table_row(out: &mut String, workload: &str, class: &str, who: &str, s: &Side) {
    let mib = f64::from(1 << 20);
    let _ = write!(
        out,
        "<tr><td>{workload}<td class={class}>{who}<td>{:.0}<td>{:.3}<td>{:.2}<td>{:.2}<td>{:.2}<td>{:.0}<td>{:.2}\
         <td>{:.1}<td>{:.1}<td>{:.0}<td>{:.1}<td>{:.2}<td>{:.1}",
        s.ops_per_s,
        s.us_per_page,
        s.cpu_user_s_per_gib + s.cpu_sys_s_per_gib,
        s.cpu_user_s_per_gib,
        s.cpu_sys_s_per_gib,
        s.major_faults,
        s.p50_us,
        s.p99_us,
        s.p999_us,
        s.max_us,
        s.pool_bytes / mib,
        s.pool_ratio,
        s.peak_rss_anon / mib,
    );
}
