//! What is being done: one line on standard error, if that is a terminal and it takes longer than two seconds. At the
//! end it is gone.
//!
//! A command calls [`begin`], whatever it uses calls [`step`], and what it prints meanwhile goes through [`aside`]. The
//! lock is held for as long as it takes to look what is shown; indicatif has its own beneath it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const SILENT: Duration = Duration::from_secs(2);
/// So rarely that a measurement does not notice.
const TICK: Duration = Duration::from_secs(1);

static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn shown() -> Option<ProgressBar> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The line; it goes when this does.
#[must_use]
pub struct Progress(());

/// From now on this command is at work. Not shown yet, and in pipes never.
pub fn begin(command: &'static str) -> Progress {
    if std::io::stderr().is_terminal() {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_prefix(command);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}, {elapsed}: {wide_msg}") {
            bar.set_style(style);
        }
        let weak = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(SILENT);
            if let Some(bar) = weak.upgrade().filter(|bar| !bar.is_finished()) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(TICK);
            }
        });
        *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
    }
    Progress(())
}

/// This is being done now.
pub fn step(what: impl std::fmt::Display) {
    if let Some(bar) = shown() {
        bar.set_message(what.to_string());
    }
}

/// Prints something, without the line meanwhile. `print` may not call [`step`] or this.
pub fn aside<T>(print: impl FnOnce() -> T) -> T {
    match shown() {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let bar = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
        bar.inspect(ProgressBar::finish_and_clear);
    }
}
