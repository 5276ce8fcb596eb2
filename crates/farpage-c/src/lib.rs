//! The C interface of explicit regions ([`engine::region`]): `libfarpage.so`, `libfarpage.a`, `include/farpage.h`.
//!
//! Thin on purpose: each function checks its pointers, turns a byte offset and a length into a range, calls the Rust
//! function of the same name, and turns its error into a code. The names are those of C, so that this source reads like
//! the header made from it. Rules that hold for all functions are in the header, that is in the comments here.
//!
//! | module | what it has |
//! | --- | --- |
//! | `status` | error codes, `fp_strerror`, the message of the last error |
//! | `pager` | `fp_config`, `fp_stats`, pagers |
//! | `heap` | where the engine's memory comes from here: not from the program's malloc |
//! | `region` | regions, advice, pins, the SIGBUS handler's part |

#![allow(non_camel_case_types, reason = "C names")]

mod heap;
mod pager;
mod region;
mod status;
