//! The first page of an export that farpage uses: which program's pages are on it, and that it is still there; and
//! those behind it, by which the owner is elected. No locks.

use farpage_base::sys::proc::text;
use farpage_base::sys::raw::random_bytes;
use farpage_ipc::conf::nbd::ExportId;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;

/// Why an export cannot be used: what is wrong, what to do.
pub type Wrong = (String, &'static str);

const MAGIC: &[u8; 16] = b"FARPAGE-NBD 2\n\0\0";
/// Pairs of pages behind the header.
pub const PAIRS: u64 = 8;
/// Bytes of all of them, header included.
pub const OWNED: usize = (1 + 2 * PAIRS as usize) * PAGE_SIZE;
const HOST: usize = 64;
const BOOT: usize = 36;

/// See the module header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportHeader {
    /// Random.
    pub id: ExportId,
    /// One more than that of the owner before, if that one did not give it back.
    pub generation: u64,
    /// Changes while the owner is there.
    pub beat: u64,
    /// The process that took it, for people: its id, when it began, its pid namespace, the machine.
    pid: u32,
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
    pub fn new(generation: u64) -> Result<ExportHeader, Errno> {
        let mut id = [0; 16];
        random_bytes(&mut id)?;
        let pid = std::process::id();
        let (began, boot, namespace) = (began(pid).unwrap_or(0), boot(), namespace());
        let mut header = ExportHeader { id, generation, beat: 0, pid, began, namespace, boot, host: [0; HOST] };
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
        let (generation, rest) = rest.split_first_chunk()?;
        let (beat, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (began, rest) = rest.split_first_chunk()?;
        let (namespace, rest) = rest.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (host, _) = rest.split_first_chunk()?;
        Some(ExportHeader {
            id: *id,
            generation: u64::from_le_bytes(*generation),
            beat: u64::from_le_bytes(*beat),
            pid: u32::from_le_bytes(*pid),
            began: u64::from_le_bytes(*began),
            namespace: u64::from_le_bytes(*namespace),
            boot: *boot,
            host: *host,
        })
    }

    /// Whether a page is one of these, or blank.
    pub fn may_be(page: &[u8]) -> bool {
        page.iter().all(|byte| *byte == 0) || ExportHeader::parse(page).is_some()
    }

    /// As it is written.
    pub fn page(&self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        let [generation, beat, began, namespace] =
            [self.generation, self.beat, self.began, self.namespace].map(u64::to_le_bytes);
        let pid = self.pid.to_le_bytes();
        let parts: [&[u8]; 9] = [MAGIC, &self.id, &generation, &beat, &pid, &began, &namespace, &self.boot, &self.host];
        let mut at = 0;
        for part in parts {
            page[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        page
    }

    /// As if it were written by a machine of the same name.
    #[cfg(test)]
    pub fn is_of_another_boot(&mut self) {
        self.boot[3] ^= 1;
    }

    /// The owner, for people.
    pub fn owner(&self) -> String {
        match self.boot == boot() && self.namespace == namespace() {
            true => format!("process {}", self.pid),
            false => {
                format!("process {} of {:?}", self.pid, String::from_utf8_lossy(&self.host).trim_end_matches('\0'))
            }
        }
    }

    /// Whether the process that took it is one of this machine and there, as can be seen from here. If not, it may be
    /// there.
    pub fn is_seen(&self) -> bool {
        self.boot == boot() && self.namespace == namespace() && began(self.pid) == Some(self.began)
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
