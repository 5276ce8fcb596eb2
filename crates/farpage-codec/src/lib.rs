//! What a page becomes on its way to a device, and back: compressed ([`codec`]), encrypted ([`crypt`]), and known again
//! by its hash ([`page_hash`]).

pub mod codec;
pub mod crypt;
pub mod lz4;
pub mod page_hash;
pub mod shuffle;
