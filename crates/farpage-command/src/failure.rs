//! What the command says when it cannot go on, and the exit status that goes with it.

use farpage_run::probe::Refusal;
use std::ffi::OsStr;
use std::fmt;

/// The command line is wrong; under `run`, that is [`FAILED`].
pub const USAGE: u8 = 2;
/// farpage itself failed.
pub const FAILED: u8 = 125;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// One sentence, detail lines, an exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// `what failed: why`, lower case, no full stop.
    pub sentence: String,
    /// Further lines, printed indented: `tried: ...`, `help: ...`.
    pub details: Vec<String>,
}

/// Result of everything here that can fail for a reason the user should read.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure of farpage itself.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure::with_status(FAILED, sentence)
    }

    /// A failure with another exit status.
    pub fn with_status(status: u8, sentence: impl Into<String>) -> Failure {
        Failure { status, sentence: sentence.into(), details: Vec::new() }
    }

    /// A command line that cannot be meant, of a subcommand other than `run`.
    pub fn usage(sentence: impl Into<String>) -> Failure {
        Failure::with_status(USAGE, sentence)
    }

    /// Adds a remedy.
    pub fn help(mut self, line: impl fmt::Display) -> Failure {
        self.details.push(format!("help: {line}"));
        self
    }
}

/// Makes a failure of the system's.
pub trait OrCannot<T> {
    /// What it is, or that so much of a sentence cannot be done, and the system's words for why.
    ///
    /// # Errors
    /// The system's.
    fn or_cannot(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> OrCannot<T> for std::result::Result<T, E> {
    fn or_cannot(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::new(format!("cannot {what}: {}", why(&error.into()))))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let tried = refusal.tried.map(|t| format!("tried: {t}"));
        let help = refusal.help.into_iter().map(|h| format!("help: {h}"));
        Failure { status: FAILED, sentence: refusal.sentence, details: tried.into_iter().chain(help).collect() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "farpage: {}", self.sentence)?;
        for line in &self.details {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// Writes one line to stderr; a closed stderr is not worth dying for.
pub fn say(line: impl fmt::Display) {
    use std::io::Write;
    let _ = crate::progress::aside(|| writeln!(std::io::stderr(), "{line}"));
}

/// The system's words for an error, lower case, without the number.
pub fn why(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => "unknown error".into(),
    }
}

/// A path as the shell user typed it.
pub fn shown(path: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let path = path.as_ref();
    match path.to_str() {
        Some(text) if !text.is_empty() && !text.contains(|c: char| c.is_control()) => text.to_owned(),
        _ => format!("{path:?}"),
    }
}
