//! A mutex that a forked child can free.
//!
//! Of the process a fork copies the memory, locks included, but only one thread: a lock that another thread holds at
//! that moment is held for ever in the child. `std`'s mutexes cannot be freed then; this one can, where the data is
//! whole at every moment (its holder was reading, or changing a counter).
//!
//! Three states and a futex, as in Drepper, *Futexes are tricky* (2011), mutex 3.
//!
//! A lock that all faults take is `COMMON`: for how long such locks are held can be measured ([`measure_common`]). What
//! is done under them is done by one thread at a time, however many CPUs there are.

use super::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Instant;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may wait.
const WANTED: u32 = 2;

static MEASURED: AtomicBool = AtomicBool::new(false);
static HELD_NS: AtomicU64 = AtomicU64::new(0);

/// From now on it is measured for how long this process's common locks are held.
pub fn measure_common() {
    MEASURED.store(true, Relaxed);
}

/// For how long they were held, nanoseconds: the sum of all locks and threads.
pub fn held_ns() -> u64 {
    HELD_NS.load(Relaxed)
}

/// One of so many is measured: to ask for the time twice takes as long as what is measured.
const MEASURED_OF: u64 = 16;

fn is_chosen() -> bool {
    // SAFETY: every x86-64 CPU has it.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    // The lowest bits stand still on some CPUs.
    (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(MEASURED_OF)
}

/// See the module header.
#[derive(Debug, Default)]
pub struct Mutex<T, const COMMON: bool = false> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value.
unsafe impl<T: Send, const COMMON: bool> Sync for Mutex<T, COMMON> {}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
}

impl<T> Mutex<T, true> {
    /// The same, one that all faults take.
    pub const fn common(value: T) -> Mutex<T, true> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
}

impl<T, const COMMON: bool> Mutex<T, COMMON> {
    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) -> Guard<'_, T, COMMON> {
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard::new(self)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T, COMMON>> {
        self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).ok().map(|_| Guard::new(self))
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
pub struct Guard<'a, T, const COMMON: bool = false> {
    mutex: &'a Mutex<T, COMMON>,
    since: Option<Instant>,
}

impl<'a, T, const COMMON: bool> Guard<'a, T, COMMON> {
    #[inline]
    fn new(mutex: &'a Mutex<T, COMMON>) -> Guard<'a, T, COMMON> {
        let is_measured = COMMON && MEASURED.load(Relaxed) && is_chosen();
        Guard { mutex, since: is_measured.then(Instant::now) }
    }
}

impl<T, const COMMON: bool> Deref for Guard<'_, T, COMMON> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so there is no other reference.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T, const COMMON: bool> DerefMut for Guard<'_, T, COMMON> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so there is no other reference.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T, const COMMON: bool> Drop for Guard<'_, T, COMMON> {
    fn drop(&mut self) {
        let held = self.since.map(|since| since.elapsed());
        if self.mutex.state.swap(FREE, Release) == WANTED {
            futex::wake_one(&self.mutex.state);
        }
        if let Some(held) = held {
            HELD_NS.fetch_add(held.as_nanos() as u64 * MEASURED_OF, Relaxed);
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
    fn it_is_measured_for_how_long_common_locks_are_held_and_others_are_not() {
        let (common, other) = (Mutex::common(0), Mutex::new(0));
        let held = |hold: &dyn Fn()| {
            let before = held_ns();
            hold();
            held_ns() - before
        };
        let pause = || std::thread::sleep(std::time::Duration::from_millis(2));
        let hold_common = || {
            let _guard = common.lock();
            pause();
        };
        assert_eq!(held(&hold_common), 0, "it is not asked for");
        measure_common();
        assert!((0..1000).any(|_| held(&hold_common) >= 2_000_000 * MEASURED_OF));
        let hold_other = || {
            let _guard = other.lock();
            pause();
        };
        assert!((0..100).all(|_| held(&hold_other) == 0));
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
