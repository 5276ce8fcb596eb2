//! `farpage top`: all trees and programs on one screen, read again and again; details of one; another budget.
//!
//! | file | what |
//! | --- | --- |
//! | here | the loop: readings, keys, drawing |
//! | `screen` | the terminal: taken over, and given back whatever happens |
//! | `reading` | what is read, rates, the last two minutes |
//! | `state` | what is shown, and what keys do |
//! | `list`, `details`, `look` | drawing |
//! | `mappings`, `users` | what mappings are called, and the user of a process |
//!
//! Callers: `main`. One thread.

mod details;
mod list;
mod look;
mod reading;
mod screen;
mod state;

use crate::args::TopArgs;
use crate::failure::{Failure, Result, why};
use crate::mappings::Names;
use crate::{park, set, trees};
use farpage_ipc::conf::size;
use look::Look;
use reading::{Monitor, Point};
use screen::{Next, Screen};
use state::{Parking, Prompt, State, View, Wish};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the subcommand: until a key or a signal ends it.
///
/// # Errors
/// The terminal cannot be drawn on, or fails; there is no `/proc`.
pub fn main(args: &TopArgs) -> Result<ExitCode> {
    if !(args.interval.is_finite() && (0.1..=3600.0).contains(&args.interval)) {
        return Err(Failure::usage(format!("--interval {}: not between 0.1 and 3600 seconds", args.interval)));
    }
    screen::check()?;
    let interval = Duration::from_secs_f64(args.interval);
    let mut monitor = Monitor::default();
    let mut state = State::new(monitor.read()?);
    let mut screen = Screen::open().map_err(|e| broken(&e))?;
    let ended = watch(&mut screen, &mut monitor, &mut state, interval);
    drop(screen);
    match ended? {
        None => Ok(ExitCode::SUCCESS),
        Some(signal) => {
            screen::die_of(signal);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot go on drawing on the terminal: {}", why(error)))
}

/// Reads and draws until it is to end; the signal that said so, if one did.
fn watch(screen: &mut Screen, monitor: &mut Monitor, state: &mut State, interval: Duration) -> Result<Option<i32>> {
    let look = Look::of_environment();
    let mut due = Instant::now() + interval;
    loop {
        draw(screen, monitor, state, look).map_err(|e| broken(&e))?;
        #[cfg(debug_assertions)]
        if std::env::var_os("FARPAGE_TOP_PANICS").is_some() {
            panic!("asked to panic");
        }
        match screen.wait(due).map_err(|e| broken(&e))? {
            Next::Signal(signal) => return Ok(Some(signal)),
            Next::Gone => return Ok(None),
            Next::Time => {
                state.take(monitor.read()?);
                due = Instant::now() + interval;
            }
            Next::Redraw => {}
            Next::Key(key) => match state.key(key) {
                Wish::Nothing => {}
                Wish::Quit => return Ok(None),
                Wish::Suspend => screen.suspend().map_err(|e| broken(&e))?,
                Wish::Budget(prompt) => {
                    state.message = Some(give(&prompt));
                    due = Instant::now();
                }
                Wish::Park(parking) => {
                    state.message = Some(order(parking).unwrap_or_else(|failure| failure.sentence));
                    due = Instant::now();
                }
            },
        }
    }
}

fn draw(screen: &mut Screen, monitor: &Monitor, state: &State, look: Look) -> std::io::Result<()> {
    let shown = match state.view {
        View::List => None,
        View::Details(id) => state.reading.program(id),
    };
    let names = shown.map_or_else(Names::default, |program| Names::of(program.id.pid));
    let history: Vec<Point> = shown.iter().flat_map(|program| monitor.history(program.id)).copied().collect();
    screen.draw(|frame| {
        match shown {
            Some(program) => details::draw(frame, state, program, &history, &names, look),
            None => list::draw(frame, state, look),
        }
        if state.help {
            list::draw_help(frame, look);
        }
    })
}

/// Gives a tree a budget, as `farpage set` does; what came of it.
fn give(prompt: &Prompt) -> String {
    match set::give(prompt.pid, &prompt.text) {
        Ok((bytes, failures)) => {
            let done = format!("the tree of {} may have {} now", prompt.pid, size::format(bytes));
            failures.into_iter().next().map_or(done, |failure| failure.sentence)
        }
        Err(failure) => failure.sentence.trim_start_matches("--ram: ").to_owned(),
    }
}

/// Parks a tree or brings it back, as `farpage park` and `unpark` do; what came of it. It does not wait until all is
/// done.
fn order(parking: Parking) -> Result<String> {
    let pid = parking.pid;
    let tree = trees::of(pid)?;
    if parking.is_back {
        park::ask_back(&tree);
        return Ok(format!("the tree of {pid} comes back, as far as its budget reaches"));
    }
    let failures = park::ask(pid, &tree)?;
    let done = format!("the tree of {pid} is parked: all that can go, goes");
    Ok(failures.into_iter().next().map_or(done, |failure| failure.sentence))
}

#[cfg(test)]
mod tests;
