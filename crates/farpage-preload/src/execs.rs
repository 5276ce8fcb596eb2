//! Programs that cannot load this library are started without it: those linked against musl, whose loader would give up
//! with status 127, and those for 32 bits, whose loader would complain.
//!
//! So the functions that start programs are interposed. They look at the program only if the environment that it is to
//! have names this library in `LD_PRELOAD`, and then pass on one that does not. Such a program, and what it starts, has
//! no budget. What is started by a system call instruction of the program's own is not seen; `system` and `popen` start
//! a shell, which comes by here for what it starts.
//!
//! Called between `vfork` and exec: no locks, no allocation, and what is changed lies on the stack.

use crate::interpose::{found, next, no_such_function};
use crate::late::environment::{STRINGS, missing, with_shell};
use farpage::internals::sys::loader;
use farpage::internals::tree::strangers;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

static REAL_EXECVE: AtomicUsize = AtomicUsize::new(0);
static REAL_EXECVEAT: AtomicUsize = AtomicUsize::new(0);
static REAL_EXECVPE: AtomicUsize = AtomicUsize::new(0);
static REAL_FEXECVE: AtomicUsize = AtomicUsize::new(0);
static REAL_SYSTEM: AtomicUsize = AtomicUsize::new(0);
static REAL_POPEN: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWN: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWNP: AtomicUsize = AtomicUsize::new(0);

/// The path of this library, as `LD_PRELOAD` has it.
static OURS: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Whoever starts a program under farpage says how.
const CONF: &[u8] = b"FARPAGE_CONF=";
/// A longer value stays as it is.
const VALUE: usize = 1024;
/// Where `execvp` looks without a PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const PATH_MAX: usize = 4096;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Looks the functions up. By the initialiser: later, a child of `vfork` may ask.
pub fn find() {
    REAL_EXECVE.store(next(c"execve"), Relaxed);
    REAL_EXECVEAT.store(next(c"execveat"), Relaxed);
    REAL_EXECVPE.store(next(c"execvpe"), Relaxed);
    REAL_FEXECVE.store(next(c"fexecve"), Relaxed);
    REAL_SYSTEM.store(next(c"system"), Relaxed);
    REAL_POPEN.store(next(c"popen"), Relaxed);
    REAL_SPAWN.store(next(c"posix_spawn"), Relaxed);
    REAL_SPAWNP.store(next(c"posix_spawnp"), Relaxed);
    // SAFETY: all zero is a valid value; the call fills it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this library.
    if unsafe { libc::dladdr(find as *const c_void, &mut info) } != 0 {
        OURS.store(info.dli_fname.cast_mut(), Relaxed);
    }
}

/// The value of an environment string if it is the list of preloaded libraries and this one is among them.
unsafe fn names_us<'a>(string: *const c_char) -> Option<&'a [u8]> {
    let ours = OURS.load(Relaxed);
    // SAFETY: caller's promise, a C string; ours is the loader's.
    let (string, ours) =
        unsafe { (CStr::from_ptr(string).to_bytes(), (!ours.is_null()).then(|| CStr::from_ptr(ours))?) };
    let value = string.strip_prefix(PRELOAD)?;
    libraries(value).any(|library| library == ours.to_bytes()).then_some(value)
}

fn libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| b" :".contains(byte)).filter(|library| !library.is_empty())
}

/// The strings of an environment.
unsafe fn strings(env: Strings) -> impl Iterator<Item = *const c_char> {
    let end = if env.is_null() { 0 } else { usize::MAX };
    // SAFETY: caller's promise: an array that ends in null.
    (0..end).map(move |i| unsafe { *env.add(i) }).take_while(|string| !string.is_null())
}

/// The path of this library, if the loader has said it.
pub fn library() -> Option<&'static CStr> {
    let path = OURS.load(Relaxed);
    // SAFETY: a string of the loader's, which has this library for good.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Calls `start` with the environment for a program: without this library, if the program cannot load it; with it, if
/// the library came late ([`crate::late`]), and whoever made this environment did not know of it.
unsafe fn with_env(env: Strings, loads: impl FnOnce() -> bool, start: impl FnOnce(Strings) -> c_int) -> c_int {
    let (mut named, mut told, mut count) = (false, false, 0);
    // SAFETY: caller's promise.
    for string in unsafe { strings(env) } {
        // SAFETY: one of the environment's.
        named |= unsafe { names_us(string) }.is_some();
        // SAFETY: as above.
        told |= unsafe { CStr::from_ptr(string) }.to_bytes().starts_with(CONF);
        count += 1;
    }
    let missing = missing();
    let lacks = !named && !told && !missing[0].is_null();
    // Nothing to add to it, nothing to take out of it.
    if !lacks && !named || loads() != lacks {
        return start(env);
    }
    // As little of the stack as will do.
    match count {
        // SAFETY: caller's promise; counted.
        0..250 if lacks => unsafe { with_us::<256, _>(env, missing, start) },
        // SAFETY: as above.
        250..4090 if lacks => unsafe { with_us::<4096, _>(env, missing, start) },
        _ if lacks => start(env),
        // SAFETY: caller's promise; counted.
        0..256 => unsafe { without_us::<256, _>(env, start) },
        // SAFETY: as above.
        256..4096 => unsafe { without_us::<4096, _>(env, start) },
        _ => start(env),
    }
}

/// The same where the calling process becomes that program: its tree is told so, and if it does not, that it stays.
unsafe fn become_with_env(env: Strings, loads: impl FnOnce() -> bool, exec: impl FnOnce(Strings) -> c_int) -> c_int {
    let was = strangers::leaving();
    // SAFETY: caller's promise.
    let result = unsafe { with_env(env, loads, exec) };
    strangers::stays(was);
    result
}

/// Calls `start` with an environment that has the strings of `missing`, too: for one of fewer than `N` strings less
/// those. What it preloads is preloaded behind this library.
#[inline(never)]
unsafe fn with_us<const N: usize, F: FnOnce(Strings) -> c_int>(
    env: Strings,
    missing: [*const c_char; STRINGS],
    start: F,
) -> c_int {
    let mut out = [std::ptr::null(); N];
    let mut both = [0u8; 2 * VALUE];
    out[..STRINGS].copy_from_slice(&missing);
    // There may be fewer than all.
    let mut n = missing.iter().take_while(|string| !string.is_null()).count();
    // SAFETY: caller's promise.
    for string in unsafe { strings(env) } {
        // SAFETY: one of the environment's.
        let text = unsafe { CStr::from_ptr(string) }.to_bytes();
        // SAFETY: a string of ours.
        let ours = unsafe { CStr::from_ptr(missing[0]) }.to_bytes();
        match text.strip_prefix(PRELOAD) {
            Some(others) if ours.len() + others.len() + 2 <= both.len() => {
                both[..ours.len()].copy_from_slice(ours);
                both[ours.len()] = b':';
                both[ours.len() + 1..ours.len() + 1 + others.len()].copy_from_slice(others);
                out[0] = both.as_ptr().cast();
            }
            // Too long: it is the program's.
            Some(_) => out[0] = string,
            None => {
                out[n] = string;
                n += 1;
            }
        }
    }
    start(out.as_ptr())
}

/// Calls `start` with an environment without this library, for one of fewer than `N` strings.
#[inline(never)]
unsafe fn without_us<const N: usize, F: FnOnce(Strings) -> c_int>(env: Strings, start: F) -> c_int {
    let mut out = [std::ptr::null(); N];
    let mut others = [0u8; PRELOAD.len() + VALUE + 1];
    let mut n = 0;
    // SAFETY: caller's promise.
    for string in unsafe { strings(env) } {
        // SAFETY: as above.
        let Some(value) = (unsafe { names_us(string) }) else {
            out[n] = string;
            n += 1;
            continue;
        };
        if value.len() > VALUE {
            return start(env);
        }
        others[..PRELOAD.len()].copy_from_slice(PRELOAD);
        let mut len = PRELOAD.len();
        for library in libraries(value) {
            // SAFETY: set, or nothing would have been found; a string of the loader's.
            if library == unsafe { CStr::from_ptr(OURS.load(Relaxed)) }.to_bytes() {
                continue;
            }
            if len > PRELOAD.len() {
                others[len] = b':';
                len += 1;
            }
            others[len..len + library.len()].copy_from_slice(library);
            len += library.len();
        }
        others[len] = 0;
        if len > PRELOAD.len() {
            out[n] = others.as_ptr().cast();
            n += 1;
        }
    }
    start(out.as_ptr())
}

/// Whether the program that `execvp` would find can load this library.
unsafe fn found_loads(file: *const c_char) -> bool {
    // SAFETY: caller's promise, a C string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: a path.
        return unsafe { loader::is_glibcs(libc::AT_FDCWD, file, 0) };
    }
    // SAFETY: a string of the environment.
    let value = |string| unsafe { CStr::from_ptr(string) }.to_bytes().strip_prefix(b"PATH=");
    // SAFETY: the program's environment.
    let path = unsafe { strings(environ) }.find_map(value);
    for dir in path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':') {
        let mut at = [0u8; PATH_MAX];
        let len = dir.len() + usize::from(!dir.is_empty()) + name.len();
        if len >= at.len() {
            continue;
        }
        at[..dir.len()].copy_from_slice(dir);
        if !dir.is_empty() {
            at[dir.len()] = b'/';
        }
        at[len - name.len()..len].copy_from_slice(name);
        let Ok(at) = CStr::from_bytes_until_nul(&at) else { continue };
        if loader::is_program(at) {
            // SAFETY: a path.
            return unsafe { loader::is_glibcs(libc::AT_FDCWD, at.as_ptr(), 0) };
        }
    }
    true
}

/// libc's function at `place`; [`None`] sets errno.
fn real(place: &AtomicUsize, name: &CStr) -> Option<usize> {
    let at = found(place, name);
    if at == 0 {
        no_such_function();
    }
    (at != 0).then_some(at)
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, env: Strings) -> c_int {
    let Some(real) = real(&REAL_EXECVE, c"execve") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let loads = || unsafe { loader::is_glibcs(libc::AT_FDCWD, path, 0) };
    // SAFETY: as above.
    unsafe { become_with_env(env, loads, |env| real(path, argv, env)) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: caller's promise.
    unsafe { execve(path, argv, environ) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(dir: c_int, path: *const c_char, argv: Strings, env: Strings, flags: c_int) -> c_int {
    let Some(real) = real(&REAL_EXECVEAT, c"execveat") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let loads = || unsafe { loader::is_glibcs(dir, path, flags) };
    // SAFETY: as above.
    unsafe { become_with_env(env, loads, |env| real(dir, path, argv, env, flags)) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, env: Strings) -> c_int {
    let Some(real) = real(&REAL_FEXECVE, c"fexecve") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_int, Strings, Strings) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: an empty path.
    let loads = || unsafe { loader::is_glibcs(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
    // SAFETY: caller's promise.
    unsafe { become_with_env(env, loads, |env| real(fd, argv, env)) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, env: Strings) -> c_int {
    let Some(real) = real(&REAL_EXECVPE, c"execvpe") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { become_with_env(env, || found_loads(file), |env| real(file, argv, env)) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: caller's promise.
    unsafe { execvpe(file, argv, environ) }
}

/// Calls `spawn` with a place for the new process's id, and tells the tree of it: what libc's own child calls goes past
/// this library.
unsafe fn announced(pid: *mut libc::pid_t, spawn: impl FnOnce(*mut libc::pid_t) -> c_int) -> c_int {
    let mut own = 0;
    let at = if pid.is_null() { &raw mut own } else { pid };
    let result = spawn(at);
    if result == 0 {
        // SAFETY: the caller's, or ours, and just written.
        strangers::announce(unsafe { at.read() } as u32);
    }
    result
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    Strings,
    Strings,
) -> c_int;

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    argv: Strings,
    env: Strings,
) -> c_int {
    let Some(real) = real(&REAL_SPAWN, c"posix_spawn") else { return libc::ENOSYS };
    // SAFETY: libc's function of this name has this type.
    let real: Spawn = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let loads = || unsafe { loader::is_glibcs(libc::AT_FDCWD, path, 0) };
    // SAFETY: as above.
    unsafe { announced(pid, |pid| with_env(env, loads, |env| real(pid, path, actions, attributes, argv, env))) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    argv: Strings,
    env: Strings,
) -> c_int {
    let Some(real) = real(&REAL_SPAWNP, c"posix_spawnp") else { return libc::ENOSYS };
    // SAFETY: libc's function of this name has this type.
    let real: Spawn = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe {
        announced(pid, |pid| with_env(env, || found_loads(file), |env| real(pid, file, actions, attributes, argv, env)))
    }
}

/// As libc's. It starts a shell with the environment as it is, which does not come by here: the command says what is to
/// be in it.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let Some(real) = real(&REAL_SYSTEM, c"system") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*const c_char) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { with_shell(command, |command| real(command)) }
}

/// As libc's; see [`system`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, how: *const c_char) -> *mut libc::FILE {
    let Some(real) = real(&REAL_POPEN, c"popen") else { return std::ptr::null_mut() };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { with_shell(command, |command| real(command, how)) }
}

/// Makes an array of the arguments of a function that takes any number of them: those in registers go onto the stack in
/// front of the others. `$array` gets the first argument and the array.
macro_rules! listed {
    ($name:ident, $array:path) => {
        /// As libc's; see the module header.
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            )
        }
    };
}

listed!(execl, execv);
listed!(execlp, execvp);
listed!(execle, execle_of);

/// The environment comes behind the arguments.
unsafe extern "C" fn execle_of(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: caller's promise: the arguments end in null.
    let count = unsafe { strings(argv) }.count();
    // SAFETY: as above; the next one is the environment.
    unsafe { execve(path, argv, (*argv.add(count + 1)).cast()) }
}
