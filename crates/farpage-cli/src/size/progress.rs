//! What is being done, on standard error, if that is a terminal and it takes longer than two seconds. Used by
//! [`super`] only; a thread waits for the two seconds.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

const SILENT: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(200);

/// A line that says what is being done.
pub struct Progress(ProgressBar);

impl Progress {
    /// Nothing is shown yet. In pipes nothing ever is.
    pub fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{spinner} farpage size, {elapsed}: {msg}") {
            bar.set_style(style);
        }
        let weak = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(SILENT);
            if let Some(bar) = weak.upgrade() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(TICK);
            }
        });
        Progress(bar)
    }

    /// This is being done now.
    pub fn step(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
