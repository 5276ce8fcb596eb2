//! What this kernel allows this user: every interface an engine needs is tried on scratch memory, none is guessed.
//!
//! `farpage doctor` prints a [`Probe`]; `farpage run` refuses with [`Probe::verdict`]. Both show the same words.
//!
//! A program under farpage needs a *full* userfaultfd, one that also serves faults inside system calls. It can come
//! from three places, tried in this order: a descriptor of `/dev/userfaultfd` that a launcher opened and left open,
//! the device itself, the system call. A *user-mode-only* userfaultfd needs no privilege but makes `read(2)` into
//! swapped-out memory fail with EFAULT, so it is reported and not used.

pub use outcome::{ForksRefused, Reason, Verdict, errno_name};

use farpage_base::sys::pass::ways;
use farpage_base::sys::raw::ErrnoText;
use linux_raw_sys::general as raw;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;
use std::fmt;

mod outcome;
mod tries;
pub mod wake;

/// The device that hands out full userfaultfds to processes that may open it.
pub const DEVICE: &str = "/dev/userfaultfd";
/// Oldest kernel with `UFFDIO_MOVE`.
pub const KERNEL_MIN: (u32, u32) = (6, 8);

/// Features that the engine asks for, with the names `farpage doctor` prints.
pub const FEATURES: [(&str, u64); 6] = [
    ("MOVE", raw::UFFD_FEATURE_MOVE as u64),
    ("EVENT_REMOVE", raw::UFFD_FEATURE_EVENT_REMOVE as u64),
    ("EVENT_UNMAP", raw::UFFD_FEATURE_EVENT_UNMAP as u64),
    ("EVENT_REMAP", raw::UFFD_FEATURE_EVENT_REMAP as u64),
    ("EVENT_FORK", raw::UFFD_FEATURE_EVENT_FORK as u64),
    ("THREAD_ID", raw::UFFD_FEATURE_THREAD_ID as u64),
];

/// The answers, each from a real try.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Kernel release as `uname -r` prints it.
    pub release: String,
    /// A full userfaultfd from the inherited descriptor; `None`: no descriptor was given.
    pub inherited: Option<Verdict>,
    /// A full userfaultfd from [`DEVICE`].
    pub device: Verdict,
    /// A full userfaultfd from the system call.
    pub syscall: Verdict,
    /// A userfaultfd that serves faults from user mode only.
    pub user_mode_only: Verdict,
    /// Feature bits of `UFFDIO_API`; `None`: no userfaultfd at all could be had.
    pub features: Option<u64>,
    /// `EVENT_FORK` could be enabled: the kernel wants CAP_SYS_PTRACE for that, whoever made the descriptor.
    pub fork_events: Verdict,
    /// A page moved from one mapping to another and its content compared.
    pub move_page: Verdict,
    /// One present page found among absent ones.
    pub pagemap_scan: Verdict,
    /// An io_uring could be set up. The engine does without where it cannot.
    pub io_uring: Verdict,
    /// A descriptor could be fetched from another table (`pidfd_getfd`), as for each child.
    pub fork_fetched: Verdict,
    /// It could be sent over a connection of the process with itself, which does as well.
    pub fork_sent: Verdict,
}

/// Why `farpage run` does not work here: one sentence, what was tried, and how to allow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `what failed: why`, lower case, no full stop.
    pub sentence: String,
    /// Each thing tried with its errno.
    pub tried: Option<String>,
    /// One remedy per line, commands spelled out.
    pub help: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        if let Some(tried) = &self.tried {
            write!(f, "\n  tried: {tried}")?;
        }
        for help in &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl Probe {
    /// Tries everything. `inherited` is an open descriptor of [`DEVICE`], if the caller has one.
    pub fn take(inherited: Option<BorrowedFd<'_>>) -> Probe {
        let uname = rustix::system::uname();
        let inherited = inherited.map(|fd| tries::new_from_device(fd, 0));
        let device = open_device().and_then(|fd| tries::new_from_device(fd.as_fd(), 0));
        let syscall = tries::new_from_syscall(UserfaultfdFlags::empty());
        let user_only = tries::new_from_syscall(UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY));
        let outcome = |r: &Result<OwnedFd, Errno>| r.as_ref().map(|_| ()).map_err(|e| Reason::from(*e));
        let ways = ways();
        let mut probe = Probe {
            release: uname.release().to_string_lossy().into_owned(),
            inherited: inherited.as_ref().map(outcome),
            device: outcome(&device),
            syscall: outcome(&syscall),
            user_mode_only: outcome(&user_only),
            features: None,
            fork_events: tries::fork_events(),
            move_page: Err(Reason::Text("not tried: no userfaultfd")),
            pagemap_scan: tries::pagemap_scan(),
            io_uring: tries::io_uring(),
            fork_fetched: ways.fetched.map_err(Reason::from),
            fork_sent: ways.sent.map_err(Reason::from),
        };
        let any = inherited.and_then(Result::ok).or(device.ok()).or(syscall.ok()).or(user_only.ok());
        if let Some(fd) = any {
            match tries::api(&fd, 0) {
                Ok(features) => {
                    probe.features = Some(features);
                    probe.move_page = tries::move_page(&fd);
                }
                Err(errno) => probe.move_page = Err(errno.into()),
            }
        }
        probe
    }

    /// A full userfaultfd can be had.
    pub fn full(&self) -> bool {
        self.inherited == Some(Ok(())) || self.device.is_ok() || self.syscall.is_ok()
    }

    /// The kernel said that it has this feature.
    pub fn has(&self, feature: u64) -> bool {
        self.features.is_some_and(|f| f & feature != 0)
    }

    /// `Ok` where `farpage run` works for this user; else why not and the commands that would allow it.
    ///
    /// # Errors
    /// An old kernel, no permission for a full userfaultfd, or an interface that does not do what it should.
    pub fn verdict(&self) -> Result<(), Refusal> {
        self.kernel_verdict()?;
        if !self.full() {
            return Err(self.permission_refusal());
        }
        for (name, outcome) in [("UFFDIO_MOVE", &self.move_page), ("PAGEMAP_SCAN", &self.pagemap_scan)] {
            if let Err(why) = outcome {
                return Err(Refusal {
                    sentence: format!("{name} does not work here: {why}"),
                    tried: None,
                    help: vec!["a sandbox may filter it; try outside the container, and see farpage doctor".into()],
                });
            }
        }
        Ok(())
    }

    /// Whether a program can fork when its memory is managed.
    ///
    /// # Errors
    /// What was tried, and why it does not work.
    pub fn forks(&self) -> Result<(), ForksRefused> {
        match (&self.fork_fetched, &self.fork_sent) {
            (Ok(()), _) | (_, Ok(())) => Ok(()),
            (Err(fetched), Err(sent)) => Err(ForksRefused { fetched: *fetched, sent: *sent }),
        }
    }

    fn kernel_verdict(&self) -> Result<(), Refusal> {
        let (major, minor) = KERNEL_MIN;
        let move_bit = raw::UFFD_FEATURE_MOVE as u64;
        let old = version_of(&self.release).is_some_and(|v| v < KERNEL_MIN);
        let lacks = self.features.is_some_and(|f| f & move_bit == 0);
        if lacks || (old && !self.has(move_bit)) {
            let why = if old { "is too old" } else { "has no UFFDIO_MOVE" };
            return Err(Refusal {
                sentence: format!("kernel {} {why}: farpage needs Linux {major}.{minor} or newer", self.release),
                tried: None,
                help: vec![format!("boot a newer kernel; UFFDIO_MOVE came with Linux {major}.{minor}")],
            });
        }
        for (name, bit) in FEATURES {
            if self.features.is_some_and(|f| f & bit == 0) {
                return Err(Refusal {
                    sentence: format!("kernel {} lacks the userfaultfd feature {name}", self.release),
                    tried: None,
                    help: vec!["use a kernel whose userfaultfd is complete".into()],
                });
            }
        }
        Ok(())
    }

    fn permission_refusal(&self) -> Refusal {
        let errno = |o: &Verdict| match o {
            Err(Reason::Errno(e)) => Some(*e),
            _ => None,
        };
        let (device, syscall) = (errno(&self.device), errno(&self.syscall));
        let last = syscall.or(device).unwrap_or(Errno::PERM);
        let mut tried = Vec::new();
        if let Some(outcome) = &self.inherited {
            tried.push(format!("inherited descriptor ({})", name_of(outcome)));
        }
        tried.push(format!("{DEVICE} ({})", name_of(&self.device)));
        tried.push(format!("userfaultfd(2) ({})", name_of(&self.syscall)));
        Refusal {
            sentence: format!("cannot create a userfaultfd that also serves system calls: {}", ErrnoText(last)),
            tried: Some(tried.join(", ")),
            help: permission_help(device, syscall),
        }
    }
}

/// The group that may open it, by convention: packages make it, and `packaging/60-userfaultfd.rules` names it.
const GROUP: &str = "userfaultfd";

/// The commands that would allow a full userfaultfd, the narrowest first.
fn permission_help(device: Option<Errno>, syscall: Option<Errno>) -> Vec<String> {
    if syscall == Some(Errno::NOSYS) && device == Some(Errno::NOENT) {
        return vec!["the kernel was built without CONFIG_USERFAULTFD, or a sandbox hides it; use another".into()];
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut help = Vec::new();
    if device == Some(Errno::NOENT) || (device.is_some() && uid == 0) {
        help.push(format!("in a container, pass the device in           docker run --device {DEVICE} ..."));
    } else {
        if rustix::fs::stat(DEVICE).is_ok_and(|of| of.st_gid != 0 && of.st_mode & 0o060 == 0o060) {
            help.push(format!(
                "join the group of the device, and log in again    sudo usermod -aG $(stat -c %G {DEVICE}) $(id -un)"
            ));
        } else {
            help.push(format!("allow this user until the next boot          sudo setfacl -m u:{uid}:rw {DEVICE}"));
            help.push(format!(
                "or a group, and log in again                 sudo groupadd -rf {GROUP}; \
                 sudo chgrp {GROUP} {DEVICE}; sudo chmod 0660 {DEVICE}; sudo usermod -aG {GROUP} $(id -un)"
            ));
        }
    }
    help.push("or everyone until the next boot              sudo sysctl vm.unprivileged_userfaultfd=1".into());
    if uid != 0 {
        help.push(format!("or let root start it for this user           sudo farpage run --user {uid} -- PROGRAM"));
    }
    help
}

/// Opens [`DEVICE`], close-on-exec.
///
/// # Errors
/// As `open(2)`.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// The descriptor that [`farpage_ipc::conf::ENV_UFFD_FD`] names, if it still is a device like [`DEVICE`]: a program
/// that closes all descriptors before it starts another leaves the variable behind, and the number may be anything.
pub fn inherited_device() -> Option<BorrowedFd<'static>> {
    let number: i32 = farpage_ipc::conf::variable(farpage_ipc::conf::ENV_UFFD_FD)?.parse().ok()?;
    if number < 0 {
        return None;
    }
    // SAFETY: only used for fstat, dup and the userfaultfd ioctl; if it is not open, those fail with EBADF. Nothing
    // in this process owns or closes an inherited descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    is_misc_device(fd).then_some(fd)
}

/// Whether a descriptor is a device like [`DEVICE`]. One system call; nothing is allocated.
pub fn is_misc_device(fd: BorrowedFd<'_>) -> bool {
    misc_device(fd).is_some()
}

/// Which device a descriptor is, if it is one like [`DEVICE`]. One system call; nothing is allocated.
pub fn misc_device(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_one = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    (is_one && rustix::fs::major(stat.st_rdev) == MISC_MAJOR).then_some(stat.st_rdev)
}

/// Major number of small drivers' devices.
const MISC_MAJOR: u32 = 10;

/// `(major, minor)` of a kernel release such as `6.18.44-fc`.
pub fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn name_of(outcome: &Verdict) -> String {
    match outcome {
        Ok(()) => "works".into(),
        Err(Reason::Errno(errno)) => errno_name(*errno),
        Err(Reason::Text(text)) => (*text).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(device: Errno, syscall: Errno) -> Probe {
        Probe {
            release: "6.12.1".into(),
            inherited: None,
            device: Err(device.into()),
            syscall: Err(syscall.into()),
            user_mode_only: Ok(()),
            features: Some(FEATURES.iter().map(|f| f.1).sum()),
            fork_events: Err(Errno::PERM.into()),
            move_page: Ok(()),
            pagemap_scan: Ok(()),
            io_uring: Ok(()),
            fork_fetched: Ok(()),
            fork_sent: Ok(()),
        }
    }

    #[test]
    fn versions() {
        assert_eq!(version_of("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version_of("6.8-rc1"), Some((6, 8)));
        assert_eq!(version_of("nonsense"), None);
    }

    #[test]
    fn no_permission_names_what_was_tried() {
        let refusal = refused(Errno::ACCESS, Errno::PERM).verdict().unwrap_err();
        assert!(refusal.sentence.ends_with("operation not permitted"), "{refusal}");
        assert_eq!(refusal.tried.as_deref(), Some("/dev/userfaultfd (EACCES), userfaultfd(2) (EPERM)"));
        assert!(refusal.to_string().contains("vm.unprivileged_userfaultfd=1"), "{refusal}");
    }

    #[test]
    fn old_kernel_is_named_before_permissions() {
        let mut probe = refused(Errno::ACCESS, Errno::PERM);
        probe.release = "6.1.0".into();
        probe.features = None;
        let refusal = probe.verdict().unwrap_err();
        assert_eq!(refusal.sentence, "kernel 6.1.0 is too old: farpage needs Linux 6.8 or newer");
    }

    #[test]
    fn any_source_is_enough() {
        let mut probe = refused(Errno::ACCESS, Errno::PERM);
        probe.inherited = Some(Ok(()));
        assert_eq!(probe.verdict(), Ok(()));
    }

    #[test]
    fn real_kernel_answers() {
        let probe = Probe::take(None);
        assert!(version_of(&probe.release).is_some());
        if probe.features.is_none() {
            println!("skipped: no userfaultfd here: {:?}", probe.syscall);
            return;
        }
        // Not while another test forks: the page is a child's, too.
        let moves = || Probe::take(None).move_page == Ok(());
        assert!((0..100).any(|_| moves()), "{:?}", probe.move_page);
        assert_eq!(probe.pagemap_scan, Ok(()));
    }
}
