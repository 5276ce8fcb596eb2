//! Which of two ways to do the same thing is faster here and now: both are tried, by turns. Callers: the pager's
//! `affinity`, `ahead`.

use std::time::{Duration, Instant};

/// An epoch that lasts so many times as long as it should had a pause in it, when nothing was wanted: it says nothing.
const PAUSE: u32 = 8;
/// The way that seems to be slower is tried at least once in so many epochs.
const SELDOM: u32 = 64;
/// Pages below which an epoch says nothing.
const PAGES_MIN: u64 = 64;

/// Which of two ways brings more pages in.
#[derive(Debug)]
pub(crate) struct Trial {
    /// How long one way is tried.
    epoch: Duration,
    /// Whether the second way is the one to go now, and whether it is the faster one as far as is known.
    second: bool,
    best: bool,
    /// Pages a second: the first way, the second. `None`: not tried yet.
    rates: [Option<f64>; 2],
    /// Epochs since the slower way was tried, and after how many it is tried again.
    epochs: u32,
    every: u32,
    often: u32,
    begun: Instant,
    /// The count of pages then.
    pages: u64,
}

impl Trial {
    /// Begins with the second way. `epoch`: how long each is tried; short against a program's phases. `often`: one
    /// epoch in so many goes to the way that seems to be slower, at first; each time that it is, twice as many pass
    /// before the next.
    pub(crate) fn new(epoch: Duration, often: u32, now: Instant) -> Trial {
        let (second, best, rates) = (true, true, [None; 2]);
        Trial { epoch, second, best, rates, epochs: 0, often, every: often, begun: now, pages: 0 }
    }

    /// `pages` have been brought in by now: whether to go the second way.
    pub(crate) fn turn(&mut self, pages: u64, now: Instant) -> bool {
        let (time, got) = (now - self.begun, pages - self.pages);
        if time < self.epoch || got < PAGES_MIN {
            return self.second;
        }
        (self.begun, self.pages) = (now, pages);
        if time > self.epoch * PAUSE {
            return self.second;
        }
        let (way, before) = (self.second, self.best);
        // What is seldom tried was known long ago, so the new number counts for more.
        let new = if way == before { 0.25 } else { 0.75 };
        let rate = got as f64 / time.as_secs_f64();
        let known = &mut self.rates[usize::from(way)];
        *known = Some(known.map_or(rate, |old| old + (rate - old) * new));
        let [Some(first), Some(second)] = self.rates else {
            self.second = !way;
            return self.second;
        };
        self.best = second >= first;
        if self.best != before {
            self.every = self.often;
        } else if way != before {
            self.every = (self.every * 2).min(SELDOM);
        }
        self.epochs += 1;
        let tries = self.epochs >= self.every;
        if tries {
            self.epochs = 0;
        }
        self.second = self.best != tries;
        self.second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Duration = Duration::from_millis(32);

    #[test]
    fn a_pause_says_nothing_about_a_way() {
        let mut now = Instant::now();
        let mut trial = Trial::new(EPOCH, 16, now);
        let mut pages = 0;
        let mut turn = |pause: Duration, more: u64| {
            now += pause;
            pages += more;
            trial.turn(pages, now)
        };
        assert!(turn(Duration::from_secs(5), 1000), "the first epoch began long before the first fault");
        assert!(!turn(EPOCH, 2000), "the other is to be tried");
        assert!(turn(EPOCH, 1000), "and is slower");
        assert!((0..8).all(|_| turn(Duration::from_secs(1), 100)), "still");
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut now = Instant::now();
        let mut trial = Trial::new(EPOCH, 16, now);
        let mut pages = 0;
        // Share of epochs that went one way, while it brings so many pages an epoch.
        let mut run = |first: u64, second: u64| {
            let mut way = trial.second;
            let mut count = 0;
            for _ in 0..200 {
                pages += if way { second } else { first };
                now += EPOCH;
                way = trial.turn(pages, now);
                count += u32::from(way);
            }
            count
        };
        assert!(run(1000, 2000) > 180);
        let back = run(2000, 500);
        assert!(back < 60, "{back}");
        assert_eq!(run(0, 0) % 200, 0, "nothing to go by: nothing changes");
    }
}
