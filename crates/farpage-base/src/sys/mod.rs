//! Raw system interfaces: what rustix has no wrapper for, or what must run without libc's thread state.
//!
//! Nothing in here touches libc's `errno`, thread-local storage or heap, because engine threads have none of them
//! (see [`thread`]).

pub mod clock;
pub mod control_blocks;
pub mod cpu;
pub mod descriptor;
pub mod escape;
pub mod fd;
pub mod futex;
pub mod limit;
pub mod loader;
pub mod maps;
pub mod message;
pub mod mutex;
pub mod one_thread;
pub mod pagemap;
pub mod pass;
pub mod pm_qos;
pub mod privilege;
pub mod proc;
pub mod pthread;
pub mod raw;
pub mod relro;
pub mod robust;
pub mod seccomp;
pub mod table;
pub mod thread;
pub mod uffd;
pub mod valgrind;
