//! The result as a table for the terminal, and as JSON.

use super::Setting;
use super::row::{Row, Side, Spread};
use crate::json::Object;

/// Above the lines of [`line`].
pub const HEADER: &str = "\
workload   side      ops/s   us/page  CPU s/GiB  (user   sys)  majflt  p50 us  p99 us  p99.9 us   max us  pool MiB ratio  RssAnon MiB  speed: kernel's time / farpage's";

/// The lines of one row; `variants`: there are several, so say which, and what it does to the lists' lock.
pub fn line(row: &Row, variants: bool) -> String {
    let mut out = String::new();
    let name = row.workload.name();
    if let Some(kernel) = row.kernel() {
        out.push_str(&side(&name, "kernel", &kernel));
        out.push('\n');
    }
    out.push_str(&side(&name, "farpage", &row.farpage()));
    if let Some(Spread { median, min, max }) = row.ratio() {
        out.push_str(&format!("  {median:.2} ({min:.2} to {max:.2})"));
    }
    if let Some(p99) = row.p99_ratio() {
        out.push_str(&format!(", p99 {:.2}", p99.median));
    }
    if let (true, Some(variant), Some((locks, waits))) = (variants, row.variant, row.lru_locks()) {
        out.push_str(&format!(
            "  {}: {locks:.4} LRU locks an access, {:.2} in 1000 of them waited for",
            variant.name(),
            1e3 * waits / locks.max(f64::MIN_POSITIVE)
        ));
    }
    out
}

fn side(workload: &str, who: &str, s: &Side) -> String {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{workload:<10} {who:<7} {:>8.0} {:>9.3} {:>10.2}  ({:>5.2} {:>5.2}) {:>7.0} {:>7.2} {:>7.1} {:>9.1} {:>8.0} {:>9.1} {:>5.2} {:>12.1}",
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
        mib(s.pool_bytes),
        s.pool_ratio,
        mib(s.peak_rss_anon),
    )
}

/// The whole result.
pub fn json(setting: &Setting, rows: &[Row]) -> Object {
    let mut object = Object::default();
    object.put_list("rows", rows.iter().map(|row| json_row(setting, row)).collect());
    object.put("schema", crate::json::SCHEMA);
    object.put("notes", setting.notes.clone());
    object.put("ram_bytes", setting.ram);
    object.put("data_bytes", setting.data);
    object.put("rounds", setting.rounds);
    object
}

fn json_row(setting: &Setting, row: &Row) -> Object {
    let mut object = Object::default();
    object.put("workload", row.workload.name());
    object.put("mode", setting.mode.name());
    object.put("against", setting.against.name());
    object.put("threads", row.threads);
    if let (Some(variant), Some((locks, waits))) = (row.variant, row.lru_locks()) {
        object.put("variant", variant.name());
        object.put("lru_locks_per_page", locks);
        object.put("lru_lock_waits_per_page", waits);
    }
    let ratio = row.ratio();
    object.put("ratio_median", ratio.map(|r| r.median));
    object.put("ratio_min", ratio.map(|r| r.min));
    object.put("ratio_max", ratio.map(|r| r.max));
    object.put_object("farpage", json_side(&row.farpage()));
    match row.kernel() {
        Some(kernel) => object.put_object("kernel", json_side(&kernel)),
        None => object.put("kernel", serde_json::Value::Null),
    }
    object.put("p99_ratio_median", row.p99_ratio().map(|r| r.median));
    object.put("farpage_ram_bytes", row.ram());
    object.put("rounds", row.rounds.len());
    object
}

fn json_side(side: &Side) -> Object {
    let mut object = Object::default();
    object.put("us_per_page", side.us_per_page);
    object.put("p50_us", side.p50_us);
    object.put("p99_us", side.p99_us);
    object.put("p999_us", side.p999_us);
    object.put("cpu_s_per_gib", side.cpu_user_s_per_gib + side.cpu_sys_s_per_gib);
    object.put("peak_rss_anon", side.peak_rss_anon as u64);
    object.put("pool_bytes", side.pool_bytes as u64);
    object.put("max_us", side.max_us);
    object.put("ops_per_s", side.ops_per_s);
    object.put("cpu_user_s_per_gib", side.cpu_user_s_per_gib);
    object.put("cpu_sys_s_per_gib", side.cpu_sys_s_per_gib);
    object.put("major_faults", side.major_faults as u64);
    object.put("pool_ratio", side.pool_ratio);
    object
}

#[cfg(test)]
mod tests {
    use super::super::side::Sample;
    use super::super::workload::Workload;
    use super::super::{Against, Mode};
    use super::*;

    #[test]
    fn json_has_the_promised_keys() {
        let round = super::super::row::Round { kernel: Some(Sample::default()), farpage: Sample::default(), ram: 7 };
        let row = Row::new(Workload::RandRead, None, 2, vec![round]);
        let (mode, against) = (Mode::Run, Against::Zram);
        let setting = Setting { ram: 1, data: 2, threads: 2, mode, against, rounds: 1, notes: vec!["a".into()] };
        let value: serde_json::Value = serde_json::from_str(&json(&setting, &[row]).line()).unwrap();
        let row = &value["rows"][0];
        assert_eq!((&row["workload"], &row["mode"]), (&"rand-read".into(), &"run".into()));
        assert_eq!((&row["against"], &row["threads"]), (&"zram".into(), &2.into()));
        for key in ["ratio_median", "ratio_min", "ratio_max"] {
            assert!(row.get(key).is_some(), "{key}");
        }
        for key in ["us_per_page", "p50_us", "p99_us", "p999_us", "cpu_s_per_gib", "peak_rss_anon", "pool_bytes"] {
            assert!(row["farpage"].get(key).is_some() && row["kernel"].get(key).is_some(), "{key}");
        }
    }
}
