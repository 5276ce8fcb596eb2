//! What `farpage run` does with a trace: the policy of [`super::Ours`], and around it
//! * readahead: a page that is read brings in the window of its stream, of one rank; a cached one that is wanted back
//!   in order brings its cached neighbours along;
//! * batches: pages are unmapped [`EVICT_BATCH`] at a time, neighbours together, and stored some at a time;
//! * a short stage, and as much room as is kept free.
//!
//! What is left out: windows that are read before their stream comes to them (they are read anyway, but for the last
//! one), first touches that bring zeros for their neighbours, threads (a trace does not say which one it was), time.

use super::ours::{At, Table};
use super::{Met, Moved, Policy};
use crate::readahead::{LIST_MAX, Streams, Tuning, Window, run_around};
use crate::workingset::{EVICT_BATCH, Rank, STAGE_PART, WorkingSet, in_runs};
use std::collections::HashMap;
use std::ops::Range;

/// Pages that leave at a time.
const STORED: usize = 16;

/// See the module documentation.
#[derive(Debug)]
pub struct Run {
    set: WorkingSet,
    table: Table,
    size: u32,
    streams: Streams,
    window_max: u32,
    /// Where in the program the pages are, by their numbers in the trace; and the pages that have content, the other
    /// way round.
    numbers: Vec<u64>,
    pages: HashMap<u64, u32>,
}

impl Run {
    /// A memory of `size` pages; `numbers`: where in the program each page of the trace is, in pages.
    pub fn new(size: u32, numbers: &[u64]) -> Run {
        Run {
            set: WorkingSet::new(),
            table: Table::new(numbers.len() as u32),
            size,
            streams: Streams::with_strides(),
            window_max: Tuning::default().max_pages_of_run(size.into()).min((size / 2).max(1)),
            numbers: numbers.to_vec(),
            pages: HashMap::new(),
        }
    }

    /// Where the page with this number in the program is.
    fn at(&self, number: u64) -> At {
        self.pages.get(&number).map_or(At::New, |page| self.table.at(*page))
    }

    /// The window of the stream that page `number` continues.
    fn window(&mut self, number: u64) -> Window {
        let Run { table, pages, streams, .. } = self;
        streams.on_fault(number, self.window_max, |number| {
            pages.get(&number).is_some_and(|page| matches!(table.at(*page), At::Mapped(_) | At::Cached(_)))
        })
    }

    /// [`run_around`] `number`, in a window.
    fn run_around(&self, number: u64, window: &Window, inside: impl Fn(At) -> bool) -> Range<u64> {
        run_around(number, window.start, window.end(), |number| inside(self.at(number)))
    }

    /// A page that was thrown out is wanted: it comes in with its window.
    fn read(&mut self, page: u32, moved: &mut Moved) {
        let At::Out(shadow) = self.table.at(page) else { return };
        let number = self.numbers[page as usize];
        let window = self.window(number);
        let mut others: Vec<u64> = if window.stride == 1 {
            self.run_around(number, &window, |at| matches!(at, At::Out(_))).collect()
        } else {
            window.iter().filter(|number| matches!(self.at(*number), At::Out(_))).take(LIST_MAX).collect()
        };
        self.make_room(others.len() as u32 + 1, moved);
        let rank = self.set.rank_of(shadow);
        self.set.note_back(shadow);
        self.set.note_read(shadow);
        self.map(page, rank);
        if let (Some(first), 1) = (others.first(), window.stride) {
            self.streams.on_served(*first, others.len() as u32);
        }
        // Those behind the page, then those before it.
        let behind = others.partition_point(|other| *other <= number);
        others.rotate_left(behind);
        for number in others {
            let Some(&other) = self.pages.get(&number) else { continue };
            let At::Out(shadow) = self.table.at(other) else { continue };
            self.set.note_back(shadow);
            self.map(other, rank);
            moved.ahead.push(other);
        }
    }

    /// A cached page was wanted back: so are its cached neighbours, if the program goes through them in order.
    fn refault_around(&mut self, page: u32) {
        let number = self.numbers[page as usize];
        if !self.streams.goes_through(number) {
            return;
        }
        let window = self.window(number);
        if window.stride != 1 {
            return;
        }
        let run = self.run_around(number, &window, |at| matches!(at, At::Cached(_)));
        for number in run.clone() {
            let Some(&other) = self.pages.get(&number) else { continue };
            if let At::Cached(rank) = self.table.at(other) {
                self.set.uncache(&self.table, other, rank);
                self.set.note_kept(rank);
                self.map(other, rank);
            }
        }
        self.streams.on_served(run.start, (run.end - run.start) as u32);
    }

    fn map(&mut self, page: u32, rank: Rank) {
        self.table.set(page, At::Mapped(rank));
        self.set.map(&self.table, page, rank);
    }

    /// Room for `want` pages.
    fn make_room(&mut self, want: u32, moved: &mut Moved) {
        while self.set.mapped() + self.set.cached() + want > self.size {
            self.fill_stage();
            let before = moved.out.len();
            while moved.out.len() < before + STORED
                && let Some((page, shadow)) = self.set.evict_one(&self.table)
            {
                self.table.set(page, At::Out(shadow));
                moved.out.push(page);
            }
            if moved.out.len() == before {
                return;
            }
        }
    }

    /// Unmaps the pages that are next, until there are enough cached ones.
    fn fill_stage(&mut self) {
        let target = self.set.stage_target((self.size / STAGE_PART).max(1));
        while self.set.cached() < target || self.set.is_behind() {
            let mut oldest = [0; EVICT_BATCH];
            let n = self.set.oldest(&self.table, target, &mut oldest);
            if n == 0 {
                return;
            }
            let placed = |(age, page): (usize, &u32)| (self.numbers[*page as usize], age, *page);
            let mut batch: Vec<(u64, usize, u32)> = oldest[..n].iter().enumerate().map(placed).collect();
            in_runs(&mut batch);
            for (_, _, page) in batch {
                if let At::Mapped(rank) = self.table.at(page) {
                    self.set.cache(&self.table, page, rank);
                    self.table.set(page, At::Cached(rank));
                }
            }
        }
    }
}

impl Policy for Run {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        match self.table.at(page) {
            At::Mapped(_) => Met::Hit,
            At::Cached(rank) => {
                let rank = self.set.refault(&self.table, page, rank);
                self.table.set(page, At::Mapped(rank));
                self.refault_around(page);
                Met::Minor
            }
            At::New => {
                self.make_room(1, moved);
                self.pages.insert(self.numbers[page as usize], page);
                self.map(page, Rank::NEW);
                Met::Miss
            }
            At::Out(_) => {
                self.read(page, moved);
                Met::Miss
            }
        }
    }

    fn free(&mut self, page: u32) {
        self.pages.remove(&self.numbers[page as usize]);
        self.table.free(&mut self.set, page);
    }
}
