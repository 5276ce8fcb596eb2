//! Threads of the C library, for a pager of regions.
//!
//! Why not the standard library's: each of them takes a lock of the process on its way into life (for what it says of a
//! stack that overflows). A child forked at that moment has the lock for ever, and a pager that it inherits could not
//! start its threads there. The C library's own locks are whole in a child.
//!
//! Callers: [`super::table`], the pager's owner. No locks.

use rustix::io::Errno;
use std::ffi::{CString, c_void};

/// Bytes of a stack, of which what is used is there.
const STACK_BYTES: usize = 2 << 20;

/// A thread to be joined. Dropped, it stays as it is; so in a forked child, whose parent's it is.
#[derive(Debug)]
#[must_use = "its memory is there until it is joined"]
pub struct Pthread(libc::pthread_t);

type Main = Box<dyn FnOnce() + Send>;

/// Starts a thread of this name (15 bytes at most). It has the caller's signal mask and descriptor table.
///
/// # Errors
/// What the C library says.
pub fn start(name: &str, main: impl FnOnce() + Send + 'static) -> Result<Pthread, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let main: *mut Main = Box::into_raw(Box::new(Box::new(main)));
    let mut thread = 0;
    // SAFETY: the attributes are set up before they are used, and destroyed; `main` is the new thread's alone, if there
    // is one.
    let error = unsafe {
        let mut attributes = std::mem::zeroed();
        match libc::pthread_attr_init(&raw mut attributes) {
            0 => {
                // One that does not fit leaves the default.
                let _ = libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
                let error = libc::pthread_create(&raw mut thread, &raw const attributes, run, main.cast());
                libc::pthread_attr_destroy(&raw mut attributes);
                error
            }
            error => error,
        }
    };
    if error != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(main) });
        return Err(Errno::from_raw_os_error(error));
    }
    // By the starter, so that it can be found by its name at once. SAFETY: it was not joined, so libc knows it; the
    // name ends with 0.
    let _ = unsafe { libc::pthread_setname_np(thread, name.as_ptr()) };
    Ok(Pthread(thread))
}

extern "C" fn run(main: *mut c_void) -> *mut c_void {
    // SAFETY: from `start`, for this thread only.
    let main = unsafe { Box::from_raw(main.cast::<Main>()) };
    main();
    std::ptr::null_mut()
}

impl Pthread {
    /// Waits for its end. In the process that has started it.
    pub fn join(self) {
        // SAFETY: never joined before: that takes the value.
        let _ = unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn it_runs_under_its_name_and_ends() {
        let ran = Arc::new(AtomicBool::new(false));
        let mine = ran.clone();
        let thread = start("farpage-test", move || {
            let named = || std::fs::read_to_string("/proc/thread-self/comm").is_ok_and(|name| name == "farpage-test\n");
            while !named() {
                std::thread::yield_now();
            }
            mine.store(true, Relaxed);
        });
        thread.unwrap().join();
        assert!(ran.load(Relaxed));
    }

    /// In a process of its own: each fork copies what all other tests have in memory.
    #[test]
    fn a_child_can_start_one_whatever_others_were_doing() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let out = alone.args(["--ignored", "--exact", &format!("{module}::children_start_threads")]).output().unwrap();
        assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"), "{out:?}");
    }

    /// Children forked while other threads begin: a thread of the standard library's would wait there for ever.
    #[test]
    #[ignore = "one of a process of its own"]
    fn children_start_threads() {
        let over = Arc::new(AtomicBool::new(false));
        let starters = [(); 4].map(|()| {
            let over = over.clone();
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    std::thread::spawn(|| ()).join().unwrap();
                }
            })
        });
        for _ in 0..1000 {
            // SAFETY: the child does what this test is about, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let code = start("farpage-test", || ()).map(Pthread::join).is_err();
                // SAFETY: nothing of the parent's is to run.
                unsafe { libc::_exit(code.into()) };
            }
            let mut status = 0;
            // SAFETY: writes to `status`.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        over.store(true, Relaxed);
        starters.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
