//! The rows as a table, and as JSON.

use super::Row;
use crate::failure::Result;
use crate::output::SCHEMA;
use serde_json::{Value, json};
use std::path::Path;

fn ratio(a: u64, b: u64) -> String {
    match (a, b) {
        (0, 0) => String::from("1.00"),
        (_, 0) => String::from("-"),
        (a, b) => format!("{:.2}", a as f64 / b as f64),
    }
}

fn table(rows: &[Row]) {
    let mut last = None;
    for row in rows {
        let head = (&row.trace, row.ram);
        if last != Some(head) {
            println!(
                "{}{}: {} accesses to {} pages, {} pages of memory, {} first touches",
                if last.is_some() { "\n" } else { "" },
                row.trace,
                row.counts.accesses,
                row.pages,
                row.ram,
                row.counts.first
            );
            println!(
                "  {:<8} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>7} {:>7}",
                "policy", "reads", "pages in", "miss %", "minor", "out", "writes", "x LRU", "x OPT"
            );
            last = Some(head);
        }
        let c = &row.counts;
        println!(
            "  {:<8} {:>10} {:>10} {:>8.3} {:>10} {:>10} {:>10} {:>7} {:>7}",
            row.policy,
            c.reads,
            c.reads + c.ahead,
            100.0 * c.miss_ratio(),
            c.minor,
            c.out,
            c.writes,
            ratio(c.reads, row.lru),
            ratio(c.reads, row.opt)
        );
    }
}

fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "trace": row.trace.as_str(),
            "pages": row.pages,
            "ram_pages": row.ram,
            "policy": row.policy,
            "accesses": row.counts.accesses,
            "first_touches": row.counts.first,
            "reads": row.counts.reads,
            "pages_in": row.counts.reads + row.counts.ahead,
            "minor_faults": row.counts.minor,
            "pages_out": row.counts.out,
            "writes": row.counts.writes,
            "miss_ratio": row.counts.miss_ratio(),
            "lru_reads": row.lru,
            "opt_reads": row.opt,
        })
    };
    json!({ "schema": SCHEMA, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

/// Prints the table, or writes JSON.
pub fn write(rows: &[Row], to: Option<&Path>) -> Result<()> {
    crate::output::table_or_json(to, || table(rows), || json(rows).to_string())
}
