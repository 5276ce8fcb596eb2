//! The C interface of explicit regions ([`engine::region`]): `libfarpage.so`, `libfarpage.a`, `include/farpage.h`.
//!
//! Thin on purpose: each function checks its pointers, turns a byte offset and a length into a range, calls the Rust
//! function of the same name, and turns its error into a code. The names are those of C, so that this source reads like
//! the header made from it. Rules that hold for all functions are in the header, that is in the comments here.
//!
//! | module | what it has |
//! | --- | --- |
//! | `allocator` | blocks of memory for libraries that let their user choose an allocator |
//! | `status` | error codes, `fp_strerror`, the message of the last error |
//! | `pager` | `fp_config`, `fp_stats`, pagers |
//! | `region` | regions, advice, pins, the SIGBUS handler's part |

#![allow(non_camel_case_types, reason = "C names")]

mod allocator;
mod pager;
mod region;
mod status;

/// What the engine allocates does not come from the program's malloc: a thread that is interrupted in there holds its
/// locks, and what its signal handler waits for must not wait for those.
#[global_allocator]
static HEAP: engine::Growing = engine::Growing::new();
