//! One run of a workload process on one side, watched from outside.

use super::child::{Done, Spec, Step};
use super::kernel::KernelSide;
use crate::commands;
use crate::failure::{Failure, OrCannot, Result, why};
use farpage_command::process;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Set by SIGINT, SIGTERM and SIGHUP: the workload process is ended, and then the bench.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How often resident memory is sampled, and the kernel's statistics are read.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// Everything known about one run.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// What the process measured.
    pub done: Done,
    /// Memory of the compressed pool at the end of the measurement, bytes.
    pub pool_bytes: u64,
    /// Most memory of the compressed pool, bytes.
    pub pool_peak_bytes: u64,
    /// Bytes stored divided by pool memory.
    pub pool_ratio: f64,
    /// Largest resident anonymous memory seen, bytes.
    pub peak_rss_anon: u64,
}

impl Sample {
    /// Microseconds per access.
    pub fn us_per_page(&self) -> f64 {
        self.done.wall_s * 1e6 / self.done.ops.max(1) as f64
    }

    /// Interrupts for translations, per access.
    pub fn shootdowns_per_page(&self) -> Option<f64> {
        Some(self.done.shootdowns? as f64 / self.done.ops.max(1) as f64)
    }

    /// CPU seconds (user, system) per GiB of pages accessed.
    pub fn cpu_s_per_gib(&self) -> (f64, f64) {
        let gib = self.done.ops.max(1) as f64 * farpage::PAGE_SIZE as f64 / (1u64 << 30) as f64;
        (self.done.user_s / gib, self.done.sys_s / gib)
    }
}

/// What pages the process.
pub enum Pager<'a> {
    /// The kernel.
    Kernel(&'a KernelSide),
    /// `farpage run` with this budget, bytes, and these options.
    Run(u64, &'a [&'a str]),
    /// The process itself, with a farpage region.
    Itself,
}

/// Sets [`INTERRUPTED`] on the signals that end a command.
pub fn catch_signals() {
    extern "C" fn note(_: i32) {
        INTERRUPTED.store(true, Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler stores to an atomic, no more. SA_RESTART: nothing here expects EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Runs the workload process to its end.
///
/// # Errors
/// It could not be started, or ended in another way than it should.
pub fn run(spec: &Spec, pager: &Pager<'_>) -> Result<Sample> {
    let this = commands::this();
    let mut command = match pager {
        Pager::Run(ram, options) => {
            let mut command = commands::farpage_run();
            command.args(["--quiet", "--ram", &ram.to_string()]).args(*options).arg("--").arg(&this);
            command
        }
        _ => Command::new(&this),
    };
    let text = serde_json::to_string(spec).map_err(|e| Failure::new(format!("cannot describe the workload: {e}")))?;
    command.arg("bench-workload").arg(text).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Pager::Kernel(side) = pager {
        side.contain(&mut command)?;
    }
    let child = command.spawn().or_cannot("start the workload")?;
    let mut child = Running { child };
    let pid = child.child.id();
    let (peak, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let stat = match pager {
        Pager::Kernel(side) => Some(side.stat_file()),
        _ => None,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| watch(pid, stat.as_deref(), &peak, &over));
        let result = talk(&mut child, pager);
        over.store(true, Relaxed);
        result
    })
    .map(|sample| Sample { peak_rss_anon: peak.load(Relaxed), ..sample })
}

/// A child that does not outlive this.
struct Running {
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watch(pid: u32, stat: Option<&std::path::Path>, peak: &AtomicU64, over: &AtomicBool) {
    while !over.load(Relaxed) {
        if INTERRUPTED.load(Relaxed) {
            // SAFETY: the child is not yet waited for while this thread runs.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        if let Some(stat) = stat {
            let _ = fs::read(stat);
        }
        peak.fetch_max(process::anonymous(pid), Relaxed);
        std::thread::sleep(SAMPLE_EVERY);
    }
}

fn talk(running: &mut Running, pager: &Pager<'_>) -> Result<Sample> {
    let (Some(mut stdin), Some(stdout)) = (running.child.stdin.take(), running.child.stdout.take()) else {
        return Err(Failure::new("the workload has no pipes"));
    };
    let mut sample = Sample::default();
    let (mut wrong, mut before, mut busy) = (None, None, None);
    let pid = running.child.id();
    for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
        let step = serde_json::from_str(&line)
            .map_err(|e| Failure::new(format!("the workload said {line:?}, which is not understood: {e}")))?;
        match step {
            Step::Ready => {
                (before, busy) = (engine(pager, pid), pager_ns(pid));
                let _ = stdin.write_all(b"go\n");
            }
            Step::Done(done) => {
                let busy = busy.and_then(|before| pager_ns(pid)?.checked_sub(before));
                let after = engine(pager, pid);
                match pager {
                    Pager::Kernel(side) => kernel_pool(&mut sample, side),
                    Pager::Run(..) => after.as_ref().map_or((), |counters| farpage_pool(&mut sample, counters)),
                    Pager::Itself => {
                        let (pool, stored) = done.pool.unwrap_or_default();
                        (sample.pool_bytes, sample.pool_peak_bytes) = (pool, pool);
                        sample.pool_ratio = stored as f64 / pool.max(1) as f64;
                    }
                }
                sample.done = *done;
                // Faults that farpage serves are no faults to the kernel's count.
                if let (Some(before), Some(after)) = (&before, &after) {
                    let count = |name: &str| of(after, name).saturating_sub(of(before, name));
                    sample.done.major_faults = count("pgmajfault");
                    let faults = count("pgfault");
                    sample.done.serial_us = busy.filter(|_| faults > 0).map(|ns| ns as f64 / 1e3 / faults as f64);
                }
                let _ = stdin.write_all(b"end\n");
            }
            Step::Verified { wrong: n } => wrong = Some(n),
        }
    }
    let status = running.child.wait().map_err(|e| Failure::new(format!("lost the workload: {}", why(&e))))?;
    if INTERRUPTED.load(Relaxed) {
        return Err(Failure::with_status(130, "interrupted"));
    }
    match (wrong, sample.done.wrong) {
        (Some(0), 0) if status.success() => Ok(sample),
        (Some(after), during) if after + during > 0 => Err(Failure::new(format!(
            "the memory's content was wrong: {during} of {} accesses, {after} pages afterwards",
            sample.done.ops
        ))),
        _ => Err(Failure::new(format!("the workload did not finish: {status}"))),
    }
}

/// What the engine of a process has counted so far.
fn engine(pager: &Pager<'_>, pid: u32) -> Option<Value> {
    let Pager::Run(..) = pager else { return None };
    let said = Command::new(commands::farpage()).args(["stat", "--json", &pid.to_string()]).output().ok()?;
    serde_json::from_slice(&said.stdout).ok()
}

/// CPU time so far of the thread that serves the faults of a process, ns; if there is one.
fn pager_ns(pid: u32) -> Option<u64> {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().map(|task| task.path());
    let is_pager = |name: String| name.trim_end() == "farpage-pager";
    let pager = tasks.find(|task| fs::read_to_string(task.join("comm")).is_ok_and(is_pager))?;
    fs::read_to_string(pager.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}

fn of(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or(0)
}

fn kernel_pool(sample: &mut Sample, side: &KernelSide) {
    if let Some([stored, _, used, peak]) = side.pool() {
        sample.pool_bytes = used;
        sample.pool_peak_bytes = peak;
        sample.pool_ratio = stored as f64 / used.max(1) as f64;
    }
}

fn farpage_pool(sample: &mut Sample, counters: &Value) {
    let pool = of(counters, "pool_bytes");
    (sample.pool_bytes, sample.pool_peak_bytes) = (pool, pool);
    sample.pool_ratio = of(counters, "pool_orig_bytes") as f64 / pool.max(1) as f64;
}
