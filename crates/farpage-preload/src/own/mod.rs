//! What the engine, the standard library and zstd call by name, defined here, hidden: the linker takes these, and the
//! dynamic linker is not asked.
//!
//! Any library that is loaded, and the program itself, may define `clock_gettime`, `memcpy`, `read` or `open`
//! (libfaketime, profilers, quicker `memcpy`s). Theirs use what engine threads do not have: thread-local storage, an
//! allocator, memory that stays. So an engine thread calls nothing that another library can take: memory functions of
//! its own ([`memory`]), system calls without libc around them ([`calls`]), and an `errno` of its own. The functions
//! that this library exports ([`crate::call`]) are linked symbolically (`build.rs`); on engine
//! threads they go on to a plain system call ([`on_engine_threads`]), not to the next library.
//!
//! What is still asked for by name is called on program threads only, or in a panic. `tests/situations/test_names.py`
//! has the list, and fails when there is another; to take one off, define it in [`calls`]. A function that comes to be
//! exported moves from there to [`on_engine_threads`]: the linker does not take two of a name.

pub use calls::{Answer, answer, on_engine_threads};

mod calls;
mod memory;

/// Defines hidden symbols that jump to Rust functions. A Rust function of such a name would be exported.
macro_rules! define {
    ($($name:literal = $function:path;)*) => {
        $(core::arch::global_asm!(
            concat!(".globl ", named!($name), "\n.hidden ", named!($name), "\n.type ", named!($name), ",@function"),
            concat!(named!($name), ":\njmp {function}"),
            function = sym $function,
        );)*
    };
}
use define;

/// The symbol for libc's `name`. The unit tests' program keeps libc's functions.
#[cfg(not(test))]
macro_rules! named {
    ($name:literal) => {
        $name
    };
}
#[cfg(test)]
macro_rules! named {
    ($name:literal) => {
        concat!("farpage_", $name)
    };
}
use named;
