//! Threads that are being started: the kernel has them, and `pthread_create` has not returned, which tells where their
//! control blocks are. That takes long where a debugger looks at each new thread first, or where the CPU goes to
//! others. Meanwhile a block must not leave memory either: the kernel writes to it if the thread ends, and gdb gives
//! up on a program whose block it cannot read.
//!
//! Before it makes the thread, libc writes the handle of it (with glibc the address of the block) where the caller
//! wants it. So each call notes that place, and the pager looks there before it takes pages out, and once more
//! afterwards ([`crate::pager::robust`]).
//!
//! Callers: the preload library, on program threads; the pager. No locks.

use crate::shared::notice_ring::Notes;
use crate::shared::state::block_pages;
use farpage_base::mem::units::Vpn;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Threads that start others at once and are followed; a few, because each of them holds a lock of libc's and of the
/// address space most of that time.
const PLACES: usize = 32;

/// Where the handles of threads will be that are being started; 0: free.
static STARTS: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// The calling thread of the program starts another one, until this is dropped. By then it has told where that one's
/// control block is.
#[derive(Debug)]
pub struct ThreadStart(Option<&'static AtomicUsize>);

impl ThreadStart {
    /// The handle will be at the address `handle`.
    #[must_use]
    pub fn begin(handle: usize) -> ThreadStart {
        let take = |place: &&AtomicUsize| place.compare_exchange(0, handle, SeqCst, SeqCst).is_ok();
        ThreadStart(STARTS.iter().find(take))
    }
}

impl Drop for ThreadStart {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, SeqCst);
        }
    }
}

/// In a forked child: the parent's other threads are not here.
pub(crate) fn forget_others() {
    STARTS.iter().for_each(|place| place.store(0, SeqCst));
}

/// The pages of control blocks that are not known yet: of threads that are being started, and of those that notes tell
/// of. `handle_at` reads a handle; the page with that has to stay, too. The pager only.
pub(crate) fn unknown_blocks(notes: &Notes, handle_at: impl Fn(usize) -> Option<usize>, pages: &mut Vec<Vpn>) {
    for at in STARTS.iter().map(|place| place.load(SeqCst)).filter(|at| *at != 0) {
        pages.push(Vpn::of(at));
        // Whatever was there before, if libc has not come to it yet.
        pages.extend(handle_at(at).into_iter().flat_map(block_pages));
    }
    // In this order: a thread posts the note before it is no longer among those above.
    notes.threads(|block| pages.extend(block_pages(block)));
}
