//! A ring that does not do as it is told.

use super::super::{Place, Transferred};
use super::*;
use crate::testing::Frame;
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Puts `file` where the descriptor `number` is.
fn put(file: &OwnedFd, number: RawFd) {
    // SAFETY: the number is open, and the ring's, which goes on using it: this is never dropped.
    let mut place = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(number) });
    rustix::io::dup2(file, &mut place).unwrap();
}

/// A ring that refuses for a time while it has a request: it is waited for, and not by spinning.
#[test]
fn io_a_ring_that_refuses_for_a_while_is_waited_for() {
    let Ok(mut ring) = IoRing::new(4) else { return println!("skipped: no io_uring") };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let place = Place::in_file(reader.as_raw_fd(), 0, false, None);
    let mut page = Frame::boxed();
    let mut batch = Batch::new(Direction::Read);
    // SAFETY: page and batch live until the request has completed, below.
    unsafe {
        batch.push(&place, &mut page.0);
        ring.queue(&mut batch, 0);
    }
    ring.enter(0).unwrap();
    assert_eq!(ring.in_flight(), 1, "nothing can be read yet");
    let number = ring.uring.as_raw_fd();
    // SAFETY: the descriptor is the ring's, and open.
    let kept = rustix::io::dup(unsafe { BorrowedFd::borrow_raw(number) }).unwrap();
    let other = rustix::pipe::pipe().unwrap().0;
    put(&other, number);
    let before = cpu_time();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            put(&kept, number);
            assert_eq!(rustix::io::write(writer.as_fd(), &[5; farpage_swap::PAGE_SIZE]), Ok(farpage_swap::PAGE_SIZE));
        });
        while ring.in_flight() > 0 {
            ring.enter(1).unwrap();
            while let Some((_, run, result)) = ring.reap() {
                assert!(!batch.completed(run, result), "read whole");
            }
        }
    });
    let used = cpu_time() - before;
    assert_eq!((batch.outcome(0), page.0), (Transferred::Done, [5; farpage_swap::PAGE_SIZE]));
    assert!(used < Duration::from_millis(100), "{used:?} of processor time");
}
