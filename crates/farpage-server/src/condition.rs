//! In which state the way to a server is, and what is to be said of it.
//!
//! A connection says little: a server can welcome all and then not answer. So what counts is answers. Failures that
//! follow each other are one *trouble*, which has one deadline (`timeout=`), whatever its parts are: a connection, a
//! greeting, an answer. It ends when what failed first is answered, when nothing has failed for a while, or when that
//! was not asked for again for a while and other such things are answered; not when the server answers something else.
//! Within a trouble, the pauses between two tries become longer.
//!
//! Owner: the link, which holds the lock. No locks here.

use crate::opening::Failed;
use crate::wire::Broken;
use std::time::Duration;

/// First and longest pause between two tries, milliseconds.
const PAUSE_MIN: i64 = 20;
const PAUSE_MAX: i64 = 2000;
/// What begins so long after a failure has nothing to do with it: a thread that waits has tried again before.
const QUIET: i64 = 2 * PAUSE_MAX + 1000;
/// What is over sooner is not worth a word, milliseconds.
const SAID_AFTER: i64 = 1000;
/// How often within a trouble a server may send what it must not, instead of an answer.
const NONSENSE_MAX: u32 = 3;

/// What the user should know, once each.
const SAY_WAITS: u32 = 1;
const SAY_BACK: u32 = 2;
const SAY_LOST: u32 = 4;
const SAY_ANOTHER: u32 = 8;

/// What a server is asked for.
#[derive(Debug, Clone, Copy)]
pub enum AskedFor<'a> {
    /// Pages: from where to where each run goes, in whatever the server counts in.
    Pages(&'a [(u64, u64)]),
    /// It gets pages.
    Stores,
    /// Anything else.
    Other,
}

/// What failed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    Page(u64),
    Store,
    Other,
}

impl AskedFor<'_> {
    fn owed(&self) -> Owed {
        match self {
            AskedFor::Pages(runs) => runs.first().map_or(Owed::Other, |run| Owed::Page(run.0)),
            AskedFor::Stores => Owed::Store,
            AskedFor::Other => Owed::Other,
        }
    }

    /// Whether it is of the same kind, and whether it is the same.
    fn answers(&self, owed: Owed) -> (bool, bool) {
        match (self, owed) {
            (AskedFor::Pages(runs), Owed::Page(at)) => (true, runs.iter().any(|run| (run.0..run.1).contains(&at))),
            (AskedFor::Stores, Owed::Store) | (_, Owed::Other) => (true, true),
            _ => (false, false),
        }
    }
}

/// Failures that follow each other.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    /// When the first attempt began that failed, when it did, and when the last one did; milliseconds, as all times
    /// here.
    since: i64,
    first: i64,
    last: i64,
    owed: Owed,
    /// When that failed last, and whether something of its kind was answered since.
    owed_at: i64,
    answers: bool,
    pause: i64,
    nonsense: u32,
}

/// The states of the way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There is one, as far as is known.
    Up,
    /// There is none; the next try is not before that.
    Down(i64),
    /// It was given up; `None`: there is one again.
    Lost(Option<i64>),
    /// Another server is there, without our pages.
    Another,
}

/// See the module header.
pub struct Condition {
    standing: Standing,
    trouble: Option<Trouble>,
    /// What is to be said, and what was said of the present trouble.
    notes: u32,
    said: u32,
    /// Why the last try failed.
    why: Failed,
}

impl Condition {
    pub const fn new() -> Condition {
        let why = Failed::Broken(Broken::Silent);
        Condition { standing: Standing::Up, trouble: None, notes: 0, said: 0, why }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.standing, Standing::Up | Standing::Lost(None))
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.standing, Standing::Lost(_) | Standing::Another)
    }

    pub fn is_troubled(&self) -> bool {
        self.trouble.is_some()
    }

    /// Whether a connection should be tried now.
    pub fn is_due(&self, now: i64) -> bool {
        matches!(self.standing, Standing::Down(next) | Standing::Lost(Some(next)) if now >= next)
    }

    /// What is left of the time that the present trouble, or one that begins now, may take.
    pub fn left(&self, now: i64, timeout: Option<Duration>) -> Option<i64> {
        timeout.map(|timeout| timeout.as_millis() as i64 - self.trouble.map_or(0, |trouble| now - trouble.since))
    }

    /// There is a connection. Whether it is worth anything is for [`Condition::answered`].
    pub fn welcomed(&mut self) {
        self.standing = match self.standing {
            Standing::Down(_) => Standing::Up,
            Standing::Lost(_) => Standing::Lost(None),
            standing => standing,
        }
    }

    /// Something was answered.
    pub fn answered(&mut self, now: i64, about: AskedFor<'_>) {
        let Some(trouble) = self.trouble else { return };
        let (same_kind, same) = about.answers(trouble.owed);
        let over = same || now - trouble.last > QUIET;
        self.trouble = (!over).then_some(Trouble { answers: trouble.answers || same_kind, ..trouble });
        if (over || same_kind) && self.said & SAY_WAITS != 0 {
            self.say(SAY_BACK);
        }
    }

    /// An attempt that began then has failed, a connection or an exchange. Whether the server has sent what it must not
    /// for the last time, so that the thread that asked is told.
    pub fn failed(
        &mut self,
        now: i64,
        begun: i64,
        about: AskedFor<'_>,
        failed: Failed,
        timeout: Option<Duration>,
    ) -> bool {
        self.why = failed;
        if let Failed::Another(_) = failed {
            self.standing = Standing::Another;
            self.say(SAY_ANOTHER);
            return false;
        }
        if self.is_up() && self.trouble.is_some_and(|trouble| begun - trouble.last > QUIET) {
            self.trouble = None;
        }
        // What failed first may not be wanted any more: it was only read ahead.
        if self.trouble.is_some_and(|trouble| trouble.answers && now - trouble.owed_at > QUIET) {
            self.trouble = None;
        }
        let mut next_try = now;
        let (is_first, mut trouble) = match self.trouble {
            Some(trouble) => (false, trouble),
            None => {
                let owed = about.owed();
                let (since, first, last, owed_at) = (begun, now, now, now);
                (true, Trouble { since, first, last, owed, owed_at, answers: false, pause: PAUSE_MIN, nonsense: 0 })
            }
        };
        trouble.last = now;
        if about.answers(trouble.owed).1 {
            (trouble.owed_at, trouble.answers) = (now, false);
        }
        if is_first {
            self.said = 0;
        } else {
            next_try += trouble.pause;
            trouble.pause = (trouble.pause * 2).min(PAUSE_MAX);
        }
        let mut is_nonsense = false;
        if let Failed::Broken(Broken::Nonsense(_)) = failed {
            trouble.nonsense += 1;
            is_nonsense = trouble.nonsense >= NONSENSE_MAX;
            trouble.nonsense %= NONSENSE_MAX;
        }
        self.trouble = Some(trouble);
        // A first failure says nothing of the time before, unless it has taken that long.
        let counts = !is_first || failed == Failed::Broken(Broken::Silent);
        let left = self.left(now, timeout);
        match left {
            _ if self.is_lost() => self.standing = Standing::Lost(Some(next_try)),
            Some(..=0) if counts => {
                self.standing = Standing::Lost(Some(next_try));
                self.say(SAY_LOST);
            }
            // The last try is when the time is over.
            Some(left @ 1..) => self.standing = Standing::Down(next_try.min(now + left)),
            _ => self.standing = Standing::Down(next_try),
        }
        is_nonsense
    }

    /// Says that it takes long, if it does: tries have failed for so long. That nothing was asked for meanwhile says
    /// nothing of the server.
    pub fn tell(&mut self) {
        if !self.is_up() && self.trouble.is_some_and(|trouble| trouble.last - trouble.first >= SAID_AFTER) {
            self.say(SAY_WAITS);
        }
    }

    /// In a forked child: what is to be said is the parent's to say.
    pub fn fork_child(&mut self) {
        self.notes = 0;
    }

    fn say(&mut self, what: u32) {
        self.notes |= what & !self.said;
        self.said |= what;
    }

    /// What is to be said yet.
    #[cfg(test)]
    pub fn notes_pending(&self) -> u32 {
        self.notes
    }

    /// As [`crate::link::Link::take_note`], of a device of this name.
    pub fn take_note(&mut self, name: &str, mirrored: bool, timeout: Option<Duration>) -> Option<String> {
        let one = self.notes & self.notes.wrapping_neg();
        self.notes &= !one;
        Some(match one {
            0 => return None,
            SAY_WAITS => {
                let why = self.why;
                let until = match timeout {
                    Some(timeout) => format!("for {} s at most", timeout.as_secs()),
                    None => "until it is back".into(),
                };
                match mirrored {
                    true => format!("swap device {name:?} is out of reach: {why}; its pages come from the mirror"),
                    false => format!(
                        "swap device {name:?} is out of reach: {why}; threads that need pages from it wait, {until}"
                    ),
                }
            }
            SAY_BACK => format!("swap device {name:?} is back"),
            SAY_LOST if mirrored => format!(
                "swap device {name:?} is given up: it was out of reach for too long (timeout=); it takes no more \
                 pages, and those on it come from the mirror"
            ),
            SAY_LOST => format!(
                "swap device {name:?} is given up: it was out of reach for too long (timeout=); it takes no more \
                 pages, and those on it are lost unless it comes back"
            ),
            _ => {
                let why = if let Failed::Another(why) = self.why { why } else { "it is another one" };
                let then = if mirrored { "its pages come from the mirror" } else { "all pages on it are lost" };
                format!("swap device {name:?}: {why}: {then}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));
    const CLOSED: Failed = Failed::Broken(Broken::Closed);

    /// A server that welcomes all, and breaks off: what it is asked for, and the times of the tries.
    fn tries(timeout: Option<Duration>, about: AskedFor<'_>, answered: &[AskedFor<'_>]) -> (Condition, Vec<i64>) {
        let (mut condition, mut tried) = (Condition::new(), Vec::new());
        for now in 1000..60_000 {
            if condition.is_due(now) {
                condition.welcomed();
            }
            if !condition.is_up() {
                condition.tell();
                continue;
            }
            answered.iter().for_each(|about| condition.answered(now, *about));
            tried.push(now);
            condition.failed(now, now, about, CLOSED, timeout);
            if condition.is_lost() {
                break;
            }
        }
        (condition, tried)
    }

    #[test]
    fn a_server_that_breaks_off_is_tried_ever_less_often_and_given_up_in_time() {
        let (condition, tried) = tries(TIMEOUT, AskedFor::Pages(&[(7, 8)]), &[]);
        assert!(condition.is_lost() && tried.len() < 12 && *tried.last().unwrap() == 6000, "{tried:?}");
        let (condition, tried) = tries(None, AskedFor::Stores, &[]);
        assert!(!condition.is_lost() && tried.len() < 40, "{tried:?}");
        assert!(tried.windows(2).skip(8).all(|two| two[1] - two[0] == PAUSE_MAX), "{tried:?}");
    }

    #[test]
    fn answers_to_something_else_are_none() {
        let page = AskedFor::Pages(&[(7, 8)]);
        let others = [AskedFor::Stores, AskedFor::Other, AskedFor::Pages(&[(1, 7), (8, 90)])];
        assert!(tries(TIMEOUT, page, &others).0.is_lost());
        assert!(tries(TIMEOUT, AskedFor::Stores, &[page, AskedFor::Other]).0.is_lost());
        assert!(!tries(TIMEOUT, page, &[AskedFor::Pages(&[(1, 2), (4, 8)])]).0.is_lost());
    }

    #[test]
    fn what_is_not_asked_for_again_is_not_waited_for() {
        const LONG: Option<Duration> = Some(Duration::from_secs(20));
        let (mut condition, pages) = (Condition::new(), AskedFor::Pages(&[(8, 90)]));
        condition.failed(1000, 1000, AskedFor::Pages(&[(7, 8)]), CLOSED, LONG);
        for now in (2000..60_000).step_by(1000) {
            condition.failed(now, now, pages, CLOSED, LONG);
            condition.welcomed();
            condition.answered(now + 100, pages);
        }
        assert!(!condition.is_lost());
        for now in (60_000..90_000).step_by(1000) {
            condition.failed(now, now, pages, CLOSED, LONG);
        }
        assert!(condition.is_lost(), "it does not answer any more");
    }

    #[test]
    fn one_answer_may_not_take_longer_than_all_together() {
        let mut condition = Condition::new();
        let silent = Failed::Broken(Broken::Silent);
        condition.failed(7000, 1000, AskedFor::Other, silent, TIMEOUT);
        assert!(condition.is_lost());
        let mut condition = Condition::new();
        condition.failed(4000, 1000, AskedFor::Other, silent, TIMEOUT);
        assert!(!condition.is_lost() && condition.left(4000, TIMEOUT) == Some(2000));
    }

    #[test]
    fn what_nothing_is_asked_of_is_not_said_to_be_away() {
        let mut condition = Condition::new();
        condition.failed(1000, 900, AskedFor::Stores, CLOSED, TIMEOUT);
        // The next one asks two seconds later, and the server has not welcomed it yet.
        assert!(condition.is_due(3000) && !condition.is_up());
        condition.tell();
        assert_eq!(condition.notes_pending(), 0);
        condition.failed(3100, 3000, AskedFor::Stores, CLOSED, TIMEOUT);
        condition.tell();
        assert_eq!(condition.notes_pending(), SAY_WAITS);
    }

    #[test]
    fn failures_that_lie_apart_are_not_added() {
        let mut condition = Condition::new();
        for now in (1000..100_000).step_by(6000) {
            condition.failed(now, now, AskedFor::Stores, CLOSED, TIMEOUT);
            assert!(!condition.is_lost() && condition.is_due(now));
            condition.welcomed();
        }
    }

    #[test]
    fn what_is_no_answer_is_told_the_third_time() {
        let mut condition = Condition::new();
        let nonsense = Failed::Broken(Broken::Nonsense("x"));
        let told: Vec<_> = (1..7).map(|now| condition.failed(now, now, AskedFor::Other, nonsense, None)).collect();
        assert_eq!(told, [false, false, true, false, false, true]);
    }
}
