//! Two descriptors that the program inherits have to last until its children exec: that of `/dev/userfaultfd`, because
//! they may not open the device themselves (`--user`; a program that has given root up), and that of the tree's segment
//! ([`farpage::tree`]). Programs that start others often close everything first (Python's `subprocess`, daemons, Java),
//! or mark everything close-on-exec (apt), so the functions that do either are interposed and leave these alone. They
//! say that it was done; what puts another descriptor in such a place (`dup2`) has the number.
//!
//! The program's own engine does not need them: it has what it needs in a table of its own, or mapped, for forked
//! children, too.
//!
//! Without such descriptors, and for all others, they are libc's. No locks, no allocation: called between `vfork` and
//! exec.

use crate::call::{call, interposed};
use crate::userfaultfds::registered;
use farpage_base::sys::descriptor::FileId;
use farpage_ipc::tree;
use farpage_run::probe::inherited_device;
use std::ffi::{c_int, c_uint, c_ulong};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A descriptor that stays open.
struct Kept {
    /// [`NONE`]: there is none.
    number: AtomicU32,
    /// Which file it is.
    device: AtomicU64,
    inode: AtomicU64,
}

impl Kept {
    fn file(&self) -> FileId {
        FileId { device: self.device.load(Relaxed), inode: self.inode.load(Relaxed) }
    }
}

static KEPT: [Kept; 2] =
    [const { Kept { number: AtomicU32::new(NONE), device: AtomicU64::new(0), inode: AtomicU64::new(0) } }; 2];
const NONE: u32 = u32::MAX;

/// Finds them. By the initialiser: later, a child of `vfork` may ask.
pub fn find() {
    let device = inherited_device().and_then(|fd| Some((fd.as_raw_fd(), FileId::of(fd).ok()?)));
    for (kept, (fd, file)) in KEPT.iter().zip([device, tree::inherited()].into_iter().flatten()) {
        kept.device.store(file.device, Relaxed);
        kept.inode.store(file.inode, Relaxed);
        kept.number.store(u32::try_from(fd).unwrap_or(NONE), Relaxed);
    }
}

/// Those of these descriptors that stay open and are still what they were: the program may have put others there.
fn kept(first: c_uint, last: c_uint) -> impl Iterator<Item = c_uint> {
    let of = move |kept: &Kept| {
        let number = Some(kept.number.load(Relaxed)).filter(|n| *n != NONE && (first..=last).contains(n))?;
        kept.file().is_at(number as i32).then_some(number)
    };
    KEPT.iter().filter_map(of)
}

/// They are not needed any more.
pub fn close_kept() {
    for fd in kept(0, c_uint::MAX) {
        // SAFETY: ours, as was just seen; nothing that is started needs it.
        unsafe { call!(close(fd as c_int)) };
    }
    KEPT.iter().for_each(|kept| kept.number.store(NONE, Relaxed));
}

/// Whether this is the descriptor that stays as it is.
fn is_kept(fd: c_int) -> bool {
    kept(fd as c_uint, fd as c_uint).next().is_some() // a negative number is larger than any
}

type SpawnActions = *mut libc::posix_spawn_file_actions_t;

// Where the last argument may be missing in C, or of another type, it is passed on as it comes.
interposed! {
    fn close(fd: c_int) -> c_int = if is_kept(fd) { 0 } else { call!(close(fd)) };
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = {
        let close = |first, last| call!(close_range(first, last, flags));
        let (mut from, mut result) = (first, 0);
        loop {
            let Some(kept) = kept(from, last).min() else { return result.min(close(from, last)) };
            if from < kept {
                result = result.min(close(from, kept - 1));
            }
            if kept == last {
                return result;
            }
            from = kept + 1;
        }
    };
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int =
        if command == libc::F_SETFD && is_kept(fd) { 0 } else { call!(fcntl(fd, command, argument)) };
    /// The two are one on x86-64.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int = fcntl(fd, command, argument);
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int = {
        let call = || call!(ioctl(fd, request, argument));
        if request == libc::FIOCLEX && is_kept(fd) { 0 } else { registered(call(), request, argument, call) }
    };
    fn posix_spawn_file_actions_addclose(actions: SpawnActions, fd: c_int) -> c_int =
        if is_kept(fd) { 0 } else { call!(posix_spawn_file_actions_addclose(actions, fd), libc::ENOSYS) };
    /// What is below the last descriptor that stays is closed one by one: the child that does it is within libc, and
    /// knows no range with an end.
    fn posix_spawn_file_actions_addclosefrom_np(actions: SpawnActions, from: c_int) -> c_int = {
        let close_from = |from| call!(posix_spawn_file_actions_addclosefrom_np(actions, from), libc::ENOSYS);
        let last = u32::try_from(from).ok().and_then(|from| kept(from, c_uint::MAX).max());
        let Some(kept) = last else { return close_from(from) };
        // Above the limit libc takes no number; the program can have opened none there.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        for fd in from..u64::from(kept).min(limit) as c_int {
            let error = posix_spawn_file_actions_addclose(actions, fd);
            if error != 0 {
                return error;
            }
        }
        close_from(kept as c_int + 1)
    };
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(low: c_int) {
    // SAFETY: caller's promise. The kernels that farpage needs have this call, so it fails for no descriptor.
    unsafe { close_range(low.max(0) as c_uint, c_uint::MAX, 0) };
}
