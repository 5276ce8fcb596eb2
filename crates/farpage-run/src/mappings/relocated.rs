//! Finds relocated tables of libraries ([`farpage_base::sys::relro`]) that are worth being swapped out, for the pager
//! to take over ([`crate::pager::relocated`]).
//!
//! The kernel manages no private mapping of a file, so what the loader has written of a library stays in memory. Once
//! it is read-only it does not change any more, and can be exchanged for anonymous memory of the same content, which is
//! managed like the rest. That is done where memory is short, and for what was there at two looks: a library whose
//! loading fails is gone by then.
//!
//! Runs on the monitor's thread, which looks seldom.

use crate::mappings::manageable::adoptable_parts;
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::maps::{Kind, Mapping, mappings_of_files};
use farpage_base::sys::pagemap::anonymous_runs;
use farpage_base::sys::proc::Proc;
use farpage_base::sys::relro::{HEADER, HEADERS, program_headers, relocated_part};
use rustix::fd::OwnedFd;
use rustix::io::pread;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// Fewer bytes are not worth a mapping of their own.
const LEAST: usize = 256 * 1024;

/// What was handed over so many times and is still there cannot be taken over.
const IN_VAIN: u32 = 4;

/// The monitor's knowledge.
pub(crate) struct Relocated {
    pagemap: Option<Fd>,
    /// `/proc/self/mem`.
    memory: Option<OwnedFd>,
    next: Option<Instant>,
    /// What was found at the last look.
    before: Vec<(usize, usize)>,
    /// Looks at which the pager was handed something, one after the other.
    handed: u32,
}

impl Relocated {
    pub(crate) fn new(proc: &Proc) -> Relocated {
        let open = |name| proc.private_file(name).ok();
        let (pagemap, memory) = (open("thread-self/pagemap").map(Fd::new), open("thread-self/mem"));
        Relocated { pagemap, memory, next: None, before: Vec::new(), handed: 0 }
    }

    /// `unknown` pages of the process are not accounted for: if they may be relocated tables and memory is short, looks
    /// for them, and hands the pager those that were there at the look before.
    pub(crate) fn look(&mut self, e: &Engine, unknown: i64, maps: &OwnedFd, buffer: &mut [u8]) {
        let now = Instant::now();
        let is_due = self.next.is_none_or(|next| now >= next);
        let is_short = e.budget.pressure() || e.budget.is_crowded(unknown);
        if !is_due || !is_short || unknown < (LEAST / farpage_swap::PAGE_SIZE) as i64 {
            return;
        }
        self.next = Some(now + PAUSE);
        let found = self.find(e, maps, buffer).unwrap_or_default();
        let stayed: Vec<_> = found.iter().copied().filter(|run| self.before.contains(run)).collect();
        self.before = found;
        self.handed = if self.before.is_empty() { 0 } else { self.handed + u32::from(!stayed.is_empty()) };
        if !stayed.is_empty() {
            *lock(&e.discovery.relocated) = stayed;
            e.kick_pager();
        }
    }

    /// Whether there is something that the pager will have taken over in a moment.
    pub(crate) fn is_expecting(&self) -> bool {
        !self.before.is_empty() && self.handed < IN_VAIN
    }

    /// `None`: `/proc` does not say.
    fn find(&self, e: &Engine, maps: &OwnedFd, buffer: &mut [u8]) -> Option<Vec<(usize, usize)>> {
        let (pagemap, memory) = (self.pagemap.as_ref()?, self.memory.as_ref()?);
        // Of each file, where which part of it is mapped.
        let (mut files, mut name) = (Vec::<Vec<MappedPart>>::new(), Vec::new());
        mappings_of_files(maps, buffer, |mapping, offset, of| {
            if !matches!(mapping.kind, Kind::File | Kind::ReadOnlyFile) {
                return;
            }
            if name != of {
                name.clear();
                name.extend_from_slice(of);
                files.push(Vec::new());
            }
            files.last_mut().into_iter().for_each(|file| file.push(MappedPart { mapping, offset }));
        })
        .ok()?;
        let is_candidate = |m: &Mapping| m.kind == Kind::ReadOnlyFile && m.end - m.start >= LEAST;
        files.retain(|file| file.iter().skip(1).any(|part| is_candidate(&part.mapping)));
        let (mut found, mut parts) = (Vec::new(), Vec::new());
        for file in &files {
            let Some(tables) = tables_of(file, memory) else { continue };
            for m in file.iter().map(|part| part.mapping).filter(is_candidate) {
                let (start, end) = (tables.0.max(m.start), tables.1.min(m.end));
                parts.clear();
                if start < end {
                    adoptable_parts(e, start, end, &mut parts);
                }
                if parts == [(start, end)] {
                    let worth = |from, to| (to - from >= LEAST).then_some((from, to));
                    anonymous_runs(pagemap, start, end, |from, to| found.extend(worth(from, to))).ok()?;
                }
            }
        }
        Some(found)
    }
}

/// Where a part of a file is mapped.
struct MappedPart {
    mapping: Mapping,
    offset: usize,
}

/// Where the file that is mapped in these parts has relocated tables, if it is a library or a program.
fn tables_of(file: &[MappedPart], memory: &OwnedFd) -> Option<(usize, usize)> {
    let first = file.first().filter(|part| part.offset == 0)?;
    let (mut header, mut headers) = ([0; HEADER], [0; HEADERS]);
    let read = |at: usize, to: &mut [u8]| pread(memory, &mut *to, at as u64).is_ok_and(|n| n == to.len());
    let (offset, len) = read(first.mapping.start, &mut header).then(|| program_headers(&header)).flatten()?;
    // Mostly behind that, but what changes a file later puts new ones at the end.
    let at = file.iter().find_map(|MappedPart { mapping, offset: from }| {
        let inside = offset.checked_sub(*from).filter(|inside| inside + len <= mapping.end - mapping.start)?;
        Some(mapping.start + inside)
    })?;
    read(at, &mut headers[..len]).then(|| relocated_part(&headers[..len], first.mapping.start)).flatten()
}
