//! Which processes can be put under a budget while they run: looks, and touches nothing.
//!
//! Caller: [`super`]. No locks.

use super::memory::{Mapping, Memory};
use super::symbols;
use crate::failure::{Failure, Result, why};
use crate::process::{self, Status, ended_within};
use crate::trees;
use std::io;
use std::time::Duration;

/// A process that can.
pub struct Target {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// It has a seccomp filter.
    pub is_filtered: bool,
    /// Its memory.
    pub memory: Memory,
    /// What was mapped when it was looked at.
    pub mappings: Vec<Mapping>,
    /// Where `dlopen`, `dlerror` and a `syscall` instruction are.
    pub open: usize,
    /// See `open`.
    pub error: usize,
    /// See `open`.
    pub close: usize,
    /// See `open`.
    pub system_call: usize,
}

/// In an ELF header.
const CLASS_64: u8 = 2;
/// The parent of the kernel's threads.
const KTHREADD: u32 = 2;

/// So long a process takes at most to end, once its first thread has: to give much memory back takes a while.
const ENDS: Duration = Duration::from_secs(1);

/// Why nothing can be done about a process of which [`Target::is_gone`] says so.
pub const GONE: &str = "it has ended, or become another program";

fn refuse(pid: u32, name: &str, why: &str) -> Failure {
    let name = name.escape_debug();
    Failure::new(format!("cannot attach to process {pid} ({name}): {why}"))
}

impl Target {
    /// Looks at a process.
    ///
    /// # Errors
    /// It is not there, or cannot be put under a budget; one sentence says why.
    pub fn look(pid: u32) -> Result<Target> {
        let target = Target::look_at_member(pid)?;
        if target.is_member() { Err(target.refuse_again()) } else { Ok(target) }
    }

    /// The same, but the process may run under farpage.
    ///
    /// # Errors
    /// As [`Target::look`].
    pub fn look_at_member(pid: u32) -> Result<Target> {
        let status = Status::read(pid).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(format!("cannot find process {pid}: no such process")),
            _ => Failure::new(format!("cannot look at process {pid}: {}", why(&error))),
        })?;
        // Linux 6.8 says what it is. Before that: kernel threads have no memory. Neither has a process that ends, and in
        // a pid namespace number 2 is a process like others.
        let is_below = pid == KTHREADD || status.value("PPid:") == KTHREADD.to_string();
        let is_of_kernel = match status.value("Kthread:") {
            "" => is_below && status.value("VmSize:").is_empty(),
            told => told == "1",
        };
        if is_of_kernel {
            return Err(refuse(pid, status.value("Name:"), "it is a thread of the kernel's"));
        }
        Target::look_closely(pid, &status).map_err(|failure| {
            // A process that ends meanwhile looks like many others.
            let has_memory = Status::read(pid).is_ok_and(|status| !status.value("VmSize:").is_empty());
            if has_memory { failure } else { refuse(pid, status.value("Name:"), "it has ended") }
        })
    }

    fn look_closely(pid: u32, status: &Status) -> Result<Target> {
        let value = |name: &str| status.value(name);
        let name = value("Name:").to_owned();
        let refuse = |why: &str| refuse(pid, &name, why);
        if pid == std::process::id() {
            return Err(refuse("it is this command"));
        }
        if value("Tgid:") != pid.to_string() {
            return Err(refuse("it is a thread").help(format!("name its process: {}", value("Tgid:"))));
        }
        if status.is_stopped() {
            return Err(refuse("it is stopped").help(format!("kill -CONT {pid}")));
        }
        if value("TracerPid:") != "0" {
            return Err(refuse("a debugger traces it"));
        }
        if value("Seccomp:") == "1" {
            return Err(refuse("it has confined itself to read, write and exit (seccomp)"));
        }
        let is_filtered = value("Seccomp:") == "2";
        let uid = status.uid();
        let memory = Memory::open(pid).map_err(|failure| match rustix::process::geteuid().is_root() {
            true => failure,
            false => failure.help("it is another user's, or kernel.yama.ptrace_scope forbids it: try as root"),
        })?;
        let mappings = memory.mappings()?;
        let named = |part: &str| mappings.iter().find(|m| m.file_name().starts_with(part) && m.offset == 0);
        if named("ld-musl").is_some() || named("libc.musl").is_some() {
            return Err(refuse("it is linked against musl, and the library needs glibc"));
        }
        for sanitizer in ["libasan", "libtsan", "libmsan", "liblsan", "libhwasan"] {
            if named(sanitizer).is_some() {
                return Err(refuse("it is built with a sanitizer, which has memory where farpage's has to be"));
            }
        }
        let Some(libc) = named("libc.so.6").or_else(|| named("libc-2")) else {
            return Err(refuse("it is statically linked, so no library can be loaded into it"));
        };
        let file = memory.file_of(libc)?;
        let of = |symbol: &str| symbols::address(&file, symbol).map(|at| libc.range.0 + at as usize);
        // Before 2.34 it was in a library of its own.
        let own = named("libdl.so.2").or_else(|| named("libdl-2"));
        let own = own.map(|m| memory.file_of(m).map(|file| (m, file))).transpose()?;
        let of_own = |symbol: &str| {
            own.as_ref().and_then(|(m, file)| Some(m.range.0 + symbols::address(file, symbol)? as usize))
        };
        let found = ["dlopen", "dlerror", "dlclose"].map(|symbol| of(symbol).or_else(|| of_own(symbol)));
        let [Some(open), Some(error), Some(close)] = found else {
            return Err(refuse("its libc has no dlopen: it is older than 2.34, and has not loaded libdl"));
        };
        let Some(system_call) = symbols::system_call(&file).map(|at| libc.range.0 + at as usize) else {
            return Err(refuse("its libc makes no system call"));
        };
        let exe = memory.executable()?;
        if exe.get(4) != Some(&CLASS_64) {
            return Err(refuse("it is a program for 32 bits"));
        }
        if symbols::address(&exe, "__asan_init").is_some() || symbols::address(&exe, "__tsan_init").is_some() {
            return Err(refuse("it is built with a sanitizer, which has memory where farpage's has to be"));
        }
        Ok(Target { pid, name, uid, memory, mappings, is_filtered, open, error, close, system_call })
    }

    /// Where the library begins in its memory, by whatever name it was loaded.
    pub fn library(&self) -> Option<&Mapping> {
        self.mappings.iter().find(|m| m.file_name().contains("libfarpage_preload") && m.offset == 0)
    }

    /// Whether it runs under farpage. After `farpage detach` it has the library only.
    pub fn is_member(&self) -> bool {
        self.library().is_some() && trees::id_of(self.pid).is_some()
    }

    /// Whether it has ended, or become another program: its memory is not what was looked at.
    pub fn is_gone(&self) -> bool {
        self.memory.read(self.system_call, &mut [0]).is_err()
    }

    /// Whether that is so, or about to be: its first thread has ended, and the others are ending.
    pub fn is_ending(&self) -> bool {
        let ends = || process::open(self.pid).map_or(true, |process| ended_within(&process, ENDS));
        self.is_gone() || Status::read(self.pid).map_or(true, |status| status.has_ended() && ends())
    }

    /// A refusal of this process, because it is stopped.
    pub fn refuse_stopped(&self) -> Failure {
        self.refuse("it is stopped").help(format!("kill -CONT {}", self.pid))
    }

    /// A refusal of this process, which runs under farpage.
    pub fn refuse_again(&self) -> Failure {
        self.refuse("it runs under farpage already").help(format!("farpage set {} --ram SIZE", self.pid))
    }

    /// A refusal of this process.
    pub fn refuse(&self, why: &str) -> Failure {
        refuse(self.pid, &self.name, why)
    }
}
