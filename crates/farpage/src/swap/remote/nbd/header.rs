//! The first page of an export that farpage uses: whose pages are on it.
//!
//! Two programs that write to one export at the same time would lose pages (by their hashes they notice; nobody reads
//! what is not its own). A server cannot tell them apart, so the header says who it is: the machine since it was booted,
//! and the process. No locks.

use crate::PAGE_SIZE;
use crate::conf::nbd::ExportId;
use crate::sys::proc::text;
use crate::sys::raw::random_bytes;
use rustix::io::Errno;

/// Why an export cannot be used: what is wrong, what to do.
pub type Wrong = (String, &'static str);

const MAGIC: &[u8; 16] = b"FARPAGE-NBD 1\n\0\0";
const HOST: usize = 64;
const BOOT: usize = 36;

/// See the module header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportHeader {
    /// Random.
    pub id: ExportId,
    pid: u32,
    /// When the process began, and its pid namespace.
    began: u64,
    namespace: u64,
    boot: [u8; BOOT],
    host: [u8; HOST],
}

impl ExportHeader {
    /// One with a new id, for this process.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn new() -> Result<ExportHeader, Errno> {
        let mut id = [0; 16];
        random_bytes(&mut id)?;
        let pid = std::process::id();
        let began = began(pid).unwrap_or(0);
        let mut header = ExportHeader { id, pid, began, namespace: namespace(), boot: boot(), host: [0; HOST] };
        let system = rustix::system::uname();
        let host = system.nodename().to_bytes();
        let len = host.len().min(HOST);
        header.host[..len].copy_from_slice(&host[..len]);
        Ok(header)
    }

    /// Reads a page; `None`: it is none of ours.
    pub fn parse(page: &[u8]) -> Option<ExportHeader> {
        let rest = page.strip_prefix(MAGIC)?;
        let (id, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (began, rest) = rest.split_first_chunk()?;
        let (namespace, rest) = rest.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (host, _) = rest.split_first_chunk()?;
        Some(ExportHeader {
            id: *id,
            pid: u32::from_le_bytes(*pid),
            began: u64::from_le_bytes(*began),
            namespace: u64::from_le_bytes(*namespace),
            boot: *boot,
            host: *host,
        })
    }

    /// As it is written.
    pub fn page(&self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        let (pid, began, namespace) = (self.pid.to_le_bytes(), self.began.to_le_bytes(), self.namespace.to_le_bytes());
        let parts: [&[u8]; 7] = [MAGIC, &self.id, &pid, &began, &namespace, &self.boot, &self.host];
        let mut at = 0;
        for part in parts {
            page[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        page
    }

    /// Whether who wrote it has ended, as far as can be told from here.
    ///
    /// # Errors
    /// It has not, or nobody can know.
    pub fn may_be_replaced(&self) -> Result<(), Wrong> {
        let host = String::from_utf8_lossy(&self.host).trim_end_matches('\0').to_string();
        let here = ExportHeader::new().map_err(|_| (String::from("no random bytes"), "try again"))?;
        if self.host == here.host && self.boot != here.boot {
            return Ok(()); // That machine, before it was booted.
        }
        if self.boot == here.boot && self.namespace == here.namespace {
            return match began(self.pid) {
                Some(began) if began == self.began => Err((
                    format!("process {} swaps to it", self.pid),
                    "use another export: each farpage run, and each pager, needs one of its own",
                )),
                _ => Ok(()),
            };
        }
        Err((
            format!("{host:?} swaps to it, or has done so and did not end in order"),
            "use another export; if that one has ended, make this one's first page zero, or start the server anew",
        ))
    }
}

fn boot() -> [u8; BOOT] {
    let mut boot = [0; BOOT];
    let text = text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let len = text.trim_end().len().min(BOOT);
    boot[..len].copy_from_slice(&text.as_bytes()[..len]);
    boot
}

/// When a process began, in the kernel's ticks; `None`: there is none.
fn began(pid: u32) -> Option<u64> {
    let stat = text(format!("/proc/{pid}/stat").as_str()).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}
