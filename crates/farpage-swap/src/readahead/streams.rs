//! Our own windows: streams of faults, for memory where pages read ahead are mapped at once.
//!
//! The first touch of such a page is invisible, but two things are not:
//! * the *next fault*: when it is the first page behind what was brought in, the program went through the window;
//! * a *marker*: a page of the window that was left unmapped. Its touch ([`Streams::on_hit`]) says that the program is
//!   on its way through the window, early enough to read the next one in the background.
//!
//! ```text
//!   fault   fault                 marker
//!     |  |  |                       v                          unmapped: the background was too slow (late)
//!   --1--2=====4-----8-------[16.....|.........][ read in the background ...|.........][
//! ```
//! Of a program of which nothing is known, a fault that continues nothing is served alone and becomes a candidate; a
//! second one right beside it makes a stream of 4 pages, which doubles with every fault at exactly the expected page
//! and with every marker. A fault a little further on (half a window: the program skips a few) is a new run of the same
//! stream. Four faults at equal distances make a strided stream ([`super::Strides`]). Random faults stay single.
//!
//! How far the program's runs go is counted ([`Lengths`]), and a window reaches as far as its run is likely to: beyond
//! the double where runs are known to go on, and already at a fault that continues nothing. Windows know nothing of 2
//! MiB borders.

use super::{Lengths, Strides, Window};

/// Streams that are followed at the same time.
const STREAMS: usize = 8;
/// The first window of a stream once it is recognised.
const FIRST_WINDOW: u32 = 4;
/// Smallest window whose marker asks for the next one: below, a wake-up of another thread costs more than it hides.
const AHEAD_MIN: u32 = 16;
/// Largest window of a strided stream: its pages are brought in one by one.
const STRIDED_MAX: u32 = 32;
/// Largest patience with a silent stream, see [`Stream::staleness`].
const MAX_PATIENCE: u32 = 64;
/// Largest window of a fault that continues nothing, whatever is known of others.
const ALONE_MAX: u32 = 16;
/// One past the last page number of a 64-bit address space; windows end there.
const END: u64 = (u64::MAX >> crate::PAGE_SHIFT) + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// One fault seen: a candidate that may go either way.
    Unknown,
    Up,
    Down,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// What was brought in last: `[low, high)`. The stream goes on at `high` (up) or `low - 1` (down).
    low: u64,
    high: u64,
    /// From page to page; 1: neighbours.
    stride: u32,
    direction: Direction,
    /// Its last window before clipping; 0: unused entry.
    window: u32,
    /// How far behind the expected page a fault still continues the stream.
    slack: u64,
    /// `[low, high)` was asked for at a marker: it may be on its way.
    posted: bool,
    /// Pages read ahead by the last window, as far as known.
    ahead: u32,
    /// Pages that its run has come through.
    proved: u32,
    /// Its run began a little behind the end of another.
    resumed: bool,
    /// What a fault ages it by, see [`Stream::staleness`].
    rate: u32,
    /// Time (faults) of its last fault or hit.
    seen: u64,
}

impl Stream {
    const UNUSED: Self = Self {
        low: 0,
        high: 0,
        stride: 1,
        direction: Direction::Unknown,
        window: 0,
        slack: 0,
        posted: false,
        ahead: 0,
        proved: 0,
        resumed: false,
        rate: 0,
        seen: 0,
    };

    /// Whether `page` is one of those that were brought in, or asked for, last.
    fn has(&self, page: u64) -> bool {
        let down = self.direction == Direction::Down;
        let from = if down { self.high - 1 } else { self.low };
        self.window > 0 && (self.low..self.high).contains(&page) && from.abs_diff(page) % u64::from(self.stride) == 0
    }

    /// Pages of its last window. The first of one that was asked for at a marker was read ahead, too.
    fn last(&self) -> u32 {
        self.ahead + u32::from(!self.posted)
    }

    /// If `page` continues this stream: how many pages it skipped, and the direction.
    fn gap(&self, page: u64) -> Option<(u64, Direction)> {
        if self.posted && self.has(page) {
            return Some((0, self.direction));
        }
        let up = page.checked_sub(self.high);
        let down = self.low.checked_sub(1).and_then(|next| next.checked_sub(page));
        let (gap, direction) = match (self.direction, up, down) {
            (Direction::Up | Direction::Unknown, Some(gap), _) => (gap, Direction::Up),
            (Direction::Down, _, Some(gap)) => (gap, Direction::Down),
            // What was read upwards proves nothing about the way down.
            (Direction::Unknown, _, Some(0)) if self.ahead == 0 => (0, Direction::Down),
            _ => return None,
        };
        (self.window > 0 && gap <= self.slack).then_some((gap, direction))
    }

    /// How fit this entry is to be replaced at time `now` by a candidate at `page`: its age, measured in its own
    /// windows (a stream faults once per window, and must outlive the random faults between), up to a limit that makes
    /// room after a phase ends. An entry whose last window contains `page` goes first: what it read ahead is gone
    /// again.
    fn staleness(&self, page: u64, now: u64) -> u64 {
        match self.window {
            _ if self.has(page) => u64::MAX,
            0 => u64::MAX - 1,
            _ => now.wrapping_sub(self.seen).saturating_mul(self.rate.into()),
        }
    }

    /// A range, from its first page and how many there are, outside of which it has no page and none continues it.
    fn reach(&self) -> (u64, u64) {
        let low = self.low.saturating_sub(self.slack + 1);
        (low, self.high.saturating_add(self.slack).saturating_add(1).saturating_sub(low))
    }

    /// Puts the next window of `pages` pages at `from`, and returns its lowest page and how many there are.
    fn go(&mut self, from: u64, pages: u32, direction: Direction) -> (u64, u32) {
        let step = u64::from(self.stride);
        self.rate = MAX_PATIENCE / self.window.clamp(1, MAX_PATIENCE);
        let room = if direction == Direction::Down { from } else { (END - 1).saturating_sub(from) };
        let ahead = u64::from(pages - 1).min(room / step);
        let reach = ahead * step;
        let pages = ahead as u32 + 1; // at most what was asked for
        self.direction = direction;
        let start = if direction == Direction::Down {
            // The next one is expected at `low - 1`.
            (self.low, self.high) = ((from - reach + 1).saturating_sub(step), from + 1);
            from - reach
        } else {
            (self.low, self.high) = (from, (from + reach).saturating_add(step));
            from
        };
        self.slack = match direction {
            Direction::Unknown => 0,
            _ if self.stride > 1 => 0,
            _ => u64::from(pages / 2 + 1),
        };
        (start, pages)
    }
}

/// Recognised streams of one mapping (or process), perhaps of one thread. See the module documentation.
#[derive(Debug, Clone)]
pub struct Streams {
    table: [Stream; STREAMS],
    /// Where each of them can be met ([`Stream::reach`]): a fault at random is in none of these, and costs no more than
    /// to see that.
    reach: [(u64, u64); STREAMS],
    strides: Option<Strides>,
    now: u64,
    runs: Runs,
}

/// How far runs go, by their kinds.
#[derive(Debug, Clone)]
struct Runs {
    /// That began with a fault that continued nothing: upwards, downwards.
    up: Lengths,
    down: Lengths,
    /// That began a little behind another.
    resumed: Lengths,
    strided: Lengths,
}

impl Runs {
    const fn new() -> Runs {
        let (up, down) = (Lengths::doubting(), Lengths::believing());
        Runs { up, down, resumed: Lengths::believing(), strided: Lengths::believing() }
    }

    fn of(&mut self, s: &Stream) -> &mut Lengths {
        match s.direction {
            _ if s.stride > 1 => &mut self.strided,
            _ if s.resumed => &mut self.resumed,
            Direction::Down => &mut self.down,
            _ => &mut self.up,
        }
    }

    /// The run of a stream has ended. What it used of its last window is not known, but for the page of the fault: too
    /// short a length makes smaller windows, which tell it better.
    fn end(&mut self, s: &Stream) {
        if s.window == 0 {
            return;
        }
        if s.direction == Direction::Down && s.stride == 1 && !s.resumed {
            self.up.note(1); // a page alone did not go on upwards
        }
        self.of(s).note(s.proved.saturating_add(1));
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// No streams yet; neighbours only (every window has stride 1).
    pub const fn new() -> Self {
        Self { table: [Stream::UNUSED; STREAMS], reach: [(0, 0); STREAMS], strides: None, now: 0, runs: Runs::new() }
    }

    /// The same, also for strided streams.
    pub const fn with_strides() -> Self {
        Self { strides: Some(Strides::new()), ..Self::new() }
    }

    /// The pages to bring in for a fault at `page`, at most `max` (0 is taken as 1); `page` is the first (ascending) or
    /// the last (descending) of them. The caller clips it to the mapping and to what is swapped out, and says with
    /// [`Self::on_served`] what remained of it.
    ///
    /// [`Window::confirmed`] counts pages read ahead for the same stream that are now known to have been used: all of
    /// its last window, if this fault is at the page right behind it. A program that touches every third page only
    /// comes to that page every third time, so the sum is right on the average, and never above what was read ahead.
    ///
    /// `is_there` says of another page whether it is in memory: a run that comes to pages that are goes on behind them.
    pub fn on_fault(&mut self, page: u64, max: u32, is_there: impl Fn(u64) -> bool) -> Window {
        self.now = self.now.wrapping_add(1);
        let (now, max) = (self.now, max.max(1));
        if self.is_near(page) {
            let followed = self.table.iter().enumerate().filter_map(|(i, s)| Some((s.gap(page)?, i)));
            if let Some(((gap, direction), i)) = followed.min_by_key(|((gap, _), _)| *gap) {
                let mut between =
                    if direction == Direction::Down { page + 1..page + 1 + gap } else { page - gap..page };
                let went_on = between.all(is_there);
                return self.follow(i, page, (gap, went_on), direction, max);
            }
        }
        let stride = self.strides.as_mut().and_then(|strides| strides.note(page));
        let (mut stream, direction, window) = match stride {
            Some(d) if max > 1 => {
                let direction = if d > 0 { Direction::Up } else { Direction::Down };
                // As far as it is proved: four pages.
                (Stream { stride: d.unsigned_abs() as u32, proved: 4, ..Stream::UNUSED }, direction, FIRST_WINDOW / 2)
            }
            _ => (Stream::UNUSED, Direction::Unknown, 1),
        };
        let most = if stream.stride > 1 { window } else { ALONE_MAX };
        stream.window = self.runs.of(&stream).window(stream.proved + 1, window, most.min(max));
        stream.seen = now;
        let (start, pages) = stream.go(page, stream.window, direction);
        stream.ahead = pages - 1;
        let stride = stream.stride;
        if let Some(i) = (0..STREAMS).max_by_key(|&i| self.table[i].staleness(page, now)) {
            self.runs.end(&self.table[i]);
            self.put(i, stream);
        }
        Window { stride, down: direction == Direction::Down, ..Window::of(start, pages) }
    }

    fn put(&mut self, i: usize, stream: Stream) {
        (self.table[i], self.reach[i]) = (stream, stream.reach());
    }

    /// Whether `page` is where one of the streams may have it, or go on.
    fn is_near(&self, page: u64) -> bool {
        let near = self.reach.iter().fold(false, |near, (low, len)| near | (page.wrapping_sub(*low) < *len));
        debug_assert!(near || self.table.iter().all(|s| s.gap(page).is_none() && !s.has(page)));
        near
    }

    /// Whether a fault at `page` continues one of the streams.
    pub fn follows(&self, page: u64) -> bool {
        self.continued(page).next().is_some()
    }

    /// The streams that a fault at `page` continues.
    fn continued(&self, page: u64) -> impl Iterator<Item = &Stream> {
        let goes_on = move |s: &&Stream| s.gap(page).is_some() && s.direction != Direction::Unknown;
        self.table.iter().filter(move |_| self.is_near(page)).filter(goes_on)
    }

    /// Whether a fault at `page` continues a stream of neighbours.
    pub fn goes_through(&self, page: u64) -> bool {
        self.continued(page).any(|s| s.stride == 1)
    }

    /// As [`Self::on_fault`] where the program has said that it goes upwards: the full window at once.
    pub fn on_sequential(&mut self, page: u64, max: u32) -> Window {
        let w = self.on_fault(page, max, |_| true);
        let (now, max) = (self.now, max.max(1));
        let newest = |s: &Stream| s.window > 0 && s.seen == now && s.direction != Direction::Down;
        let Some(i) = self.table.iter().position(newest) else { return w };
        let mut s = self.table[i];
        if s.stride > 1 || s.window >= max {
            return w;
        }
        s.window = max;
        let (start, pages) = s.go(page, max, Direction::Up);
        s.ahead = pages - 1;
        self.put(i, s);
        Window { confirmed: w.confirmed, late: w.late, ..Window::of(start, pages) }
    }

    /// The next window of stream `i` for a fault that continues it: `gap` pages behind the last one, and the run
    /// `went_on`.
    fn follow(&mut self, i: usize, page: u64, (gap, went_on): (u64, bool), direction: Direction, max: u32) -> Window {
        let old = self.table[i];
        let late = old.posted && old.has(page);
        let mut s = old;
        let mut confirmed = 0;
        let mut limit = old.window;
        s.direction = direction;
        if !went_on {
            self.runs.end(&old);
            (s.proved, s.resumed) = (0, true);
        } else if !late {
            s.proved = old.proved.saturating_add(old.last() + gap as u32);
            if gap == 0 {
                confirmed = if old.posted { 0 } else { old.ahead };
                let turned = old.direction == Direction::Unknown && direction == Direction::Down;
                limit = if turned { FIRST_WINDOW } else { old.window.saturating_mul(2).max(FIRST_WINDOW) };
            }
        }
        let most = if s.stride > 1 { STRIDED_MAX } else { u32::MAX }.min(max);
        s.window = self.runs.of(&s).window(s.proved + 1, limit, most);
        (s.posted, s.seen) = (false, self.now);
        let (start, pages) = s.go(page, s.window, direction);
        s.ahead = pages - 1;
        self.put(i, s);
        Window { stride: s.stride, confirmed, down: direction == Direction::Down, late, ..Window::of(start, pages) }
    }

    /// A marker at `page` was touched. If it belongs to the last window of a stream: the next window, to be read in the
    /// background. Faults on its pages until then are `late`. The caller clips it as for [`Self::on_fault`], but need
    /// not say what remained.
    pub fn on_hit(&mut self, page: u64, max: u32) -> Option<Window> {
        self.now = self.now.wrapping_add(1);
        let i = self.table.iter().position(|s| (s.direction != Direction::Unknown || s.ahead > 0) && s.has(page))?;
        let s = &mut self.table[i];
        s.seen = self.now;
        if s.direction == Direction::Unknown {
            s.direction = Direction::Up; // as it was read
        }
        if s.window < AHEAD_MIN || max < AHEAD_MIN {
            return None;
        }
        let (old, proofs) = (s.window, s.proved.saturating_add(s.last()));
        let room = if s.direction == Direction::Down { s.low } else { END.saturating_sub(s.high) };
        let from = if s.direction == Direction::Down { s.low.checked_sub(1)? } else { s.high };
        if room == 0 {
            return None;
        }
        let most = if s.stride > 1 { STRIDED_MAX } else { u32::MAX }.min(max);
        let window = self.runs.of(s).window(proofs + 1, old.saturating_mul(2), most);
        if window < AHEAD_MIN {
            return None;
        }
        (s.proved, s.window) = (proofs, window);
        let (start, pages) = s.go(from, s.window, s.direction);
        (s.posted, s.ahead) = (true, pages);
        let s = *s;
        let (stride, down) = (s.stride, s.direction == Direction::Down);
        self.put(i, s);
        Some(Window { stride, down, ..Window::of(start, pages) })
    }

    /// A page was touched that had been brought in by another rule, unmapped: if a run is likely to go on from there,
    /// the window to read in the background (with this page in it), as for [`Self::on_hit`].
    pub fn on_touch(&mut self, page: u64, max: u32) -> Option<Window> {
        let w = self.on_fault(page, max, |_| true);
        let now = self.now;
        let s = self.table.iter_mut().find(|s| s.seen == now && s.window > 1)?;
        s.posted = true;
        Some(w)
    }

    /// `[start, start + pages)` of the last window of neighbours was worked through: brought in, or found present
    /// already. The stream goes on behind it, or anywhere in the part of the window that was cut off.
    pub fn on_served(&mut self, start: u64, pages: u32) {
        let end = start.saturating_add(pages.into());
        let window = |s: &&mut Stream| {
            s.window > 0 && s.stride == 1 && !s.posted && start < end && s.low < end && start < s.high
        };
        let served = self.table.iter_mut().enumerate().filter(|(_, s)| window(s)).max_by_key(|(_, s)| s.seen);
        if let Some((i, s)) = served {
            s.slack = s.slack.saturating_add((s.high - s.low).saturating_sub(end - start));
            (s.low, s.high) = (start, end);
            s.ahead = s.ahead.min(pages.saturating_sub(1));
            self.reach[i] = s.reach();
        }
    }

    /// The window of the stream that was seen last, pages; 0: there is none.
    pub fn window(&self) -> u32 {
        self.table.iter().max_by_key(|s| s.seen).map_or(0, |s| s.window)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
