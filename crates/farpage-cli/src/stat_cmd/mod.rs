//! `farpage stat`: live counters of programs that run under farpage, and of the pagers that programs build.

pub mod find;
mod show;

use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::metrics::{self, Exposition};
use crate::output;
use crate::output::SCHEMA;
use crate::page::Page;
use crate::process;
use crate::trees;
use find::{Absent, Managed};
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use show::{Look, Watch};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the subcommand. Exit status 1: no such process, not under farpage, no permission.
pub fn main(args: &StatArgs) -> Result<ExitCode> {
    let interval = match args.watch {
        Some(s) if s.is_finite() && (0.01..=86_400.0).contains(&s) => Some(Duration::from_secs_f64(s)),
        Some(s) => {
            let failure = Failure::usage(format!("--watch={s}: not between 0.01 and 86400 seconds"));
            return Err(failure.help("name a process before    farpage stat PID --watch"));
        }
        None => None,
    };
    if args.openmetrics {
        return metrics_text(args);
    }
    match (args.pid, interval) {
        (Some(pid), None) if args.events => print(&events_text(args, pid)?),
        (Some(pid), None) if args.tuning => print(&tuning_text(args, pid)?),
        (Some(pid), None) => {
            print(&one_text(args, &readable(pid)?, Watch::No));
        }
        (Some(pid), Some(interval)) => watch_one(args, pid, interval)?,
        (None, None) => print(&all_text(args)?),
        (None, Some(interval)) => loop {
            clear_screen(args);
            print(&all_text(args)?);
            std::thread::sleep(interval);
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn metrics_text(args: &StatArgs) -> Result<ExitCode> {
    let form = if args.output.is_some() { Exposition::Prometheus } else { Exposition::OpenMetrics };
    let text = metrics::write(&metrics::families(&find::all()?, &trees::all().trees, args.per_process), form);
    match &args.output {
        None => print(&text),
        Some(path) => output::publish(path, text.as_bytes()).map_err(|e| {
            let (file, why) = (path.display(), crate::failure::why(&e));
            Failure::new(format!("cannot write the metrics to {file}: {why}"))
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

fn events_text(args: &StatArgs, pid: u32) -> Result<String> {
    let one = readable(pid)?;
    let events = one.engine().map(Page::events).unwrap_or_default();
    if !args.json {
        return Ok(show::events(&events));
    }
    let list = events.iter().map(show::event_json);
    Ok(json_text(args, &json!({ "schema": SCHEMA, "events": list.collect::<Vec<_>>() })))
}

fn tuning_text(args: &StatArgs, pid: u32) -> Result<String> {
    let one = readable(pid)?;
    let pages = one.pages.unwrap_or_default();
    if !args.json {
        return Ok(show::tuning(&pages));
    }
    let tuning: Vec<Value> = pages.iter().flat_map(show::tuning_json).collect();
    Ok(json_text(args, &json!({ "schema": SCHEMA, "tuning": tuning })))
}

fn readable(pid: u32) -> Result<Managed> {
    let one = find::process(pid).map_err(|absent| absent.failure(pid))?;
    if one.pages.is_some() { Ok(one) } else { Err(find::no_permission(pid)) }
}

fn watch_one(args: &StatArgs, pid: u32, interval: Duration) -> Result<()> {
    let process = process::open(pid).map_err(|_| Absent::Process.failure(pid))?;
    let mut one = readable(pid)?;
    let mut before: Option<(Vec<Page>, Instant)> = None;
    loop {
        let now = Instant::now();
        let watch = match &before {
            Some((pages, at)) => Watch::Since(pages, now.duration_since(*at).as_secs_f64()),
            None => Watch::Begun,
        };
        clear_screen(args);
        print(&one_text(args, &one, watch));
        before = Some((one.pages.take().unwrap_or_default(), now));
        loop {
            if process::ended_within(&process, interval) {
                return Ok(());
            }
            match readable(pid) {
                Ok(next) => {
                    one = next;
                    break;
                }
                // Between an exec and the new engine's start there is nothing to show for a moment.
                Err(failure) if now.elapsed() > interval * 2 + Duration::from_secs(2) => {
                    return if process::ended_within(&process, Duration::ZERO) { Ok(()) } else { Err(failure) };
                }
                Err(_) => {}
            }
        }
    }
}

fn one_text(args: &StatArgs, one: &Managed, watch: Watch<'_>) -> String {
    if !args.json {
        let window = tcgetwinsize(std::io::stdout()).ok().filter(|window| window.ws_col > 0);
        // Over and over on one screen: what matters, so that it stays in sight.
        let again = window.is_some() && !matches!(watch, Watch::No);
        let text = show::sheets(one, watch, Look { raw: args.bytes, brief: again });
        let Some(window) = window else { return text };
        let fits = show::fitting(&text, window.ws_col.into(), again.then_some(window.ws_row.into()));
        return if again { fits } else { fits + "\n" };
    }
    let mut object = json!({ "schema": SCHEMA });
    show::json(one, watch, &mut object);
    json_text(args, &object)
}

fn all_text(args: &StatArgs) -> Result<String> {
    let all = find::all()?;
    if !args.json {
        if all.is_empty() {
            let all = rustix::process::geteuid().is_root();
            let whose = if all { "" } else { " that this user may see; those of others    sudo farpage stat" };
            crate::failure::say(format_args!("farpage: no process runs under farpage or has a pager{whose}"));
        }
        if all.iter().any(|one| one.pages.is_none()) {
            let why = "of these processes only their own user and root may read the counters";
            crate::failure::say(format_args!("farpage: rows of dashes: {why}    sudo farpage stat"));
        }
        let found = trees::all();
        found.refused.iter().for_each(crate::failure::say);
        let trees: Vec<String> = found.trees.iter().map(|tree| format!("\n{}", tree.text())).collect();
        return Ok(show::table(&all, args.bytes) + &trees.concat());
    }
    let list = all.iter().map(|one| {
        let mut object = json!({});
        show::json(one, Watch::No, &mut object);
        object
    });
    let object = json!({
        "schema": SCHEMA,
        "processes": list.collect::<Vec<_>>(),
        "trees": trees::all().trees.iter().map(trees::Tree::json).collect::<Vec<_>>(),
    });
    Ok(json_text(args, &object))
}

fn json_text(args: &StatArgs, object: &Value) -> String {
    if args.watch.is_some() { format!("{object}\n") } else { format!("{object:#}\n") }
}

fn clear_screen(args: &StatArgs) {
    if !args.json && std::io::stdout().is_terminal() {
        print("\x1b[H\x1b[J");
    }
}

/// A reader that has gone ends the command by SIGPIPE; any other failure shows in what is missing.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
