//! The text against the rules of OpenMetrics, whatever processes say of themselves; dashboard and page against the
//! text.

use super::*;
use farpage_ipc::stat::Stat;
use farpage_ipc::tree;
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// No process has this number.
const GONE: u32 = u32::MAX;

/// The labels of one of that number, which has a name with all that must be escaped.
const WHO: &str = r#"tree="4294967295",command="a \"b\" \\x\nc",user="-",cgroup="",pid="4294967295","#;

fn tree_of_this_process() -> Tree {
    crate::trees::open(std::process::id(), tree::create(64 << 20, None).unwrap().as_fd()).unwrap()
}

fn process(command: &str, set: impl Fn(&Stat)) -> Managed {
    let page = |pager: u64| {
        Page::for_test(|stat| {
            set(stat);
            stat.pager.store(pager, Relaxed);
        })
    };
    Managed { pid: GONE, command: command.into(), pages: Some(vec![page(0), page(1), page(2), page(2)]) }
}

fn text(form: Exposition, set: impl Fn(&Stat)) -> String {
    let hidden = Managed { pid: u32::MAX - 1, command: "other".into(), pages: None };
    write(&families(&[process("a \"b\" \\x\nc", set), hidden], &[tree_of_this_process()], true), form)
}

/// A sample as it was read.
#[derive(Debug)]
struct Line {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads one sample, by the grammar.
fn sample(line: &str) -> Line {
    let end = line.find(['{', ' ']).unwrap();
    let name = line[..end].to_string();
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{line}");
    let (mut labels, mut rest) = (BTreeMap::new(), &line[end..]);
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(label.chars().all(|c| c.is_ascii_lowercase()) && !label.is_empty(), "{line}");
            let mut words = String::new();
            let mut chars = after.char_indices();
            let at = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => words.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c}: {line}"),
                    }),
                    (_, c) => words.push(c),
                }
            };
            assert_eq!(labels.insert(label.to_string(), words), None, "twice: {line}");
            rest = &after[at + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap();
    }
    let value = rest.strip_prefix(' ').unwrap();
    assert!(!value.contains(' '), "no timestamps: {line}");
    Line { name, labels, value: value.parse().unwrap() }
}

/// Checks a text by the rules of OpenMetrics 1.0; the names of all samples.
fn checked(text: &str) -> BTreeSet<String> {
    let body = text.strip_suffix("# EOF\n").expect("it ends as it must");
    let (mut families, mut seen, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut family, mut kind) = (String::new(), String::new());
    let mut buckets: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in body.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            let mut words = said.splitn(3, ' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            match what {
                "TYPE" => {
                    assert!(families.insert(name.to_string()), "in two pieces: {name}");
                    (family, kind) = (name.into(), rest.into());
                    assert!(["gauge", "counter", "histogram", "info"].contains(&rest), "{line}");
                }
                "UNIT" => assert!(name == family && name.ends_with(&format!("_{rest}")), "{line}"),
                "HELP" => assert!(name == family && rest.len() > 5 && !rest.starts_with("Of these"), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let Line { name, labels, value } = sample(line);
        let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("not of {family}: {line}"));
        let wanted: &[&str] = match kind.as_str() {
            "gauge" => &[""],
            "counter" => &["_total"],
            "info" => &["_info"],
            _ => &["_bucket", "_sum", "_count"],
        };
        assert!(wanted.contains(&suffix), "{line}");
        assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
        assert!(value >= 0.0 && value.is_finite(), "{line}");
        if suffix == "_sum" || suffix == "_count" {
            let last = buckets.get(&format!("{labels:?}")).unwrap_or_else(|| panic!("before its buckets: {line}"));
            assert!(last.0.is_infinite() && (suffix == "_sum" || value == last.1), "{line}");
        } else if kind == "histogram" {
            let mut others = labels.clone();
            let bound: f64 = others.remove("le").unwrap().parse().unwrap();
            let last = buckets.entry(format!("{others:?}")).or_insert((0.0, 0.0));
            assert!(bound > last.0 && value >= last.1, "{line}");
            *last = (bound, value);
        }
        names.insert(name);
    }
    assert!(buckets.values().all(|(bound, _)| bound.is_infinite()), "a histogram without its last bucket");
    for part in ["_sum{", "_count{"] {
        let told =
            text.lines().filter(|line| line.starts_with("farpage_fault_duration_seconds") && line.contains(part));
        assert_eq!(told.count(), buckets.len(), "{part}");
    }
    // No sample of one family may be called as another family or its sample.
    let plain: BTreeSet<&String> = families.iter().collect();
    assert!(names.iter().all(|name| !plain.contains(name) || text.contains(&format!("# TYPE {name} gauge"))));
    names
}

fn some_numbers(stat: &Stat) {
    stat.budget_bytes.store(1 << 30, Relaxed);
    stat.pgfault.store(12, Relaxed);
    stat.idle_poll_ns.store(1_500_000_000, Relaxed);
    stat.read_errors.store(3, Relaxed);
    [900, 5_000, 5_000, u64::MAX].into_iter().for_each(|ns| stat.record_fault(ns));
    stat.fault_wait_ns.store(2_500_000_000, Relaxed);
    stat.alloc_wait_ns.store(250_000_000, Relaxed);
}

#[test]
fn the_text_follows_the_rules() {
    let text = text(Exposition::OpenMetrics, some_numbers);
    let names = checked(&text);
    for line in [
        r#"farpage_budget_bytes{WHO,pager=""} 1073741824"#,
        r#"farpage_pgfault_total{WHO,pager="2"} 12"#,
        r#"farpage_idle_poll_seconds_total{WHO,pager=""} 1.5"#,
        r#"farpage_errors_total{WHO,pager="",kind="read"} 3"#,
        r#"farpage_fault_duration_seconds_bucket{WHO,pager="",le="1.024e-6"} 1"#,
        r#"farpage_fault_duration_seconds_bucket{WHO,pager="",le="4.294967296"} 3"#,
        r#"farpage_fault_duration_seconds_bucket{WHO,pager="",le="+Inf"} 4"#,
        r#"farpage_fault_duration_seconds_sum{WHO,pager=""} 2.5"#,
        r#"farpage_fault_duration_seconds_count{WHO,pager=""} 4"#,
        r#"farpage_fault_wait_seconds_total{WHO,pager="1"} 2.5"#,
        r#"farpage_alloc_wait_seconds_total{WHO,pager=""} 0.25"#,
        "# UNIT farpage_fault_wait_seconds seconds",
        "farpage_unreadable_processes 1",
        "# UNIT farpage_budget_bytes bytes",
        "# TYPE farpage_pgfault counter",
    ] {
        let line = line.replace("WHO,", WHO);
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(text.contains("farpage_tree_budget_bytes{tree=") && text.contains("} 67108864\n"));
    assert!(names.contains("farpage_pool_raw_pages") && names.contains("farpage_workingset_refault_total"));
    assert!(names.iter().all(|name| !name.contains("peak") && !name.contains("huge") && !name.contains("_ns")));
}

#[test]
fn a_tree_is_one_set_of_series() {
    let mut tree = tree_of_this_process();
    let own = tree.pid;
    tree.processes = vec![own, GONE - 1, GONE];
    let mut members =
        [own, GONE - 1, GONE].map(|pid| Managed { pid, ..process("p", some_numbers) }).into_iter().collect::<Vec<_>>();
    Page::for_test(|stat| {
        some_numbers(stat);
        tree.segment.header.sums.add(stat);
    });
    let trees = [tree];
    let text = write(&families(&members, &trees, false), Exposition::OpenMetrics);
    checked(&text);
    let lines = |text: &str, name: &str, rest: &str| -> Vec<f64> {
        let of = text.lines().filter(|line| line.starts_with(&format!("{name}{{tree=\"{own}\",")));
        of.filter(|line| line.contains(rest)).map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
    };
    // Levels are those of all three, counters those that the tree has added up. Pagers are their processes'.
    assert_eq!(lines(&text, "farpage_budget_bytes", "pager=\"\""), [3.0 * (1u64 << 30) as f64]);
    assert_eq!(lines(&text, "farpage_pgfault_total", "pager=\"\""), [12.0]);
    assert_eq!(lines(&text, "farpage_errors_total", "pager=\"\",kind=\"read\""), [3.0]);
    assert_eq!(lines(&text, "farpage_pgfault_total", "pager=\"1\""), [12.0; 3]);
    assert!(!text.contains("fault_duration"), "{text}");
    // When a process ends, nothing that is still told has fallen.
    let counters = |text: &str| -> BTreeMap<String, String> {
        let of = text.lines().filter(|line| line.contains("_total{"));
        of.map(|line| line.rsplit_once(' ').unwrap()).map(|(name, value)| (name.into(), value.into())).collect()
    };
    members.pop();
    let (before, after) =
        (counters(&text), counters(&write(&families(&members, &trees, false), Exposition::OpenMetrics)));
    let gone: Vec<&String> =
        before.iter().filter(|(name, value)| after.get(*name) != Some(value)).map(|(name, _)| name).collect();
    assert!(!gone.is_empty() && gone.iter().all(|name| name.contains(&format!("pid=\"{GONE}\""))), "{gone:?}");
}

#[test]
fn any_number_will_do() {
    checked(&text(Exposition::OpenMetrics, |_| {}));
    checked(&text(Exposition::OpenMetrics, |stat| {
        some_numbers(stat);
        stat.fault_ns.iter().for_each(|count| count.store(u64::MAX, Relaxed));
        stat.resident_bytes.store(u64::MAX, Relaxed);
        stat.idle_poll_ns.store(u64::MAX, Relaxed);
    }));
}

#[test]
fn the_older_form_describes_what_it_has() {
    let text = text(Exposition::Prometheus, some_numbers);
    for part in [
        "# TYPE farpage_pgfault_total counter\n# HELP farpage_pgfault_total Faults served.\nfarpage_pgfault_total{",
        "# TYPE farpage_info gauge\n",
        "farpage_fault_duration_seconds_count{",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    let samples = |text: &str| text.lines().filter(|l| !l.starts_with('#')).count();
    assert_eq!(samples(&text), samples(&super::tests::text(Exposition::OpenMetrics, some_numbers)));
}

/// Names of metrics in a file of the tree.
fn named_in(file: &str) -> BTreeSet<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("farpage_") && *word != "farpage_").map(String::from).collect()
}

#[test]
fn dashboard_and_page_name_what_there_is() {
    let mut there = checked(&text(Exposition::OpenMetrics, some_numbers));
    let histogram = "farpage_fault_duration_seconds";
    there.insert(histogram.into());
    for file in ["contrib/grafana-dashboard.json", "docs/user/metrics.md"] {
        let unknown: Vec<String> = named_in(file).into_iter().filter(|name| !there.contains(name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/grafana-dashboard.json"));
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard.unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
}
