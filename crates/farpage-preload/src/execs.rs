//! The functions that start programs: what a program is given as its environment is put right ([`crate::environment`]),
//! and the tree is told of it ([`strangers`]). And those that wait for children: the ones that cannot load the
//! library have to be looked after.
//!
//! What is started by a system call instruction of the program's own is not seen here. `system` and `popen` start a
//! shell, which comes by here for what it starts.
//!
//! Called between `vfork` and exec: no locks, no allocation, and what is changed lies on the stack.

use crate::call::{call, interposed};
use crate::environment::{Strings, own_variable, pointers, with_env, with_shell};
use farpage_base::sys::loader::{self, LoaderKind};
use farpage_ipc::tree::strangers;
use farpage_run::lifecycle::start::waits_for_children;
use libc::AT_FDCWD;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};

/// Where `execvp` looks without a PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const PATH_MAX: usize = 4096;

unsafe extern "C" {
    static environ: Strings;
}

/// [`with_env`], where the calling process becomes that program: its tree is told so, and if it does not, that it
/// stays.
unsafe fn become_with_env(env: Strings, look: &dyn Fn() -> LoaderKind, exec: &dyn Fn(Strings) -> c_int) -> c_int {
    let announced = |env, loads| {
        let was = strangers::leaving(loads);
        let result = exec(env);
        strangers::stays(was);
        result
    };
    // SAFETY: caller's promise.
    unsafe { with_env(env, look, &announced) }
}

/// What loads the program that `execvp` would find.
unsafe fn kind_of_found(file: *const c_char) -> LoaderKind {
    // SAFETY: caller's promise, a C string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: a path.
        return unsafe { loader::kind(AT_FDCWD, file, 0) };
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
            return unsafe { loader::kind(AT_FDCWD, at.as_ptr(), 0) };
        }
    }
    LoaderKind::Glibc
}

/// [`with_env`], where a new process becomes that program: its tree is told of it, because what libc's own child
/// calls goes past this library. `spawn` is called with a place for its id, too.
unsafe fn spawn_with_env(
    pid: Pid,
    env: Strings,
    look: &dyn Fn() -> LoaderKind,
    spawn: &dyn Fn(Pid, Strings) -> c_int,
) -> c_int {
    let mut own = 0;
    let at = if pid.is_null() { &raw mut own } else { pid };
    let announced = |env, loads| {
        let result = spawn(at, env);
        if result == 0 {
            // SAFETY: the caller's, or ours, and just written.
            strangers::announce(unsafe { at.read() } as u32, loads);
        }
        result
    };
    // SAFETY: caller's promise.
    unsafe { with_env(env, look, &announced) }
}

type Text = *const c_char;
type Pid = *mut libc::pid_t;
type Actions = *const libc::posix_spawn_file_actions_t;
type Attributes = *const libc::posix_spawnattr_t;

interposed! {
    fn execve(path: Text, argv: Strings, env: Strings) -> c_int =
        become_with_env(env, &|| loader::kind(AT_FDCWD, path, 0), &|env| call!(execve(path, argv, env)));
    fn execv(path: Text, argv: Strings) -> c_int = execve(path, argv, environ);
    fn execveat(dir: c_int, path: Text, argv: Strings, env: Strings, flags: c_int) -> c_int =
        become_with_env(env, &|| loader::kind(dir, path, flags), &|env| call!(execveat(dir, path, argv, env, flags)));
    fn fexecve(fd: c_int, argv: Strings, env: Strings) -> c_int = {
        let look = || loader::kind(fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
        become_with_env(env, &look, &|env| call!(fexecve(fd, argv, env)))
    };
    fn execvpe(file: Text, argv: Strings, env: Strings) -> c_int =
        become_with_env(env, &|| kind_of_found(file), &|env| call!(execvpe(file, argv, env)));
    fn execvp(file: Text, argv: Strings) -> c_int = execvpe(file, argv, environ);

    fn posix_spawn(
        pid: Pid, path: Text, actions: Actions, attributes: Attributes, argv: Strings, env: Strings
    ) -> c_int = {
        let look = || loader::kind(AT_FDCWD, path, 0);
        let spawn = |pid, env| call!(posix_spawn(pid, path, actions, attributes, argv, env), libc::ENOSYS);
        spawn_with_env(pid, env, &look, &spawn)
    };
    fn posix_spawnp(
        pid: Pid, file: Text, actions: Actions, attributes: Attributes, argv: Strings, env: Strings
    ) -> c_int = {
        let spawn = |pid, env| call!(posix_spawnp(pid, file, actions, attributes, argv, env), libc::ENOSYS);
        spawn_with_env(pid, env, &|| kind_of_found(file), &spawn)
    };

    /// It starts a shell with the environment as it is, which does not come by here: the command says what is to be in
    /// it.
    fn system(command: Text) -> c_int = with_shell(command, |command| call!(system(command)));
    fn popen(command: Text, how: Text) -> *mut libc::FILE = with_shell(command, |command| call!(popen(command, how)));

    /// Shells and supervisors wait for their children so.
    fn sigsuspend(mask: *const libc::sigset_t) -> c_int = waiting(0, || call!(sigsuspend(mask)));
    fn wait(status: *mut c_int) -> libc::pid_t = waiting(0, || call!(wait(status)));
    fn waitpid(pid: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t =
        waiting(options, || call!(waitpid(pid, status, options)));
    fn waitid(kind: libc::idtype_t, id: libc::id_t, info: *mut libc::siginfo_t, options: c_int) -> c_int =
        waiting(options, || call!(waitid(kind, id, info, options)));
    fn wait3(status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t =
        waiting(options, || call!(wait3(status, options, usage)));
    fn wait4(pid: libc::pid_t, status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t =
        waiting(options, || call!(wait4(pid, status, options, usage)));
}

/// Calls libc's function: the program waits, if `options` do not say otherwise.
fn waiting(options: c_int, wait: impl FnOnce() -> c_int) -> c_int {
    waits_for_children(options & libc::WNOHANG == 0);
    wait()
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
