//! What is decided about pages whoever serves them: their hashes, and how memory is divided between them and the pool.

pub mod page_hash;
pub mod pool_share;
