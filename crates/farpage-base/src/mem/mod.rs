//! Memory of the engine itself: its reservation of address space, its allocator, frames, and the units that count them.

pub mod arena;
pub mod count;
pub mod frame;
pub mod heap;
pub mod lock;
pub mod open;
pub mod page_ranges;
pub mod units;
pub mod zeros;
