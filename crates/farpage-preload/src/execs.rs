//! The functions that start programs: what a program is given as its environment is put right ([`crate::environment`]),
//! and the tree is told of it ([`strangers`]). And those that wait for children: somebody has to look after the ones
//! that cannot load the library.
//!
//! What is started by a system call instruction of the program's own is not seen here. `system` and `popen` start a
//! shell, which comes by here for what it starts.
//!
//! Called between `vfork` and exec: no locks, no allocation, and what is changed lies on the stack.

use crate::environment::{Strings, own_variable, pointers, with_env, with_shell};
use crate::interpose::{found, next, no_such_function};
use farpage::internals::run::start::waits_for_children;
use farpage::internals::sys::loader::{self, LoaderKind};
use farpage::internals::tree::strangers;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static REAL_EXECVE: AtomicUsize = AtomicUsize::new(0);
static REAL_EXECVEAT: AtomicUsize = AtomicUsize::new(0);
static REAL_EXECVPE: AtomicUsize = AtomicUsize::new(0);
static REAL_FEXECVE: AtomicUsize = AtomicUsize::new(0);
static REAL_SYSTEM: AtomicUsize = AtomicUsize::new(0);
static REAL_POPEN: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWN: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWNP: AtomicUsize = AtomicUsize::new(0);
static REAL_SIGSUSPEND: AtomicUsize = AtomicUsize::new(0);
static REAL_WAIT: AtomicUsize = AtomicUsize::new(0);
static REAL_WAITPID: AtomicUsize = AtomicUsize::new(0);
static REAL_WAITID: AtomicUsize = AtomicUsize::new(0);
static REAL_WAIT3: AtomicUsize = AtomicUsize::new(0);
static REAL_WAIT4: AtomicUsize = AtomicUsize::new(0);

/// Where `execvp` looks without a PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const PATH_MAX: usize = 4096;

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
    REAL_SIGSUSPEND.store(next(c"sigsuspend"), Relaxed);
    REAL_WAIT.store(next(c"wait"), Relaxed);
    REAL_WAITPID.store(next(c"waitpid"), Relaxed);
    REAL_WAITID.store(next(c"waitid"), Relaxed);
    REAL_WAIT3.store(next(c"wait3"), Relaxed);
    REAL_WAIT4.store(next(c"wait4"), Relaxed);
}

/// [`with_env`], where the calling process becomes that program: its tree is told so, and if it does not, that it
/// stays.
unsafe fn become_with_env(
    env: Strings,
    look: impl FnOnce() -> LoaderKind,
    exec: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let told = |env, loads| {
        let was = strangers::leaving(loads);
        let result = exec(env);
        strangers::stays(was);
        result
    };
    // SAFETY: caller's promise.
    unsafe { with_env(env, look, told) }
}

/// Who loads the program that `execvp` would find.
unsafe fn kind_of_found(file: *const c_char) -> LoaderKind {
    // SAFETY: caller's promise, a C string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: a path.
        return unsafe { loader::kind(libc::AT_FDCWD, file, 0) };
    }
    // SAFETY: the program's environment.
    let path = unsafe { own_variable(b"PATH") };
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
            return unsafe { loader::kind(libc::AT_FDCWD, at.as_ptr(), 0) };
        }
    }
    LoaderKind::Glibc
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
    let look = || unsafe { loader::kind(libc::AT_FDCWD, path, 0) };
    // SAFETY: as above.
    unsafe { become_with_env(env, look, |env| real(path, argv, env)) }
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
    let look = || unsafe { loader::kind(dir, path, flags) };
    // SAFETY: as above.
    unsafe { become_with_env(env, look, |env| real(dir, path, argv, env, flags)) }
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
    let look = || unsafe { loader::kind(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
    // SAFETY: caller's promise.
    unsafe { become_with_env(env, look, |env| real(fd, argv, env)) }
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
    unsafe { become_with_env(env, || kind_of_found(file), |env| real(file, argv, env)) }
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

/// [`with_env`], where a new process becomes that program: its tree is told of it, because what libc's own child calls
/// goes past this library. `spawn` is called with a place for its id, too.
unsafe fn spawn_with_env(
    pid: *mut libc::pid_t,
    env: Strings,
    look: impl FnOnce() -> LoaderKind,
    spawn: impl FnOnce(*mut libc::pid_t, Strings) -> c_int,
) -> c_int {
    let mut own = 0;
    let at = if pid.is_null() { &raw mut own } else { pid };
    let told = |env, loads| {
        let result = spawn(at, env);
        if result == 0 {
            // SAFETY: the caller's, or ours, and just written.
            strangers::announce(unsafe { at.read() } as u32, loads);
        }
        result
    };
    // SAFETY: caller's promise.
    unsafe { with_env(env, look, told) }
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
    let look = || unsafe { loader::kind(libc::AT_FDCWD, path, 0) };
    // SAFETY: as above.
    unsafe { spawn_with_env(pid, env, look, |pid, env| real(pid, path, actions, attributes, argv, env)) }
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
    let look = || unsafe { kind_of_found(file) };
    // SAFETY: as above.
    unsafe { spawn_with_env(pid, env, look, |pid, env| real(pid, file, actions, attributes, argv, env)) }
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
    let count = unsafe { pointers(argv) }.count();
    // SAFETY: as above; the next one is the environment.
    unsafe { execve(path, argv, (*argv.add(count + 1)).cast()) }
}

/// Before libc's function: the program waits, if `options` do not say otherwise.
fn about_to_wait(options: c_int) {
    waits_for_children(options & libc::WNOHANG == 0);
}

/// As libc's; shells and supervisors wait for their children so.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(mask: *const libc::sigset_t) -> c_int {
    let Some(real) = real(&REAL_SIGSUSPEND, c"sigsuspend") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*const libc::sigset_t) -> c_int = unsafe { std::mem::transmute(real) };
    about_to_wait(0);
    // SAFETY: caller's promise.
    unsafe { real(mask) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wait(status: *mut c_int) -> libc::pid_t {
    let Some(real) = real(&REAL_WAIT, c"wait") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_int) -> libc::pid_t = unsafe { std::mem::transmute(real) };
    about_to_wait(0);
    // SAFETY: caller's promise.
    unsafe { real(status) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn waitpid(pid: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t {
    let Some(real) = real(&REAL_WAITPID, c"waitpid") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(libc::pid_t, *mut c_int, c_int) -> libc::pid_t =
        unsafe { std::mem::transmute(real) };
    about_to_wait(options);
    // SAFETY: caller's promise.
    unsafe { real(pid, status, options) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn waitid(
    kind: libc::idtype_t,
    id: libc::id_t,
    info: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    let Some(real) = real(&REAL_WAITID, c"waitid") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(libc::idtype_t, libc::id_t, *mut libc::siginfo_t, c_int) -> c_int =
        unsafe { std::mem::transmute(real) };
    about_to_wait(options);
    // SAFETY: caller's promise.
    unsafe { real(kind, id, info, options) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t {
    let Some(real) = real(&REAL_WAIT3, c"wait3") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_int, c_int, *mut libc::rusage) -> libc::pid_t =
        unsafe { std::mem::transmute(real) };
    about_to_wait(options);
    // SAFETY: caller's promise.
    unsafe { real(status, options, usage) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wait4(
    pid: libc::pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> libc::pid_t {
    let Some(real) = real(&REAL_WAIT4, c"wait4") else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(libc::pid_t, *mut c_int, c_int, *mut libc::rusage) -> libc::pid_t =
        unsafe { std::mem::transmute(real) };
    about_to_wait(options);
    // SAFETY: caller's promise.
    unsafe { real(pid, status, options, usage) }
}
