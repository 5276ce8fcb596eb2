//! A late start: the library came by `dlopen`, into a program that runs already.
//!
//! What loads it calls [`farpage_start`]. What the loader does for a preloaded library is done here:
//!
//! | module | what |
//! | --- | --- |
//! | [`slots`] | the calls of what is loaded already come to the functions of this library |
//! | [`crate::environment`] | what the program starts from now on is started with the library |
//!
//! What cannot be made up for: handlers of forks that others have registered before run before ours in a child. Pages
//! that they touched before the copy, in the parent, are there (`docs/dev/late.md`).
//!
//! Callers: `farpage attach`, through a thread of the program that it borrows; the program itself. No locks.

pub mod slots;

use crate::descriptors;
use crate::environment::{self, NAME};
use crate::{find, is_first, is_started, started};
use farpage_ipc::conf::give_variables;
use farpage_run::lifecycle::late::{self, LateStartError};
use farpage_run::shared::given_uffds;
use farpage_run::shared::outcome::StartOutcome;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Longer than a line of `/proc/self/maps`, whose path has at most `PATH_MAX` bytes.
const LINE: usize = 8192;

/// What became of the start. `farpage attach` reads it from outside.
#[unsafe(no_mangle)]
static farpage_start_outcome: StartOutcome = StartOutcome::new();

/// Puts this process under a budget.
///
/// `configuration` is the text that `farpage run` has in `FARPAGE_CONF`, such as `ram:512M`. Returns NULL, or a text
/// that says why not, which stays valid; then nothing has changed. `device` is an open `/dev/userfaultfd` for a process
/// that may not open it itself, which stays the caller's, or -1. With `wait` 0 it returns when the engine is being
/// started, and what becomes of it is not told; else when it runs. May be called once, and once more after each
/// [`farpage_detach`], by any thread that holds no lock of the loader's or the allocator's.
///
/// # Safety
/// `configuration` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farpage_start(configuration: *const c_char, device: c_int, wait: c_int) -> *const c_char {
    if configuration.is_null() {
        return c"no configuration".as_ptr();
    }
    // SAFETY: caller's promise.
    match start(unsafe { CStr::from_ptr(configuration) }, device, wait != 0) {
        Ok(()) => std::ptr::null(),
        Err(why) => {
            given_uffds::forget();
            match CString::new(why.to_string()) {
                // It stays valid.
                Ok(why) => why.into_raw(),
                Err(_) => c"the engine cannot start".as_ptr(),
            }
        }
    }
}

/// The tree that the next [`farpage_start`] joins, instead of making one: an open segment, which stays the caller's.
/// `farpage attach --tree` calls it.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_join(segment: c_int) {
    SEGMENT.store(segment, SeqCst);
}

static SEGMENT: AtomicI32 = AtomicI32::new(-1);

/// The userfaultfds of a process that may not make any, for the next [`farpage_start`]: root has made them for the
/// program's memory and for the engine's own, and switched them on. They stay the caller's until the engine has begun.
/// `farpage attach` calls it.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_take(program: c_int, engine: c_int) {
    given_uffds::give([program, engine]);
}

/// Starts the engine of a process that runs under farpage and has none yet, because it is small. `farpage park` calls
/// it, through a thread that it borrows.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_wake() {
    farpage_run::lifecycle::start::wake_now();
}

/// The process has been detached (`farpage_run::monitor`), or is small: it goes on as if this library were not there,
/// as far as that can be. What it starts is started without, and the descriptors that it was given are closed. 0: it is
/// so; 1: it has an engine. `farpage detach` calls it, through a thread that it borrows.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_detach() -> c_int {
    if !late::detach() {
        return 1;
    }
    environment::forget();
    descriptors::close_kept();
    started().store(false, SeqCst);
    0
}

/// Whether this process has an engine, or may get one: not if none began, and not after [`farpage_detach`]. The Python
/// package calls it: pagers and an engine are not together.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_has_engine() -> c_int {
    late::is_there().into()
}

/// Whether a library of this name is loaded besides this one: in a late start they do not find each other's symbols.
///
/// There may be any number of mappings, and the heap has only its early memory: lines are read one by one.
fn is_another_there() -> bool {
    let Ok(maps) = File::open("/proc/thread-self/maps") else { return false };
    let mut maps = BufReader::new(maps);
    let (mut line, mut libraries) = (Vec::with_capacity(LINE), 0);
    while matches!(maps.read_until(b'\n', &mut line), Ok(1..)) {
        let offset = line.split(|byte| *byte == b' ').nth(2);
        let is_start = offset == Some(b"00000000") && line.windows(NAME.len()).any(|part| part == NAME);
        libraries += usize::from(is_start);
        line.clear();
    }
    libraries > 1
}

fn start(configuration: &CStr, device: c_int, wait: bool) -> Result<(), LateStartError> {
    let text = configuration.to_str().map_err(|_| LateStartError::NotUtf8)?;
    if is_another_there() || is_started() {
        return Err(LateStartError::Already);
    }
    if slots::is_preloaded() {
        return Err(LateStartError::Preloaded);
    }
    // What is refused here can be tried again.
    let prepared = late::prepare(text, device, SEGMENT.swap(-1, SeqCst))?;
    if !is_first() {
        return Err(LateStartError::Already);
    }
    let variables = prepared.variables.clone();
    give_variables(variables.clone());
    slots::begin_late();
    find();
    late::start(prepared, &crate::HEAP, &farpage_start_outcome, wait)?;
    environment::set(&variables);
    slots::take_over();
    late::note_control_blocks();
    Ok(())
}
