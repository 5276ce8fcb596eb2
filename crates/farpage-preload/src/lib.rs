//! The LD_PRELOAD library: an initialiser, a private heap, and a few interposed functions ([`mappings`], [`allocate`],
//! [`threads`], [`forks`], [`execs`] with [`environment`], [`descriptors`], [`privileges`], [`pagemaps`],
//! [`userfaultfds`], [`syscall`](mod@syscall)), which call what stands behind them ([`call`], [`real`]). What the
//! library calls itself is its own ([`own`]).

pub mod allocate;
mod call;
pub mod descriptors;
pub mod environment;
pub mod execs;
pub mod forks;
pub mod late;
pub mod mappings;
mod own;
pub mod pagemaps;
pub mod privileges;
mod real;
pub mod syscall;
pub mod threads;
pub mod userfaultfds;

use farpage_base::mem::heap::Heap;
use farpage_base::sys::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory for what is allocated before the engine has reserved its address space.
const EARLY: usize = 256 * 1024;

#[repr(align(4096))]
struct Early(#[allow(dead_code)] [u8; EARLY]);

static mut EARLY_MEMORY: Early = Early([0; EARLY]);

#[global_allocator]
static HEAP: Heap = Heap::empty();

extern "C" fn init() {
    let part = farpage_base::mem::arena::Part { base: std::ptr::addr_of!(EARLY_MEMORY) as usize, len: EARLY };
    // SAFETY: zeroed static memory that nothing else names; given once, because initialisers run once.
    let _open_already = unsafe { HEAP.give(part, EARLY) };
    find();
    // A library that comes later is told what to do ([`late`]).
    if farpage_run::lifecycle::preload::is_asked() && is_first() {
        environment::set(&farpage_run::lifecycle::preload::start(&HEAP));
    }
}

/// Looks up what is asked for later, where nothing can be looked up.
fn find() {
    environment::find();
    descriptors::find();
    real::find();
}

/// Set by the first library of this kind in a process, of whatever installation and name.
#[unsafe(no_mangle)]
static farpage_preload_started: AtomicBool = AtomicBool::new(false);

/// Whether no other one is there. Two engines would serve each other's faults, and wait for ever.
fn is_first() -> bool {
    !started().swap(true, Ordering::AcqRel)
}

/// Whether one is there, this one or another one.
fn is_started() -> bool {
    started().load(Ordering::Acquire)
}

/// The mark of the first library of this kind.
fn started() -> &'static AtomicBool {
    // SAFETY: only looks a symbol up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"farpage_preload_started".as_ptr()) };
    // SAFETY: all libraries with this symbol have this type under it, and are never unloaded.
    unsafe { found.cast::<AtomicBool>().as_ref() }.unwrap_or(&farpage_preload_started)
}

extern "C" fn end() {
    farpage_run::lifecycle::ended::end();
}

/// As libc's; for a process that ends without its finalisers.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    farpage_run::lifecycle::ended::end_at_once();
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { raw::syscall(libc::SYS_exit_group as u32, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// As libc's; another name of the same.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// An ELF note that says that this file is farpage's library, and of which version: `farpage run` reads it before it
/// starts a program, which could only say that it has no budget.
#[repr(C)]
struct Note {
    name_len: u32,
    version_len: u32,
    kind: u32,
    name: [u8; 8],
    version: [u8; 32],
}

#[used]
#[unsafe(link_section = ".note.farpage")]
static NOTE: Note = Note {
    name_len: 8,
    version_len: 32,
    kind: 1,
    name: *b"farpage\0",
    version: padded(env!("CARGO_PKG_VERSION").as_bytes()),
};

const fn padded(text: &[u8]) -> [u8; 32] {
    let mut padded = [0; 32];
    let mut i = 0;
    while i < text.len() {
        padded[i] = text[i];
        i += 1;
    }
    padded
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
