//! Reading ahead in another thread.
//!
//! A thread that touches a marker posts the window that it will want next (it allocates nothing: the list is short and
//! fixed; what does not fit is forgotten), a thread of the pager brings it in meanwhile. When the program gets there
//! first, it just faults.

pub mod posts;

use super::pager_core::PagerCore;
use farpage_base::sys::futex;
use std::sync::atomic::Ordering::SeqCst;

/// The thread.
pub fn main(e: &PagerCore) {
    loop {
        let working = e.enter_work();
        let seen = e.prefetch_posts.word.load(SeqCst);
        // After the counter, which is counted up for the end, too.
        if e.wakeups.stop.load(SeqCst) {
            return;
        }
        if let Some(window) = e.prefetch_posts.take() {
            e.read_ahead(&window);
            continue;
        }
        e.prefetch_posts.asleep.store(true, SeqCst);
        drop(working);
        futex::wait(&e.prefetch_posts.word, seen, None);
        e.prefetch_posts.asleep.store(false, SeqCst);
    }
}
