//! Reading ahead in another thread.
//!
//! A thread that touches a marker posts the window that it will want next (it allocates nothing: the list is short and
//! fixed; what does not fit is forgotten), a thread of the pager brings it in meanwhile. When the program gets there
//! first, it just faults.

use super::inner::{Inner, lock};
use crate::sys::futex;
use farpage_swap::readahead::Window;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

const POSTS: usize = 8;

/// What was asked for.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Newest last.
    posts: Mutex<[Option<Window>; POSTS]>,
    /// Counts posts; the thread sleeps here.
    pub word: AtomicU32,
    asleep: AtomicBool,
}

impl Ahead {
    /// Asks for pages.
    pub fn post(&self, window: Window) {
        {
            let mut posts = lock(&self.posts);
            // What was asked for longest ago is the least worth.
            posts.rotate_left(1);
            posts[POSTS - 1] = Some(window);
        }
        self.word.fetch_add(1, SeqCst);
        if self.asleep.swap(false, SeqCst) {
            futex::wake_one(&self.word);
        }
    }

    /// The newest post.
    fn take(&self) -> Option<Window> {
        lock(&self.posts).iter_mut().rev().find_map(Option::take)
    }
}

/// The thread.
pub fn main(e: &Inner) {
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
