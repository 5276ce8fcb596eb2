//! Has the kernel mark a word when a thread ends: by exit, by a signal, or by an exec of its process.
//!
//! This is what Linux does for robust mutexes. It walks the thread's list of held mutexes and sets `FUTEX_OWNER_DIED`
//! in each word that has the thread's id. The list here has one node. The node lies in this process's own memory; only
//! the word, which is at a fixed distance from it, may be shared: so no other process can change the list.
//!
//! Caller: the engine's first thread, which lives as long as the process. libc knows nothing of that thread, so the
//! list is not libc's. No locks.

use super::raw::{Errno, nr, syscall};
use std::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// The kernel's `robust_list_head`.
#[repr(C)]
struct Head {
    next: AtomicUsize,
    /// From a node to its word, bytes.
    offset: AtomicIsize,
    pending: AtomicUsize,
}

static HEAD: Head = Head { next: AtomicUsize::new(0), offset: AtomicIsize::new(0), pending: AtomicUsize::new(0) };
static NODE: AtomicUsize = AtomicUsize::new(0);

fn at<T>(what: &'static T) -> usize {
    std::ptr::from_ref(what) as usize
}

/// When the calling thread ends and `word` has its id by then, the kernel marks it. There is one such word a process.
///
/// # Errors
/// A kernel without robust lists, or a filter that refuses them.
pub fn mark_at_end(word: &'static AtomicU32) -> Result<(), Errno> {
    HEAD.offset.store(at(word).wrapping_sub(at(&NODE)) as isize, SeqCst);
    HEAD.pending.store(0, SeqCst);
    HEAD.next.store(at(&NODE), SeqCst);
    NODE.store(at(&HEAD), SeqCst);
    // SAFETY: the kernel only keeps the address, and reads the list when the thread ends: all of it is static.
    unsafe { syscall(nr::SET_ROBUST_LIST, [at(&HEAD), size_of::<Head>(), 0, 0, 0, 0]) }.map(drop)
}

/// The calling thread ends, and the process goes on: nothing is to be marked.
pub fn forget() {
    HEAD.next.store(at(&HEAD), SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::raw::gettid;

    #[test]
    fn the_kernel_marks_the_word_of_a_thread_that_has_ended() {
        const DIED: u32 = 0x4000_0000;
        static WORD: AtomicU32 = AtomicU32::new(0);
        let thread = std::thread::spawn(|| {
            WORD.store(gettid(), SeqCst);
            mark_at_end(&WORD).unwrap();
        });
        thread.join().unwrap();
        // libc's join waits for another word, which is cleared at the same time.
        while WORD.load(SeqCst) & DIED == 0 {
            std::thread::yield_now();
        }
        assert_eq!(WORD.load(SeqCst), DIED);
    }
}
