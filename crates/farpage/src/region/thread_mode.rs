//! Fault mode `thread`: threads of the pager read the userfaultfd and serve what they find, all with the same code as
//! the signal handler.

use super::fault::Served;
use super::pager_core::PagerCore;
use farpage_base::sys::uffd::Message;
use farpage_swap::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::Ordering::SeqCst;

/// How often a thread looks whether the pager is being dropped.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// One handler thread.
pub fn main(e: &PagerCore) {
    let mut messages = [Message::Remove { start: 0, end: 0 }; 1];
    while !e.wakeups.stop.load(SeqCst) {
        let Ok(uffd) = e.uffd.borrow() else { return };
        let mut fds = [PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&LOOK_EVERY));
        while let Ok(1) = e.uffd.read(&mut messages) {
            if let Message::Fault { addr, write, .. } = messages[0] {
                if let Served::Lost(_) = e.on_fault(addr, write, None) {
                    e.poison(addr);
                }
                // If there is no region any more, the thread finds out for itself.
                e.uffd.wake(addr, PAGE_SIZE);
            }
        }
    }
}
