//! Metrics as text, in the two forms in which Prometheus and others read it. They differ in few places, and neither
//! reader takes the other's form for its own without losing something:
//!
//! | | OpenMetrics 1.0 | Prometheus 0.0.4 |
//! | --- | --- | --- |
//! | a counter is described under | `NAME` | `NAME_total` |
//! | words in labels are an | `info` | `gauge` |
//! | quotes in a description | escaped | as they are |
//! | end | `# EOF` | |
//!
//! Callers: `farpage stat --openmetrics`, `farpage exporter`. No state.

use super::{Amount, Family, FamilyKind, Labels};
use std::fmt::Write as _;

/// A form of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format, 0.0.4: what node_exporter's textfile collector reads.
    Prometheus,
}

impl Exposition {
    /// As HTTP calls it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The whole text.
pub fn write(families: &[Family], form: Exposition) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        write_family(&mut text, family, form);
    }
    if form == Exposition::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn write_family(text: &mut String, family: &Family, form: Exposition) {
    let (kind, suffix) = match family.kind {
        FamilyKind::Gauge => ("gauge", ""),
        FamilyKind::Counter => ("counter", "_total"),
        FamilyKind::Histogram => ("histogram", ""),
        FamilyKind::Info if form == Exposition::OpenMetrics => ("info", "_info"),
        FamilyKind::Info => ("gauge", "_info"),
    };
    let described = match form {
        Exposition::OpenMetrics => family.name.clone(),
        Exposition::Prometheus => format!("{}{suffix}", family.name),
    };
    // To a string: cannot fail.
    let _ = writeln!(text, "# TYPE {described} {kind}");
    let unit = ["bytes", "seconds"].into_iter().find(|unit| family.name.ends_with(&format!("_{unit}")));
    if let (Some(unit), Exposition::OpenMetrics) = (unit, form) {
        let _ = writeln!(text, "# UNIT {described} {unit}");
    }
    let _ = writeln!(text, "# HELP {described} {}", escaped(&family.help, form == Exposition::OpenMetrics));
    for sample in &family.samples {
        let name = format!("{}{suffix}", family.name);
        match &sample.value {
            Amount::Whole(number) => line(text, &name, &sample.labels, None, number),
            Amount::Nanoseconds(number) => line(text, &name, &sample.labels, None, *number as f64 / 1e9),
            Amount::Below(bounds, count, sum) => {
                let bucket = format!("{name}_bucket");
                for (bound, below) in bounds {
                    line(text, &bucket, &sample.labels, Some(&format!("{bound:?}")), below);
                }
                line(text, &bucket, &sample.labels, Some("+Inf"), count);
                line(text, &format!("{name}_sum"), &sample.labels, None, *sum as f64 / 1e9);
                line(text, &format!("{name}_count"), &sample.labels, None, count);
            }
        }
    }
}

fn line(text: &mut String, name: &str, labels: &Labels, bound: Option<&str>, value: impl std::fmt::Display) {
    let bound = bound.map(|bound| ("le", bound));
    let all = labels.iter().map(|(label, words)| (*label, words.as_str())).chain(bound);
    let all: Vec<String> = all.map(|(label, words)| format!("{label}=\"{}\"", escaped(words, true))).collect();
    text.push_str(name);
    if !all.is_empty() {
        let _ = write!(text, "{{{}}}", all.join(","));
    }
    let _ = writeln!(text, " {value}");
}

/// Without anything that ends a line, or (with `quotes`) words in quotes.
fn escaped(words: &str, quotes: bool) -> String {
    let words = words.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { words.replace('"', "\\\"") } else { words }
}
