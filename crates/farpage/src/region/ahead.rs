//! Reading ahead in another thread: the second half of a full window.
//!
//! A faulting thread posts what it would like to have (it allocates nothing: the list is short and fixed; what does not
//! fit is forgotten), a thread of the pager brings it in. When the program gets there first, it just faults.

use super::inner::{Inner, lock};
use crate::sys::futex;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

const POSTS: usize = 8;

/// What was asked for.
#[derive(Debug, Default)]
pub struct Ahead {
    /// (first page, pages), newest last; pages 0: empty.
    posts: Mutex<[(u32, u32); POSTS]>,
    /// Counts posts; the thread sleeps here.
    pub word: AtomicU32,
    asleep: AtomicBool,
}

impl Ahead {
    /// Asks for pages.
    pub fn post(&self, first: u32, pages: u32) {
        {
            let mut posts = lock(&self.posts);
            // What was asked for longest ago is the least worth.
            posts.rotate_left(1);
            posts[POSTS - 1] = (first, pages);
        }
        self.word.fetch_add(1, SeqCst);
        if self.asleep.swap(false, SeqCst) {
            futex::wake_one(&self.word);
        }
    }

    /// The newest post.
    fn take(&self) -> Option<(u32, u32)> {
        let mut posts = lock(&self.posts);
        let newest = posts.iter_mut().rev().find(|post| post.1 > 0)?;
        Some(std::mem::take(newest))
    }
}

/// The thread.
pub fn main(e: &Inner) {
    while !e.wakeups.stop.load(SeqCst) {
        let working = e.enter_work();
        let seen = e.ahead.word.load(SeqCst);
        if let Some((first, pages)) = e.ahead.take() {
            e.read_ahead(first, pages);
            continue;
        }
        e.ahead.asleep.store(true, SeqCst);
        drop(working);
        futex::wait(&e.ahead.word, seen, None);
        e.ahead.asleep.store(false, SeqCst);
    }
}
