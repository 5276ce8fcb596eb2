//! Memory that is not managed although the program has it: how much it is, what it is, and what the program is told of
//! it.
//!
//! What the kernel does not let a process register or move counts against the budget like the rest: written pages of
//! private file mappings, memory with a userfaultfd of the program's own, small mappings. Where it leaves less than a
//! quarter of the budget, managed memory would be squeezed to nothing, and each fault would wait for one of a few
//! pages; so the budget gives way by what is missing ([`crate::shared::budget::Budget::limit`]), and says so, once.
//! Pages that are registered and cannot be taken out all the same (locked, not writable) are found by reclaim, when
//! nothing else is left.
//!
//! Shared memory is neither managed nor counted; more of it than the budget is worth a word, too.
//!
//! Runs on the monitor's thread, which looks seldom: a look reads all mappings and the page tables of those that are
//! not managed.

use crate::shared::state::Engine;
use crate::shared::warn_once::{self, WarningKind, warn_once_in_tree};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::maps::{Kind, Mapping, mappings};
use farpage_base::sys::message::warn;
use farpage_base::sys::pagemap::{anonymous_pages, mapped_pages};
use farpage_base::sys::proc::{Proc, rss_shared_pages};
use farpage_ipc::conf::size;
use farpage_ipc::tree::{self, ClampedPages};
use farpage_swap::PAGE_SIZE;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two looks at least so long, and so many times as long as one takes.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_TIMES: u32 = 20;
/// Between two looks at shared memory.
const PAUSE_SHARED: Duration = Duration::from_millis(100);
/// After so long a part of the pages that were found stuck is tried again.
const STUCK_FOR: Duration = Duration::from_millis(250);
/// What can be managed is so after so long, or is not worth it. While many threads fill memory, it takes as long to get
/// the lock of the address space.
const SOON: Duration = Duration::from_millis(200);
/// Longest name that is told.
const NAME: usize = 120;

/// A tree's budget that is exceeded by more than this part, and for so long, is worth a word.
const OVER_PART: i64 = 20;
const OVER_FOR: Duration = Duration::from_millis(500);

/// What the monitor has seen. Pages.
pub(crate) struct UnknownPages {
    /// Anonymous memory that the process pays for.
    pub rss: i64,
    /// Of it, what is not accounted for.
    pub unknown: i64,
    /// Some of that is about to be managed.
    pub leaves_soon: bool,
}

/// The monitor's knowledge.
#[derive(Default)]
pub(crate) struct Unmanaged {
    /// None: it cannot be opened. Then what is not accounted for stays what it was.
    pagemap: Option<Fd>,
    next: Option<Instant>,
    next_shared: Option<Instant>,
    stuck_since: Option<Instant>,
    found: UnmanagedPages,
    /// Of these, the ones that are about to be managed; those that could be, and are not.
    soon: u64,
    left: LeftPages,
    /// Since when its tree has been above the budget because of such memory.
    over_since: Option<Instant>,
    /// Pages that the look before found, here and in the tree.
    before: (u64, i64),
}

static WARNED_SHARED: AtomicBool = AtomicBool::new(false);

/// Pages by what they are.
#[derive(Default)]
struct UnmanagedPages {
    files: u64,
    code: u64,
    stack: u64,
    other: u64,
    /// The largest part of a file, and its name.
    file: u64,
    name: Vec<u8>,
}

impl UnmanagedPages {
    fn add(&mut self, kind: Kind, pages: u64, name: &[u8]) {
        let part = match kind {
            Kind::File | Kind::ReadOnlyFile => &mut self.files,
            Kind::Code => &mut self.code,
            Kind::Stack => &mut self.stack,
            Kind::Plain | Kind::Kernel | Kind::Shared | Kind::SharedFile => &mut self.other,
        };
        *part += pages;
        if matches!(kind, Kind::File | Kind::ReadOnlyFile) && pages > self.file {
            self.file = pages;
            self.name.clear();
            self.name.extend_from_slice(&name[..name.len().min(NAME)]);
        }
    }

    fn pages(&self) -> u64 {
        self.files + self.code + self.stack + self.other
    }

    /// Everything that is more than a sixteenth of all, the largest first; `stuck` are pages that are managed but stay;
    /// `forked`: because other processes have them, too.
    fn text(&self, stuck: u64, forked: bool) -> String {
        let stays = if forked { "memory that forked processes share" } else { "locked or read-only memory" };
        let of = String::from_utf8_lossy(&self.name);
        let files = format!("written pages of private file mappings, most of them of {of}");
        let mut parts = [
            (self.files, files.as_str()),
            (self.code, "executable memory"),
            (self.stack, "the stack of its first thread"),
            (self.other, "mappings that are small or have a userfaultfd of the program's own"),
            (stuck, stays),
        ];
        parts.sort_unstable_by_key(|part| std::cmp::Reverse(part.0));
        let least = (self.pages() + stuck) / 16;
        let parts = parts.iter().filter(|part| part.0 > least);
        parts.map(|(pages, what)| format!("{} of {what}", of_pages(*pages))).collect::<Vec<_>>().join(", ")
    }
}

fn of_pages(pages: u64) -> String {
    size::format(pages * PAGE_SIZE as u64)
}

/// This process says in its tree that so many of its pages cannot be taken out.
fn tell_tree(immovable: i64) {
    tree::place().into_iter().for_each(|place| place.immovable.store(immovable.max(0) as u64));
}

/// What the processes of the tree have, and what of that cannot be taken out. Pages.
fn pages_of_tree() -> (i64, i64) {
    let Some(segment) = tree::segment() else { return (0, 0) };
    let add = |sum: i64, pages: &ClampedPages| sum + pages.load() as i64;
    segment.living().fold((0, 0), |(used, immovable), m| (add(used, &m.used), add(immovable, &m.immovable)))
}

/// Pages that could be managed, and have not been for [`SOON`].
#[derive(Default)]
struct LeftPages {
    pages: u64,
    /// The least that there was since when.
    least: Option<(u64, Instant)>,
}

impl LeftPages {
    /// There are so many that could be managed. How many of them have been there for long.
    fn look(&mut self, pages: u64, now: Instant) -> u64 {
        let (least, since) = self.least.map_or((pages, now), |(least, since)| (least.min(pages), since));
        self.least = Some((least, since));
        if now - since > SOON {
            (self.pages, self.least) = (least, Some((pages, now)));
        }
        self.pages = self.pages.min(pages);
        self.pages
    }
}

fn is_due(next: &mut Option<Instant>, now: Instant, pause: Duration) -> bool {
    let due = next.is_none_or(|next| now >= next);
    if due {
        *next = Some(now + pause);
    }
    due
}

impl Unmanaged {
    pub(crate) fn new(proc: &Proc) -> Unmanaged {
        let pagemap = proc.private_file("thread-self/pagemap").ok().map(Fd::new);
        Unmanaged { pagemap, ..Unmanaged::default() }
    }

    /// After a sample: looks what is not accounted for if it would crowd the rest out, and lets the budget give way.
    pub(crate) fn look(&mut self, e: &Engine, now_has: UnknownPages, maps: &OwnedFd, buffer: &mut [u8]) {
        let now = Instant::now();
        self.forget_stuck(e, now);
        if !e.budget.is_crowded(now_has.unknown) {
            e.budget.unmanaged_is(0);
            tell_tree(0);
            (self.over_since, self.left) = (None, LeftPages::default());
            return;
        }
        if is_due(&mut self.next, now, PAUSE) {
            self.before = (self.pages(), pages_of_tree().1);
            if self.count(e, now, maps, buffer) {
                e.budget.unmanaged_is(self.pages() as i64);
            }
            self.next = Some(now + PAUSE.max(now.elapsed() * PAUSE_TIMES));
        }
        let (pages, stuck) = (self.pages(), e.budget.stuck());
        // In a tree, what is promised grows at the cost of others first.
        let (most, mine) = (e.most_pages(), pages as i64 + stuck);
        // What forked processes share would be counted several times.
        tell_tree(if e.budget.shares_much() { 0 } else { mine });
        let (used, immovable) = pages_of_tree();
        self.over_since = match used > most + most / OVER_PART && immovable > most / 2 {
            true => Some(self.over_since.unwrap_or(now)),
            false => None,
        };
        // Where others have much, too, it is not told before they have told what they have.
        let is_alone = now_has.rss > most.min(e.budget.promised()) && mine > most / 2 && used - mine <= most / 2;
        let is_over = used > most || tree::segment().is_none();
        let exceeds = is_alone && is_over || self.over_since.is_some_and(|since| now - since > OVER_FOR);
        let of_tree = immovable.max(mine);
        // Not while it grows: told is how much it is.
        let grows = pages > self.before.0 + self.before.0 / 32 || immovable > self.before.1 + self.before.1 / 32;
        let is_settled = !grows && !now_has.leaves_soon;
        if exceeds && is_settled && e.budget.is_crowded(e.budget.unmanaged()) && !warn_once::is_said(WarningKind::Stuck)
        {
            let (what, budget) = (self.found.text(stuck as u64, e.budget.shares_much()), size::format(e.most_bytes()));
            let (all, part) = (of_pages(of_tree as u64), of_pages(mine as u64));
            let whose = match std::process::id() {
                _ if of_tree == mine => format!("{all} of the program's memory cannot be swapped out"),
                pid => format!("{all} of the programs' memory cannot be swapped out, {part} of it in process {pid}"),
            };
            let text = format!(
                "{whose}: {what}; beside it the budget of {budget} leaves too little for the rest, and is exceeded: \
                 give the program more with --ram"
            );
            warn_once_in_tree(WarningKind::Stuck, &text);
        }
    }

    /// Locks end, and access rights change back: what was found stuck is so for a while.
    fn forget_stuck(&mut self, e: &Engine, now: Instant) {
        let stuck = e.budget.stuck();
        if stuck == 0 {
            self.stuck_since = None;
        } else if now - *self.stuck_since.get_or_insert(now) > STUCK_FOR {
            self.stuck_since = Some(now);
            e.budget.stuck_is(stuck - stuck.div_euclid(8) - 1);
        }
    }

    /// Pages that are not managed, and will not be soon.
    fn pages(&self) -> u64 {
        self.found.pages() - self.soon
    }

    /// Counts what is not managed; false: could not be done.
    fn count(&mut self, e: &Engine, now: Instant, maps: &OwnedFd, buffer: &mut [u8]) -> bool {
        let Some(pagemap) = &self.pagemap else { return false };
        self.found = UnmanagedPages::default();
        let (found, mut parts, mut soon) = (&mut self.found, Vec::new(), 0);
        let counted = mappings(maps, buffer, |m, name| {
            if matches!(m.kind, Kind::Shared | Kind::SharedFile) || e.arena.all.contains(m.start) {
                return;
            }
            let Mapping { start, end, kind } = m;
            parts.clear();
            parts.extend(lock(&e.memory.managed).gaps(Vpn::of(start), Vpn::of(end)));
            for (first, last) in &parts {
                let pages = anonymous_pages(pagemap, first.addr(), last.addr()).unwrap_or(0);
                found.add(kind, pages, name);
                soon += if matches!(kind, Kind::Plain | Kind::Code) { pages } else { 0 };
            }
        });
        self.soon = soon - self.left.look(soon, now);
        counted.is_ok()
    }

    /// More pages of files and shared memory are mapped than the budget has: says so once if it is shared memory.
    pub(crate) fn look_at_shared(&mut self, e: &Engine, proc: &Proc, maps: &OwnedFd, buffer: &mut [u8]) {
        if WARNED_SHARED.load(Relaxed) || !is_due(&mut self.next_shared, Instant::now(), PAUSE_SHARED) {
            return;
        }
        let Ok(shared) = proc.file("thread-self/status").and_then(|status| rss_shared_pages(&status)) else { return };
        if shared as i64 <= e.most_pages() {
            return;
        }
        let mut most = (0, Vec::new());
        if let Some(pagemap) = &self.pagemap {
            let _ = mappings(maps, buffer, |m, name| {
                let pages = if m.kind == Kind::Shared { mapped_pages(pagemap, m.start, m.end).unwrap_or(0) } else { 0 };
                if pages > most.0 {
                    most = (pages, name[..name.len().min(NAME)].to_vec());
                }
            });
        }
        let (all, budget) = (of_pages(shared), size::format(e.most_bytes()));
        let name = match &most.1[..] {
            b"" | b"/dev/zero (deleted)" => "anonymous".into(),
            name => format!("of {}", String::from_utf8_lossy(name)),
        };
        WARNED_SHARED.store(true, Relaxed);
        warn(&format!(
            "the program has {all} of shared memory, most of it {name}: it is neither swapped out nor counted against \
             the budget of {budget}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_there_for_long_will_not_be_managed() {
        let (begin, mut left) = (Instant::now(), LeftPages::default());
        let mut look = |ms, pages| left.look(pages, begin + Duration::from_millis(ms));
        assert_eq!((look(0, 90), look(50, 1000), look(100, 100)), (0, 0, 0), "it is early");
        assert_eq!(look(250, 5000), 90, "what there was at each look");
        // New memory has its time, too.
        assert_eq!((look(300, 5000), look(350, 40)), (90, 40));
        assert_eq!((look(500, 3000), look(600, 3000), look(750, 3000)), (40, 40, 3000));
    }

    #[test]
    fn the_largest_part_is_told_first_and_small_ones_are_not() {
        let mut found = UnmanagedPages::default();
        found.add(Kind::File, 256, b"/small");
        found.add(Kind::File, 2560, b"/large (deleted)");
        found.add(Kind::Plain, 100, b"");
        found.add(Kind::Stack, 5120, b"[stack]");
        assert_eq!(found.pages(), 256 + 2560 + 100 + 5120);
        let text = found.text(600, false);
        let (stack, rest) = text.split_once(", ").unwrap();
        assert_eq!(stack, "20.0 MiB of the stack of its first thread");
        assert_eq!(
            rest,
            "11.0 MiB of written pages of private file mappings, most of them of /large (deleted), 2.3 MiB of locked \
             or read-only memory"
        );
    }
}
