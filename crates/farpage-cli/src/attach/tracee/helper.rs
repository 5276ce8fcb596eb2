//! A process of the borrowed thread's that has its memory, and descriptors that are no other thread's: what it is given
//! is gone with it. It runs no instruction of the program's, makes system calls for us, and lives for some of them.
//!
//! Caller: [`crate::attach::userfaultfds`]. No locks.

use super::{CLONE_AT, LOOK, OPTIONS, STOP_MAX, Tracee, cannot};
use crate::attach::stops::{Stop, ptrace, waited};
use crate::attach::target::Target;
use crate::failure::{Result, why};
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// See the module header. It ends when this is dropped.
pub struct Helper<'h, 'a> {
    maker: &'h mut Tracee<'a>,
    /// It is never given back.
    tracee: Tracee<'a>,
    /// As its maker names it, once that has said so.
    number: Option<usize>,
}

impl<'h, 'a> Helper<'h, 'a> {
    /// Has the thread make one.
    ///
    /// # Errors
    /// The system allows its user no other process, or its seccomp filter does not.
    pub fn begin(target: &Target, maker: &'h mut Tracee<'a>) -> Result<Helper<'h, 'a>> {
        let failed = |error| target.refuse(&format!("it cannot make another process: {}", why(&error)));
        let instruction = maker.scratch()?.code + CLONE_AT;
        let options = |tid: i32, options: i32| ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as usize);
        let traced = |error| cannot(maker.tid, "trace what is made by", &error);
        options(maker.tid, OPTIONS | libc::PTRACE_O_TRACECLONE).map_err(traced)?;
        maker.made = None;
        // No signal at its end: the program's waits do not find it.
        let made = maker.syscall_at(instruction, libc::SYS_clone, [libc::CLONE_VM as usize, 0, 0, 0, 0, 0]);
        let _ = options(maker.tid, OPTIONS);
        let Some(tid) = maker.made.take() else {
            made?.map_err(failed)?;
            return Err(failed(std::io::ErrorKind::NotFound.into()));
        };
        let mut tracee = Tracee::traced(maker.memory, tid, maker.instruction);
        (tracee.registers, tracee.scratch) = (maker.registers, maker.scratch);
        let mut helper = Helper { maker, tracee, number: None };
        helper.number = Some(made?.map_err(failed)?);
        let since = Instant::now();
        loop {
            match waited(tid).map_err(|error| cannot(tid, "wait for", &error))? {
                Some(Stop::Event) => break,
                Some(Stop::Gone) => return Err(failed(std::io::ErrorKind::NotFound.into())),
                Some(_) => ptrace(libc::PTRACE_CONT, tid, 0, 0).map_err(|error| cannot(tid, "continue", &error))?,
                None if since.elapsed() > STOP_MAX => return Err(failed(std::io::ErrorKind::TimedOut.into())),
                None => std::thread::sleep(LOOK),
            }
        }
        // It must not outlive this command.
        options(tid, OPTIONS | libc::PTRACE_O_EXITKILL).map_err(|error| cannot(tid, "trace", &error))?;
        Ok(helper)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.tracee.tid as u32
    }
}

impl<'a> Deref for Helper<'_, 'a> {
    type Target = Tracee<'a>;

    fn deref(&self) -> &Tracee<'a> {
        &self.tracee
    }
}

impl<'a> DerefMut for Helper<'_, 'a> {
    fn deref_mut(&mut self) -> &mut Tracee<'a> {
        &mut self.tracee
    }
}

impl Drop for Helper<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: a process that was made for this, and is waited for below.
        unsafe { libc::kill(self.tracee.tid, libc::SIGKILL) };
        let since = Instant::now();
        while !matches!(waited(self.tracee.tid), Ok(Some(Stop::Gone)) | Err(_)) {
            if since.elapsed() > STOP_MAX {
                return; // it ends when the kernel lets it
            }
            std::thread::sleep(LOOK);
        }
        if let Some(number) = self.number {
            let wait = [number, 0, (libc::__WALL | libc::WNOHANG) as usize, 0, 0, 0];
            let _ = self.maker.syscall(libc::SYS_wait4, wait);
        }
    }
}
