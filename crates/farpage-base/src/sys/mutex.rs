//! A mutex that a forked child can free.
//!
//! Of the process a fork copies the memory, locks included, but only one thread: a lock that another thread holds at
//! that moment is held for ever in the child. `std`'s mutexes cannot be freed then; this one can, where the data is
//! whole at every moment (its holder was reading, or changing a counter).
//!
//! Three states and a futex, as in Drepper, *Futexes are tricky* (2011), mutex 3.

use super::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may wait.
const WANTED: u32 = 2;

/// See the module header.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).ok().map(|_| Guard(self))
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(WANTED, Acquire) != FREE {
            futex::wait(&self.state, WANTED, None);
        }
    }

    /// In a forked child, before it has a second thread: the thread that held the lock is not there.
    ///
    /// # Safety
    /// The calling thread has no guard, there is no other thread, and the holder may be cut off at any moment without
    /// harm to the value.
    pub unsafe fn free_in_child(&self) {
        self.state.store(FREE, Release);
    }
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so there is no other reference.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so there is no other reference.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.0.state.swap(FREE, Release) == WANTED {
            futex::wake_one(&self.0.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static SUM: Mutex<u64> = Mutex::new(0);
        let add = || (0..50_000).for_each(|_| *SUM.lock() += 1);
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(add)).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*SUM.lock(), 200_000);
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        static TURN: Mutex<u32> = Mutex::new(0);
        let guard = TURN.lock();
        let other = std::thread::spawn(|| *TURN.lock() += 1);
        while TURN.state.load(Relaxed) != WANTED {
            std::thread::yield_now();
        }
        drop(guard);
        other.join().unwrap();
        assert_eq!(*TURN.lock(), 1);
    }

    #[test]
    fn a_child_frees_what_another_thread_held() {
        let lock = Mutex::new(7);
        std::mem::forget(lock.lock());
        // SAFETY: the guard is forgotten and no other thread knows the lock.
        unsafe { lock.free_in_child() };
        assert_eq!(*lock.lock(), 7);
    }
}
