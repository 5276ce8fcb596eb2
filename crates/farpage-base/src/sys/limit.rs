//! A limit on open files that is too low for the engine, raised for a moment.
//!
//! Callers: the forking thread, for one more number in the program's table; the monitor at its start, for those of its
//! own. The limit is the process's: other threads may see it raised meanwhile.

use super::raw::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit is raised until this is dropped.
#[derive(Debug)]
pub struct Raised {
    before: Rlimit,
    to: Rlimit,
}

/// What a limit is as a number; `None`: there is none.
fn at_most(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}

impl Raised {
    /// Raises the limit, so that `numbers` descriptors are allowed; `None`: they are anyway.
    ///
    /// # Errors
    /// `MFILE`: neither the hard limit nor privilege allows it.
    pub fn to_hold(numbers: u64) -> Result<Option<Raised>, Errno> {
        let before = getrlimit(Resource::Nofile);
        if at_most(before.current) >= numbers {
            return Ok(None);
        }
        let hard = at_most(before.maximum).max(numbers);
        let to = Rlimit { current: Some(numbers), maximum: before.maximum.map(|_| hard) };
        setrlimit(Resource::Nofile, to).map_err(|_| Errno::MFILE)?;
        Ok(Some(Raised { before, to }))
    }

    /// Raises the limit, so that there are free numbers above it.
    ///
    /// # Errors
    /// As [`Raised::to_hold`].
    fn above() -> Result<Option<Raised>, Errno> {
        // Descriptors can be open above the limit, if it was lowered after that.
        let now = getrlimit(Resource::Nofile);
        let soft = at_most(now.current);
        match Raised::to_hold(soft.saturating_add(4096)) {
            Err(_) if at_most(now.maximum) > soft => Raised::to_hold(at_most(now.maximum)),
            other => other,
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let now = getrlimit(Resource::Nofile);
        // Unless the limit has been set elsewhere meanwhile.
        if (now.current, now.maximum) == (self.to.current, self.to.maximum) {
            let _ = setrlimit(Resource::Nofile, self.before);
        }
    }
}

/// Runs `f`, and if the calling thread's table is full, once more with a higher limit.
///
/// # Errors
/// Those of `f`; `MFILE` if the limit cannot be raised.
pub fn with_room<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match f() {
        Err(Errno::MFILE) => {
            let _raised = Raised::above()?;
            f()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_limit_is_higher_only_meanwhile() {
        let soft = || getrlimit(Resource::Nofile).current;
        let before = soft();
        assert!(Raised::to_hold(3).unwrap().is_none());
        let (calls, raised) = (Cell::new(0), Cell::new(before));
        let full_at_first = || {
            calls.set(calls.get() + 1);
            raised.set(soft());
            if calls.get() == 1 { Err(Errno::MFILE) } else { Ok(calls.get()) }
        };
        match with_room(full_at_first) {
            Ok(n) => assert!(n == 2 && at_most(raised.get()) > at_most(before)),
            Err(error) => assert!(error == Errno::MFILE && calls.get() == 1, "the hard limit is reached"),
        }
        assert_eq!(soft(), before);
        assert_eq!(with_room(|| Err::<(), _>(Errno::NFILE)), Err(Errno::NFILE));
    }
}
