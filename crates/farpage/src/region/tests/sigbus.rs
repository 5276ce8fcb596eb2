//! SIGBUS is the pagers' own, whatever a program does with it: each test has a process of its own, with its own
//! handlers and masks.

use super::*;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;

const BYTES: usize = 16 << 20;

fn looked_at() -> Pager {
    Pager::builder().budget(4 << 20).system_calls(true).build().unwrap()
}

fn filled(pager: &Pager) -> Region {
    let mut region = pager.region(BYTES).unwrap();
    region.view_mut::<u64>().iter_mut().step_by(512).enumerate().for_each(|(i, word)| *word = i as u64 + 1);
    region
}

fn is_right(words: &[u64]) -> bool {
    words.iter().step_by(512).enumerate().all(|(i, word)| *word == i as u64 + 1)
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: plain data that the call fills.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        set
    }
}

/// Sets this thread's mask; what it was.
fn set_mask(how: i32, set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both are sets.
    unsafe {
        let mut old = std::mem::zeroed();
        assert_eq!(libc::pthread_sigmask(how, set, &mut old), 0);
        old
    }
}

fn has(set: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: reads the set.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// As `sigaction`; what was there.
fn act(signal: i32, new: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: plain data that the call fills; handlers are of the type that their flags say.
    unsafe {
        let mut old = std::mem::zeroed();
        let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
        assert_eq!(libc::sigaction(signal, new, &mut old), 0);
        old
    }
}

fn action(handler: usize, flags: i32, mask: libc::sigset_t) -> libc::sigaction {
    libc::sigaction { sa_sigaction: handler, sa_mask: mask, sa_flags: flags, sa_restorer: None }
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: an empty set is zeros.
    unsafe { std::mem::zeroed() }
}

macro_rules! each_in_a_process {
    ($($name:ident)*) => {
        mod run {
            $(
                #[test]
                fn $name() {
                    let out = super::super::in_a_process(concat!("sigbus::", stringify!($name)));
                    assert!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stdout));
                }
            )*
        }
    };
}

each_in_a_process! {
    threads_that_block_all_signals
    threads_that_blocked_them_before_the_first_pager
    threads_that_blocked_them_before_the_region
    a_mask_reads_back_as_it_was_set
    handlers_and_waits_that_block_all_signals
    handlers_that_blocked_them_before_the_first_pager
    a_handler_that_is_installed_later_is_passed_on_to
    a_handler_that_was_put_there_behind_our_back
    a_child_that_is_spawned_has_what_was_set
}

#[test]
#[ignore = "run in a process of its own"]
fn threads_that_block_all_signals() {
    let pager = looked_at();
    let region = filled(&pager);
    std::thread::scope(|scope| {
        let blocked = || {
            set_mask(libc::SIG_SETMASK, &all_signals());
            assert!(is_right(region.view()));
        };
        scope.spawn(blocked).join().unwrap();
        // And those that inherit it.
        scope.spawn(move || {
            let before = set_mask(libc::SIG_BLOCK, &all_signals());
            std::thread::scope(|scope| {
                scope.spawn(blocked);
                set_mask(libc::SIG_SETMASK, &before);
            });
        });
    });
}

#[test]
#[ignore = "run in a process of its own"]
fn threads_that_blocked_them_before_the_first_pager() {
    threads_that_blocked_before(|ready| {
        ready();
        let pager = looked_at();
        filled(&pager)
    });
}

#[test]
#[ignore = "run in a process of its own"]
fn threads_that_blocked_them_before_the_region() {
    threads_that_blocked_before(|ready| {
        // libc's calls are not looked at.
        let pager = pager(4 << 20);
        ready();
        filled(&pager)
    });
}

/// A thread that has all signals blocked from when the function that it gets is called reads the region.
fn threads_that_blocked_before(make: impl FnOnce(&mut dyn FnMut()) -> Region) {
    let (to_reader, regions) = channel::<Arc<Region>>();
    let (begin, begins) = channel::<()>();
    let (ready, readies) = channel::<()>();
    let reader = std::thread::spawn(move || {
        begins.recv().unwrap();
        set_mask(libc::SIG_SETMASK, &all_signals());
        ready.send(()).unwrap();
        let region = regions.recv().unwrap();
        let old = set_mask(libc::SIG_BLOCK, &no_signals());
        assert!(has(&old, libc::SIGUSR1));
        assert!(is_right(region.view()));
    });
    let region = Arc::new(make(&mut || {
        begin.send(()).unwrap();
        readies.recv().unwrap();
    }));
    to_reader.send(region).unwrap();
    reader.join().unwrap();
}

#[test]
#[ignore = "run in a process of its own"]
fn a_mask_reads_back_as_it_was_set() {
    let _pager = looked_at();
    let mut bus = no_signals();
    // SAFETY: changes the set.
    unsafe { libc::sigaddset(&mut bus, libc::SIGBUS) };
    assert!(!has(&set_mask(libc::SIG_BLOCK, &bus), libc::SIGBUS));
    assert!(has(&set_mask(libc::SIG_BLOCK, &no_signals()), libc::SIGBUS));
    // A thread has its maker's.
    std::thread::spawn(|| assert!(has(&set_mask(libc::SIG_BLOCK, &no_signals()), libc::SIGBUS))).join().unwrap();
    assert!(has(&set_mask(libc::SIG_UNBLOCK, &bus), libc::SIGBUS));
    let before = set_mask(libc::SIG_SETMASK, &all_signals());
    assert!(!has(&before, libc::SIGBUS) && has(&set_mask(libc::SIG_SETMASK, &before), libc::SIGBUS));
    assert!(!has(&set_mask(libc::SIG_BLOCK, &no_signals()), libc::SIGBUS));
    // What is not looked at says how it is.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
}

static WORDS: AtomicUsize = AtomicUsize::new(0);
static RIGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn read_all(_: i32) {
    // SAFETY: the region outlives the signals, and no thread writes.
    let words = unsafe { std::slice::from_raw_parts(WORDS.load(Ordering::SeqCst) as *const u64, BYTES / 8) };
    RIGHT.fetch_add(usize::from(is_right(words)), Ordering::SeqCst);
}

#[test]
#[ignore = "run in a process of its own"]
fn handlers_and_waits_that_block_all_signals() {
    let pager = looked_at();
    let region = filled(&pager);
    WORDS.store(region.as_ptr() as usize, Ordering::SeqCst);
    act(libc::SIGUSR1, Some(&action(read_all as *const () as usize, 0, all_signals())));
    assert!(has(&act(libc::SIGUSR1, None).sa_mask, libc::SIGBUS));
    let raise = || {
        // SAFETY: a signal for this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
    };
    raise();
    assert_eq!(RIGHT.load(Ordering::SeqCst), 1);
    act(libc::SIGUSR1, Some(&action(read_all as *const () as usize, 0, no_signals())));
    assert!(!has(&act(libc::SIGUSR1, None).sa_mask, libc::SIGBUS));
    let mut usr1 = no_signals();
    let mut others = all_signals();
    // SAFETY: changes the sets.
    unsafe {
        libc::sigaddset(&mut usr1, libc::SIGUSR1);
        libc::sigdelset(&mut others, libc::SIGUSR1);
    }
    set_mask(libc::SIG_BLOCK, &usr1);
    // It waits until the mask lets it come.
    let null = std::ptr::null_mut::<c_void>();
    let epoll = |set: &libc::sigset_t| {
        // SAFETY: room for one event; closes what it has opened.
        unsafe {
            let poll = libc::epoll_create1(0);
            let mut event: libc::epoll_event = std::mem::zeroed();
            let result = libc::epoll_pwait(poll, &mut event, 1, -1, set);
            libc::close(poll);
            result
        }
    };
    let waits: [&dyn Fn(&libc::sigset_t) -> i32; 4] = [
        // SAFETY: no descriptors, no time; a set.
        &|set| unsafe { libc::sigsuspend(set) },
        // SAFETY: as above.
        &|set| unsafe { libc::ppoll(null.cast(), 0, null.cast(), set) },
        // SAFETY: as above.
        &|set| unsafe { libc::pselect(0, null.cast(), null.cast(), null.cast(), null.cast(), set) },
        &epoll,
    ];
    for (i, wait) in waits.iter().enumerate() {
        raise();
        assert_eq!(RIGHT.load(Ordering::SeqCst), i + 1);
        assert_eq!(wait(&others), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR));
        assert_eq!(RIGHT.load(Ordering::SeqCst), i + 2);
    }
}

#[test]
#[ignore = "run in a process of its own"]
fn handlers_that_blocked_them_before_the_first_pager() {
    act(libc::SIGUSR1, Some(&action(read_all as *const () as usize, 0, all_signals())));
    let pager = looked_at();
    let region = filled(&pager);
    WORDS.store(region.as_ptr() as usize, Ordering::SeqCst);
    // SAFETY: a signal for this thread.
    unsafe { libc::raise(libc::SIGUSR1) };
    assert_eq!(RIGHT.load(Ordering::SeqCst), 1);
    assert!(has(&act(libc::SIGUSR1, None).sa_mask, libc::SIGBUS));
}

static ON_STACK: AtomicBool = AtomicBool::new(false);
static MASK_IS_RIGHT: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Reads all of a region, and then puts memory where there was none.
extern "C" fn repair(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    let blocked = set_mask(libc::SIG_BLOCK, &no_signals());
    MASK_IS_RIGHT.store(has(&blocked, libc::SIGUSR2) && !has(&blocked, libc::SIGUSR1), Ordering::SeqCst);
    // SAFETY: plain data that the call fills.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut stack);
        stack
    };
    ON_STACK.store(stack.ss_flags & libc::SS_ONSTACK != 0, Ordering::SeqCst);
    read_all(0);
    CALLS.fetch_add(1, Ordering::SeqCst);
    let place = PLACE.load(Ordering::SeqCst);
    // SAFETY: the kernel's; the test's own page is replaced.
    unsafe {
        assert_eq!((*info).si_addr() as usize, place);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(place as *mut c_void, PAGE_SIZE, libc::PROT_READ, flags, -1, 0);
    }
}

/// Touches memory behind the end of a file.
fn foreign() {
    let file = tempfile::tempfile().unwrap();
    let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping; the access is what is tested.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, &file, 0).unwrap();
        PLACE.store(at as usize, Ordering::SeqCst);
        at.cast::<u8>().read_volatile();
    }
}

#[test]
#[ignore = "run in a process of its own"]
fn a_handler_that_is_installed_later_is_passed_on_to() {
    let of_harness = act(libc::SIGBUS, None).sa_sigaction;
    let pager = looked_at();
    let region = filled(&pager);
    WORDS.store(region.as_ptr() as usize, Ordering::SeqCst);
    let mut usr2 = no_signals();
    // SAFETY: changes the set.
    unsafe { libc::sigaddset(&mut usr2, libc::SIGUSR2) };
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // The harness's is too small for a handler that touches regions.
    let room = vec![0u8; 64 << 10];
    let stack = libc::stack_t { ss_sp: room.as_ptr() as *mut c_void, ss_flags: 0, ss_size: room.len() };
    // SAFETY: the room stays until the process ends.
    assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0);
    std::mem::forget(room);
    let new = action(repair as *const () as usize, flags, usr2);
    assert_eq!(act(libc::SIGBUS, Some(&new)).sa_sigaction, of_harness);
    let now = act(libc::SIGBUS, None);
    assert_eq!((now.sa_sigaction, now.sa_flags & flags), (new.sa_sigaction, flags));
    assert!(has(&now.sa_mask, libc::SIGUSR2) && !has(&now.sa_mask, libc::SIGUSR1));
    for calls in 1..3 {
        assert!(is_right(region.view()));
        foreign();
        assert_eq!((CALLS.load(Ordering::SeqCst), RIGHT.load(Ordering::SeqCst)), (calls, calls));
        assert!(ON_STACK.load(Ordering::SeqCst) && MASK_IS_RIGHT.load(Ordering::SeqCst));
        let mask = set_mask(libc::SIG_BLOCK, &no_signals());
        assert!(!has(&mask, libc::SIGUSR2), "the mask is as it was");
    }
    let once = action(repair as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND, usr2);
    act(libc::SIGBUS, Some(&once));
    foreign();
    assert!(!ON_STACK.load(Ordering::SeqCst));
    assert_eq!(act(libc::SIGBUS, None).sa_sigaction, libc::SIG_DFL);
    assert!(is_right(region.view()), "the region's own faults go on");
    // A second pager finds all as it should be.
    assert!(is_right(filled(&looked_at()).view()));
    assert_eq!(act(libc::SIGBUS, None).sa_sigaction, libc::SIG_DFL);
}

#[test]
fn after_sa_resethand_a_foreign_fault_ends_the_process() {
    let out = in_a_process("sigbus::ends_by_default");
    assert_eq!(out.status.signal(), Some(libc::SIGBUS), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
#[ignore = "ends its process"]
fn ends_by_default() {
    let pager = looked_at();
    let region = filled(&pager);
    act(libc::SIGBUS, Some(&action(libc::SIG_DFL, 0, no_signals())));
    assert!(is_right(region.view()));
    foreign();
}

/// By a system call that libc does not make, or while libc's are not looked at.
#[test]
#[ignore = "run in a process of its own"]
fn a_handler_that_was_put_there_behind_our_back() {
    let pager = pager(4 << 20);
    let region = filled(&pager);
    WORDS.store(region.as_ptr() as usize, Ordering::SeqCst);
    let new = action(repair as *const () as usize, libc::SA_SIGINFO, no_signals());
    let ours = act(libc::SIGBUS, Some(&new)).sa_sigaction;
    while act(libc::SIGBUS, None).sa_sigaction != ours {
        std::thread::yield_now();
    }
    assert!(is_right(region.view()));
    foreign();
    assert_eq!((CALLS.load(Ordering::SeqCst), RIGHT.load(Ordering::SeqCst)), (1, 1));
}

#[test]
#[ignore = "run in a process of its own"]
fn a_child_that_is_spawned_has_what_was_set() {
    let _pager = looked_at();
    let program = [c"grep", c"-q", c"^SigBlk:.*ff$", c"/proc/self/status"].map(std::ffi::CStr::as_ptr);
    let args: Vec<_> = program.iter().map(|arg| arg.cast_mut()).chain([std::ptr::null_mut()]).collect();
    for (mask, code) in [(all_signals(), 0), (no_signals(), 1)] {
        set_mask(libc::SIG_SETMASK, &mask);
        let (mut child, mut status, none) = (0, 0, std::ptr::null());
        // SAFETY: strings, and arrays that end with a null; no attributes.
        let spawned =
            unsafe { libc::posix_spawnp(&mut child, program[0], none, none.cast(), args.as_ptr(), none.cast()) };
        assert_eq!(spawned, 0);
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, code));
    }
}
