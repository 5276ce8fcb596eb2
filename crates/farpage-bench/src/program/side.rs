//! One run of the program, watched from outside.
//!
//! It has a process group of its own, which ends with its first process, and with the bench. (If that is killed, only
//! the first process is told to end; what it runs in the kernel's cgroup goes with that.)

use super::requests::RequestTimes;
use crate::commands;
use crate::compare::kernel::KernelSide;
use crate::compare::side::{INTERRUPTED, SAMPLE_EVERY};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, OrCannot, Result, why};
use farpage_command::process::anonymous_with_children;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What `getrusage` counts output in, bytes.
const BLOCK: u64 = 512;

/// What is run.
#[derive(Debug, Clone, Default)]
pub struct Invocation {
    /// The program and its arguments: at least one word.
    pub argv: Vec<OsString>,
    /// Where it runs and has its temporary files; `None`: where the bench does.
    pub directory: Option<PathBuf>,
    /// Variables of its environment besides those of the bench.
    pub variables: &'static [(&'static str, &'static str)],
    /// It is ended after this time.
    pub limit: Option<Duration>,
    /// The file where it leaves latencies of requests.
    pub requests: Option<PathBuf>,
}

impl Invocation {
    /// A program as its user runs it.
    pub fn of(argv: &[OsString]) -> Invocation {
        Invocation { argv: argv.to_vec(), ..Invocation::default() }
    }

    /// What it is called by.
    pub fn name(&self) -> std::path::Display<'_> {
        Path::new(self.argv.first().map_or(OsStr::new(""), OsString::as_os_str)).display()
    }

    /// Gives a command what belongs to the program; `farpage run` hands it on.
    fn furnish(&self, command: &mut Command) {
        if let Some(directory) = &self.directory {
            command.current_dir(directory).env("TMPDIR", directory);
        }
        command.envs(self.variables.iter().copied());
    }
}

/// What is known of a run when it is over.
#[derive(Debug, Clone)]
pub struct Ended {
    /// From start to end, seconds.
    pub wall_s: f64,
    /// Processor time of it and of the children that it has waited for, user and system, seconds.
    pub cpu_s: f64,
    /// Faults that read a device, those of files and of waited-for children included; under farpage those of all
    /// processes that read a swap device.
    pub major_faults: u64,
    /// Written to files by it and by the children that it has waited for, bytes; under farpage with what went to swap
    /// files.
    pub written_bytes: u64,
    /// Most resident anonymous memory, bytes: of all its processes; under farpage, where there is no cgroup to count
    /// it, of the first one.
    pub peak_rss_anon: u64,
    /// Most memory of the compressed pool, bytes.
    pub pool_peak_bytes: u64,
    /// How it ended.
    pub status: ExitStatus,
    /// Bytes of its standard output, and a hash of them.
    pub output: (u64, u64),
    /// Under farpage: whether there was an engine in the first process.
    pub managed: bool,
    /// Under farpage: what the engines of all processes counted.
    pub counted: Counted,
    /// It had not ended within [`Invocation::limit`], and was ended.
    pub stopped: bool,
    /// Latencies of requests, where it has measured them.
    pub requests: Option<RequestTimes>,
}

/// What an engine counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Faults that it served.
    pub faults: u64,
    /// Faults that read a swap device.
    pub reads: u64,
    /// Of these, those that waited for a file.
    pub file_reads: u64,
    /// Faults on pages that were still in memory.
    pub minor: u64,
    /// Pages that came in from swap devices, readahead included.
    pub pages_in: u64,
    /// Pages written to swap devices.
    pub pages_out: u64,
}

impl Ended {
    /// Exit status or signal, as far as both sides can have it: a core dump is none under farpage.
    pub fn end(&self) -> (Option<i32>, Option<i32>) {
        (self.status.code(), self.status.signal())
    }
}

/// What swaps.
pub enum Pager<'a> {
    /// The program has all the memory that it wants.
    Plain,
    /// The kernel.
    Kernel(&'a KernelSide),
    /// `farpage run` with this budget, bytes, and these options.
    Farpage(u64, &'a [OsString]),
}

/// Runs the program to its end; `meter`: counts the memory of all its processes, where the kernel's side does not.
///
/// # Errors
/// It could not be started, the bench was interrupted, or it has left no latencies although all was well with it.
pub fn run(program: &Invocation, pager: &Pager<'_>, meter: Option<&KernelSide>) -> Result<Ended> {
    program.requests.as_deref().map(RequestTimes::clear).transpose()?;
    let stats = if let Pager::Farpage(..) = pager { Some(Stats::new()?) } else { None };
    let mut command = match (pager, &stats) {
        (Pager::Farpage(ram, options), Some(stats)) => {
            let mut command = commands::farpage_run();
            command.args(["--quiet", "--ram", &ram.to_string(), "--stats-json"]).arg(stats.path());
            command.args(*options).arg("--").args(&program.argv);
            command
        }
        _ => {
            let mut command = Command::new(&program.argv[0]);
            command.args(&program.argv[1..]);
            command
        }
    };
    program.furnish(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: prctl is async-signal-safe. If the bench is killed, the program has no other way to hear of it;
    // `farpage run` passes the signal on.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let cgroup = match pager {
        Pager::Kernel(side) => Some(*side),
        _ => meter,
    };
    if let Some(cgroup) = cgroup {
        cgroup.contain(&mut command)?;
    }
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| {
        let status = if e.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure::with_status(status, format!("cannot run {}: {}", program.argv[0].to_string_lossy(), why(&e)))
    })?;
    let group = Group(child.id() as i32);
    let reader = child.stdout.take().map(|pipe| std::thread::spawn(move || digest(pipe)));
    let (mut peak, mut stopped) = (0, false);
    let (status, usage) = loop {
        if INTERRUPTED.load(Relaxed) {
            group.kill();
            let _ = child.wait();
            return Err(Failure::with_status(130, "interrupted"));
        }
        // (The kernel's side must be read now and then, lest the kernel decides from stale numbers and kills.)
        let now = cgroup.and_then(KernelSide::anonymous);
        peak = peak.max(now.unwrap_or_else(|| anonymous_with_children(child.id())));
        if let Some(ended) = group.ended()? {
            break ended;
        }
        if !stopped && program.limit.is_some_and(|limit| start.elapsed() > limit) {
            stopped = true;
            group.kill();
        }
        std::thread::sleep(SAMPLE_EVERY);
    };
    let wall_s = start.elapsed().as_secs_f64();
    // What it has left behind in another group may still have the pipe.
    while reader.as_ref().is_some_and(|reader| !reader.is_finished()) {
        if INTERRUPTED.load(Relaxed) {
            return Err(Failure::with_status(130, "interrupted"));
        }
        std::thread::sleep(SAMPLE_EVERY / 10);
    }
    let output = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let mut ended = Ended {
        wall_s,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        major_faults: usage.ru_majflt as u64,
        written_bytes: usage.ru_oublock as u64 * BLOCK,
        peak_rss_anon: peak,
        pool_peak_bytes: 0,
        status,
        output,
        managed: false,
        counted: Counted::default(),
        stopped,
        requests: None,
    };
    if status.success() {
        ended.requests = program.requests.as_deref().map(RequestTimes::read).transpose()?;
    }
    match pager {
        Pager::Plain => {}
        Pager::Kernel(side) => ended.pool_peak_bytes = side.pool().map_or(0, |[_, _, _, peak]| peak),
        Pager::Farpage(..) => {
            let values = stats.map(Stats::read).unwrap_or_default();
            ended.managed = values.get("engine_started") == Some(&Value::Bool(true));
            let get = |name: &str| values.get(name).and_then(Value::as_u64).unwrap_or(0);
            let tree = |name: &str| values.get("tree").and_then(|tree| tree.get(name)).and_then(Value::as_u64);
            // One that was stopped has told the others less than it has counted.
            let all = |name: &str| get(name).max(tree(name).unwrap_or(0));
            ended.major_faults = tree("pgmajfault").unwrap_or_else(|| get("pgmajfault"));
            ended.counted = Counted {
                faults: all("pgfault"),
                reads: all("pgmajfault"),
                file_reads: all("pgmajfault_file"),
                minor: all("workingset_refault_cached"),
                pages_in: all("pswpin"),
                pages_out: all("pswpout"),
            };
            if cgroup.is_none() {
                ended.peak_rss_anon = get("rss_anon_peak_bytes");
            }
            ended.pool_peak_bytes = get("pool_peak_bytes");
        }
    }
    Ok(ended)
}

/// The process group of a run.
struct Group(i32);

impl Group {
    /// Once its first process has ended: how, and what it took; the rest of the group is ended then, too.
    fn ended(&self) -> Result<Option<(ExitStatus, libc::rusage)>> {
        let lost = || Failure::new(format!("lost the program: {}", why(&io::Error::last_os_error())));
        // SAFETY: all zero bits are valid values of both.
        let (mut info, mut usage): (libc::siginfo_t, libc::rusage) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the pointer is to a local. The process is ours, and is waited for here only.
        if unsafe { libc::waitid(libc::P_PID, self.0 as u32, &mut info, look) } < 0 {
            return Err(lost());
        }
        // SAFETY: of a child, or zero.
        if unsafe { info.si_pid() } == 0 {
            return Ok(None);
        }
        self.kill();
        let mut status = 0;
        // SAFETY: both pointers are to locals.
        match unsafe { libc::wait4(self.0, &mut status, 0, &mut usage) } {
            pid if pid == self.0 => Ok(Some((ExitStatus::from_raw(status), usage))),
            _ => Err(lost()),
        }
    }

    /// Ends all members. The first process has not been waited for: no other has the group's number.
    fn kill(&self) {
        // SAFETY: no memory is touched.
        unsafe { libc::kill(-self.0, libc::SIGKILL) };
    }
}

/// A pipe for the statistics of `farpage run`, which opens it by name: nothing of it can stay behind. They are smaller
/// than a pipe.
struct Stats {
    from: PipeReader,
    to: PipeWriter,
}

impl Stats {
    fn new() -> Result<Stats> {
        let (from, to) = io::pipe().or_cannot("make a pipe")?;
        Ok(Stats { from, to })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.to.as_raw_fd())
    }

    /// When `farpage run` has ended.
    fn read(self) -> Value {
        let Stats { mut from, to } = self;
        drop(to);
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// Length and hash of all that comes.
fn digest(pipe: ChildStdout) -> (u64, u64) {
    let mut pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    let (mut hasher, mut length, mut buffer) = (DefaultHasher::new(), 0, vec![0; 64 << 10]);
    loop {
        // In full blocks, so that the hash does not depend on how the pipe was filled.
        let mut have = 0;
        while have < buffer.len() {
            match pipe.read(&mut buffer[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        hasher.write(&buffer[..have]);
        length += have as u64;
        if have < buffer.len() {
            return (length, hasher.finish());
        }
    }
}
