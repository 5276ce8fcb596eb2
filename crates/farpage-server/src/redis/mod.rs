//! Pages in the memory of a Redis or Valkey server.
//!
//! ```text
//!   device (slots, forks, checks) --> pages (compress, encrypt) --> server (what it must be) --> link
//!                                       '---- keys, resp ------------'
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`resp`] | the protocol: commands, replies, and which of them are believed |
//! | [`keys`] | the names under which things are on a server |
//! | [`greeting`] | how a connection begins |
//! | [`server`] | whether a server will do |
//! | [`pages`] | the pages of a process |
//! | `in_flight` | the replies as they come |
//! | [`sweep`] | what programs that are gone have left |

pub mod greeting;
mod in_flight;
pub mod keys;
pub mod pages;
pub mod resp;
pub mod server;
pub mod sweep;
