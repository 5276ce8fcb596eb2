//! Against a small kernel: threads that unmap, move and map, each of whose messages comes some time after its change.

use super::*;
use std::collections::BTreeMap;

const M: usize = 1 << 20;

fn unmap(start: usize, len: usize) -> Message {
    Message::Unmap { start, end: start + len }
}

fn remap(from: usize, to: usize, len: usize) -> Message {
    Message::Remap { from, to, len }
}

fn discard(start: usize, len: usize) -> Message {
    Message::Remove { start, end: start + len }
}

/// Reads all of `told`, and returns what is applied, in order. At first `managed` is known; there is something
/// registered at `registered` in the end.
fn applied(
    managed: &[(usize, usize)],
    fresh: &[(usize, usize)],
    told: &[Message],
    registered: &[usize],
) -> Vec<Message> {
    let (mut known, mut order, mut all) = (Known::default(), Order::default(), Vec::new());
    managed.iter().for_each(|(start, len)| _ = known.managed.insert(*start as u64, (start + len) as u64));
    fresh.iter().for_each(|(start, len)| order.add_fresh(*start, start + len));
    for m in told {
        if order.push(*m, |s, t| known.knows(s, t)) == When::Now {
            known.apply(*m);
            all.push(*m);
        }
    }
    while let Some(m) = order.next_settled(|s, t| known.knows(s, t), |at| Some(registered.contains(&at))) {
        known.apply(m);
        all.push(m);
    }
    assert!(!order.waits());
    order.forget();
    assert!(order.is_settled() && order.has_room());
    all
}

#[test]
fn what_touches_nothing_else_is_applied_at_once() {
    let mut order = Order::default();
    let mut push = |m| order.push(m, |start, _| start < 4 * M);
    assert_eq!(push(discard(M, 8)), When::Now);
    assert_eq!(push(remap(M, 4 * M, 8)), When::Now);
    assert_eq!(push(unmap(2 * M, 8)), When::Now);
    assert_eq!(push(unmap(M, 8)), When::Done, "it was moved");
    assert_eq!(push(unmap(M, 8)), When::Now);
    assert!(order.is_settled());
}

#[test]
fn the_old_place_may_have_been_taken_when_it_is_told() {
    let all = [remap(M, 2 * M, 8), remap(3 * M, M + 4, 8), unmap(3 * M, 8), unmap(M, 8)];
    assert_eq!(applied(&[(M, 8), (3 * M, 8)], &[], &all, &[]), all[..2], "of the first move");
    let twice = [&all[..], &[unmap(M, 8)]].concat();
    let expected = [&all[..2], &[unmap(M, 8)]].concat();
    assert_eq!(applied(&[(M, 8), (3 * M, 8)], &[], &twice, &[]), expected, "only once");
}

#[test]
fn what_takes_a_place_waits_until_that_is_free() {
    let early = [remap(3 * M, M, 8), unmap(3 * M, 8), discard(M, 4), unmap(0, 2 * M)];
    let expected = [early[3], early[0], early[2]];
    assert_eq!(applied(&[(M, 8), (3 * M, 8)], &[], &early, &[]), expected);
    let mut order = Order::default();
    for m in early {
        order.push(m, |start, end| start < M + 8 && M < end);
    }
    assert!(order.names(M + 4, M + 5) && !order.names(5 * M, 6 * M));
    assert_eq!(order.len(), 3);
}

#[test]
fn what_was_seen_is_what_was_moved_there_or_left_before_that() {
    let (managed, fresh) = ([(3 * M, 8)], [(M, 8)]);
    let all = [remap(3 * M, M, 8), unmap(3 * M, 8), remap(M, 5 * M, 8), unmap(M, 8)];
    assert_eq!(applied(&managed, &fresh, &all, &[5 * M]), [all[0], all[2]], "it was that which was moved there");
    assert_eq!(applied(&managed, &fresh, &all, &[M, 5 * M]), [all[2], all[0]], "something is there in the end");
}

/// Two moves of one thread were once taken in the wrong order: something unmapped elsewhere, where another mapping was
/// by then, was taken for a sign that an earlier move was missing.
#[test]
fn what_is_unmapped_elsewhere_says_nothing_of_a_fresh_place() {
    let moves = [remap(33, 22, 2), unmap(33, 2), unmap(14, 5), remap(22, 38, 2), unmap(22, 2)];
    let all = [&[unmap(38, 2)], &moves[..]].concat();
    let expected = [all[0], moves[2], moves[0], moves[3]];
    assert_eq!(applied(&[(38, 2), (33, 2), (14, 5)], &[(22, 2)], &all, &[38]), expected);
}

/// A place is unmapped where another thread has mapped a larger one by then, to which it moves something. Later
/// something is moved to just the first place: that was once taken for the move that had been missing, and applied
/// before others.
#[test]
fn a_move_of_another_length_takes_a_place_that_was_unmapped() {
    let managed = [(3, 4), (14, 4), (21, 4), (32, 6)];
    let first = [unmap(3, 4), remap(14, 9, 4), remap(32, 3, 6), unmap(14, 4), unmap(32, 6)];
    let then =
        [remap(21, 13, 4), unmap(21, 4), unmap(3, 6), remap(13, 3, 4), unmap(13, 4), remap(9, 31, 4), unmap(9, 4)];
    let expected = [first[0], first[1], first[2], then[0], then[2], then[3], then[5]];
    let all = [&first[..], &then[..]].concat();
    assert_eq!(applied(&managed, &[], &all, &[]), expected);
}

#[test]
fn nothing_is_put_in_order_while_a_change_is_pending() {
    let mut order = Order::default();
    order.add_fresh(M, M + 8);
    assert!(order.names(M + 4, M + 12) && !order.names(M + 8, M + 12) && !order.is_settled());
    assert_eq!(order.push(unmap(M, 8), |_, _| false), When::Later);
    assert_eq!(order.next_settled(|_, _| false, |_| None), None);
    assert!(order.waits());
    assert_eq!(order.next_settled(|_, _| false, |_| Some(false)), Some(unmap(M, 8)));
    assert_eq!(order.next_settled(|_, _| false, |_| None), None);
    assert!(!order.waits());
    assert_eq!(order.forget().len(), 1);
}

#[test]
fn pages_are_discarded_where_they_were_then() {
    let all = [remap(3 * M, M, 8), unmap(3 * M, 8), discard(M, 8), remap(M, 5 * M, 8), unmap(M, 8), unmap(M, 8)];
    assert_eq!(applied(&[(M, 8), (3 * M, 8)], &[], &all, &[]), [all[3], all[0], all[2], all[5]]);
}

/// Nobody can know better, see docs/dev/events.md: the messages of two histories, one of them with a move whose first
/// message was that of its destination.
#[test]
fn a_move_onto_managed_memory_that_is_overtaken_by_halves_is_taken_for_two_changes() {
    let (p, w, z, v) = (M, 2 * M, 3 * M, 4 * M);
    let all = [remap(w, p, 8), unmap(w, 8), unmap(z, 8), remap(p, v, 8), remap(p, z, 8), unmap(p, 8), unmap(p, 8)];
    assert_eq!(applied(&[(p, 8), (w, 8), (z, 8)], &[], &all, &[]), [all[2], all[3], all[0], all[4]]);
}

/// Pages of the small address space; a page is one byte long here.
const PAGES: usize = 40;
const THREADS: usize = 4;
/// Content of a place that something is to be moved to.
const HOLE: u32 = u32::MAX;

/// What a thread still has to tell: made, and on its way to the queue.
#[derive(Default)]
struct Thread {
    region: Option<(usize, usize)>,
    /// The pager has registered it: the kernel tells of its changes.
    registered: bool,
    /// A place that was mapped to move the region to, and whether the pager has registered it.
    hole: Option<(usize, usize, bool)>,
    untold: Vec<Message>,
    queued: bool,
    /// Its change was a move to a place that the pager has registered: three messages.
    onto_registered: bool,
    /// Its change was made before a grace period began, and is not on the queue: no message is read before it is.
    noted: bool,
    /// When its change was made.
    made: usize,
}

struct Kernel {
    pages: [u32; PAGES],
    threads: [Thread; THREADS],
    queue: Vec<(usize, Message)>,
    next: u32,
    changes: usize,
    /// Pages whose word the pager has had.
    pages_out: Vec<u32>,
    random: u64,
    /// What is drawn first, from the end on.
    choices: Vec<u8>,
}

impl Kernel {
    fn draw(&mut self, n: usize) -> usize {
        if let Some(choice) = self.choices.pop() {
            return usize::from(choice) % n;
        }
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) as usize % n
    }

    fn hole(&mut self, len: usize) -> Option<usize> {
        let free: Vec<usize> =
            (0..=PAGES - len).filter(|at| self.pages[*at..at + len].iter().all(|p| *p == 0)).collect();
        (!free.is_empty()).then(|| free[self.draw(free.len())])
    }

    /// Whether the next message of a thread would be that something has left a place, while another thread has left
    /// that place before, and has told no more of that than of the destination, where something registered was: the one
    /// thing that nobody can know (docs/dev/events.md).
    fn is_undecidable(&self, t: usize) -> bool {
        let left = |m: &Message, of: &Message| common(freed_by(*m), freed_by(*of)).is_some();
        let overtakes = |other: &Thread| {
            let told_of_destination = match other.untold[..] {
                [Message::Unmap { .. }, m @ Message::Remap { .. }, _] => Some(m),
                [m @ Message::Remap { .. }, _] if other.onto_registered && !other.queued => Some(m),
                _ => None,
            };
            other.made < self.threads[t].made
                && told_of_destination.is_some_and(|m| self.threads[t].untold.iter().any(|mine| left(mine, &m)))
        };
        self.threads.iter().enumerate().any(|(i, other)| i != t && overtakes(other))
    }

    /// One step of a thread: a change, or its message into the queue.
    fn step(&mut self, t: usize) {
        if !self.threads[t].untold.is_empty() {
            if !self.threads[t].queued && !self.is_undecidable(t) {
                (self.threads[t].queued, self.threads[t].noted) = (true, false);
                let m = self.threads[t].untold[0];
                self.queue.push((t, m));
            }
            return;
        }
        let (choice, len) = (self.draw(3), 1 + self.draw(6));
        match self.threads[t].region {
            None => {
                let Some(at) = self.hole(len) else { return };
                for page in at..at + len {
                    self.pages[page] = self.next;
                    self.next += 1;
                }
                (self.threads[t].region, self.threads[t].registered) = (Some((at, len)), false);
            }
            Some((from, len)) if choice == 0 && self.threads[t].hole.is_none() => {
                // All of it, or its front.
                let cut = if self.draw(2) == 0 { len } else { 1 + self.draw(len) };
                self.pages[from..from + cut].fill(0);
                self.threads[t].region = (cut < len).then_some((from + cut, len - cut));
                self.threads[t].untold = vec![unmap(from, cut)];
            }
            Some((from, len)) => {
                let Some((to, _, registered)) = self.threads[t].hole.take() else {
                    let Some(to) = self.hole(len) else { return };
                    self.pages[to..to + len].fill(HOLE);
                    self.threads[t].hole = Some((to, len, false));
                    return;
                };
                self.pages.copy_within(from..from + len, to);
                self.pages[from..from + len].fill(0);
                self.threads[t].region = Some((to, len));
                self.threads[t].untold = vec![remap(from, to, len), unmap(from, len)];
                if registered {
                    self.threads[t].untold.insert(0, unmap(to, len));
                }
            }
        }
        self.changes += 1;
        let thread = &mut self.threads[t];
        (thread.made, thread.queued, thread.onto_registered) = (self.changes, false, thread.untold.len() == 3);
        if !thread.registered {
            // Only that a registered place was taken.
            thread.untold.truncate(thread.untold.len().saturating_sub(2));
        }
    }

    /// What [`crate::mappings::grace_period`] promises: nothing more is read before each thread that runs has come
    /// to tell what it has done by now. A thread sleeps once its message is on the queue, and only then.
    fn begin_grace_period(&mut self) {
        self.threads.iter_mut().for_each(|t| t.noted = !t.untold.is_empty() && !t.queued);
    }

    fn read(&mut self) -> Option<Message> {
        if self.queue.is_empty() || self.threads.iter().any(|t| t.noted) {
            return None;
        }
        let (t, m) = self.queue.remove(0);
        self.threads[t].untold.remove(0);
        self.threads[t].queued = false;
        Some(m)
    }

    fn is_registered(&self, page: usize) -> bool {
        let is_in = |at: usize, len: usize| (at..at + len).contains(&page);
        self.threads.iter().any(|t| {
            t.registered && t.region.is_some_and(|(at, len)| is_in(at, len))
                || t.hole.is_some_and(|(at, len, registered)| registered && is_in(at, len))
        })
    }

    fn changing(&self) -> bool {
        self.threads.iter().any(|t| !t.untold.is_empty())
    }
}

/// What the pager knows: words, and which places are managed.
#[derive(Default)]
struct Known {
    words: BTreeMap<usize, u32>,
    managed: RangeSet,
}

impl Known {
    fn knows(&self, start: usize, end: usize) -> bool {
        !self.managed.overlaps(start as u64, end as u64).is_empty()
    }

    fn apply(&mut self, m: Message) {
        match m {
            Message::Unmap { start, end } => {
                self.words.retain(|page, _| !(start..end).contains(page));
                self.managed.remove(start as u64, end as u64);
            }
            Message::Remap { from, to, len } => {
                self.words.retain(|page, _| !(to..to + len).contains(page));
                for i in 0..len {
                    if let Some(word) = self.words.remove(&(from + i)) {
                        self.words.insert(to + i, word);
                    }
                }
                let moved = self.managed.overlaps(from as u64, (from + len) as u64);
                self.managed.remove(from as u64, (from + len) as u64);
                for (start, end) in moved {
                    self.managed.insert(start - from as u64 + to as u64, end - from as u64 + to as u64);
                }
            }
            _ => {}
        }
    }
}

/// Applies a change as the pager does.
fn apply(known: &mut Known, order: &mut Order, m: Message) {
    if let Message::Remap { from, to, len } = m {
        let place = (from as u64, (from + len) as u64);
        if known.managed.overlaps(place.0, place.1) != [place] {
            order.add_fresh(to, to + len);
        }
    }
    known.apply(m);
}

/// A mapping was seen at this place; whether it is registered now.
fn adopt(known: &mut Known, order: &mut Order, (start, end): (usize, usize), changing: bool) -> bool {
    let named = known.knows(start, end) || order.names(start, end);
    if changing {
        order.add_fresh(start, end);
        return !named;
    }
    known.managed.insert(start as u64, end as u64);
    true
}

/// Runs one history, by `choices` and then by seed; whether all words are right in the end, with `Order` or without.
fn history(choices: &[u8], seed: u64, ordered: bool) -> bool {
    let mut k = Kernel {
        pages: [0; PAGES],
        threads: std::array::from_fn(|_| Thread::default()),
        queue: Vec::new(),
        next: 1,
        changes: 0,
        pages_out: Vec::new(),
        random: seed,
        choices: choices.to_vec(),
    };
    let (mut known, mut order) = (Known::default(), Order::default());
    for step in 0..300 {
        match k.draw(8) {
            0..4 => {
                let t = k.draw(THREADS);
                k.step(t);
            }
            4..7 => {
                let Some(m) = k.read() else { continue };
                if !ordered {
                    known.apply(m);
                    continue;
                }
                match order.push(m, |s, t| known.knows(s, t)) {
                    When::Now => apply(&mut known, &mut order, m),
                    When::Later => k.begin_grace_period(),
                    When::Done => {}
                }
            }
            // A mapping is adopted.
            _ => {
                let t = k.draw(THREADS);
                let changing = k.changing();
                let Thread { region, registered, hole, .. } = &mut k.threads[t];
                if let Some((at, len)) = *region {
                    *registered |= adopt(&mut known, &mut order, (at, at + len), changing);
                }
                if let Some((at, len, of_hole)) = hole
                    && *registered
                {
                    *of_hole |= adopt(&mut known, &mut order, (*at, *at + *len), changing);
                }
                if changing {
                    k.begin_grace_period();
                }
            }
        }
        if k.changing() {
            continue;
        }
        while let Some(m) = order.next_settled(|s, t| known.knows(s, t), |at| Some(k.is_registered(at))) {
            apply(&mut known, &mut order, m);
        }
        let fresh = order.forget();
        let is_fresh = |at: usize, len: usize| !fresh.overlaps(at as u64, (at + len) as u64).is_empty();
        for t in &mut k.threads {
            if let Some((at, len)) = t.region.filter(|r| is_fresh(r.0, r.1)) {
                t.registered = adopt(&mut known, &mut order, (at, at + len), false);
            }
            if let Some(hole) = t.hole.as_mut().filter(|h| is_fresh(h.0, h.1)) {
                hole.2 = adopt(&mut known, &mut order, (hole.0, hole.0 + hole.1), false);
            }
        }
        for (page, word) in &known.words {
            if k.pages[*page] != *word {
                return false;
            }
        }
        // All that was swapped out and is still mapped has its word, and half of the others get one.
        let seen: Vec<u32> = known.words.values().copied().collect();
        for page in 0..PAGES {
            let id = k.pages[page];
            if id != 0 && id != HOLE && id < k.next && !seen.contains(&id) {
                if k.pages_out.contains(&id) {
                    return false;
                }
                if (step + page) % 2 == 0 {
                    if !known.managed.contains(page as u64) {
                        continue;
                    }
                    known.words.insert(page, id);
                    k.pages_out.push(id);
                }
            }
        }
    }
    true
}

#[test]
fn words_follow_their_pages_in_any_interleaving() {
    let wrong = |ordered| (0..10000).filter(|seed| !history(&[], *seed, ordered)).count();
    assert_eq!(wrong(true), 0);
    assert!(wrong(false) > 100, "the kernel of this test is too tame");
}

#[test]
fn fuzz_event_order() {
    bolero::check!().for_each(|choices: &[u8]| assert!(history(choices, 1, true)));
}
