//! Error codes: what a call returns, in words, and with the details of this one failure.

use engine::region::Error;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

/// What a function returns: FP_OK (0), or why it did nothing. fp_strerror gives the code in words, fp_last_error the
/// last failure of the calling thread with its numbers and names.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum fp_status {
    /// Done.
    FP_OK = 0,
    /// A pointer is NULL that must not be.
    FP_ERR_NULL = 1,
    /// fp_config: its size is not one that fp_config_init sets, or a member has a value that does not exist.
    FP_ERR_CONFIG = 2,
    /// The budget is below FP_BUDGET_MIN, or absurdly large.
    FP_ERR_BUDGET = 3,
    /// A region must have at least one byte.
    FP_ERR_ZERO_SIZE = 4,
    /// The region does not fit into what is left of the pager's address space.
    FP_ERR_TOO_LARGE = 5,
    /// Offset and length do not lie in the region.
    FP_ERR_RANGE = 6,
    /// There is no such advice.
    FP_ERR_ADVICE = 7,
    /// More than three quarters of the budget would be pinned, or a page more than 127 times.
    FP_ERR_PIN_LIMIT = 8,
    /// The pager was made by the parent of this process.
    FP_ERR_FORKED = 9,
    /// The process has 64 pagers already.
    FP_ERR_TOO_MANY_PAGERS = 10,
    /// The kernel gives no userfaultfd (older than Linux 6.8, a sandbox; FP_FAULT_THREAD: no privilege). The command
    /// farpage doctor says why.
    FP_ERR_USERFAULTFD = 11,
    /// A swap device cannot be understood or used.
    FP_ERR_DEVICE = 12,
    /// A system call failed; errno says how.
    FP_ERR_OS = 13,
    /// Another error; fp_last_error has it in words.
    FP_ERR_OTHER = 14,
    /// A page cannot be read back from its swap device.
    FP_ERR_UNREADABLE = 15,
    /// Libc's system calls cannot be looked at; fp_last_error says why.
    FP_ERR_SYSTEM_CALLS = 16,
}

use fp_status::*;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Notes the message of a failure for `fp_last_error`.
pub fn fail(status: fp_status, message: &str) -> fp_status {
    // A NUL would end the message early; there is none in what is formatted here but a path may have anything.
    let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
    // At the end of a thread the place may be gone; the code is enough then.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
    status
}

/// The code of an engine's error, with its message noted.
pub fn of(error: &Error) -> fp_status {
    let status = match error {
        Error::Budget(_) => FP_ERR_BUDGET,
        Error::ZeroSize => FP_ERR_ZERO_SIZE,
        Error::TooLarge(_) => FP_ERR_TOO_LARGE,
        Error::Range { .. } => FP_ERR_RANGE,
        Error::PinLimit(_) => FP_ERR_PIN_LIMIT,
        Error::Forked => FP_ERR_FORKED,
        Error::InheritThread => FP_ERR_CONFIG,
        Error::TooManyPagers => FP_ERR_TOO_MANY_PAGERS,
        Error::Userfaultfd(_) => FP_ERR_USERFAULTFD,
        Error::Device(_) => FP_ERR_DEVICE,
        Error::Os { .. } => FP_ERR_OS,
        Error::Unreadable { .. } => FP_ERR_UNREADABLE,
        Error::SystemCalls(_) => FP_ERR_SYSTEM_CALLS,
        _ => FP_ERR_OTHER,
    };
    let status = fail(status, &error.to_string());
    if let Error::Os { errno, .. } = error {
        // SAFETY: the calling thread's errno.
        unsafe { *libc::__errno_location() = errno.raw_os_error() };
    }
    status
}

/// FP_OK, or the code of the error.
pub fn done(result: Result<(), Error>) -> fp_status {
    result.map_or_else(|error| of(&error), |()| FP_OK)
}

/// What a code means, in English, without a newline. Never NULL, valid for ever; "unknown error code" for a number that
/// is no fp_status. Any thread, any time.
#[unsafe(no_mangle)]
pub extern "C" fn fp_strerror(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        0 => c"no error",
        1 => c"a pointer is NULL",
        2 => c"the configuration was not made by fp_config_init, or has a value that does not exist",
        3 => c"the budget is too small or too large",
        4 => c"a region must have at least one byte",
        5 => c"the region does not fit into the pager's address space",
        6 => c"the range does not lie in the region",
        7 => c"unknown advice",
        8 => c"too much would be pinned",
        9 => c"the pager was made by the parent of this process",
        10 => c"too many pagers",
        11 => c"no userfaultfd",
        12 => c"a swap device cannot be used",
        13 => c"a system call failed",
        14 => c"another error",
        15 => c"a page cannot be read back",
        16 => c"system calls on regions cannot be served",
        _ => c"unknown error code",
    };
    text.as_ptr()
}

/// The last failure of a fp_ function in the calling thread, in English, with its details; "" if there was none. Never
/// NULL; valid until the next fp_ function fails in this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn fp_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
