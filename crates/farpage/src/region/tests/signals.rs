//! Signals: handlers that touch regions, whose a SIGBUS is, and the end of a process that touches what is no region's.

use super::*;
use std::sync::atomic::AtomicUsize;

/// Handlers of the program that touch a region at any moment, also while the engine works in the same thread.
#[test]
fn a_signal_handler_may_touch_a_region() {
    static BASE: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touch(_: i32) {
        let n = CALLS.fetch_add(1, Ordering::SeqCst);
        let page = mix(n as u64) as usize % 4096;
        // SAFETY: the region outlives the signals (the test waits), and no thread writes after it was filled.
        let word = unsafe { ((BASE.load(Ordering::SeqCst) + page * PAGE_SIZE) as *const u64).read_volatile() };
        WRONG.fetch_add(usize::from(word != page as u64 + 1), Ordering::SeqCst);
    }
    // SAFETY: a handler that touches memory and atomics only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = touch as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    for page in 0..4096 {
        region.view_mut::<u64>()[page * 512..][..512].fill(page as u64 + 1);
        region.view_mut::<u64>()[page * 512 + 1] = mix(page as u64);
    }
    BASE.store(region.as_ptr() as usize, Ordering::SeqCst);
    // SAFETY: no preconditions.
    let thread = unsafe { libc::pthread_self() };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                // SAFETY: the thread waits for this one to end.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::sleep(std::time::Duration::from_micros(30));
            }
        });
        for i in 0..60_000u64 {
            let page = mix(i) as usize % 4096;
            assert_eq!(region.view::<u64>()[page * 512 + 7], page as u64 + 1);
            if i % 50 == 0 {
                region.prefetch(page * PAGE_SIZE..(page + 8).min(4096) * PAGE_SIZE).unwrap();
                drop(region.pin(page * PAGE_SIZE..(page + 1) * PAGE_SIZE).unwrap());
                pager.stats().unwrap();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(CALLS.load(Ordering::SeqCst) > 100);
    assert_eq!(WRONG.load(Ordering::SeqCst), 0);
}

#[test]
fn a_forked_child_gets_a_clear_fault_and_not_zeros() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    region.view_mut::<u64>().iter_mut().step_by(512).enumerate().for_each(|(i, w)| *w = i as u64 + 1);
    let page = region.as_ptr();
    // SAFETY: the child makes system calls and touches its own memory only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child: with a core signal at the first access, or with 0 if that gave anything at all.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let refused = matches!(pager.region(1), Err(Error::Forked))
                && matches!(pager.stats(), Err(Error::Forked))
                && matches!(region.advise(0..1, Advice::DontNeed), Err(Error::Forked));
            if !refused {
                libc::_exit(3);
            }
            page.read_volatile();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    let words: &[u64] = region.view();
    assert!(words.iter().step_by(512).enumerate().all(|(i, w)| *w == i as u64 + 1), "the parent goes on");
}

#[test]
fn a_child_can_drop_what_it_inherited_and_build_its_own() {
    let pager = pager(4 << 20);
    let region = pager.region(1 << 20).unwrap();
    // SAFETY: the child uses this library and libc only, and no lock of another thread: none is running.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((region, pager));
        let ok = Pager::builder().budget(4 << 20).reclaim_threads(1).build().and_then(|own| {
            let mut region = own.region(12 << 20)?;
            region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, w)| *w = i as u64 / 3);
            Ok(region.view::<u64>().iter().enumerate().all(|(i, w)| *w == i as u64 / 3))
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!matches!(ok, Ok(true)))) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    drop(region);
}

#[test]
fn a_region_dropped_under_a_thread_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    for test in ["drop_under_threads", "drop_untouched_under_threads", "drop_under_threads_in_thread_mode"] {
        for _ in 0..3 {
            let out = in_a_process(&format!("signals::{test}"));
            let said = String::from_utf8_lossy(&out.stdout);
            if said.contains("skipped: ") {
                print!("{test}: {said}");
                break;
            }
            let signal = out.status.signal();
            assert!(signal == Some(libc::SIGSEGV) || signal == Some(libc::SIGBUS), "{test}: {}: {said}", out.status);
        }
    }
}

#[test]
#[ignore = "ends its process; run by a_region_dropped_under_a_thread_ends_the_process"]
fn drop_under_threads() {
    drop_under(FaultMode::Signal, true);
}

#[test]
#[ignore = "ends its process; run by a_region_dropped_under_a_thread_ends_the_process"]
fn drop_untouched_under_threads() {
    drop_under(FaultMode::Signal, false);
}

#[test]
#[ignore = "ends its process; run by a_region_dropped_under_a_thread_ends_the_process"]
fn drop_under_threads_in_thread_mode() {
    drop_under(FaultMode::Thread, true);
}

/// A region is dropped while threads read it; `full`: its pages have content, else hardly any has a word.
fn drop_under(mode: FaultMode, full: bool) {
    let pager = match Pager::builder().budget(4 << 20).fault_mode(mode).build() {
        Ok(pager) => pager,
        Err(Error::Userfaultfd(error)) if mode == FaultMode::Thread => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let pages = if full { 4096 } else { 1 << 20 };
    let mut region = pager.region(pages * PAGE_SIZE).unwrap();
    let base = region.as_ptr() as usize;
    let word = move |page: usize| if full { page as u64 + 1 } else { 0 };
    for page in (0..pages).filter(|_| full) {
        region[page * PAGE_SIZE..][..8].copy_from_slice(&word(page).to_ne_bytes());
    }
    let threads: Vec<_> = (0..2u64)
        .map(|t| {
            std::thread::spawn(move || {
                for i in 0..u64::MAX {
                    let page = mix(i ^ t << 40) as usize % pages;
                    // SAFETY: not safe, and that is what is tested: the region goes away.
                    let read = unsafe { ((base + page * PAGE_SIZE) as *const u64).read_volatile() };
                    assert_eq!(read, word(page));
                }
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(if full { 100 } else { 5 }));
    drop(region);
    for thread in threads {
        let _ = thread.join();
    }
}

/// Each of these says what was there in a process of its own, whose end tells what became of the signal.
#[test]
fn other_sigbus_goes_to_the_handler_that_was_there() {
    for (test, code) in [("sigbus_chain", 42), ("sigbus_plain", 43)] {
        let out = in_a_process(&format!("signals::{test}"));
        assert_eq!(out.status.code(), Some(code), "{test}: {}", String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn without_a_handler_before_other_sigbus_does_what_it_did() {
    use std::os::unix::process::ExitStatusExt;
    for (test, survives) in [("sigbus_default", false), ("sigbus_default_sent", false), ("sigbus_ignored", true)] {
        let out = in_a_process(&format!("signals::{test}"));
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.signal(), Some(libc::SIGBUS), "{test}: {said}");
        assert_eq!(said.contains("went on"), survives, "{test}: {said}");
    }
}

#[test]
fn no_other_signal_is_touched() {
    let out = in_a_process("signals::dispositions");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
#[ignore = "run by no_other_signal_is_touched, in a process without other tests' handlers"]
fn dispositions() {
    let all = || -> Vec<_> {
        let of = |signal| {
            // SAFETY: plain data that the call fills; nothing is changed.
            let (action, result) = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let result = libc::sigaction(signal, std::ptr::null(), &mut action);
                (action, result)
            };
            (signal, result, action.sa_sigaction, action.sa_flags)
        };
        (1..=64).map(of).collect()
    };
    let before = all();
    assert_eq!(before[libc::SIGSEGV as usize - 1].1, 0);
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    region.fill(1);
    let differ = || before.iter().zip(all()).filter(|(a, b)| **a != *b).map(|(a, _)| a.0).collect::<Vec<_>>();
    assert_eq!(differ(), [libc::SIGBUS]);
    drop((region, pager));
    assert_eq!(differ(), [libc::SIGBUS]);
}

/// A mapping of an empty file: touching it is a SIGBUS that is not ours.
fn bus_error() {
    let file = tempfile::tempfile().unwrap();
    let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping; the access is the signal that is tested.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, &file, 0).unwrap();
        at.cast::<u8>().read_volatile();
    }
}

#[test]
#[ignore = "ends its process; run by other_sigbus_goes_to_the_handler_that_was_there"]
fn sigbus_chain() {
    extern "C" fn leave(_: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
        // SAFETY: a handler with SA_SIGINFO gets a valid info; _exit ends the process.
        unsafe { libc::_exit(if (*info).si_code > 0 { 42 } else { 1 }) };
    }
    // SAFETY: a handler that calls _exit only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = leave as extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    region.fill(1);
    bus_error();
}

#[test]
#[ignore = "ends its process; run by other_sigbus_goes_to_the_handler_that_was_there"]
fn sigbus_plain() {
    extern "C" fn leave(signal: i32) {
        // SAFETY: plain data that the calls fill; _exit ends the process.
        unsafe {
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked);
            // As the kernel calls it.
            let as_promised = signal == libc::SIGBUS && libc::sigismember(&blocked, libc::SIGUSR1) == 0;
            libc::_exit(if as_promised { 43 } else { 1 })
        }
    }
    let _used = before_the_first_pager(leave as extern "C" fn(i32) as usize);
    bus_error();
}

/// What SIGBUS does when the first pager is built; then the pager has work. The test harness has a handler, so that
/// something else must be put there first.
fn before_the_first_pager(disposition: usize) -> (Pager, Region) {
    // SAFETY: a default disposition, or a handler of the type that goes without SA_SIGINFO.
    unsafe { libc::signal(libc::SIGBUS, disposition) };
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    region.fill(1);
    (pager, region)
}

/// Sends SIGBUS as `kill` does, but to this thread, so that it has been dealt with when this returns.
fn send_sigbus() {
    // SAFETY: plain data; the signal goes to this thread, whose handler is what is tested.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::SI_USER);
        let (pid, thread) = (libc::getpid(), libc::gettid());
        assert_eq!(libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, libc::SIGBUS, &info), 0);
    }
}

#[test]
#[ignore = "ends its process; run by without_a_handler_before_other_sigbus_does_what_it_did"]
fn sigbus_default() {
    let _used = before_the_first_pager(libc::SIG_DFL);
    bus_error();
    println!("went on");
}

#[test]
#[ignore = "ends its process; run by without_a_handler_before_other_sigbus_does_what_it_did"]
fn sigbus_default_sent() {
    let _used = before_the_first_pager(libc::SIG_DFL);
    send_sigbus();
    println!("went on");
}

#[test]
#[ignore = "ends its process; run by without_a_handler_before_other_sigbus_does_what_it_did"]
fn sigbus_ignored() {
    let (_pager, region) = before_the_first_pager(libc::SIG_IGN);
    send_sigbus();
    // SAFETY: sends this thread a signal, the other way to send one.
    unsafe { libc::raise(libc::SIGBUS) };
    assert!(region.iter().all(|b| *b == 1), "the region's own faults are not ignored");
    println!("went on");
    // Nothing can ignore this one: the access would just fault again.
    bus_error();
}
