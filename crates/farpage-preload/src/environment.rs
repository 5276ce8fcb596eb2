//! The environment of a program that is started from here. Whatever it was given (`env -i`, servers
//! with a list of their own, a late start, which leaves the program's own environment alone), it has the variables that
//! `farpage run` sets, so that it is in the tree.
//!
//! | the environment | becomes |
//! | --- | --- |
//! | names no such library in `LD_PRELOAD` | it does, in front of the others |
//! | has no `FARPAGE_CONF` | it has ours, and what belongs to it |
//! | has its own `FARPAGE_CONF` | stays: what starts a program under farpage says how |
//! | has `FARPAGE_DISABLE` | stays |
//! | is for a program that cannot load the library | does not name this library |
//!
//! The last ones are linked against musl, whose loader would give up with status 127, or for 32 bits, whose loader
//! would complain, or have another root in which the library is not. A static program passes on what it has.
//!
//! Called between `vfork` and exec: no locks, no allocation, and what is changed lies on the stack. But for a shell
//! that libc starts ([`with_shell`]).

use farpage_base::sys::loader::{LoaderKind, is_library_here};
use farpage_ipc::conf::redis::ENV_PASSWORD;
use farpage_ipc::conf::{ENV_CONF, ENV_DISABLE};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed, Ordering::SeqCst};

/// An array of C strings that ends in null.
pub type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// How many strings [`OURS`] has: the library's, and four variables.
const STRINGS: usize = 5;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// A longer list of libraries stays as it is.
const LIST: usize = 2048;
/// Part of the name of libraries of this kind.
pub const NAME: &[u8] = b"libfarpage_preload";

/// The path of this library, as the loader knows it.
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
/// Strings for an environment that has none of ours; the first one is the library's, or null: nothing is added.
static OURS: [AtomicPtr<c_char>; STRINGS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; STRINGS];
/// What a shell does first.
static FOR_SHELLS: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Asks the loader for this library's path. By the initialiser.
pub fn find() {
    // SAFETY: all zero is a valid value; the call fills it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this library.
    if unsafe { libc::dladdr(find as *const c_void, &mut info) } != 0 {
        LIBRARY.store(info.dli_fname.cast_mut(), Relaxed);
    }
}

/// The path of this library, if the loader has said it.
fn library() -> Option<&'static CStr> {
    let path = LIBRARY.load(Relaxed);
    // SAFETY: a string of the loader's, which has this library for good.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// From now on these are the variables. The program may write over its own environment (`setproctitle`), so they are
/// copied. None: nothing is added to anything.
pub fn set(variables: &[(&str, String)]) {
    // That of a file in memory is no place for a new program to look.
    let library = library().filter(|path| path.to_bytes().starts_with(b"/") && !path.to_bytes().starts_with(b"/proc/"));
    let Some(Ok(library)) = library.map(CStr::to_str).filter(|_| !variables.is_empty()) else { return };
    let leaked = |text: String| CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw);
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut shell = format!("export LD_PRELOAD={}\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"", quoted(library));
    for (place, (name, value)) in OURS[1..].iter().zip(variables) {
        place.store(leaked(format!("{name}={value}")), SeqCst);
        // A command line is for all to read.
        if *name != ENV_PASSWORD {
            shell.push_str(&format!(" {name}={}", quoted(value)));
        }
    }
    FOR_SHELLS.store(leaked(shell + "; "), SeqCst);
    // Last: a thread that finds it finds the others.
    OURS[0].store(leaked(format!("LD_PRELOAD={library}")), SeqCst);
}

/// From now on nothing is added to an environment.
pub fn forget() {
    OURS.iter().chain([&FOR_SHELLS]).for_each(|text| text.store(std::ptr::null_mut(), SeqCst));
}

/// What an environment says of farpage.
#[derive(Default)]
struct Said {
    /// It names this library.
    names_us: bool,
    /// It names a library of this kind.
    names_any: bool,
    /// It says what the engine is to do.
    configures: bool,
    /// It says that there is to be none.
    disables: bool,
    /// How many strings it has.
    count: usize,
}

impl Said {
    unsafe fn by(env: Strings) -> Said {
        let mut said = Said::default();
        // SAFETY: caller's promise.
        for text in unsafe { strings(env) } {
            said.count += 1;
            let value_of = |name: &str| text.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
            if let Some(value) = text.strip_prefix(PRELOAD) {
                said.names_us |= libraries(value).any(is_ours);
                said.names_any |= libraries(value).any(|path| path.windows(NAME.len()).any(|part| part == NAME));
            }
            said.configures |= value_of(ENV_CONF).is_some();
            said.disables |= value_of(ENV_DISABLE).is_some_and(|value| !matches!(value, b"" | b"0"));
        }
        said
    }

    /// The strings that it lacks.
    fn lacks(&self) -> [*const c_char; STRINGS] {
        let mut ours = [0, 1, 2, 3, 4].map(|i: usize| OURS[i].load(SeqCst).cast_const());
        let has_none = ours[0].is_null() || self.disables;
        if has_none || self.names_us || self.names_any {
            ours[0] = std::ptr::null();
        }
        if has_none || self.configures {
            ours[1..].fill(std::ptr::null());
        }
        ours
    }
}

fn is_ours(path: &[u8]) -> bool {
    library().is_some_and(|ours| ours.to_bytes() == path)
}

fn libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| b" :".contains(byte)).filter(|library| !library.is_empty())
}

/// The places of an array of strings that have one.
///
/// # Safety
/// It is null, or ends in null, and stays as it is meanwhile.
pub unsafe fn pointers(array: Strings) -> impl Iterator<Item = *const c_char> {
    let end = if array.is_null() { 0 } else { usize::MAX };
    // SAFETY: caller's promise.
    (0..end).map(move |i| unsafe { *array.add(i) }).take_while(|string| !string.is_null())
}

/// The strings of an environment.
unsafe fn strings<'a>(env: Strings) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: caller's promise: an array of C strings.
    unsafe { pointers(env).map(|string| CStr::from_ptr(string).to_bytes()) }
}

/// The value of a variable of this process's environment.
///
/// # Safety
/// The environment is not changed meanwhile.
pub unsafe fn own_variable<'a>(name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: caller's promise.
    unsafe { strings(environ) }.find_map(|text| text.strip_prefix(name)?.strip_prefix(b"="))
}

/// Calls `start` with the environment for a program, and with whether that program may load the library. `look` says
/// what loads it.
///
/// # Safety
/// `env` is an environment, or null.
pub unsafe fn with_env(env: Strings, look: &dyn Fn() -> LoaderKind, start: &dyn Fn(Strings, bool) -> c_int) -> c_int {
    // SAFETY: caller's promise.
    let said = unsafe { Said::by(env) };
    let lacks = said.lacks();
    let lacks_some = lacks.iter().any(|string| !string.is_null());
    if !lacks_some && !said.names_us {
        // It is not about farpage.
        return start(env, true);
    }
    let kind = look();
    let is_here = library().is_none_or(|path| !path.to_bytes().starts_with(b"/") || is_library_here(path));
    let cannot_load = kind == LoaderKind::Other || kind == LoaderKind::Glibc && !is_here;
    let lacks = if cannot_load { [std::ptr::null(); STRINGS] } else { lacks };
    let start = |env| start(env, !cannot_load && kind == LoaderKind::Glibc && !said.disables);
    let changes = if cannot_load { said.names_us } else { lacks_some };
    // As little of the stack as will do.
    match said.count {
        _ if !changes => start(env),
        // SAFETY: caller's promise; counted.
        0..250 => unsafe { with_changes::<256>(env, lacks, &start) },
        // SAFETY: as above.
        250..4090 => unsafe { with_changes::<4096>(env, lacks, &start) },
        _ => start(env),
    }
}

/// Calls `start` with an environment that has the strings of `lacks`, too: what it preloads is preloaded behind this
/// library. Without any, it is one that does not name this library. For one of fewer than `N` strings less those.
#[inline(never)]
unsafe fn with_changes<const N: usize>(
    env: Strings,
    lacks: [*const c_char; STRINGS],
    start: &dyn Fn(Strings) -> c_int,
) -> c_int {
    let (mut out, mut n) = ([std::ptr::null(); N], 0);
    let mut list = [0u8; LIST];
    for string in lacks.into_iter().filter(|string| !string.is_null()) {
        out[n] = string;
        n += 1;
    }
    let added = n;
    // SAFETY: strings of ours, or of the environment.
    let text_of = |string: *const c_char| unsafe { CStr::from_ptr(string) }.to_bytes();
    let name = |string| text_of(string).split(|byte| *byte == b'=').next();
    // SAFETY: caller's promise.
    for string in unsafe { pointers(env) } {
        match text_of(string).strip_prefix(PRELOAD) {
            Some(others) if !lacks[0].is_null() => {
                // Too long: it is the program's.
                out[0] = joined(b"", [text_of(lacks[0]), others].into_iter(), &mut list).unwrap_or(string);
            }
            Some(value) if added == 0 && libraries(value).any(is_ours) => {
                let mut others = libraries(value).filter(|library| !is_ours(library)).peekable();
                if others.peek().is_some() {
                    let Some(others) = joined(PRELOAD, others, &mut list) else { return start(env) };
                    out[n] = others;
                    n += 1;
                }
            }
            // What is left of an older list.
            _ if out[..added].iter().any(|ours| name(*ours) == name(string)) => {}
            _ => {
                out[n] = string;
                n += 1;
            }
        }
    }
    start(out.as_ptr())
}

/// `first`, and these with colons between them, as a C string; `None`: they do not fit.
fn joined<'a>(first: &[u8], parts: impl Iterator<Item = &'a [u8]>, to: &mut [u8]) -> Option<*const c_char> {
    let mut len = first.len();
    to.get_mut(..len)?.copy_from_slice(first);
    for part in parts {
        let colon = usize::from(len > first.len());
        to.get_mut(len..len + colon)?.fill(b':');
        to.get_mut(len + colon..len + colon + part.len())?.copy_from_slice(part);
        len += colon + part.len();
    }
    *to.get_mut(len)? = 0;
    Some(to.as_ptr().cast())
}

/// Calls `start` with a command for a shell that libc starts with this process's environment: the command sets the
/// variables first, if that environment lacks them.
///
/// # Safety
/// `command` is null, or a C string; the environment is not changed meanwhile.
pub unsafe fn with_shell<T>(command: *const c_char, start: impl FnOnce(*const c_char) -> T) -> T {
    let first = FOR_SHELLS.load(SeqCst);
    // SAFETY: caller's promise.
    if first.is_null() || command.is_null() || unsafe { Said::by(environ) }.lacks()[1].is_null() {
        return start(command);
    }
    // SAFETY: ours, and the caller's promise.
    let [first, text] = [first.cast_const(), command].map(|text| unsafe { CStr::from_ptr(text) }.to_bytes_with_nul());
    let first = &first[..first.len() - 1];
    let mut both = Vec::new();
    // The library's own heap may be small.
    if both.try_reserve_exact(first.len() + text.len()).is_err() {
        return start(command);
    }
    both.extend_from_slice(first);
    both.extend_from_slice(text);
    start(both.as_ptr().cast())
}
