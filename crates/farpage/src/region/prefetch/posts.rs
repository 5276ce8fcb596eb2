//! What is to be read ahead: a short, fixed list, so that posting allocates nothing.
//!
//! Callers: faulting threads post, the thread of [`super`] takes. Its lock is a leaf.

use farpage_base::mem::lock::lock;
use farpage_base::sys::futex;
use farpage_swap::readahead::Window;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

const POSTS: usize = 8;

/// What was asked for.
#[derive(Debug, Default)]
pub struct PrefetchPosts {
    /// Newest last.
    posts: Mutex<[Option<Window>; POSTS]>,
    /// Counts posts; the thread sleeps here.
    pub word: AtomicU32,
    pub(super) asleep: AtomicBool,
}

impl PrefetchPosts {
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
    pub(super) fn take(&self) -> Option<Window> {
        lock(&self.posts).iter_mut().rev().find_map(Option::take)
    }
}
