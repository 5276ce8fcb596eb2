//! No huge pages while a process is copied.
//!
//! `khugepaged` makes a huge page of the present pages in 2 MiB and fills the rest with zeros, where a program has
//! asked for huge pages (`MADV_HUGEPAGE`). Where memory is registered the kernel lets it be: an absent page is not a
//! zero page there. But a child's memory is not registered before its engine runs. So the process is copied with huge
//! pages switched off, which a child inherits; both processes go back to what the program had.
//!
//! Caller: the handlers of a fork, in the forking thread. No locks, no allocation.

use farpage_base::sys::raw::{nr, syscall};

const SET_THP_DISABLE: usize = 41;
const GET_THP_DISABLE: usize = 42;

fn prctl(option: usize, value: usize, flags: usize) -> Result<usize, farpage_base::sys::raw::Errno> {
    // SAFETY: these two options take numbers and change nothing but whether the kernel makes huge pages.
    unsafe { syscall(nr::PRCTL, [option, value, flags, 0, 0, 0]) }
}

/// Switches them off. What they were, for [`restore`].
pub(crate) fn switch_off() -> u32 {
    let before = prctl(GET_THP_DISABLE, 0, 0).unwrap_or(0) as u32;
    // Refused if the kernel cannot do it, or makes none at all.
    let _ = prctl(SET_THP_DISABLE, 1, 0);
    before
}

/// As they were.
pub(crate) fn restore(before: u32) {
    // Bit 0: off; bit 1 (since 6.18): but where the program asks for them.
    let _ = prctl(SET_THP_DISABLE, (before & 1) as usize, (before & 2) as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_had_comes_back() {
        let now = || prctl(GET_THP_DISABLE, 0, 0).map(|value| value & 1);
        if now().is_err() {
            return; // a kernel without huge pages
        }
        for had in [0, 1, 0] {
            prctl(SET_THP_DISABLE, had, 0).unwrap();
            let before = switch_off();
            assert_eq!((before as usize, now()), (had, Ok(1)));
            restore(before);
            assert_eq!(now(), Ok(had));
        }
    }
}
