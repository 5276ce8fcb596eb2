//! The terminal of `farpage top`: taken over, asked for keys, and given back as it was, whatever ends the command: a
//! key, a signal, an error, a panic.
//!
//! Keys are waited for with `poll` here and only then read by crossterm: a terminal that has gone away would keep
//! crossterm in a loop for good. Signals are noted by their handlers, and end that `poll`.
//!
//! Callers: [`super`]. State of the process: the mode of the terminal, the panic hook, signal handlers.

use crate::failure::{Failure, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::{flag, low_level};
use std::io::{self, IsTerminal, Stdout};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Signals that end the command.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
/// Longest wait: a signal that came just before it is seen after it.
const LONGEST: Duration = Duration::from_millis(250);

/// What happened next.
#[derive(Debug)]
pub enum Next {
    /// It is time for another reading.
    Time,
    /// A key.
    Key(KeyEvent),
    /// The terminal has another size, or else: nothing but drawing is to be done.
    Redraw,
    /// A signal that ends the command.
    Signal(i32),
    /// The terminal is not there any more.
    Gone,
}

/// Whether there is a terminal that can be drawn on.
///
/// # Errors
/// There is none.
pub fn check() -> Result<()> {
    let refused = |what: String| Err(Failure::new(format!("cannot draw on {what}: use    farpage stat --watch")));
    if !io::stdout().is_terminal() {
        return refused("standard output, which is no terminal".into());
    }
    if !io::stdin().is_terminal() {
        return refused("this terminal while standard input, where keys come from, is none".into());
    }
    match std::env::var("TERM") {
        Ok(kind) if !["", "dumb", "unknown"].contains(&kind.as_str()) => Ok(()),
        kind => refused(format!("a terminal without cursor movement (TERM={})", kind.unwrap_or_default())),
    }
}

/// The terminal, while it is ours.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Vec<(i32, Arc<AtomicBool>)>,
}

impl Screen {
    /// Takes it over.
    ///
    /// # Errors
    /// It cannot be controlled.
    pub fn open() -> io::Result<Screen> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                hook(info);
            }));
        });
        let note = |signal: i32| {
            let seen = Arc::new(AtomicBool::new(false));
            // If the first one is not looked at, the second ends the process at once.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&seen))?;
            flag::register(signal, Arc::clone(&seen))?;
            Ok((signal, seen))
        };
        let signals = ENDING.into_iter().map(note).collect::<io::Result<Vec<_>>>()?;
        let entered = enter().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        entered.map(|terminal| Screen { terminal, signals }).inspect_err(|_| restore())
    }

    /// Draws all of it; only what has changed is sent.
    ///
    /// # Errors
    /// The terminal does not take it.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Waits for something to happen, until then at most.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn wait(&mut self, until: Instant) -> io::Result<Next> {
        loop {
            if let Some((signal, _)) = self.signals.iter().find(|(_, seen)| seen.load(Relaxed)) {
                return Ok(Next::Signal(*signal));
            }
            if is_gone(Duration::ZERO)? {
                return Ok(Next::Gone);
            }
            // What crossterm has read already is not seen by poll.
            match next_event()? {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => return Ok(Next::Key(key)),
                Some(Event::Resize(columns, rows)) => {
                    // It may have been small for so short a time that this was not seen, and have lost what was there.
                    self.terminal.resize(Rect::new(0, 0, columns, rows))?;
                    return Ok(Next::Redraw);
                }
                Some(_) => return Ok(Next::Redraw),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Next::Time);
            }
            if is_gone(left.min(LONGEST))? {
                return Ok(Next::Gone);
            }
        }
    }

    /// Gives the terminal back and stops the process; when it is let go on, takes it over again.
    ///
    /// # Errors
    /// As [`Screen::open`].
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        low_level::emulate_default_handler(SIGTSTP)?;
        enter()?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen)
}

/// As it was. What fails is not worth a word: there is no other way to try.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
}

/// An event that is there already.
fn next_event() -> io::Result<Option<Event>> {
    if event::poll(Duration::ZERO)? { event::read().map(Some) } else { Ok(None) }
}

/// Waits for keys, a signal or the time; whether the terminal has gone away.
fn is_gone(most: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(most).ok();
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Ends the process as the signal would have: its parent sees why.
pub fn die_of(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
}
