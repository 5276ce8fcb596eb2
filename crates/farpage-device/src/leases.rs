//! Children that may need what is stored in files, until they are gone.
//!
//! A *lease* freezes the slots that a forked child may read ([`crate::file`]). Parent and child each hold an end
//! of a pipe or a socket. The child's end goes with the last process that holds it, and the parent sees an end of file.
//!
//! Callers: the thread that forks (`add`), the child (`forget`), a thread that looks now and then (`collect`): the
//! monitor of `run`, the first reclaim thread of regions. One lock, outside of those of the devices.

use super::SwapSpace;
use farpage_base::mem::lock::lock;
use rustix::fd::{BorrowedFd, RawFd};
use std::sync::Mutex;

/// The leases of a process's children that may still be there.
#[derive(Debug, Default)]
pub struct Leases(Mutex<Vec<Lease>>);

/// One child's.
#[derive(Debug)]
struct Lease {
    /// The parent's end.
    end: RawFd,
    /// The number of the fork ([`SwapSpace::fork_parent`]).
    fork: u32,
}

impl Leases {
    /// No child has been made.
    pub const fn new() -> Leases {
        Leases(Mutex::new(Vec::new()))
    }

    /// A child was made by the fork of number `fork`. `end` is read without waiting, and nothing is ever written to it.
    /// It stays open until [`Leases::collect`] has it closed.
    pub fn add(&self, end: RawFd, fork: u32) {
        lock(&self.0).push(Lease { end, fork });
    }

    /// In a child: the parent's children are not this process's, and the numbers mean nothing here.
    pub fn forget(&self) {
        lock(&self.0).clear();
    }

    /// Whether there is none.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Ends the leases of children that are gone. `close` is given their ends. The caller's descriptor table is the one
    /// that the ends are in.
    pub fn collect(&self, space: &SwapSpace, close: impl Fn(RawFd)) {
        lock(&self.0).retain(|&Lease { end, fork }| {
            // SAFETY: open until `close` has it, which is called once: the lease is forgotten then.
            let pipe = unsafe { BorrowedFd::borrow_raw(end) };
            // End of file: no process holds the other end any more.
            let gone = rustix::io::read(pipe, &mut [0u8; 1]) == Ok(0);
            if gone {
                space.end_lease(fork);
                close(end);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::conf::SwapSpec;
    use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::cell::RefCell;
    use std::time::Duration;

    #[test]
    fn a_lease_ends_with_the_last_holder_of_the_other_end() {
        let specs = [SwapSpec::parse("file:/tmp,size=8M").unwrap()];
        // SAFETY: there is no memory device.
        let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.unwrap();
        let entry = space.store(&[7; farpage_swap::PAGE_SIZE], 1).unwrap();
        let leases = Leases::new();
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (short, long) = (pipe(), pipe());
        leases.add(short.0.into_raw_fd(), space.fork_parent());
        leases.add(long.0.into_raw_fd(), space.fork_parent());
        let closed = RefCell::new(0);
        // Other tests fork meanwhile, and their children have copies of the ends.
        let collect = |until: usize| {
            for _ in 0..3000 {
                leases.collect(&space, |fd| {
                    // SAFETY: given up above.
                    drop(unsafe { OwnedFd::from_raw_fd(fd) });
                    *closed.borrow_mut() += 1;
                });
                if *closed.borrow() >= until {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            *closed.borrow()
        };
        let store = || space.store(&[8; farpage_swap::PAGE_SIZE], 2).ok();
        // Both children may read the slot: it is not given out.
        space.free(entry);
        assert_eq!(collect(0), 0);
        assert!((0..3).all(|_| store().unwrap() != entry));
        let copy = rustix::io::dup(&short.1).unwrap();
        drop(short.1);
        assert_eq!(collect(0), 0, "somebody has a copy of the end");
        drop(copy);
        assert!(collect(1) == 1 && !leases.is_empty());
        assert!((0..3).all(|_| store().unwrap() != entry));
        drop(long.1);
        assert!(collect(2) == 2 && leases.is_empty());
        // Sooner or later: each CPU has slots of its own.
        assert!(std::iter::from_fn(store).any(|new| new == entry));
        leases.add(-1, space.fork_parent());
        leases.forget();
        assert!(leases.is_empty());
    }
}
