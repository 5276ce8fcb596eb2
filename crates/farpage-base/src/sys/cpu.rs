//! Which CPU runs the caller, for whatever is spread over CPUs (an answer may be old when it is used), and how much CPU
//! time threads have used.

use super::raw::{gettid, nr, syscall};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Number of the CPU that runs the caller. From the kernel's shared page, without a system call or thread-local
/// storage. Where the kernel does not answer (a seccomp filter): a number of the thread's own, so that threads are
/// spread all the same.
pub fn current() -> usize {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    static ANSWERS: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWERS.load(Relaxed) {
        UNKNOWN => {
            let mut cpu = 0u32;
            // SAFETY: writes the number to a local.
            let asked = unsafe { syscall(nr::GETCPU, [std::ptr::from_mut(&mut cpu) as usize, 0, 0, 0, 0, 0]) };
            ANSWERS.store(NO + u8::from(asked.is_ok()), Relaxed);
            if asked.is_ok() { cpu as usize } else { own_number() }
        }
        NO => own_number(),
        _ => rustix::thread::sched_getcpu(),
    }
}

fn own_number() -> usize {
    gettid() as usize
}

/// CPU time of the calling thread.
pub fn own_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// CPU time of this process without these of its threads (0: none), and without the caller's, which goes on while it
/// asks: between these two. `None`: the kernel does not say.
pub fn time_without(tids: &[u32]) -> Option<[Duration; 2]> {
    let others =
        tids.iter().filter(|tid| **tid != 0).try_fold(Duration::ZERO, |sum, tid| Some(sum + time_of(*tid)?))?;
    let before = own_time();
    let all = clock_gettime(ClockId::ProcessCPUTime);
    let all = Duration::new(all.tv_sec as u64, all.tv_nsec as u32);
    let least = all.checked_sub(others + own_time())?;
    Some([least, all.checked_sub(others + before)?])
}

/// CPU time of a thread of this process.
fn time_of(tid: u32) -> Option<Duration> {
    // By the kernel's numbering of CPU clocks: a thread's, as the scheduler counts.
    let clock = !(tid as i32) << 3 | 6;
    let mut time = [0u64; 2];
    // SAFETY: writes two numbers.
    unsafe { syscall(nr::CLOCK_GETTIME, [clock as usize, time.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some(Duration::new(time[0], time[1] as u32))
}

/// CPUs that this process may use, at least 1. (The numbers of [`current`] may be larger.)
pub fn count() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let known = COUNT.load(Relaxed);
    if known > 0 {
        return known;
    }
    let set = rustix::thread::sched_getaffinity(None);
    let count = set.map_or(1, |set| set.count() as usize).max(1);
    COUNT.store(count, Relaxed);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_number_of_its_own_where_cpus_have_none() {
        let (here, there) = (own_number(), std::thread::spawn(own_number).join().unwrap());
        assert!(here != there && here == own_number());
        assert!(rustix::thread::sched_getaffinity(None).unwrap().is_set(current()));
        assert!(rustix::thread::sched_getaffinity(None).unwrap().is_set(current()), "asked the second time");
    }
}
