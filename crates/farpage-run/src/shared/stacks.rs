//! The places of the engine's threads in the arena, by index.
//!
//! Callers: the files that start a thread. No state, no locks.

use farpage_base::mem::arena::Arena;
use farpage_base::sys::thread::{STACK_BYTES, Stack};
use farpage_swap::PAGE_SIZE;

/// Helpers at most.
pub(crate) const HELPERS_MAX: usize = 4;

/// Stacks, by index: monitor, pager, writer, helpers.
pub const STACKS: usize = HELPER + HELPERS_MAX;

/// Index of the monitor's stack.
pub const MONITOR: usize = 0;

/// Index of the pager's stack.
pub const PAGER: usize = 1;

/// Index of the writer's stack.
pub const WRITER: usize = 2;

/// Index of the first helper's stack; the others follow.
pub const HELPER: usize = 3;

/// Bytes of an engine thread's memory.
pub(crate) const STACK_LEN: usize = STACK_BYTES + PAGE_SIZE;

/// Memory of the engine thread with this index.
pub(crate) fn stack(arena: &Arena, index: usize) -> Stack {
    Stack { base: arena.stacks.base + index * (STACK_LEN + PAGE_SIZE), len: STACK_LEN }
}
