//! Reports: one page of HTML with a run, or two beside each other. It needs nothing else, no network either.
//!
//! What a page shows is in it as JSON, so that it can be read again. Drawing is uPlot's (`page/`, MIT licence).
//! Callers: `farpage run --report`, and `farpage report`. No state.

use crate::args::ReportArgs;
use crate::failure::{Failure, OrCannot, Result, why};
use crate::output;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/report.js");
const UPLOT: &str = include_str!("page/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("page/uPlot.min.css");
/// What is before the JSON, and after it.
const DATA: (&str, &str) = (r#"<script id="runs" type="application/json">"#, "</script>");

/// Runs `farpage report`.
///
/// # Errors
/// A file cannot be read, or is no report; the page cannot be written.
pub fn main(args: &ReportArgs) -> Result<ExitCode> {
    let mut runs = Vec::new();
    for file in &args.files {
        runs.extend(read(file)?);
    }
    let page = page(&Value::from(runs));
    output::replace(&args.output, page.as_bytes()).or_cannot(format_args!("write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The runs that are in a report.
fn read(file: &Path) -> Result<Vec<Value>> {
    let fail = |why: &str| Failure::new(format!("cannot read {}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| fail(&why(&error)))?;
    let data = text.split_once(DATA.0).and_then(|(_, rest)| rest.split_once(DATA.1)).map(|(data, _)| data);
    let data = data.ok_or_else(|| fail("it is no report of farpage run --report"))?;
    serde_json::from_str(data).map_err(|error| fail(&format!("its data are damaged: {error}")))
}

/// The page of one run.
pub fn of_run(run: &Value) -> String {
    // An object of ours always is JSON.
    page(&json!([run]))
}

fn page(runs: &Value) -> String {
    // Nothing in it may end the element.
    let data = runs.to_string().replace('<', "\\u003c");
    let mut page = String::with_capacity(data.len() + UPLOT.len() + SCRIPT.len() + PAGE.len() + STYLE.len());
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(before);
        match name {
            "style" => page.extend([UPLOT_STYLE, STYLE]),
            "uplot" => page.push_str(UPLOT),
            "script" => page.push_str(SCRIPT),
            _ => page.extend([DATA.0, data.as_str(), DATA.1]),
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::SCHEMA;

    fn run(name: &str) -> Value {
        json!({ "schema": SCHEMA, "program": [name] })
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, both] = ["1.html", "2.html", "both.html"].map(|name| dir.path().join(name));
        let hostile = "</script><script>alert(1)//{{data}}";
        fs::write(&one, of_run(&run(hostile))).unwrap();
        fs::write(&two, of_run(&run("b"))).unwrap();
        let text = fs::read_to_string(&one).unwrap();
        assert_eq!(text.matches("alert(1)").count(), 1);
        assert!(!text.contains("<script>alert"));
        let args = ReportArgs { files: vec![one, two.clone()], output: both.clone() };
        main(&args).unwrap();
        let runs = read(&both).unwrap();
        assert_eq!((runs.len(), &runs[0]["program"][0], &runs[1]["program"][0]), (2, &hostile.into(), &"b".into()));
        fs::write(&two, "<html>").unwrap();
        assert!(read(&two).unwrap_err().sentence.contains("no report"));
        assert!(read(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn it_needs_nothing_else() {
        let text = of_run(&run("a"));
        for outside in ["src=", "@import", "<link", "{{"] {
            assert!(!text.contains(outside), "{outside}");
        }
    }
}
