//! What stands behind this library's functions: libc's of the same name, or another preloaded library's.
//!
//! There is one [`Real`] for each, made where it is called ([`real!`]). They lie beside each other, in a section of
//! their own, so that the initialiser finds all of them.

use crate::late::slots::{is_late, look_up, what_the_program_calls};
use farpage_base::sys::thread::thread_pointer;
use std::arch::global_asm;
use std::ffi::{CStr, c_int};
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of libc.
#[repr(C)]
pub struct Real {
    at: AtomicUsize,
    /// Its name.
    pub name: &'static CStr,
}

/// The [`Real`] of this name.
macro_rules! real {
    ($($name:tt)+) => {{
        #[unsafe(link_section = "farpage_real")]
        static REAL: $crate::real::Real = $crate::real::Real::new(concat!($($name)+, "\0"));
        &REAL
    }};
}
pub(crate) use real;

unsafe extern "C" {
    /// By the linker: where the section begins and ends.
    #[link_name = "__start_farpage_real"]
    static FIRST: u8;
    #[link_name = "__stop_farpage_real"]
    static END: u8;
}

// Another library of this kind has such a section, too.
global_asm!(".hidden __start_farpage_real", ".hidden __stop_farpage_real");

/// The thread that is looking a function up, by its thread pointer: before glibc 2.34 the first look-up of a thread
/// asks for memory itself, and does without if there is none.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Looks all functions up. By the initialiser: later, the looking up might itself need memory from the caller, and a
/// child of `vfork` or a signal handler may ask.
pub fn find() {
    let (first, end) = ((&raw const FIRST).cast::<Real>(), (&raw const END).cast::<Real>());
    // SAFETY: the section has nothing but statics of this type.
    let all = unsafe { std::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    all.iter().for_each(|real| real.at.store(next(real.name), Relaxed));
}

/// Where what stands behind a function of ours is; 0: there is none. A library that came later is behind all others,
/// and not where the program looks: what the program finds is not ours.
fn next(name: &CStr) -> usize {
    if is_late() { what_the_program_calls(name) } else { look_up(libc::RTLD_NEXT, name) }
}

impl Real {
    /// That of a name that ends with a zero.
    pub const fn new(name: &'static str) -> Real {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Real { at: AtomicUsize::new(0), name },
            Err(_) => panic!("a name has one zero, at its end"),
        }
    }

    /// Where it is; 0: there is none, or it is just being looked up.
    #[inline]
    pub fn address(&self) -> usize {
        match self.at.load(Relaxed) {
            0 => self.look_up(),
            at => at,
        }
    }

    /// Libraries that are initialised before this one call before [`find`]. Each look-up takes the loader's lock and
    /// clears the thread's `dlerror`, so there is one only.
    #[cold]
    fn look_up(&self) -> usize {
        let me = thread_pointer();
        if LOOKING.load(Relaxed) == me {
            return 0;
        }
        LOOKING.store(me, Relaxed);
        let at = next(self.name);
        LOOKING.store(0, Relaxed);
        let _found_meanwhile = self.at.compare_exchange(0, at, Relaxed, Relaxed);
        at
    }
}

/// The function at an address, with the type of `ours`; 0: there is none.
///
/// # Safety
/// `F` is a pointer to a function, and the type of the one that is there.
#[inline]
pub unsafe fn function<F: Copy>(at: usize, _ours: F) -> Option<F> {
    // SAFETY: caller's promise: a pointer is as large as its address.
    (at != 0).then(|| unsafe { transmute_copy::<usize, F>(&at) })
}

/// What a function returns that is not there.
pub trait Missing {
    /// The value.
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: c_int = -1;
}

impl<T> Missing for *mut T {
    const MISSING: *mut T = std::ptr::null_mut();
}
