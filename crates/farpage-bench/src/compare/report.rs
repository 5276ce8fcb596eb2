//! The result as a table for the terminal, and as JSON.

use super::row::{Row, Side, Spread, or_dash};
use super::setting::Setting;
use crate::output::SCHEMA;
use serde_json::{Value, json};

/// Above the lines of [`line`].
pub const HEADER: &str = "\
workload   threads side      ops/s   us/page  CPU s/GiB  (user   sys) irq/page serial us  majflt  p50 us  p99 us  p99.9 us   max us  pool MiB ratio  RssAnon MiB  speed: kernel's time / farpage's";

/// The lines of one row.
pub fn line(row: &Row) -> String {
    let mut out = String::new();
    let name = format!("{:<10} {:>7}", row.workload.name(), row.threads);
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
    out
}

fn side(workload: &str, who: &str, s: &Side) -> String {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{workload} {who:<7} {:>8.0} {:>9.3} {:>10.2}  ({:>5.2} {:>5.2}) {:>8} {:>9} {:>7.0} {:>7.2} {:>7.1} {:>9.1} {:>8.0} {:>9.1} {:>5.2} {:>12.1}",
        s.ops_per_s,
        s.us_per_page,
        s.cpu_user_s_per_gib + s.cpu_sys_s_per_gib,
        s.cpu_user_s_per_gib,
        s.cpu_sys_s_per_gib,
        or_dash(s.shootdowns_per_page, 2),
        or_dash(s.serial_us, 1),
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
pub fn json(setting: &Setting, rows: &[Row]) -> Value {
    json!({
        "rows": rows.iter().map(|row| json_row(setting, row)).collect::<Vec<_>>(),
        "schema": SCHEMA,
        "notes": setting.notes,
        "ram_bytes": setting.ram,
        "data_bytes": setting.data,
        "rounds": setting.rounds,
    })
}

fn json_row(setting: &Setting, row: &Row) -> Value {
    let mut object = json!({
        "workload": row.workload.name(),
        "mode": setting.mode.name(),
        "against": setting.against.name(),
        "threads": row.threads,
    });
    let ratio = row.ratio();
    object["ratio_median"] = json!(ratio.map(|r| r.median));
    object["ratio_min"] = json!(ratio.map(|r| r.min));
    object["ratio_max"] = json!(ratio.map(|r| r.max));
    object["farpage"] = json_side(&row.farpage());
    object["kernel"] = json!(row.kernel().map(|kernel| json_side(&kernel)));
    object["p99_ratio_median"] = json!(row.p99_ratio().map(|r| r.median));
    object["farpage_ram_bytes"] = row.ram().into();
    object["rounds"] = row.rounds.len().into();
    object
}

fn json_side(side: &Side) -> Value {
    json!({
        "us_per_page": side.us_per_page,
        "p50_us": side.p50_us,
        "p90_us": side.p90_us,
        "p99_us": side.p99_us,
        "p999_us": side.p999_us,
        "p9999_us": side.p9999_us,
        "cpu_s_per_gib": side.cpu_user_s_per_gib + side.cpu_sys_s_per_gib,
        "peak_rss_anon": side.peak_rss_anon as u64,
        "pool_bytes": side.pool_bytes as u64,
        "max_us": side.max_us,
        "ops_per_s": side.ops_per_s,
        "cpu_user_s_per_gib": side.cpu_user_s_per_gib,
        "cpu_sys_s_per_gib": side.cpu_sys_s_per_gib,
        "major_faults": side.major_faults as u64,
        "pool_ratio": side.pool_ratio,
        "shootdowns_per_page": side.shootdowns_per_page,
        "serial_us_per_fault": side.serial_us,
    })
}

#[cfg(test)]
mod tests {
    use super::super::setting::{Against, Mode};
    use super::super::side::Sample;
    use super::super::workload::Workload;
    use super::*;

    #[test]
    fn json_has_the_promised_keys() {
        let round = super::super::row::Round { kernel: Some(Sample::default()), farpage: Sample::default(), ram: 7 };
        let row = Row { workload: Workload::RandRead, threads: 2, rounds: vec![round] };
        let (mode, against) = (Mode::Run, Against::Zram);
        let setting = Setting { ram: 1, data: 2, mode, against, rounds: 1, notes: vec!["a".into()] };
        let value = json(&setting, &[row]);
        let row = &value["rows"][0];
        assert_eq!((&row["workload"], &row["mode"]), (&"rand-read".into(), &"run".into()));
        assert_eq!((&row["against"], &row["threads"]), (&"zram".into(), &2.into()));
        for key in ["ratio_median", "ratio_min", "ratio_max"] {
            assert!(row.get(key).is_some(), "{key}");
        }
        for key in [
            "us_per_page",
            "p50_us",
            "p90_us",
            "p99_us",
            "p999_us",
            "p9999_us",
            "cpu_s_per_gib",
            "peak_rss_anon",
            "pool_bytes",
            "shootdowns_per_page",
            "serial_us_per_fault",
        ] {
            assert!(row["farpage"].get(key).is_some() && row["kernel"].get(key).is_some(), "{key}");
        }
    }
}
