//! Tables, goals and JSON of `farpage-bench slots`.

use super::{Extra, Row, VARIANTS, single};
use crate::meter::{Count, Counts};
use crate::output::SCHEMA;
use farpage_swap::lock::{Site, sites};
use serde_json::json;

/// (median, smallest, largest).
pub fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    (at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1)))
}

fn all_sites() -> impl Iterator<Item = &'static Site> {
    sites::ALL.iter().copied().chain(single::SITES)
}

/// Sums over the sites that `pick` chooses.
fn sum(counts: &Counts, pick: impl Fn(&Site) -> bool) -> Count {
    let mut total = Count::default();
    for site in all_sites().filter(|site| pick(site)) {
        let count = counts[site.index];
        total.acquired += count.acquired;
        total.contended += count.contended;
        total.wait += count.wait;
        total.wait_max = total.wait_max.max(count.wait_max);
        total.held += count.held;
    }
    total
}

/// Per 1,000 operations.
fn per_kop(n: u64, row: &Row) -> f64 {
    1000.0 * n as f64 / row.counted.ops.max(1) as f64
}

/// Acquisitions of the device lock per 1,000 operations.
pub fn device_per_kop(row: &Row) -> f64 {
    per_kop(sum(&row.counted.counts, |site| site.lock == "device").acquired, row)
}

fn wait_ns(row: &Row, extra: &Extra) -> f64 {
    sum(&row.counted.counts, |_| true).wait as f64 * extra.ns_per_tick
}

/// One line of the table.
pub fn print_row(row: &Row, extra: &Extra, first: bool) {
    if first {
        println!(
            "{} slots, {} CPUs; Mops/s: median (smallest, largest); locks per 1,000 operations (a large block is one)",
            row.load.slots, extra.cpus
        );
        println!(
            "{:<9} {:>7} {:<14} {:>22} {:>8} {:>9} {:>10} {:>12} {:>9} {:>9} {:>8}",
            "load",
            "threads",
            "variant",
            "Mops/s",
            "device",
            "all locks",
            "contended",
            "wait/op ns",
            "4: fall %",
            "blocks/16",
            "clusters"
        );
    }
    let (median, low, high) = spread(&row.ops_per_s);
    let all = sum(&row.counted.counts, |_| true);
    let blocks = row.counted.large_blocks as f64 / row.counted.large.max(1) as f64;
    let large = |value: f64| if row.load.mixed { format!("{value:.1}") } else { String::from("-") };
    println!(
        "{:<9} {:>7} {:<14} {:>22} {:>8.1} {:>9.0} {:>10.2} {:>12.1} {:>9} {:>9} {:>8}",
        row.load.name(),
        row.load.threads,
        VARIANTS[row.variant],
        format!("{:.2} ({:.2}, {:.2})", median / 1e6, low / 1e6, high / 1e6),
        device_per_kop(row),
        per_kop(all.acquired, row),
        per_kop(all.contended, row),
        wait_ns(row, extra) / row.counted.ops.max(1) as f64,
        large(row.counted.fallback_pct()),
        large(blocks),
        row.counted.clusters,
    );
}

/// Waits by call site, for the largest number of threads at 60 % and 95 %.
pub fn print_locks(rows: &[Row], extra: &Extra) {
    let threads = rows.iter().map(|row| row.load.threads).max().unwrap_or(1);
    for (mixed, fill) in [(false, 60), (true, 95)] {
        println!("\nlock contention, {} {fill}%, {threads} threads", if mixed { "0+4" } else { "0" });
        println!(
            "{:>10} {:>12} {:>12} {:>12} {:>12}   {:<14} caller",
            "contended", "total wait", "max wait", "avg wait", "acquired", "lock"
        );
        let chosen = |row: &&Row| (row.load.mixed, row.load.fill_pct, row.load.threads) == (mixed, fill, threads);
        for row in rows.iter().filter(chosen).filter(|row| row.variant < 3) {
            for site in all_sites() {
                let count = row.counted.counts[site.index];
                if count.acquired > 0 {
                    let ns = |ticks: u64| time(ticks as f64 * extra.ns_per_tick);
                    println!(
                        "{:>10} {:>12} {:>12} {:>12} {:>12}   {:<14} {}: {}",
                        count.contended,
                        ns(count.wait),
                        ns(count.wait_max),
                        ns(count.wait / count.contended.max(1)),
                        count.acquired,
                        site.lock,
                        VARIANTS[row.variant],
                        site.name
                    );
                }
            }
        }
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

fn find(rows: &[Row], variant: usize, mixed: bool, fill: u64, threads: usize) -> Option<&Row> {
    rows.iter().find(|row| {
        (row.variant, row.load.mixed, row.load.fill_pct, row.load.threads) == (variant, mixed, fill, threads)
    })
}

/// Printed where no thread waited.
const WAIT_RATIO_MAX: f64 = 1e6;

/// The goals and what was measured.
pub fn print_goals(rows: &[Row], extra: &Extra) {
    println!("\ngoals");
    let line = |what: &str, goal: String, measured: Option<(f64, bool)>| match measured {
        Some((value, met)) => println!("  {what:<76} {goal:>9} {value:>9.1}  {}", if met { "met" } else { "missed" }),
        None => println!("  {what:<76} {goal:>9}         -  not run"),
    };
    for fill in [30, 60, 95] {
        let most = |row: &&Row| !row.load.mixed && row.variant == 2 && row.load.fill_pct == fill;
        let worst = rows.iter().filter(most).map(device_per_kop).reduce(f64::max);
        let what = format!("device lock per 1,000 order-0 operations, {fill}% full, most of all thread counts");
        line(&what, String::from("<= 6"), worst.map(|value| (value, value <= 6.0)));
    }
    let pair = extra.pair_ns[2];
    line("uncontended order-0 alloc + free, ns", String::from("<= 60"), Some((pair, pair <= 60.0)));
    for (mixed, fill) in [(false, 30), (false, 60), (false, 95), (true, 95)] {
        let ratio = find(rows, 0, mixed, fill, 16).zip(find(rows, 2, mixed, fill, 16)).map(|(single, real)| {
            let per_op = |row: &Row| wait_ns(row, extra) / row.counted.ops.max(1) as f64;
            (per_op(single) / per_op(real).max(1e-9)).min(WAIT_RATIO_MAX)
        });
        let orders = if mixed { ", orders 0 and 4" } else { "" };
        let what = format!("wait per operation, 16 threads, {fill}%{orders}: single divided by isolate");
        line(&what, String::from(">= 100"), ratio.map(|value| (value, value >= 100.0)));
    }
    let pct = |variant, threads| find(rows, variant, true, 95, threads).map(|row| row.counted.fallback_pct());
    for threads in [1, 2, 4, 16] {
        let share = pct(1, threads).zip(pct(2, threads)).map(|(cached, real)| 100.0 * real / cached.max(1e-9));
        let what = format!("order-4 fallback at 95%, {threads} threads: isolate in % of cached");
        line(&what, String::from("< 50"), share.map(|value| (value, value < 50.0)));
    }
    for fill in [30, 60, 95] {
        let ratio = find(rows, 2, false, fill, 1)
            .zip(find(rows, 2, false, fill, 2))
            .map(|(one, two)| spread(&two.ops_per_s).0 / spread(&one.ops_per_s).0);
        let what = format!("2 threads divided by 1, order 0, {fill}% ({} CPUs here)", extra.cpus);
        line(&what, String::from(">= 1.8"), ratio.map(|value| (value, value >= 1.8)));
        let beside = |what: &str, ratio: f64| println!("  {what:<76} {:>9} {ratio:>9.1}", "");
        let apart = extra.apart.iter().find(|(pct, _)| *pct == fill);
        if let Some(((_, apart), one)) = apart.zip(find(rows, 2, false, fill, 1)) {
            let most = spread(apart).0 / spread(&one.ops_per_s).0;
            beside("  two threads that share nothing, half a device each, divided by 1", most);
        }
        if let Some((_, bare)) = extra.bare.iter().find(|(pct, _)| *pct == fill) {
            beside("  two threads that share a word a slot and have no allocator, divided by 1", spread(bare).0);
        }
    }
    for &(pct, bytes) in &extra.meta_bytes_per_slot {
        let what = format!("metadata per slot in use, {pct}% full, bytes");
        line(&what, String::from("<= 10"), Some((bytes, bytes <= 10.0)));
    }
    let idle = extra.cluster_bytes as f64;
    line("metadata of an idle cluster, bytes", String::from("<= 64"), Some((idle, idle <= 64.0)));
    println!(
        "  (alloc + free of the other variants, ns: single {:.0}, cached {:.0}; reading the clock twice: {:.0})",
        extra.pair_ns[0], extra.pair_ns[1], extra.clock_ns
    );
}

/// The rows as JSON. `acquisitions_per_kop` is the device lock's; all locks are `all_acquisitions_per_kop`.
pub fn json(rows: &[Row], extra: &Extra) -> String {
    let mut object = json!({
        "schema": SCHEMA,
        "cpus": extra.cpus,
        "alloc_free_ns": extra.pair_ns,
        "cluster_bytes": extra.cluster_bytes,
        "meta_bytes_per_slot": extra.meta_bytes_per_slot.iter().map(|m| m.1).collect::<Vec<_>>(),
    });
    let rows = rows.iter().map(|row| {
        let all = sum(&row.counted.counts, |_| true);
        let (median, low, high) = spread(&row.ops_per_s);
        json!({
            "variant": VARIANTS[row.variant],
            "threads": row.load.threads,
            "load": row.load.name(),
            "ops_per_s": median,
            "ops_per_s_min": low,
            "ops_per_s_max": high,
            "acquisitions_per_kop": device_per_kop(row),
            "all_acquisitions_per_kop": per_kop(all.acquired, row),
            "contended_per_kop": per_kop(all.contended, row),
            "wait_ns_total": wait_ns(row, extra),
            "wait_ns_per_op": wait_ns(row, extra) / row.counted.ops.max(1) as f64,
            "order4_fallback_pct": row.counted.fallback_pct(),
            "clusters": row.counted.clusters,
        })
    });
    object["rows"] = rows.collect();
    serde_json::to_string(&object).unwrap_or_default()
}
