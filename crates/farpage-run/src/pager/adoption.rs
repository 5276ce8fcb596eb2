//! What is done with what was heard of new memory ([`crate::mappings::discovery`]): on the pager's thread.

use crate::pager::state::Pager;
use crate::shared::notice_ring::Note;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;

impl Pager {
    /// Who waits for what was noted goes on.
    pub(crate) fn finish_notes(&mut self) {
        if self.letting_go.is_empty() && std::mem::take(&mut self.noted) {
            self.cx.e.notes.finish();
        }
    }

    /// Registers the mappings that were heard of since the last call.
    pub(crate) fn adopt_news(&mut self) {
        let e = self.cx.e;
        let mut news = std::mem::take(&mut self.news);
        // Before the notes: what is noted later will be counted again.
        e.charges.drain();
        let mut noted = false;
        while let Some(note) = e.notes.take() {
            noted = true;
            match note {
                Note::Thread(block) => e.pin_thread(block),
                Note::LetGo(start, end) => self.letting_go.push((start, end)),
                Note::Mapping(start, end) if e.recent.covers(start, end) => {} // another note was of the same mapping
                Note::Mapping(start, end) if e.can_wait(start, end) => {}
                Note::Mapping(start, end) => {
                    self.adopt_mappings(start, end);
                    if let Some((first, last)) = lock(&e.managed).covering(Vpn::of(start)) {
                        e.recent.add(first.addr(), last.addr());
                    }
                }
            }
        }
        // Mostly nothing is mapped there (again).
        let is_there = |start, end| self.cx.mm.mapping_from(start).is_ok_and(|m| m.is_some_and(|m| m.start < end));
        news.retain(|(start, end)| is_there(*start, *end) && !e.can_wait(*start, *end));
        news.append(&mut lock(&e.candidates));
        for (start, end) in news.drain(..) {
            self.adopt_mappings(start, end);
        }
        self.news = news;
        // Who waits for memory to be let go waits until it is.
        self.noted |= noted;
        if e.budget.over_limit() == 0 {
            self.finish_notes();
        }
        self.advise_adopted();
    }
}
