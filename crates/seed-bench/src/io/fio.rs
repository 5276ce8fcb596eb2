//! The same file read by fio, where it is installed: what a program made for nothing else gets out of it.

use super::sample::Row;
use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// A way of reading.
#[derive(Clone, Copy)]
pub struct Job {
    /// Shown as the row's path.
    pub name: &'static str,
    /// Whether pages are read in order.
    pub in_order: bool,
    /// Pages a request.
    pub batch: usize,
    /// Requests in flight.
    pub depth: usize,
}

/// Why there are no rows of fio here, if there are none.
pub fn obstacle() -> Option<String> {
    let version = Command::new("fio").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("fio does not work: {}", output.status)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Some(String::from("fio is not installed")),
        Err(e) => Some(format!("fio cannot be started: {e}")),
    }
}

/// Reads the `n` pages behind the first one of the file, once.
///
/// # Errors
/// What fio said.
pub fn read(path: &Path, n: usize, job: Job) -> Result<Row> {
    let mut command = Command::new("fio");
    command.args(["--name=farpage", "--readonly", "--direct=1", "--ioengine=io_uring", "--output-format=json"]);
    command.arg(format!("--rw={}", if job.in_order { "read" } else { "randread" }));
    // fio takes a colon in a name for the end of the name.
    command.arg(format!("--filename={}", path.display().to_string().replace(':', "\\:")));
    command.arg(format!("--bs={}", job.batch * PAGE_SIZE)).arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--offset={PAGE_SIZE}")).arg(format!("--size={}", n / job.batch * job.batch * PAGE_SIZE));
    let output = command.stdin(Stdio::null()).output().map_err(|e| Failure::new(format!("bench: fio: {e}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("bench: fio: {}", said.lines().next_back().unwrap_or("it failed"))));
    }
    row(&output.stdout, job).ok_or_else(|| Failure::new("bench: fio printed something else than its results"))
}

/// What fio printed.
fn row(json: &[u8], job: Job) -> Option<Row> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let read = &value["jobs"][0]["read"];
    let share = |name: &str| read["clat_ns"]["percentile"][name].as_u64();
    Some(Row {
        device: "fio",
        path: job.name,
        op: if job.in_order { "read seq" } else { "read rand" },
        batch: job.batch,
        // From the request's submission on, as a program waits for it.
        avg_ns: read["lat_ns"]["mean"].as_f64()?,
        p50_ns: share("50.000000")?,
        p99_ns: share("99.000000")?,
        allocs_per_op: None,
        mib_per_s: read["bw_bytes"].as_f64().filter(|bytes| *bytes > 0.0)? / (1 << 20) as f64,
        ratio: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job { name: "depth4", in_order: true, batch: 32, depth: 4 };

    #[test]
    fn results_are_taken_from_what_fio_prints() {
        let json = br#"{"jobs": [{"read": {"bw_bytes": 2097152, "lat_ns": {"mean": 1500.5},
            "clat_ns": {"percentile": {"50.000000": 1400, "99.000000": 2600}}}}]}"#;
        let row = row(json, JOB).unwrap();
        assert_eq!((row.avg_ns, row.p50_ns, row.p99_ns, row.mib_per_s), (1500.5, 1400, 2600, 2.0));
    }

    #[test]
    fn what_is_missing_is_no_result() {
        assert!(row(b"fio: engine io_uring not loadable", JOB).is_none());
        // Nothing was read.
        assert!(
            row(br#"{"jobs": [{"read": {"bw_bytes": 0, "lat_ns": {"mean": 0.0}, "clat_ns": {}}}]}"#, JOB).is_none()
        );
    }
}
