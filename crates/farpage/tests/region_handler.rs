//! A signal handler that touches a region while the interrupted thread is inside its allocator: nothing that the fault
//! waits for may wait for that. Fails by not ending.

use farpage::Growing;
use farpage::region::Pager;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

#[global_allocator]
static HEAP: Growing = Growing::new();

const PAGE: usize = 4096;
const PAGES: usize = 8192;
const SIGNALS: usize = 400;

static MEMORY: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static DICE: AtomicU64 = AtomicU64::new(1);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

/// The word at the beginning of a page.
fn content(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

extern "C" fn on_signal(_: libc::c_int) {
    for _ in 0..2 {
        let dice = DICE.load(SeqCst).wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        DICE.store(dice, SeqCst);
        let page = (dice >> 33) as usize % PAGES;
        // SAFETY: the region lives until the last signal was handled; volatile, because it is memory of a signal
        // handler.
        unsafe {
            let at = MEMORY.load(SeqCst).add(page * PAGE / 8);
            WRONG.fetch_add(usize::from(at.read_volatile() != content(page)), SeqCst);
            // Or it need not be stored again.
            at.add(1).write_volatile(dice);
        }
    }
    HANDLED.fetch_add(1, SeqCst);
}

#[test]
fn a_handler_that_interrupts_the_allocator_may_touch_a_region() {
    let pager = Pager::builder().budget(8 << 20).build().unwrap();
    let mut region = pager.region(PAGES * PAGE).unwrap();
    let words = region.view_mut::<u64>();
    (0..PAGES).for_each(|page| words[page * PAGE / 8] = content(page));
    MEMORY.store(words.as_mut_ptr(), SeqCst);
    // SAFETY: a handler of the right type; pthread_self has no conditions.
    let interrupted = unsafe {
        libc::signal(libc::SIGUSR1, on_signal as extern "C" fn(libc::c_int) as usize);
        libc::pthread_self()
    };
    let sender = std::thread::spawn(move || {
        for sent in 0..SIGNALS {
            std::thread::sleep(Duration::from_micros(300));
            // SAFETY: the thread waits for this one.
            unsafe { libc::pthread_kill(interrupted, libc::SIGUSR1) };
            while HANDLED.load(SeqCst) == sent {
                std::hint::spin_loop();
            }
        }
        OVER.store(true, SeqCst);
    });
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); 256];
    let mut x = 1usize;
    while !OVER.load(SeqCst) {
        x = x.wrapping_mul(1103515245).wrapping_add(12345);
        blocks[(x >> 8) % 256] = Vec::with_capacity(1500 + (x >> 16) % 60_000);
    }
    sender.join().unwrap();
    assert_eq!((HANDLED.load(SeqCst), WRONG.load(SeqCst)), (SIGNALS, 0));
}
