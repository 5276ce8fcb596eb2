//! Pages that cannot be read back: the thread that needs one hears of it, and no other.

use super::*;

const REGION: usize = 32 << 20;

/// Some places of the file can never be read.
fn lossy(mode: FaultMode) -> (Pager, Region) {
    let spec = SwapSpec::parse(&format!("file:{},fault=lost:5", std::env::temp_dir().display())).unwrap();
    let builder = Pager::builder().budget(4 << 20).swap([spec]).fault_mode(mode).readahead(1);
    let pager = builder.build().unwrap();
    let mut region = pager.region(REGION).unwrap();
    region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = mix(i as u64));
    (pager, region)
}

fn is_right(region: &Region, page: usize) -> bool {
    (page * 512..(page + 1) * 512).all(|i| region.view::<u64>()[i] == mix(i as u64))
}

/// Whether `prefetch` says that a page is lost. It is asked again before each touch: a page that has not been out so
/// far may be stored at a bad place at any time.
fn is_lost(region: &Region, page: usize) -> bool {
    match region.prefetch(page * PAGE_SIZE..(page + 1) * PAGE_SIZE) {
        Ok(()) => false,
        Err(Error::Unreadable { offset, .. }) => offset == page * PAGE_SIZE,
        Err(other) => panic!("{other}"),
    }
}

fn lost_pages(region: &Region) -> Vec<usize> {
    (0..REGION / PAGE_SIZE).filter(|page| is_lost(region, *page)).collect()
}

#[test]
fn pin_and_prefetch_name_the_page_and_the_others_are_right() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let (pager, mut region) = lossy(mode);
        let lost = lost_pages(&region);
        assert!(!lost.is_empty() && lost.len() < 2000, "{} pages", lost.len());
        for page in 0..REGION / PAGE_SIZE {
            assert!(is_lost(&region, page) || is_right(&region, page), "page {page}");
            assert!(!lost.contains(&page) || is_lost(&region, page), "page {page} has come back");
        }
        let first = lost[0];
        let at = first.saturating_sub(1) * PAGE_SIZE;
        let refused = region.pin(at..(first + 1) * PAGE_SIZE).map(drop);
        assert!(matches!(refused, Err(Error::Unreadable { offset, .. }) if offset == first * PAGE_SIZE), "{refused:?}");
        assert_eq!(pager.stats().unwrap().pinned_bytes, 0);
        // Given up, it is zeros, and a page like any other.
        region.advise(first * PAGE_SIZE..(first + 1) * PAGE_SIZE, Advice::DontNeed).unwrap();
        assert_eq!(region[first * PAGE_SIZE], 0);
        region[first * PAGE_SIZE] = 7;
        assert_eq!(region[first * PAGE_SIZE], 7);
    }
}

/// Runs an ignored test in a process of its own; the signal that ended it, and what it said.
fn ending(test: &str) -> (Option<i32>, String) {
    let out = in_a_process(&format!("lost::{test}"));
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    (std::os::unix::process::ExitStatusExt::signal(&out.status), text)
}

#[test]
fn a_touch_is_a_sigbus_with_the_place_in_the_message() {
    for (test, mode) in [("touch_in_signal_mode", "signal"), ("touch_in_thread_mode", "thread")] {
        let (signal, text) = ending(test);
        assert_eq!(signal, Some(libc::SIGBUS), "{mode}: {text}");
        assert!(text.contains("of a region cannot be read back: swap device 0: ") && text.contains("slot"), "{text}");
        assert!(!text.contains("went on"), "{text}");
    }
}

fn touch(mode: FaultMode) {
    let (_pager, region) = lossy(mode);
    let at = lost_pages(&region)[0] * PAGE_SIZE;
    println!("{} went on", region[at]);
}

#[test]
#[ignore = "ends its process; run by a_touch_is_a_sigbus_with_the_place_in_the_message"]
fn touch_in_signal_mode() {
    touch(FaultMode::Signal);
}

#[test]
#[ignore = "ends its process; run by a_touch_is_a_sigbus_with_the_place_in_the_message"]
fn touch_in_thread_mode() {
    touch(FaultMode::Thread);
}

/// The handler that was there before hears of it, and may let the program go on: by discarding the page, here.
#[test]
fn a_handler_of_the_program_may_give_the_page_up() {
    for (test, mode) in [("handler_in_signal_mode", "signal"), ("handler_in_thread_mode", "thread")] {
        let (signal, text) = ending(test);
        assert_eq!(signal, None, "{mode}: {text}");
        assert!(text.contains("0 went on"), "{mode}: {text}");
    }
}

static LENT: std::sync::atomic::AtomicPtr<Region> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

extern "C" fn give_up(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's; the region outlives the signals.
    let (addr, region) = unsafe { ((*info).si_addr() as usize, &*LENT.load(Ordering::SeqCst)) };
    let at = (addr - region.as_ptr() as usize) / PAGE_SIZE * PAGE_SIZE;
    region.advise(at..at + PAGE_SIZE, Advice::DontNeed).unwrap();
}

fn handled(mode: FaultMode) {
    // SAFETY: plain data; the handler has the type that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = give_up as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
    let (_pager, mut region) = lossy(mode);
    LENT.store(&mut region, Ordering::SeqCst);
    let lost = lost_pages(&region);
    let sum: u64 = lost.iter().map(|page| u64::from(region[page * PAGE_SIZE])).sum();
    println!("{sum} went on");
    assert!(
        (0..REGION / PAGE_SIZE)
            .all(|page| { lost.contains(&page) || is_lost(&region, page) || is_right(&region, page) })
    );
}

#[test]
#[ignore = "installs a handler; run by a_handler_of_the_program_may_give_the_page_up"]
fn handler_in_signal_mode() {
    handled(FaultMode::Signal);
}

#[test]
#[ignore = "installs a handler; run by a_handler_of_the_program_may_give_the_page_up"]
fn handler_in_thread_mode() {
    handled(FaultMode::Thread);
}
