//! `farpage stat`: live counters of programs that run under farpage.

pub mod find;
mod show;

use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::json::Object;
use crate::page::Page;
use find::{Absent, Managed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the subcommand. Exit status 1: no such process, not under farpage, no permission.
pub fn main(args: &StatArgs) -> Result<ExitCode> {
    let interval = match args.watch {
        Some(s) if s.is_finite() && (0.01..=86_400.0).contains(&s) => Some(Duration::from_secs_f64(s)),
        Some(s) => {
            return Err(Failure::with_status(2, format!("--watch={s}: not between 0.01 and 86400 seconds")));
        }
        None => None,
    };
    match (args.pid, interval) {
        (Some(pid), None) => {
            let (one, page) = readable(pid)?;
            print(&one_text(args, &one, &page, None));
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

fn readable(pid: u32) -> Result<(Managed, Page)> {
    let mut one = find::process(pid).map_err(|absent| absent.failure(pid))?;
    let page = one.page.take().ok_or_else(|| find::no_permission(pid))?;
    Ok((one, page))
}

fn watch_one(args: &StatArgs, pid: u32, interval: Duration) -> Result<()> {
    let process = open_process(pid).ok_or_else(|| Absent::Process.failure(pid))?;
    let (mut one, mut page) = readable(pid)?;
    let mut before: Option<(Page, Instant)> = None;
    loop {
        let now = Instant::now();
        let seconds = before.as_ref().map(|(_, at)| now.duration_since(*at).as_secs_f64());
        clear_screen(args);
        print(&one_text(args, &one, &page, before.as_ref().map(|b| &b.0).zip(seconds)));
        before = Some((page, now));
        loop {
            if ended_within(&process, interval) {
                return Ok(());
            }
            match readable(pid) {
                Ok((next, next_page)) => {
                    (one, page) = (next, next_page);
                    break;
                }
                // Between an exec and the new engine's start there is nothing to show for a moment.
                Err(failure) if now.elapsed() > interval * 2 + Duration::from_secs(2) => {
                    return if ended_within(&process, Duration::ZERO) { Ok(()) } else { Err(failure) };
                }
                Err(_) => {}
            }
        }
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits for the process to end, at most so long.
fn ended_within(process: &OwnedFd, most: Duration) -> bool {
    let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

fn one_text(args: &StatArgs, one: &Managed, page: &Page, before: show::Before<'_>) -> String {
    if !args.json {
        return show::sheet(one, page, before, args.bytes);
    }
    let mut object = Object::with_schema();
    show::json(one, page, before, &mut object);
    json_text(args, &object)
}

fn all_text(args: &StatArgs) -> Result<String> {
    let all = find::all()?;
    if !args.json {
        if all.is_empty() {
            crate::failure::say("farpage: no process runs under farpage");
        }
        return Ok(show::table(&all, args.bytes));
    }
    let list = all.iter().map(|one| {
        let mut object = Object::default();
        show::json_of(one, &mut object);
        object
    });
    let mut object = Object::with_schema();
    object.put_list("processes", list.collect());
    Ok(json_text(args, &object))
}

fn json_text(args: &StatArgs, object: &Object) -> String {
    let text = if args.watch.is_some() { object.line() } else { object.pretty() };
    text + "\n"
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
