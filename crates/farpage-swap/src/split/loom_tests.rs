//! Two posts with a helper that may look at the first while the second is made: each piece is done once, with what was
//! posted for it, and the owner sees what came of it.

use super::*;
use crate::sync::Arc;
use loom::thread;

const PIECES: u32 = 2;

#[derive(Default)]
struct Work {
    split: Split,
    input: [AtomicU32; 2],
    output: [AtomicU32; 2],
}

impl Work {
    fn does(&self, piece: u32) {
        let at = piece as usize;
        let input = self.input[at].load(Ordering::Relaxed);
        assert_ne!(input, 0, "done before it was posted, or twice");
        // A piece that is done a second time would find this.
        self.input[at].store(0, Ordering::Relaxed);
        self.output[at].store(input + 1, Ordering::Relaxed);
    }

    fn post(&self, round: u32) {
        for (piece, input) in self.input.iter().enumerate() {
            input.store(round * 10 + piece as u32, Ordering::Relaxed);
        }
        self.split.post(PIECES as u16);
    }

    fn helps(&self, looks: u32) {
        for _ in 0..looks {
            if let Some(piece) = self.split.first() {
                self.does(piece);
                let _ = self.split.finish();
            }
        }
    }

    fn wait(&self) {
        while !self.split.is_over() {
            thread::yield_now();
        }
    }

    /// Does what is left itself each time, waits for the rest, and looks at what came of it.
    fn owner_posts_twice(&self) {
        for round in 1..3 {
            self.post(round);
            while let Some(piece) = self.split.last() {
                self.does(piece);
            }
            self.wait();
            for (piece, output) in self.output.iter().enumerate() {
                assert_eq!(output.load(Ordering::Relaxed), round * 10 + piece as u32 + 1);
            }
        }
    }
}

#[test]
fn each_piece_is_done_once_and_seen_by_the_owner() {
    loom::model(|| {
        let work = Arc::new(Work::default());
        let other = work.clone();
        let helper = thread::spawn(move || other.helps(2));
        work.owner_posts_twice();
        helper.join().unwrap();
    });
}

/// The same with two helpers, each of which may be late for the second post.
#[test]
fn so_it_is_with_two_helpers() {
    loom::model(|| {
        let work = Arc::new(Work::default());
        let helpers = [1, 1].map(|looks| {
            let other = work.clone();
            thread::spawn(move || other.helps(looks))
        });
        work.owner_posts_twice();
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

/// A sleeping owner is woken by the last piece of two helpers, whichever that is.
#[test]
fn a_sleeping_owner_is_woken_by_the_last_of_two_helpers() {
    loom::model(|| {
        let work = Arc::new(Work::default());
        work.post(1);
        let helpers = [(); 2].map(|()| {
            let other = work.clone();
            thread::spawn(move || {
                other.split.first().is_some_and(|piece| {
                    other.does(piece);
                    other.split.finish()
                })
            })
        });
        work.split.rest();
        // What the word was when it began to sleep, if it had to.
        let seen = work.split.must_wait();
        let sleeps = seen.is_some_and(|seen| work.split.word().load(Ordering::Acquire) == seen);
        let woken = helpers.map(|helper| helper.join().unwrap());
        assert!(!sleeps || woken.contains(&true));
        assert!(work.split.is_over());
    });
}

/// What the owner does not want any more is not done, and what the helper is at is waited for.
#[test]
fn after_rest_nothing_of_the_work_is_touched() {
    loom::model(|| {
        let work = Arc::new(Work::default());
        let other = work.clone();
        let helper = thread::spawn(move || other.helps(2));
        work.post(1);
        let rest = work.split.rest();
        work.wait();
        let helped = work.split.helped();
        assert_eq!(rest + helped, PIECES);
        // The owner's alone now: with other input, a helper that is late would be seen.
        for (piece, input) in work.input.iter().enumerate() {
            let done = input.load(Ordering::Relaxed) == 0;
            assert_eq!(done, (piece as u32) < helped);
            input.store(0, Ordering::Relaxed);
        }
        helper.join().unwrap();
    });
}

/// A sleeping owner is woken by the piece that it waits for.
#[test]
fn a_sleeping_owner_is_woken() {
    loom::model(|| {
        let work = Arc::new(Work::default());
        work.post(1);
        let other = work.clone();
        let helper = thread::spawn(move || {
            other.split.first().is_some_and(|piece| {
                other.does(piece);
                other.split.finish()
            })
        });
        work.split.rest();
        let sleeps = work.split.must_wait().is_some_and(|seen| {
            // As a futex does: only if the word is still what was seen. (Or it was woken between.)
            let word = work.split.word().load(Ordering::Acquire);
            word == seen
        });
        let woken = helper.join().unwrap();
        assert!(!sleeps || woken);
        assert!(work.split.is_over());
    });
}
