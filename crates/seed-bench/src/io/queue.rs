//! What a synchronous device is spared: a request from the heap and a queue, in the two forms the kernel has had.
//!
//! *boxed*: the request is allocated, put on the device's queue, taken off by the same thread, carried out and freed:
//! what the block layer did above memory devices before synchronous requests were put on the stack. *queued*: another
//! thread takes it off, carries it out and wakes the one that waits.

use farpage_base::mem::units::Page;
use farpage_device::{Entry, SwapSpace};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

enum Work {
    Store(*const Page, u128),
    Load(Entry, *mut Page),
}

struct Request {
    work: Work,
    stored: Option<Entry>,
    /// 1: complete; the waiting thread is woken.
    done: Arc<Done>,
}

#[derive(Default)]
struct Done {
    flag: AtomicU32,
    stored: Mutex<Option<Entry>>,
    wake: Condvar,
}

// SAFETY: the pages that a request points to are borrowed by the caller until the request is complete.
unsafe impl Send for Request {}

/// A queue in front of a space.
pub struct Queue<'a> {
    space: &'a SwapSpace,
    requests: Mutex<VecDeque<Box<Request>>>,
    wake: Condvar,
    end: AtomicBool,
}

impl<'a> Queue<'a> {
    /// An empty queue.
    pub fn new(space: &'a SwapSpace) -> Queue<'a> {
        Queue { space, requests: Mutex::new(VecDeque::new()), wake: Condvar::new(), end: AtomicBool::new(false) }
    }

    /// Stores through the queue; `here`: the calling thread carries it out.
    pub fn store(&self, page: &Page, check: u128, here: bool) -> Option<Entry> {
        self.submit(Work::Store(page, check), here)
    }

    /// Loads through the queue.
    pub fn load(&self, entry: Entry, into: &mut Page, here: bool) {
        self.submit(Work::Load(entry, into), here);
    }

    /// The device's thread: carries requests out until [`Queue::stop`].
    pub fn serve(&self) {
        loop {
            let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            while requests.is_empty() && !self.end.load(Relaxed) {
                requests = self.wake.wait(requests).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(request) = requests.pop_front() else { return };
            drop(requests);
            self.complete(*request);
        }
    }

    /// Ends [`Queue::serve`].
    pub fn stop(&self) {
        self.end.store(true, Relaxed);
        drop(self.requests.lock());
        self.wake.notify_all();
    }

    fn submit(&self, work: Work, here: bool) -> Option<Entry> {
        let done = Arc::new(Done::default());
        let request = Box::new(Request { work, stored: None, done: done.clone() });
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
        if here {
            let next = self.requests.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            next.into_iter().for_each(|request| self.complete(*request));
        } else {
            self.wake.notify_one();
        }
        let mut stored = done.stored.lock().unwrap_or_else(PoisonError::into_inner);
        while done.flag.load(Acquire) == 0 {
            stored = done.wake.wait(stored).unwrap_or_else(PoisonError::into_inner);
        }
        *stored
    }

    fn complete(&self, mut request: Request) {
        match request.work {
            Work::Store(page, check) => {
                // SAFETY: `submit` does not return before the request is complete, and its caller borrows the page
                // until then.
                request.stored = self.space.store_now(unsafe { &*page }, check).ok().flatten();
            }
            Work::Load(entry, into) => {
                // SAFETY: as above; borrowed mutably.
                let _ = self.space.load(entry, unsafe { &mut *into });
            }
        }
        *request.done.stored.lock().unwrap_or_else(PoisonError::into_inner) = request.stored;
        request.done.flag.store(1, Release);
        request.done.wake.notify_one();
    }
}
