//! A program's engine from before `main` to its end: when there is one, what it is made of, and its copy in a forked
//! child. Above all else of this crate, and what the preload library calls.
//!
//! | file | what |
//! | --- | --- |
//! | `preload` | before `main`: what the environment asks for |
//! | `late` | the same in a program that runs already |
//! | `start` | when a program gets an engine |
//! | `images` | where the code of the engine's threads has its data |
//! | `program` | what the program's threads tell, engine or not |
//! | `fork_handlers` | what libc calls around a fork |
//! | `ended` | the program's end: what is said then |

pub mod ended;
pub mod fork_handlers;
pub mod images;
pub mod late;
pub mod preload;
pub mod program;
pub mod start;
