//! The kernel's side: a memory cgroup (v1 or v2) with a limit, and a swap device of its own, zram or a file.
//!
//! All of it is system-wide, so it must go whatever happens to the bench, also if it is killed. So a second process,
//! the *guard* (`bench-guard`, a subcommand), is told of each thing before it is made, and takes all of it away when
//! the pipe to it closes: when the bench is done, or when it has died. There is no other way to clean up.

use crate::failure::{Failure, OrCannot, Result, say, why};
use farpage_base::sys::escape::unescape;
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// Priority of the swap device: above what the system may have.
const SWAP_PRIORITY: i32 = 32_000;
const SWAP_FLAG_PREFER: i32 = 0x8000;
/// A limit that is none: what version 1 shows for it.
const UNLIMITED: u64 = i64::MAX as u64 / 4096 * 4096;

/// The second device kind of the comparison.
#[derive(Debug, Clone)]
pub enum SwapKind {
    /// A zram device with LZ4, of this many bytes.
    Zram(u64),
    /// A swap file of this many bytes in a directory.
    File(PathBuf, u64),
    /// No swap: the memory is a mapped file.
    None,
}

/// Limit and swap device, as long as this exists.
#[derive(Debug)]
pub struct KernelSide {
    guard: Guard,
    cgroup: PathBuf,
    zram: Option<u32>,
}

impl KernelSide {
    /// Makes a cgroup with a limit of `limit` bytes, and swap.
    ///
    /// # Errors
    /// What could not be made; what was made is gone again.
    pub fn new(limit: u64, swap: &SwapKind) -> Result<KernelSide> {
        let mut guard = Guard::start()?;
        let (top, v2) = memory_hierarchy()?;
        if v2 {
            // Where the controller is on already, this fails or changes nothing.
            let _ = fs::write(top.join("cgroup.subtree_control"), "+memory");
        }
        let fail = |path: &Path, e: &io::Error| Failure::new(format!("cannot set up {}: {}", path.display(), why(e)));
        let cgroup = make_in(&top, "farpage-bench-", |path| {
            guard.tell("cgroup", path)?;
            fs::create_dir(path)
        })
        .map_err(|e| fail(&top, &e))?;
        let file = cgroup.join(if v2 { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&file, limit.to_string()).map_err(|e| fail(&file, &e))?;
        let mut side = KernelSide { guard, cgroup, zram: None };
        match swap {
            SwapKind::Zram(bytes) => side.add_zram(*bytes)?,
            SwapKind::File(directory, bytes) => side.add_file(directory, *bytes)?,
            SwapKind::None => {}
        }
        Ok(side)
    }

    fn add_zram(&mut self, bytes: u64) -> Result<()> {
        let control = Path::new(ZRAM_CONTROL).join("hot_add");
        let number =
            fs::read_to_string(&control).or_cannot(format_args!("add a zram device: {}", control.display()))?;
        let number: u32 = number.trim().parse().map_err(|_| Failure::new("hot_add gave no number"))?;
        let noted = self.guard.tell("zram", Path::new(&number.to_string()));
        noted.map_err(|e| Failure::new(format!("the bench's guard is gone: {}", why(&e))))?;
        self.zram = Some(number);
        let sys = PathBuf::from(format!("/sys/block/zram{number}"));
        for (name, value) in [("comp_algorithm", "lz4".to_owned()), ("disksize", bytes.to_string())] {
            let file = sys.join(name);
            fs::write(&file, value).or_cannot(format_args!("set {}", file.display()))?;
        }
        let device = PathBuf::from(format!("/dev/zram{number}"));
        swap_on(&device, bytes)
    }

    fn add_file(&mut self, directory: &Path, bytes: u64) -> Result<()> {
        let fail =
            |e: &io::Error| Failure::new(format!("cannot make a swap file in {}: {}", directory.display(), why(e)));
        let directory = directory.canonicalize().map_err(|e| fail(&e))?;
        let path = make_in(&directory, ".farpage-bench-swap-", |path| {
            self.guard.tell("file", path)?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
        })
        .map_err(|e| fail(&e))?;
        swap_on(&path, bytes)
    }

    /// Puts the process that `command` will start into the cgroup.
    ///
    /// # Errors
    /// The cgroup's list of processes cannot be opened.
    pub fn contain(&self, command: &mut Command) -> Result<()> {
        let list = self.cgroup.join("cgroup.procs");
        let list = OpenOptions::new().write(true).open(&list).or_cannot(format_args!("open {}", list.display()))?;
        // SAFETY: the closure makes one write call and allocates nothing. "0" is the calling process.
        unsafe { command.pre_exec(move || list.write_at(b"0", 0).map(drop)) };
        Ok(())
    }

    /// A cgroup without a limit, to count the memory of all that runs in it.
    ///
    /// # Errors
    /// As [`KernelSide::new`].
    pub fn meter() -> Result<KernelSide> {
        KernelSide::new(UNLIMITED, &SwapKind::None)
    }

    /// Anonymous memory of all processes in it now, bytes; `None`: it cannot be read.
    pub fn anonymous(&self) -> Option<u64> {
        let text = fs::read_to_string(self.stat_file()).ok()?;
        // Version 1, version 2.
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        value("total_rss ").or_else(|| value("anon "))
    }

    /// The statistics that must be read now and then, lest the kernel decides from stale ones and kills.
    pub fn stat_file(&self) -> PathBuf {
        self.cgroup.join("memory.stat")
    }

    /// Of the zram device: bytes stored, compressed bytes, memory in use now, most memory in use so far.
    pub fn pool(&self) -> Option<[u64; 4]> {
        let text = fs::read_to_string(format!("/sys/block/zram{}/mm_stat", self.zram?)).ok()?;
        let n: Vec<u64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        Some([*n.first()?, *n.get(1)?, *n.get(2)?, *n.get(4)?])
    }

    /// Takes everything away.
    ///
    /// # Errors
    /// Something is left; the guard has said what.
    pub fn remove(self) -> Result<()> {
        self.guard.finish()
    }
}

/// Makes something with a new name that cannot be guessed; the guard, told by `make`, takes it away.
fn make_in(directory: &Path, prefix: &str, make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let made = tempfile::Builder::new().prefix(prefix).rand_bytes(16).disable_cleanup(true).make_in(directory, make)?;
    Ok(made.path().to_path_buf())
}

/// Why the kernel's side is left out: it shall be, or there is no memory cgroup, or no zram where that is wanted.
pub fn left_out(no_kernel: bool, zram: bool) -> Option<&'static str> {
    if no_kernel {
        Some("--no-kernel")
    } else if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else {
        let no_zram = zram && !Path::new(ZRAM_CONTROL).exists();
        let no_cgroup = memory_hierarchy().is_err().then_some("no memory cgroup is mounted");
        no_cgroup.or(no_zram.then_some("the module zram is not loaded: modprobe zram"))
    }
}

/// The mounted memory controller, and whether it is v2.
fn memory_hierarchy() -> Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, point, kind, options, ..] = fields[..] else { continue };
        let point = unescape(point);
        if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            return Ok((point, false));
        }
        let controllers = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
        if kind == "cgroup2" && controllers.split_whitespace().any(|c| c == "memory") {
            return Ok((point, true));
        }
    }
    Err(Failure::new("no memory cgroup is mounted").help("mount one, or measure farpage alone with --no-kernel"))
}

/// Writes a swap header and switches the device on.
fn swap_on(device: &Path, bytes: u64) -> Result<()> {
    let fail = |e: &io::Error| Failure::new(format!("cannot swap on {}: {}", device.display(), why(e)));
    let page = farpage::PAGE_SIZE;
    let mut header = vec![0u8; page];
    // The header's second KiB: version, number of the last page.
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&((bytes / page as u64 - 1) as u32).to_ne_bytes());
    header[page - 10..].copy_from_slice(b"SWAPSPACE2");
    let file = OpenOptions::new().write(true).open(device).map_err(|e| fail(&e))?;
    file.write_all_at(&header, 0).and_then(|()| file.sync_all()).map_err(|e| fail(&e))?;
    let name = CString::new(device.as_os_str().as_encoded_bytes()).map_err(|_| fail(&Errno::INVAL.into()))?;
    // SAFETY: a path that ends in NUL; the call touches no memory of ours.
    if unsafe { libc::swapon(name.as_ptr(), SWAP_FLAG_PREFER | SWAP_PRIORITY) } < 0 {
        return Err(fail(&io::Error::last_os_error()));
    }
    Ok(())
}

/// The process that cleans up.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    fn start() -> Result<Guard> {
        let fail = |e: &io::Error| Failure::new(format!("cannot start the bench's guard: {}", why(e)));
        let mut command = Command::new("/proc/self/exe");
        command.arg("bench-guard").stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: setsid is async-signal-safe. Out of the terminal's group, Ctrl-C does not reach the guard.
        unsafe { command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }) };
        command.spawn().map(Guard).map_err(|e| fail(&e))
    }

    /// Kind, blank, path, NUL.
    fn tell(&mut self, kind: &str, what: &Path) -> io::Result<()> {
        let pipe = self.0.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(&[kind.as_bytes(), b" ", what.as_os_str().as_bytes(), b"\0"].concat())
    }

    fn finish(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Failure::new("not everything that the bench set up could be removed")),
            Err(e) => Err(Failure::new(format!("cannot wait for the bench's guard: {}", why(&e)))),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The guard process: reads what there is until the pipe closes, then removes it, last first.
pub fn guard() -> ExitCode {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let told: Vec<Vec<u8>> = io::stdin().lock().split(0).map_while(io::Result::ok).collect();
    let things = told.iter().filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        Some((&line[..at], Path::new(OsStr::from_bytes(&line[at + 1..]))))
    });
    let things: Vec<(&[u8], &Path)> = things.collect();
    let mut clean = true;
    // The processes first: what they have swapped out need not be read back then.
    for (_, path) in things.iter().filter(|(kind, _)| *kind == b"cgroup") {
        clean &= report(path, remove_cgroup(path));
    }
    for (kind, what) in things.iter().rev() {
        clean &= match *kind {
            b"zram" => report(what, remove_zram(&what.display().to_string())),
            b"file" => report(what, remove_file(what)),
            _ => true,
        };
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(what: &Path, result: io::Result<()>) -> bool {
    if let Err(e) = &result {
        say(format_args!("farpage: bench: cannot remove {}: {}", what.display(), why(e)));
    }
    result.is_ok()
}

/// Tries for some seconds: a killed process takes its time.
fn persist<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..500 {
        match attempt() {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    attempt()
}

fn remove_cgroup(dir: &Path) -> io::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    persist(|| {
        for pid in fs::read_to_string(dir.join("cgroup.procs"))?.lines().filter_map(|l| l.parse().ok()) {
            // SAFETY: the process is in the bench's own cgroup, so it is a workload process.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        fs::remove_dir(dir)
    })
}

/// Switches swapping off, and says where the device is. Its name is like no other, but it may have another path by now,
/// or one through a link.
fn swap_off(device: &Path) -> io::Result<Option<PathBuf>> {
    let swaps = fs::read_to_string("/proc/swaps")?;
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(unescape));
    let Some(path) = paths.find(|path| path.file_name() == device.file_name()) else { return Ok(None) };
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a path that ends in NUL; the call touches no memory of ours.
    if unsafe { libc::swapoff(name.as_ptr()) } < 0 { Err(io::Error::last_os_error()) } else { Ok(Some(path)) }
}

fn remove_zram(number: &str) -> io::Result<()> {
    let device = PathBuf::from(format!("/dev/zram{number}"));
    persist(|| swap_off(&device))?;
    persist(|| fs::write(format!("/sys/block/zram{number}/reset"), "1"))?;
    persist(|| fs::write(Path::new(ZRAM_CONTROL).join("hot_remove"), number))
}

fn remove_file(path: &Path) -> io::Result<()> {
    let found = persist(|| swap_off(path))?;
    match fs::remove_file(found.as_deref().unwrap_or(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Brings a file into the page cache on this process's account, so that no side pays for it.
pub fn warm(path: &Path) {
    if let Ok(mut file) = File::open(path) {
        let _ = io::copy(&mut file, &mut io::sink());
    }
}
