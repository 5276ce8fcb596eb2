//! Reading ahead in another thread.
//!
//! A thread that touches a marker posts the window that it will want next (it allocates nothing: the list is short and
//! fixed; what does not fit is forgotten), a thread of the pager brings it in meanwhile. When the program gets there
//! first, it just faults.

pub mod posts;

use super::pager_core::PagerCore;
use crate::sys::futex;
use std::sync::atomic::Ordering::SeqCst;

/// The thread.
pub fn main(e: &PagerCore) {
    while !e.wakeups.stop.load(SeqCst) {
        let working = e.enter_work();
        let seen = e.ahead.word.load(SeqCst);
        if let Some(window) = e.ahead.take() {
            e.read_ahead(&window);
            continue;
        }
        e.ahead.asleep.store(true, SeqCst);
        drop(working);
        futex::wait(&e.ahead.word, seen, None);
        e.ahead.asleep.store(false, SeqCst);
    }
}
