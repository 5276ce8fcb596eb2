//! Where results go: the table to standard output, JSON to a file, or JSON alone to standard output.

use crate::failure::{Failure, Result, why};
use crate::{output, progress};
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;

/// What `--json` says.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    file: Option<&'a Path>,
    /// Standard output is for JSON: there is no table.
    alone: bool,
}

impl<'a> Destination<'a> {
    /// Of `--json`.
    ///
    /// # Errors
    /// The file cannot be written: that is known now, and not when all has been measured.
    pub fn new(json: Option<&'a Path>) -> Result<Destination<'a>> {
        let alone = json == Some(Path::new("-"));
        let file = json.filter(|_| !alone);
        if let Some(path) = file {
            output::open(path).map_err(|e| unwritable(path, &e))?;
        }
        Ok(Destination { file, alone })
    }

    /// A line of the table, or a remark.
    pub fn tell(&self, text: &str) {
        if !self.alone {
            let _ = progress::aside(|| writeln!(io::stdout(), "{text}"));
        }
    }

    /// What there is so far, for the file only.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, object: &Value) -> Result<()> {
        let Some(path) = self.file else { return Ok(()) };
        output::write(path, format!("{object:#}\n")).map_err(|e| unwritable(path, &e))
    }

    /// All that was measured.
    ///
    /// # Errors
    /// As [`Destination::save`].
    pub fn finish(&self, object: &Value) -> Result<()> {
        if self.alone {
            let _ = progress::aside(|| writeln!(io::stdout(), "{object:#}"));
        }
        self.save(object)
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("--json: cannot write {}: {}", path.display(), why(error)))
}
