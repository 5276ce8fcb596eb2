//! Latencies of requests, which a program that is a server and its clients measures itself, and leaves in a file.
//! Read by [`super::side`] after each run, shown by [`super::report`].

use crate::compare::row::Spread;
use crate::failure::{Failure, OrCannot, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Latencies of the requests of one run, or medians of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestTimes {
    /// Half of the requests were answered within this time, milliseconds.
    pub p50_ms: f64,
    /// 99 % of them.
    pub p99_ms: f64,
    /// All of them.
    pub max_ms: f64,
    /// Requests without a good answer.
    pub bad: u64,
}

impl RequestTimes {
    /// Takes away what an earlier run has left.
    ///
    /// # Errors
    /// There is a file that cannot be removed.
    pub fn clear(file: &Path) -> Result<()> {
        match fs::remove_file(file) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).or_cannot(format_args!("remove {}", file.display())),
            _ => Ok(()),
        }
    }

    /// What a run has left.
    ///
    /// # Errors
    /// It has left none, or something else.
    pub fn read(file: &Path) -> Result<RequestTimes> {
        let text = fs::read(file).or_cannot(format_args!("read the latencies of requests, {}", file.display()))?;
        let no_times = |e| Failure::new(format!("{}: these are no latencies of requests: {e}", file.display()));
        serde_json::from_slice(&text).map_err(no_times)
    }

    /// Medians, and all bad answers; `None`: there are none.
    pub fn medians(runs: &[RequestTimes]) -> Option<RequestTimes> {
        let median = |of: fn(&RequestTimes) -> f64| Spread::of(runs.iter().map(of)).map(|spread| spread.median);
        Some(RequestTimes {
            p50_ms: median(|times| times.p50_ms)?,
            p99_ms: median(|times| times.p99_ms)?,
            max_ms: median(|times| times.max_ms)?,
            bad: runs.iter().map(|times| times.bad).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_has_left_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("requests.json");
        RequestTimes::clear(&file).unwrap();
        assert!(RequestTimes::read(&file).is_err());
        let times = RequestTimes { p50_ms: 1.5, p99_ms: 20.25, max_ms: 300.0, bad: 2 };
        fs::write(&file, serde_json::to_vec(&times).unwrap()).unwrap();
        assert_eq!(RequestTimes::read(&file).unwrap(), times);
        fs::write(&file, r#"{"p50_ms": 1, "p99_ms": 2}"#).unwrap();
        assert!(RequestTimes::read(&file).unwrap_err().sentence.contains("max_ms"));
        RequestTimes::clear(&file).unwrap();
        assert!(!file.exists());
        assert!(RequestTimes::clear(dir.path()).is_err());
    }

    #[test]
    fn of_several_runs_there_are_medians() {
        let of = |ms: f64, bad| RequestTimes { p50_ms: ms, p99_ms: 2.0 * ms, max_ms: 9.0, bad };
        assert_eq!(RequestTimes::medians(&[of(1.0, 1), of(50.0, 0), of(3.0, 2)]), Some(of(3.0, 3)));
        assert_eq!(RequestTimes::medians(&[]), None);
    }
}
