//! One variant in a process of its own: a region, or anonymous memory in a cgroup with a swap file.

use super::load::{Done, Memory, Spec};
use crate::failure::{Failure, OrCannot, Result, why};
use farpage_bench::compare::kernel::{KernelSide, SwapKind};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How often the kernel's statistics are read, lest it decides from stale ones and kills.
const READ_EVERY: Duration = Duration::from_millis(10);

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a load to its end.
///
/// # Errors
/// It could not be set up, or failed; the process has said why.
pub fn run(spec: &Spec) -> Result<Done> {
    let text = serde_json::to_string(spec).map_err(|e| Failure::new(format!("cannot describe the load: {e}")))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("bench-readahead-load").arg(text).stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: prctl is async-signal-safe. The process has no other way to hear that its result is not wanted any more.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let side = match spec.memory {
        Memory::Anonymous => Some(KernelSide::new(spec.ram, &SwapKind::File(spec.dir.clone(), spec.ram * 6))?),
        Memory::Region { .. } => None,
    };
    if let Some(side) = &side {
        side.contain(&mut command)?;
    }
    let before = vmstat();
    let mut child = Running(command.spawn().or_cannot("start the load")?);
    let status = loop {
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(e) => return Err(Failure::new(format!("lost the load: {}", why(&e)))),
        }
        if let Some(side) = &side {
            let _ = fs::read(side.stat_file());
        }
        std::thread::sleep(READ_EVERY);
    };
    let mut text = String::new();
    let read = child.0.stdout.take().map(|mut out| out.read_to_string(&mut text));
    let done = read.and_then(|_| serde_json::from_str::<Done>(&text).ok()).filter(|_| status.success());
    let mut done = done.ok_or_else(|| Failure::new(format!("the load did not finish: {status}")))?;
    if let Some(side) = side {
        // The machine's counters, from the first page filled on: the kernel has no others.
        let after = vmstat();
        (done.swap_ra, done.swap_ra_hit) = (after.0 - before.0, after.1 - before.1);
        side.remove()?;
    }
    Ok(done)
}

/// `swap_ra` and `swap_ra_hit` of the machine.
fn vmstat() -> (u64, u64) {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let get = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    };
    (get("swap_ra"), get("swap_ra_hit"))
}
