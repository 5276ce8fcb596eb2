//! What the program starts from now on is started with the variables that `farpage run` sets.
//!
//! The program's own environment stays as it is: who manages the list itself (Perl) frees what is in it, and who has
//! copied it at its start (Java, Python) does not look at it again. So the variables are added where a program is
//! started (`execs`), and where a shell is, to its command.
//!
//! Callers: [`super`], and the functions that start programs. No locks.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// How many strings [`missing`] has: the library's, and three variables.
pub const STRINGS: usize = 4;
const PRELOAD: &str = "LD_PRELOAD";

/// Strings for an environment that has none of ours; the first one is the library's.
static OURS: [AtomicPtr<c_char>; STRINGS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; STRINGS];
/// What a shell does first.
static FOR_SHELLS: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// The strings that an environment lacks in which farpage is not named; the first one is `LD_PRELOAD`'s, or null: in a
/// process that was started by `farpage run`, and where the library has no path that a new program could use.
pub fn missing() -> [*const c_char; STRINGS] {
    [0, 1, 2, 3].map(|i: usize| OURS[i].load(SeqCst).cast_const())
}

/// From now on these are the variables; `library`: where this library is.
pub fn set(library: Option<&CStr>, variables: &[(&str, String)]) {
    let library = library.filter(|path| !path.to_bytes().starts_with(b"/proc/"));
    let Some(Ok(library)) = library.map(CStr::to_str) else { return };
    let leaked = |text: String| CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw);
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut shell =
        format!("[ -n \"$FARPAGE_CONF\" ] || export {PRELOAD}={}\"${{{PRELOAD}:+:${PRELOAD}}}\"", quoted(library));
    for (place, (name, value)) in OURS[1..].iter().zip(variables) {
        place.store(leaked(format!("{name}={value}")), SeqCst);
        shell.push_str(&format!(" {name}={}", quoted(value)));
    }
    FOR_SHELLS.store(leaked(shell + "; "), SeqCst);
    // Last: who finds it finds the others.
    OURS[0].store(leaked(format!("{PRELOAD}={library}")), SeqCst);
}

/// Calls `start` with a command for a shell that sets the variables first, if they are missing.
///
/// # Safety
/// `command` is null, or a C string.
pub unsafe fn with_shell<T>(command: *const c_char, start: impl FnOnce(*const c_char) -> T) -> T {
    let first = FOR_SHELLS.load(SeqCst);
    if first.is_null() || command.is_null() {
        return start(command);
    }
    // SAFETY: ours, and the caller's promise.
    let [first, text] = [first.cast_const(), command].map(|text| unsafe { CStr::from_ptr(text) }.to_bytes());
    match CString::new([first, text].concat()) {
        Ok(both) => start(both.as_ptr()),
        Err(_) => start(command),
    }
}
