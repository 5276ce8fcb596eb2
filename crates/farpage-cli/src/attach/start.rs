//! Starts an engine in a process: a thread of it loads the library, and is given back.
//!
//! Callers: [`super`], [`super::family`]; [`crate::set`] wakes small processes of a tree. No locks.

use super::place::Places;
use super::target::{GONE, Target};
use super::tracee::{Refused, Tracee};
use super::{filter, pass, symbols, userfaultfds};
use crate::failure::{Failure, OrCannot, Result, say};
use crate::{preload, process};
use farpage_run::probe;
use farpage_run::shared::outcome::{StartFailure, StartOutcome};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::cell::Cell;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For how long a thread at a safe place is looked for.
const SEARCH_MAX: Duration = Duration::from_secs(5);
/// Between two looks at its threads, at most.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How long the engine may take to start.
const START_MAX: Duration = Duration::from_secs(10);

/// What is done to a process.
pub struct Start<'a> {
    library: PathBuf,
    configuration: String,
    note: &'a dyn Fn(&dyn Display),
    /// What some of them lack was said.
    said: Cell<bool>,
}

impl<'a> Start<'a> {
    /// Loads this library, whose engine works as `configuration` says.
    pub fn new(library: PathBuf, configuration: String, note: &'a dyn Fn(&dyn Display)) -> Start<'a> {
        Start { library, configuration, note, said: Cell::new(false) }
    }

    /// Starts an engine in the process, in a tree of its own, or in that whose segment this is.
    pub fn begin(&self, target: &Target, segment: Option<BorrowedFd<'_>>) -> Result<()> {
        if target.is_filtered {
            look_at_filter(target)?;
        }
        let is_own = target.uid == rustix::process::geteuid().as_raw();
        if is_own {
            // What this user may not have, its program may not.
            probe::Probe::take(None).verdict()?;
        }
        let (outcome, is_limited) = self.load(target, is_own, segment)?;
        await_start(target, outcome)?;
        if is_limited && !self.said.replace(true) {
            say_what_is_limited(target);
        }
        (self.note)(&format_args!("the engine runs in process {} ({})", target.pid, target.name));
        Ok(())
    }

    /// Loads the library into the process, unless it has it since it was attached to before, and tells it to start;
    /// where it says what became of that.
    ///
    /// `is_own`: of this command's user. Also returns whether the process has userfaultfds that were made for it.
    fn load(&self, target: &Target, is_own: bool, segment: Option<BorrowedFd<'_>>) -> Result<(usize, bool)> {
        let Start { library, configuration, note, .. } = self;
        let loaded = target.library();
        let file = match loaded {
            Some(loaded) => target.memory.file_of(loaded)?,
            None => fs::read(library).or_cannot(format_args!("read {}", library.display()))?,
        };
        let symbol = |name: &str| {
            let other = || Failure::new(format!("{} has no {name}: it is of another version", library.display()));
            symbols::address(&file, name).ok_or_else(|| loaded.map_or_else(other, |_| of_another_version(target)))
        };
        let [start, join, take] = [symbol("farpage_start")?, symbol("farpage_join")?, symbol("farpage_take")?];
        let outcome = symbol("farpage_start_outcome")?;
        let mut tracee = borrow(target)?;
        let does = if loaded.is_some() { "begins with" } else { "loads" };
        note(&format_args!("thread {} of process {} {does} {}", tracee.tid(), target.pid, library.display()));
        let may = is_own || userfaultfds::can_itself(&mut tracee)?;
        let made = if may { None } else { Some(userfaultfds::make(target, &mut tracee)?) };
        let handle = if loaded.is_some() { None } else { Some(open_library(target, &mut tracee, library, &file)?) };
        // The loader's description of a library begins with where it was loaded.
        let mut base = loaded.map_or(0, |loaded| loaded.range.0).to_le_bytes();
        if let Some(handle) = handle {
            target.memory.read(handle, &mut base)?;
        }
        let at = |symbol: u64| usize::from_le_bytes(base) + symbol as usize;
        if let Some(segment) = segment {
            let number = pass::give(&target.memory, target.pid, &mut tracee, segment)?;
            tracee.call(at(join), [number, 0, 0])?;
        }
        if let Some([program, engine]) = made {
            let mut give = |made: OwnedFd| pass::give(&target.memory, target.pid, &mut tracee, made.as_fd());
            let numbers = [give(program)?, give(engine)?];
            tracee.call(at(take), [numbers[0], numbers[1], 0])?;
        }
        let [text] = tracee.put([configuration.as_bytes()])?;
        let failed = tracee.call(at(start), [text, usize::MAX, 0])?;
        if failed != 0 {
            let why = text_at(target, failed);
            // Nothing has begun that would use it.
            if let (Some(handle), None) = (handle, outcome_at(target, at(outcome))?) {
                tracee.call(target.close, [handle, 0, 0])?;
            }
            return Err(target.refuse(&why));
        }
        let stopped = tracee.stopped_for();
        drop(tracee);
        note(&format_args!("it was stopped, or at work for farpage, for {:.1} ms", stopped.as_secs_f64() * 1e3));
        Ok((at(outcome), !may))
    }
}

/// Refuses a process whose filters an engine could not work under. The engine gets those of the thread that starts it,
/// which is the main one then.
fn look_at_filter(target: &Target) -> Result<()> {
    let anywhere = |_: &libc::user_regs_struct| true;
    let main = target.pid as i32;
    let tracee = Tracee::stop(&target.memory, main, target.system_call, anywhere).map_err(|refused| match refused {
        Refused::Failed(failure) => failure,
        Refused::Unsafe | Refused::Gone => target.refuse("it has ended"),
    })?;
    let filters = tracee.filters()?;
    drop(tracee);
    filter::obstacle(&filters)?.map_or(Ok(()), |why| Err(target.refuse(&why)))
}

/// Starts the engine of a process that has the library, and is so small that it has none.
///
/// # Errors
/// No thread of it can be borrowed.
pub fn wake(pid: u32) -> Result<()> {
    call(&Target::look_at_member(pid)?, "farpage_wake").map(drop)
}

/// A process that has the library and no engine, or none any more, goes on as if it were not there. False: it has one.
///
/// # Errors
/// No thread of it can be borrowed.
pub fn detach(target: &Target) -> Result<bool> {
    Ok(call(target, "farpage_detach")? == 0)
}

/// Has a thread of a process with the library call one of its functions.
fn call(target: &Target, name: &str) -> Result<usize> {
    let library = target.library().ok_or_else(|| target.refuse("the library is not in its memory"))?;
    let file = target.memory.file_of(library)?;
    let function = symbols::address(&file, name).ok_or_else(|| of_another_version(target))?;
    borrow(target)?.call(library.range.0 + function as usize, [0; 3])
}

fn of_another_version(target: &Target) -> Failure {
    target.refuse("the library in it is of another version").help("start the program anew")
}

/// One line: which processes that it starts cannot be managed.
fn say_what_is_limited(target: &Target) {
    let (pid, name, uid, device) = (target.pid, target.name.escape_debug(), target.uid, probe::DEVICE);
    say(format_args!(
        "farpage: programs that process {pid} ({name}) starts from now on, and children that it forks while it is below \
         its budget, count, and are not swapped out: user {uid} may not open {device}\n  \
         help: setfacl -m u:{uid}:rw {device} lets this user have userfaultfds, until the next boot"
    ));
}

/// Has the process load the library, which is this file; the loader's handle.
fn open_library(target: &Target, tracee: &mut Tracee<'_>, library: &Path, file: &[u8]) -> Result<usize> {
    let mut handle = match is_visible(target, library) {
        true => open(target, tracee, library.as_os_str().as_bytes())?,
        false => 0,
    };
    if handle == 0 {
        // It has another file system, or may not read ours.
        let copy = in_memory(file)?;
        let number = pass::give(&target.memory, target.pid, tracee, copy.as_fd())?;
        handle = open(target, tracee, format!("/proc/self/fd/{number}").as_bytes())?;
    }
    if handle == 0 {
        let at = tracee.call(target.error, [0; 3])?;
        return Err(target.refuse(&format!("the library cannot be loaded there: {}", text_at(target, at))));
    }
    Ok(handle)
}

/// Has the process load a library; 0: it cannot.
fn open(target: &Target, tracee: &mut Tracee<'_>, path: &[u8]) -> Result<usize> {
    let [path] = tracee.put([path])?;
    tracee.call(target.open, [path, libc::RTLD_NOW as usize, 0])
}

/// A file in memory, as it stays.
fn in_memory(content: &[u8]) -> Result<OwnedFd> {
    let made = || -> std::io::Result<OwnedFd> {
        let mut file = fs::File::from(memfd_create(preload::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(content)?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file.into())
    };
    made().or_cannot("make a file in memory")
}

/// What the process says of its start.
fn outcome_at(target: &Target, at: usize) -> Result<Option<std::result::Result<(), StartFailure>>> {
    let mut bytes = [0; StartOutcome::BYTES];
    target.memory.read(at, &mut bytes)?;
    Ok(StartOutcome::read(&bytes))
}

/// A thread of the process, at a place where it may call functions.
fn borrow(target: &Target) -> Result<Tracee<'_>> {
    let since = Instant::now();
    let mut places = Places::new(target.pid, &target.memory, target.mappings.clone());
    let mut pause = Duration::from_millis(1);
    loop {
        let threads = if target.is_filtered { vec![target.pid as i32] } else { places.threads() };
        for tid in threads {
            if !places.may_be_safe(tid) {
                continue;
            }
            let is_safe = |registers: &libc::user_regs_struct| places.is_safe(tid, registers);
            match Tracee::stop(&target.memory, tid, target.system_call, is_safe) {
                Ok(tracee) => return Ok(tracee),
                Err(Refused::Failed(failure)) => return Err(failure),
                Err(Refused::Unsafe | Refused::Gone) => {
                    places.learn();
                }
            }
        }
        if target.is_gone() {
            return Err(target.refuse(GONE));
        }
        if process::is_stopped(target.pid) {
            return Err(target.refuse_stopped());
        }
        if since.elapsed() > SEARCH_MAX {
            let why = "none of its threads came to a place where it can load a library";
            return Err(target.refuse(why).help("try again"));
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

/// Whether the process sees the same file under this name.
fn is_visible(target: &Target, library: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino(), file.len())).ok();
    let there = format!("/proc/{}/root{}", target.pid, library.display());
    id(library).is_some_and(|file| id(Path::new(&there)) == Some(file))
}

/// A C string of the process.
fn text_at(target: &Target, at: usize) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while text.len() < 1000 && target.memory.read(at + text.len(), &mut byte).is_ok() && byte[0] != 0 {
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).escape_debug().to_string()
}

/// Waits until the engine runs.
fn await_start(target: &Target, outcome: usize) -> Result<()> {
    let since = Instant::now();
    loop {
        match outcome_at(target, outcome).map_err(|_| target.refuse("it ended meanwhile"))? {
            None if since.elapsed() > START_MAX => return Err(target.refuse("the engine does not start in it")),
            None => std::thread::sleep(Duration::from_millis(1)),
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => return Err(target.refuse(&why.0.escape_debug().to_string())),
        }
    }
}
