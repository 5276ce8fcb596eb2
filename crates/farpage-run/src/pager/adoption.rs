//! What is done with what was heard of new memory ([`crate::mappings::discovery`]): on the pager's thread.

use crate::pager::cx::Cx;
use crate::pager::register::Adoption;
use crate::shared::notice_ring::Note;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use std::time::{Duration, Instant};

/// How long news wait for a moment without a change at most: the threads that gave them may wait.
const PUT_OFF_MAX: Duration = Duration::from_millis(20);

impl Adoption {
    /// The threads that wait for what was noted go on.
    pub(crate) fn finish_notes(&mut self, cx: &Cx) {
        if self.let_go.is_done() && std::mem::take(&mut self.noted) {
            cx.e.discovery.notes.finish();
        }
    }

    /// Registers the mappings that were heard of since the last call.
    pub(crate) fn adopt_news(&mut self, cx: &mut Cx) {
        let e = cx.e;
        let mut news = std::mem::take(&mut self.news);
        // Before the notes: what is noted later will be counted again.
        e.discovery.charges.drain();
        let mut noted = false;
        while let Some(note) = e.discovery.notes.take() {
            noted = true;
            match note {
                Note::Thread(block) => e.pin_thread(block),
                Note::LetGo(start, end) => self.let_go.add(start, end),
                // Another note was of the same mapping.
                Note::Mapping(start, end) if e.discovery.recent.covers(start, end) => {}
                Note::Mapping(start, end) if e.can_wait(start, end) => {}
                Note::Mapping(start, end) => {
                    self.adopt_mappings(cx, start, end);
                    if let Some((first, last)) = lock(&e.memory.managed).covering(Vpn::of(start)) {
                        e.discovery.recent.add(first.addr(), last.addr());
                    }
                }
            }
        }
        // Mostly nothing is mapped there (again).
        let is_there = |start, end| cx.mm.mapping_from(start).is_ok_and(|m| m.is_some_and(|m| m.start < end));
        news.retain(|(start, end)| is_there(*start, *end) && !e.can_wait(*start, *end));
        news.append(&mut lock(&e.discovery.candidates));
        for (start, end) in news.drain(..) {
            self.adopt_mappings(cx, start, end);
        }
        self.news = news;
        // A thread that waits for memory to be let go waits until it is.
        self.noted |= noted;
        if e.budget.over_limit() == 0 {
            self.finish_notes(cx);
        }
        self.advise_adopted(cx);
    }

    /// Whether there is something for [`Adoption::adopt_news`]. The pager asks in each turn.
    pub(crate) fn has_news(&mut self, cx: &Cx) -> bool {
        let heard = &cx.e.discovery;
        let own = !self.news.is_empty() || !self.unadvised.is_empty();
        let any =
            heard.charges.drain() > 0 || own || heard.notes.peek().is_some() || !lock(&heard.candidates).is_empty();
        if !any {
            self.put_off_since = None;
        }
        any
    }

    /// Whether news wait for another turn. What is looked at while a change is pending has to be looked at again, and
    /// each message after that is waited for ([`Changes::add_fresh`](crate::pager::changes::Changes::add_fresh)).
    /// Mostly none is pending once those on the queue are read and their threads have run; where a thousand threads
    /// start and end, one always is.
    pub(crate) fn puts_off_news(&mut self, cx: &mut Cx) -> bool {
        if !cx.changes.order.is_settled() || !cx.changing() {
            self.put_off_since = None;
            return false;
        }
        self.put_off_since.get_or_insert_with(Instant::now).elapsed() < PUT_OFF_MAX
    }

    /// If no change of mappings is pending: what waited for one is applied, and what was registered meanwhile is
    /// adopted.
    pub(crate) fn settle(&mut self, cx: &mut Cx) {
        if cx.changing() {
            return;
        }
        let e = cx.e;
        while let Some(change) = cx.changes.next_settled(&*cx.mm, |start, end| e.is_known(start, end)) {
            self.apply(cx, change);
        }
        if cx.changes.order.waits() {
            return; // a change is pending again
        }
        for (start, end) in cx.changes.order.forget().iter() {
            self.adopt_mappings(cx, start as usize, end as usize);
        }
    }

    /// A step of letting go. Whether there was anything to do.
    pub(crate) fn let_go_step(&mut self, cx: &mut Cx) -> bool {
        self.let_go.step(cx, &mut self.scans)
    }
}
