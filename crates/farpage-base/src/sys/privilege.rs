//! What a thread may do: its credentials, its root directory, its namespaces. To read those of a thread of this
//! process, and to take them on.
//!
//! All of it belongs to threads, not to processes; that the threads of a process are alike is libc's doing (`setuid`
//! asks each of them), which does not know the engine's.

use super::proc::{Proc, threads};
use super::raw::{Errno, nr, syscall};
use super::seccomp;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use std::io::Write;

/// Namespaces that a thread can change while others run, as `/proc/PID/ns` calls them. (Not the two that only children
/// are in.)
const NAMESPACES: [(&str, usize); 5] =
    [("mnt", 0x2_0000), ("cgroup", 0x200_0000), ("uts", 0x400_0000), ("ipc", 0x800_0000), ("net", 0x4000_0000)];

/// The first of them.
const MOUNTS: usize = 0;

/// Capability sets, in the order of `/proc/PID/status`; the last is the ambient one.
const INHERITABLE: usize = 0;
const PERMITTED: usize = 1;
const EFFECTIVE: usize = 2;
const BOUNDING: usize = 3;

const PR_GET_DUMPABLE: usize = 3;
const PR_SET_DUMPABLE: usize = 4;
const PR_SET_KEEPCAPS: usize = 8;
const PR_CAPBSET_DROP: usize = 24;
const PR_SET_SECUREBITS: usize = 28;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;
const PR_CAP_AMBIENT_RAISE: usize = 2;
const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
const CLONE_FS: usize = 0x200;
/// Capabilities that there may be at most.
const CAPABILITIES: u32 = 64;

/// Where a thread is: a namespace or a directory, with its mount.
type ThreadPlace = (u64, u64);

/// What a thread may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Privileges {
    /// Where in `/proc` the thread is.
    thread: String,
    /// Real, effective and saved.
    uid: [u32; 3],
    gid: [u32; 3],
    groups: Vec<u32>,
    capabilities: [u64; 5],
    no_new_privs: bool,
    /// It has a seccomp filter.
    filtered: bool,
    namespaces: [ThreadPlace; NAMESPACES.len()],
    root: ThreadPlace,
    /// What has been said with `PR_SET_SECUREBITS`; no file tells.
    pub securebits: Option<u32>,
}

impl Privileges {
    /// Those of the main thread, or of thread `caller` if there is none any more.
    ///
    /// # Errors
    /// The files of `/proc` cannot be read; `SRCH`: there is no such thread any more.
    pub fn of(proc: &Proc, caller: Option<u32>) -> Result<Privileges, Errno> {
        match Privileges::read(proc, "self".into()) {
            Err(Errno::SRCH) => {
                let (caller, mut found) = (caller.ok_or(Errno::SRCH)?, None);
                // Where `/proc` is another pid namespace's, it has other numbers.
                threads(proc, |thread| found = found.or((thread.tid == caller).then_some(thread.listed)))?;
                Privileges::read(proc, format!("self/task/{}", found.ok_or(Errno::SRCH)?))
            }
            main => main,
        }
    }

    /// Those of the calling thread.
    ///
    /// # Errors
    /// As [`Privileges::of`].
    pub fn of_caller(proc: &Proc) -> Result<Privileges, Errno> {
        Privileges::read(proc, "thread-self".into())
    }

    /// Whether another thread holds the same.
    pub fn are_those_of(&self, other: &Privileges) -> bool {
        Privileges { thread: other.thread.clone(), ..self.clone() } == *other
    }

    /// Whether another thread has the same root directory and mounts, and a filter or none as this one.
    pub fn are_at_the_place_of(&self, other: &Privileges) -> bool {
        let place = |of: &Privileges| (of.root, of.namespaces[MOUNTS], of.filtered);
        place(self) == place(other)
    }

    fn read(proc: &Proc, thread: String) -> Result<Privileges, Errno> {
        let text = read_all(proc, &format!("{thread}/status"))?;
        let place = |name: &str| place(proc, &format!("{thread}/{name}"));
        let mut namespaces = [(0, 0); NAMESPACES.len()];
        for (to, (name, _)) in namespaces.iter_mut().zip(NAMESPACES) {
            *to = place(&format!("ns/{name}"));
        }
        let root = place("root");
        let mut read = parse(&text)?;
        (read.thread, read.namespaces, read.root) = (thread, namespaces, root);
        Ok(read)
    }

    /// It is to have the engine's filter.
    pub fn set_filtered(&mut self) {
        self.filtered = true;
    }

    /// The calling thread, an engine's, holds these from now on, as far as it can. Allocates nothing: the process may
    /// be copied meanwhile. One thread at a time.
    ///
    /// # Errors
    /// It holds more than these, and cannot give it up.
    pub fn take_on(&self, proc: &Proc) -> Result<(), Errno> {
        // The kernel makes a process undumpable when a thread of it changes its ids. The program has seen that when its
        // own did, and what it has said since holds.
        let dumpable = prctl([PR_GET_DUMPABLE, 0, 0]);
        self.enter_places(proc);
        let result = self.take_ids();
        self.take_capabilities();
        if dumpable == Ok(1) {
            let _ = prctl([PR_SET_DUMPABLE, 1, 0]);
        }
        if self.no_new_privs {
            let _ = prctl([PR_SET_NO_NEW_PRIVS, 1, 0]);
        }
        if self.filtered {
            seccomp::confine()?;
        }
        if self.exceeded() { Err(result.err().unwrap_or(Errno::PERM)) } else { Ok(()) }
    }

    /// Namespaces, then the root directory: the kernel puts a thread that enters a mount namespace into that one's.
    /// What is not allowed is not done: a thread of the program's that is allowed may move anywhere, too.
    fn enter_places(&self, proc: &Proc) {
        let mut moved = false;
        let own = |name: &str| Path::of(&["thread-self/", name]).map_or((0, 0), |path| place(proc, path.text()));
        for ((name, flag), there) in NAMESPACES.iter().zip(self.namespaces) {
            let Some(path) = Path::of(&["ns/", name]) else { continue };
            if own(path.text()) == there {
                continue;
            }
            if let Some(fd) = self.open(proc, path.text(), OFlags::RDONLY) {
                // The kernel's workers for io_uring share root and working directory with the thread that they work
                // for, and a thread that shares them cannot enter a mount namespace. SAFETY: the calling thread gets a
                // copy of its own.
                let _ = unsafe { syscall(nr::UNSHARE, [CLONE_FS, 0, 0, 0, 0, 0]) };
                // SAFETY: moves the calling thread, which has no memory of its own, to another namespace.
                let entered = unsafe { syscall(nr::SETNS, [fd.as_raw_fd() as usize, *flag, 0, 0, 0, 0]) };
                moved |= entered.is_ok() && *name == "mnt";
            }
        }
        if (moved || own("root") != self.root)
            && let Some(root) = self.open(proc, "root", OFlags::PATH | OFlags::DIRECTORY)
            && rustix::process::fchdir(&root).is_ok()
        {
            // A working directory that is not below the new root would lead out of it; nor shall it keep a mount busy.
            let _ = rustix::process::chroot(c".").and_then(|()| rustix::process::chdir(c"/"));
        }
    }

    fn open(&self, proc: &Proc, name: &str, flags: OFlags) -> Option<OwnedFd> {
        let path = Path::of(&[&self.thread, "/", name])?;
        openat(proc, path.text(), flags | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// User and groups, while there are capabilities to do it with.
    fn take_ids(&self) -> Result<(), Errno> {
        let mut sets = capabilities().unwrap_or_default();
        sets[EFFECTIVE] = sets[PERMITTED];
        let _ = set_capabilities(&sets);
        if let Some(bits) = self.securebits {
            let _ = prctl([PR_SET_SECUREBITS, bits as usize, 0]);
        }
        for capability in (0..CAPABILITIES).filter(|c| self.capabilities[BOUNDING] >> c & 1 == 0) {
            if prctl([PR_CAPBSET_DROP, capability as usize, 0]) == Err(Errno::INVAL) {
                break; // there are not so many
            }
        }
        let call = |nr, [a, b, c]: [usize; 3]| {
            // SAFETY: changes the calling thread's credentials; the list of groups is alive.
            unsafe { syscall(nr, [a, b, c, 0, 0, 0]) }.map(drop)
        };
        let ids = |ids: [u32; 3]| ids.map(|id| id as usize);
        let groups = call(nr::SETGROUPS, [self.groups.len(), self.groups.as_ptr() as usize, 0]);
        let gid = call(nr::SETRESGID, ids(self.gid));
        // What is to be left is said below.
        let _ = prctl([PR_SET_KEEPCAPS, 1, 0]);
        let uid = call(nr::SETRESUID, ids(self.uid));
        let _ = prctl([PR_SET_KEEPCAPS, 0, 0]);
        // Without permission to change groups there is nothing to change: the program had none either.
        groups.or_else(|e| if e == Errno::PERM { Ok(()) } else { Err(e) }).and(gid).and(uid)
    }

    fn take_capabilities(&self) {
        let _ = prctl([PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0]);
        let [inheritable, permitted, effective, _, ambient] = self.capabilities;
        if set_capabilities(&[inheritable, permitted, effective]).is_err() {
            // It lacks some: what it has of them, then.
            let own = capabilities().unwrap_or_default();
            let _ = set_capabilities(&[
                inheritable & own[INHERITABLE],
                permitted & own[PERMITTED],
                effective & permitted & own[PERMITTED],
            ]);
        }
        for capability in (0..CAPABILITIES).filter(|c| ambient >> c & 1 == 1) {
            let _ = prctl([PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability as usize]);
        }
    }

    /// Whether the calling thread holds more than these.
    fn exceeded(&self) -> bool {
        let own = capabilities().unwrap_or([u64::MAX; 3]);
        let more = (0..3).any(|set| own[set] & !self.capabilities[set] != 0);
        let ids = |nr| {
            let mut ids = [u32::MAX; 3];
            let [a, b, c] = ids.each_mut().map(|id| std::ptr::from_mut(id) as usize);
            // SAFETY: fills the three words.
            let _ = unsafe { syscall(nr, [a, b, c, 0, 0, 0]) };
            ids
        };
        more || ids(nr::GETRESUID).iter().any(|id| !self.uid.contains(id))
            || ids(nr::GETRESGID).iter().any(|id| !self.gid.contains(id))
    }
}

/// A path in `/proc` without the heap.
struct Path {
    bytes: [u8; 64],
    len: usize,
}

impl Path {
    fn of(parts: &[&str]) -> Option<Path> {
        let mut path = Path { bytes: [0; 64], len: 0 };
        let mut rest = &mut path.bytes[..];
        parts.iter().try_for_each(|part| rest.write_all(part.as_bytes())).ok()?;
        path.len = 64 - rest.len();
        Some(path)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

/// What a link in `/proc` leads to. Where that cannot be said all are the same.
fn place(proc: &Proc, path: &str) -> ThreadPlace {
    let what = StatxFlags::INO | StatxFlags::MNT_ID;
    statx(proc.as_fd(), path, AtFlags::empty(), what).map_or((0, 0), |stat| (stat.stx_ino, stat.stx_mnt_id))
}

fn read_all(proc: &Proc, path: &str) -> Result<Vec<u8>, Errno> {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| match e {
        Errno::NOENT => Errno::SRCH,
        other => other,
    })?;
    let mut text = vec![0; 4096];
    let mut len = 0;
    loop {
        match rustix::io::read(&file, &mut text[len..])? {
            0 => break,
            n => len += n,
        }
        if len == text.len() {
            text.resize(len * 2, 0);
        }
    }
    text.truncate(len);
    Ok(text)
}

/// Reads `/proc/PID/status`, all but places.
fn parse(text: &[u8]) -> Result<Privileges, Errno> {
    let ended = text.windows(9).any(|w| w == b"\nState:\tZ" || w == b"\nState:\tX");
    if ended { Err(Errno::SRCH) } else { fields(text).ok_or(Errno::INVAL) }
}

fn fields(text: &[u8]) -> Option<Privileges> {
    let field = |name: &str| {
        text.split(|b| *b == b'\n')
            .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))
            .and_then(|value| std::str::from_utf8(value).ok())
            .map(str::trim_ascii)
    };
    let numbers =
        |name| -> Option<Vec<u32>> { field(name)?.split_ascii_whitespace().map(|id| id.parse().ok()).collect() };
    let ids = |name| -> Option<[u32; 3]> { numbers(name)?.get(..3)?.try_into().ok() };
    let mut capabilities = [0; 5];
    for (set, name) in capabilities.iter_mut().zip(["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) {
        *set = u64::from_str_radix(field(name)?, 16).ok()?;
    }
    Some(Privileges {
        thread: String::new(),
        uid: ids("Uid")?,
        gid: ids("Gid")?,
        groups: numbers("Groups")?,
        capabilities,
        no_new_privs: field("NoNewPrivs")? != "0",
        filtered: field("Seccomp").is_some_and(|mode| mode != "0"),
        namespaces: [(0, 0); NAMESPACES.len()],
        root: (0, 0),
        securebits: None,
    })
}

fn prctl([a, b, c]: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: the options used here are about the calling thread's credentials and the process's being dumped; none
    // takes a pointer.
    unsafe { syscall(nr::PRCTL, [a, b, c, 0, 0, 0]) }
}

/// Version 3, the calling thread.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

/// The calling thread's: inheritable, permitted, effective.
fn capabilities() -> Result<[u64; 3], Errno> {
    let mut halves = [0u32; 6];
    let args = [CAPABILITY_HEADER.as_ptr() as usize, halves.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: fills two records of three words.
    unsafe { syscall(nr::CAPGET, args) }?;
    let [effective, permitted, inheritable] = [0, 1, 2].map(|i| u64::from(halves[i]) | u64::from(halves[i + 3]) << 32);
    Ok([inheritable, permitted, effective])
}

fn set_capabilities([inheritable, permitted, effective]: &[u64; 3]) -> Result<(), Errno> {
    let mut halves = [0u32; 6];
    for (i, set) in [effective, permitted, inheritable].into_iter().enumerate() {
        (halves[i], halves[i + 3]) = (*set as u32, (*set >> 32) as u32);
    }
    let args = [CAPABILITY_HEADER.as_ptr() as usize, halves.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: reads two records of three words.
    unsafe { syscall(nr::CAPSET, args) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tUid: x\nState:\tS (sleeping)\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
        CapInh:\t0000000000000001\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000002\nCapBnd:\t0000000000000003\n\
        CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

    #[test]
    fn status_is_read() {
        let read = parse(STATUS.as_bytes()).unwrap();
        assert_eq!((read.uid, read.gid, read.groups), ([1, 2, 3], [5, 6, 7], vec![9, 10]));
        assert_eq!(read.capabilities, [1, 0x1ff_ffff_ffff, 2, 3, 0]);
        assert!(read.no_new_privs && read.filtered);
        assert_eq!(parse(STATUS.replace("CapBnd", "Cap").as_bytes()), Err(Errno::INVAL));
        assert_eq!(parse(STATUS.replace("S (s", "Z (z").as_bytes()), Err(Errno::SRCH));
    }

    #[test]
    fn own_privileges_exceed_only_less() {
        let proc = Proc::open().unwrap();
        let mut own = Privileges::of(&proc, None).unwrap();
        assert!(!own.exceeded());
        let sets = capabilities().unwrap();
        assert_eq!(own.capabilities[..3], sets);
        own.uid = [u32::MAX - 1; 3];
        assert!(own.exceeded());
    }
}
