//! Calling what stands behind a function of this library: [`call!`]. And defining such functions: [`interposed!`].
//!
//! On engine threads it is the system call: libc's function may be another library's ([`crate::own`]).

use crate::own::{answer, on_engine_threads};
use crate::real::Real;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::thread::is_engine_thread;

/// Calls what stands behind the function of this name, which has its type: `call!(close(fd))`. Where there is none it
/// sets `errno` and is the second argument, or what such functions usually return. `program`: on program threads only,
/// which is not looked at.
macro_rules! call {
    (program $name:ident($($arg:expr),*)) => { call!(program $name($($arg),*), $crate::real::Missing::MISSING) };
    (program $name:ident($($arg:expr),*), $missing:expr) => { call!(@ $crate::real::Real::address, $name($($arg),*), $missing) };
    ($name:ident($($arg:expr),* $(,)?)) => { call!($name($($arg),*), $crate::real::Missing::MISSING) };
    ($name:ident($($arg:expr),* $(,)?), $missing:expr) => {
        call!(@ $crate::call::on_this_thread, $name($($arg),*), $missing)
    };
    (@ $where:path, $name:ident($($arg:expr),*), $missing:expr) => {
        match $crate::real::function(
            $where($crate::real::real!(stringify!($name))),
            $name as unsafe extern "C" fn($($crate::call::any!($arg)),*) -> _,
        ) {
            Some(real) => real($($arg),*),
            None => $crate::call::missing($missing),
        }
    };
}

/// The type of an argument.
macro_rules! any {
    ($arg:expr) => {
        _
    };
}

/// Defines functions of libc's names and types: `fn name(arguments) -> result = what it does;`.
macro_rules! interposed {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = $does:expr;)*) => {$(
        /// As libc's; see the module header.
        $(#[$doc])*
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: caller's promise.
            unsafe { $does }
        }
    )*};
}

pub(crate) use {any, call, interposed};

/// Where a function is on whatever thread this is; 0: there is none.
pub fn on_this_thread(real: &Real) -> usize {
    if is_engine_thread() { on_engine_threads(real.name) } else { real.address() }
}

/// There is nothing to call.
#[cold]
pub fn missing<R>(result: R) -> R {
    answer(Err(Errno::NOSYS));
    result
}
