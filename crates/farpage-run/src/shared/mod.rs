//! What the engine's threads share, and what they tell each other: data, below all that use it.
//!
//! | file | what |
//! | --- | --- |
//! | `state`, `stacks` | the engine; where its threads' stacks are |
//! | `address_space` | what the pager asks of the kernel, as a trait: tests have a small kernel |
//! | `page_table`, `lru` | one atomic word a page; the lists |
//! | `budget`, `charge` | how many pages there are and may be; what was given and is not counted yet |
//! | `notice_ring`, `managed_cache` | what the program's threads tell the pager, and need not tell |
//! | `board` | what is to be loaded by other threads than the pager |
//! | `protocol`, `gates`, `standby`, `channel`, `late_fills` | what the threads tell each other around a fork |
//! | `following` | what of privileges engine threads hold |
//! | `uffd_device`, `given_uffds` | where userfaultfds come from |
//! | `warn_once`, `outcome`, `start_error` | what is said, once; what became of a start |

pub mod address_space;
pub(crate) mod board;
pub mod budget;
pub(crate) mod channel;
pub mod charge;
pub(crate) mod following;
pub(crate) mod gates;
pub mod given_uffds;
pub(crate) mod late_fills;
pub mod lru;
pub(crate) mod managed_cache;
pub(crate) mod notice_ring;
pub mod outcome;
pub mod page_table;
pub mod protocol;
pub mod stacks;
pub(crate) mod standby;
pub mod start_error;
pub mod state;
pub mod uffd_device;
pub mod warn_once;
