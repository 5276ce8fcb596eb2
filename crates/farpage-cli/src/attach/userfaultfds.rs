//! The userfaultfds of a process whose user may not have any that serve the kernel's faults, too.
//!
//! A user with `/dev/userfaultfd` open makes as many as wanted, in any process: so the process never has it.
//! A helper ([`Helper`]) that has the process's memory and descriptors of its own makes two, and ends; while it has the
//! device, that user may not trace it, as long as the program leaves it at that. This command, as root, switches them
//! on, with messages of forks, by which forked children have theirs.
//!
//! Caller: [`super`]. No locks.

use super::pass;
use super::target::Target;
use super::tracee::Tracee;
use super::tracee::helper::Helper;
use crate::failure::{Result, why};
use farpage_base::sys::uffd::given::{FLAGS, KINDS, NEW, switch_on};
use farpage_run::probe;
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// Whether the process can have such userfaultfds by itself.
///
/// # Errors
/// It has ended meanwhile.
pub fn can_itself(tracee: &mut Tracee<'_>) -> Result<bool> {
    let [device] = tracee.put([probe::DEVICE.as_bytes()])?;
    let open = [libc::AT_FDCWD as usize, device, (libc::O_RDWR | libc::O_CLOEXEC) as usize, 0, 0, 0];
    let made = match tracee.syscall(libc::SYS_openat, open)? {
        Ok(device) => {
            tracee.close_later(device);
            tracee.syscall(libc::SYS_ioctl, [device, NEW, FLAGS, 0, 0, 0])?
        }
        Err(_) => tracee.syscall(libc::SYS_userfaultfd, [FLAGS, 0, 0, 0, 0, 0])?,
    };
    match made {
        Ok(made) => {
            tracee.close_later(made);
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}

/// Has the process make them.
///
/// # Errors
/// This command may not, or the process may not have a helper.
pub fn make(target: &Target, tracee: &mut Tracee<'_>) -> Result<[OwnedFd; KINDS]> {
    let device = probe::open_device().map_err(|error| {
        let why = why(&error.into());
        target.refuse(&format!("it is another user's, and {} cannot be opened for it: {why}", probe::DEVICE))
    })?;
    let mut helper = Helper::begin(target, tracee)?;
    // Its table is a copy of the program's, and its alone. From here on it has nothing that others have chosen.
    let all = [0, u32::MAX as usize, 0, 0, 0, 0];
    helper.syscall(libc::SYS_close_range, all)?.map_err(|error| target.refuse(&why(&error)))?;
    // Of the memory, which is the program's.
    let mut dumpable = |call: i32, to: usize| helper.syscall(libc::SYS_prctl, [call as usize, to, 0, 0, 0, 0]);
    let before = dumpable(libc::PR_GET_DUMPABLE, 0)?.unwrap_or(0);
    // From here on only root may fetch its descriptors.
    if before == 1 {
        dumpable(libc::PR_SET_DUMPABLE, 0)?.map_err(|error| target.refuse(&why(&error)))?;
    }
    let made = have_made(target, &mut helper, &device);
    drop(helper);
    if before == 1 {
        tracee.syscall(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, before, 0, 0, 0, 0])?.ok();
    }
    made
}

fn have_made(target: &Target, helper: &mut Helper<'_, '_>, device: &OwnedFd) -> Result<[OwnedFd; KINDS]> {
    let pid = helper.pid();
    pass::give_alone(&target.memory, pid, helper, device.as_fd())?;
    let mut one = |kind: usize| -> Result<OwnedFd> {
        let number = helper.syscall(libc::SYS_ioctl, [pass::ALONE, NEW, FLAGS, 0, 0, 0])?;
        let made = number.and_then(|number| match number == pass::ALONE + 1 + kind {
            true => pass::fetch(pid, number as i32),
            false => Err(io::ErrorKind::InvalidData.into()),
        });
        let made =
            made.map_err(|error| target.refuse(&format!("no userfaultfd can be made for it: {}", why(&error))))?;
        switch_on(made.as_fd(), kind).map_err(|error| {
            let why = why(&error.into());
            target.refuse(&format!("the kernel does not tell of its forks, which CAP_SYS_PTRACE is needed for: {why}"))
        })?;
        Ok(made)
    };
    Ok([one(0)?, one(1)?])
}
