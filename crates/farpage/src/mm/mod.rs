//! What is decided about pages whoever serves them: their hashes, and how memory is divided between them and the pool.

pub mod clean_slots;
pub mod fading_ratio;
pub mod page_hash;
pub mod pool_share;
pub mod score;
pub mod watermarks;

/// Most pages loaded and placed at a time.
pub const READAHEAD_MAX: u32 = 32;
