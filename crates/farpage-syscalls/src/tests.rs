//! Against memory that is absent because it may not be accessed: a hold makes it accessible, a release takes that back,
//! and a fault of the program's own is served by a handler.

use super::*;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

mod calls;
mod pieces;

pub const PAGE: usize = 4096;
/// Pages of the memory.
const PAGES: usize = 4096;
/// What one call may hold.
pub const MOST: usize = 64 << 10;

/// Absent memory.
pub struct Absent {
    start: usize,
    held: [AtomicU32; PAGES],
    /// Where the next piece for a test begins.
    next: AtomicU32,
}

/// The process's one.
pub fn absent() -> &'static Absent {
    static ONCE: OnceLock<&'static Absent> = OnceLock::new();
    ONCE.get_or_init(|| {
        let protect = rustix::mm::ProtFlags::empty();
        // SAFETY: new memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE, protect, rustix::mm::MapFlags::PRIVATE)
        };
        let start = start.unwrap() as usize;
        let memory = Box::new(Absent { start, held: [const { AtomicU32::new(0) }; PAGES], next: AtomicU32::new(0) });
        let memory: &'static Absent = Box::leak(memory);
        // SAFETY: a handler that makes a page of the memory accessible, and ends the process for all others.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
        }
        START.store(start, Ordering::SeqCst);
        PLACES.get_or_init(places);
        let installed = install(memory).unwrap();
        println!("{installed:?}");
        cover(start, PAGES * PAGE);
        memory
    })
}

static PLACES: OnceLock<Vec<text::Site>> = OnceLock::new();
static START: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
    // SAFETY: the kernel's.
    let addr = unsafe { (*info).si_addr() } as usize;
    let start = START.load(Ordering::SeqCst);
    if start == 0 || addr.wrapping_sub(start) >= PAGES * PAGE {
        // SAFETY: as if there were no handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    protect(addr / PAGE * PAGE, PAGE, true);
}

fn protect(addr: usize, len: usize, there: bool) {
    let flags = if there { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: pages of the memory.
    assert_eq!(unsafe { libc::mprotect(addr as *mut _, len, flags) }, 0);
}

impl Absent {
    /// Some pages that no other test has, absent, with content.
    pub fn take(&self, content: &[u8]) -> usize {
        let pages = content.len().div_ceil(PAGE).max(1) as u32 + 1;
        let first = self.next.fetch_add(pages, Ordering::SeqCst);
        assert!(first + pages < PAGES as u32, "the tests need more memory");
        let at = self.start + first as usize * PAGE;
        protect(at, pages as usize * PAGE, true);
        // SAFETY: this test's.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), at as *mut u8, content.len()) };
        self.drop(at, content.len());
        at
    }

    /// Makes it absent again.
    pub fn drop(&self, at: usize, len: usize) {
        let first = at / PAGE * PAGE;
        protect(first, (at + len.max(1)).next_multiple_of(PAGE) - first, false);
    }

    /// The content, which is absent again afterwards.
    pub fn content(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: this test's; it is brought in.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec();
        self.drop(at, len);
        bytes
    }

    /// Nothing is held there.
    pub fn is_free(&self, at: usize, len: usize) -> bool {
        let pages = (at - self.start) / PAGE..(at + len - self.start).div_ceil(PAGE);
        self.held[pages].iter().all(|held| held.load(Ordering::SeqCst) == 0)
    }
}

impl Memory for Absent {
    fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.start) < PAGES * PAGE
    }

    fn hold(&self, addr: usize, len: usize, _: bool, note: &dyn Fn(usize)) -> usize {
        let end = self.start + PAGES * PAGE;
        if !(self.start..end).contains(&addr) {
            return 0;
        }
        let len = len.min(end - addr);
        for page in (addr - self.start) / PAGE..(addr + len - self.start).div_ceil(PAGE) {
            self.held[page].fetch_add(1, Ordering::SeqCst);
            protect(self.start + page * PAGE, PAGE, true);
        }
        note(len);
        len
    }

    fn release(&self, addr: usize, len: usize, note: &dyn Fn()) {
        note();
        for page in (addr - self.start) / PAGE..(addr + len - self.start).div_ceil(PAGE) {
            if self.held[page].fetch_sub(1, Ordering::SeqCst) == 1 {
                protect(self.start + page * PAGE, PAGE, false);
            }
        }
    }

    fn most(&self, _: usize) -> usize {
        MOST
    }
}

/// Asserts that a call of libc succeeded.
pub fn good(result: impl TryInto<i64>) -> i64 {
    let result = result.try_into().unwrap_or(-1);
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

/// What becomes of the calls of libc and the loader.
fn places() -> Vec<text::Site> {
    let texts = text::find().unwrap();
    texts.into_iter().flat_map(|text| text.sites).collect()
}

/// Numbers that are not constants are asked for when the call is made. What has no place here must not be about a
/// buffer.
#[test]
fn calls_of_libc_about_buffers_have_a_place_for_a_jump() {
    absent();
    let sites = PLACES.get().unwrap();
    let left: Vec<_> = sites.iter().filter(|site| site.jump.is_none()).collect();
    assert!(sites.len() > 400 && left.len() * 10 < sites.len(), "{left:?}");
    let about = |site: &&&text::Site| site.nr.is_some_and(|nr| table::class(nr).matters());
    // A mask of libc's own, and how libc and the loader read for themselves.
    let allowed = [linux_raw_sys::general::__NR_rt_sigprocmask, linux_raw_sys::general::__NR_read];
    let bad: Vec<_> = left.iter().filter(about).filter(|site| !allowed.contains(&site.nr.unwrap())).collect();
    assert!(bad.is_empty(), "{bad:?}");
    // The program's own have; from glibc 2.41 on where all calls are made that can be cancelled.
    for nr in allowed {
        let makes = |site: &text::Site| site.nr.is_none_or(|of| of == nr) && site.jump.is_some();
        assert!(sites.iter().any(makes), "{nr}");
    }
}
