//! What the engine does not use, and `farpage-bench` and the tests do: compiled with the feature `seed` only.
//!
//! | module | what it does |
//! | --- | --- |
//! | `cache` | binding slots to frames: the swap cache in the table (a page's own word has it in the engine) |
//! | `counts` | references beyond the first (a fork copies the engine's tables) |
//! | `swapoff` | devices that go, and references to them (`SwapSpace` has devices of one each) |
//! | `worker` | the background work |

mod cache;
mod counts;
mod swapoff;
mod worker;

pub use swapoff::{DeviceRef, Swapoff};
