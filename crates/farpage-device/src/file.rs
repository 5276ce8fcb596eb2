//! A swap file, a block device, or pages on a server ([`farpage_server`]).
//!
//! The directory is opened when the device is made, the file in it at the first store (unnamed, so that nobody else can
//! open it and nothing stays behind), and both stay open. When the program changes its root directory or its user, the
//! file is made if it was not, and a directory that the program cannot reach any more is closed. A path that is a
//! regular file stands for its directory.
//!
//! ```text
//!  slot of an entry:  | file id: 8 | page of the file: 32 |        (page 0 is the header, never a slot)
//! ```
//!
//! # Forks
//! A forked child shares the open file, but has its own copy of the tables. What was in use at the fork is *frozen*:
//! the parent may forget it, but must not overwrite it while the child can need it; the child must not write at all.
//!
//! * Parent: fork number `e` opens *lease* `e`. A slot taken at epoch `s` and freed at epoch `f` is covered by the
//!   leases `s <= e < f` that are still open; while there is one, the slot is *deferred*: not in use, not free.
//! * Child: its parent's file (and the files that was given) become *inherited*: read-only, forgotten with their
//!   last slot. New pages go to a file of its own with the next free id, so old entries stay valid. (Of a block device
//!   a child has no part of its own: its pages go to the next device.)
//!
//! Callers: `space`, and `zram` for writeback. Locks: `create` (held while the own file is made or grows); `inner`
//! (leases, inherited files, what was drained, failed slots; never held across I/O); inside both those of a file's
//! slots. A page of the own file is stored with locks of its slots only, freed with them unless it is frozen or was
//! moved, and loaded without any: its file stays where it is ([`table::Own`]), and of an inherited one a reader has a
//! counted reference.

mod backing;
mod block;
mod create;
mod disk;
mod drain;
mod open;
mod reach;
mod read;
mod remote;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub use open::{check, check_mirror, file_name};

use super::io::inject::Injector;
use super::io::{BATCH_MAX, Batch, Direction, Place, Rings, Transferred};
use super::{Caps, DeviceError, Entry, LoadError, Page, StoreError, SwapDevice, Usage, check_value, check_words};
use backing::Backing;
use farpage_base::sys::cpu;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::table::Table;
use farpage_codec::crypt::Cipher;
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_server::PageStores;
use farpage_server::areas::SharedAreas;
use farpage_server::link::InReach;
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::CLUSTER_SLOTS;
use open::OpenedFile;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, fence};
use std::sync::{Arc, OnceLock};
use table::{File, FileSlots, Own, PAGE_BITS, PAGE_MASK};

/// After this many failed batches of writes in a row the device takes no more pages.
const WRITE_ERRORS_MAX: u32 = 16;
/// After this many failed reads in a row too: so many pages, each tried three times.
const READ_ERRORS_MAX: u32 = 3 * 16;

/// Several processes may have `most` slots together in their files of this device. This one wants `end` in all, and
/// gets the result.
pub type SharedSize = fn(device: u8, end: u64, most: u64) -> u64;

/// Swap in a file.
pub struct FileDevice {
    index: u8,
    name: String,
    /// Where files are made; `None`: the device is a block device, or on a server.
    dir: Option<Fd>,
    /// The program cannot reach that any more.
    has_left: AtomicBool,
    /// The server that has its pages.
    server: Option<Box<dyn PageStores>>,
    /// Where second copies are kept of what is on a server.
    mirror: Option<Fd>,
    /// Second copies could not be written.
    mirror_failed: AtomicBool,
    caps: Caps,
    /// Slots of a file at most, header included.
    slots_max: u64,
    /// Who else has a part of that.
    sharing: OnceLock<SharedSize>,
    /// Bytes that stay free on the filesystem, if not the default.
    keep_free: Option<u64>,
    use_tmpfile: bool,
    create: Mutex<()>,
    own: Own,
    inner: Mutex<FileSlots>,
    /// Forks so far.
    epoch: AtomicU32,
    /// Pages of the own file that were stored before this epoch are frozen; [`FileSlots::frozen_below`].
    frozen_below: AtomicU32,
    /// Monotonic second before which free disk space is not looked at again.
    retry_second: AtomicI64,
    full: AtomicBool,
    failed: AtomicBool,
    warning: Mutex<Option<Warning>>,
    /// Pages read and written so far, apart from what all who read look at.
    transfers: Transfers,
    write_errors: AtomicU64,
    /// Failures since the last success.
    writes_failed: AtomicU32,
    reads_failed: AtomicU32,
    read_errors: AtomicU64,
    bad_frees: AtomicU64,
    /// How the I/O is done; shared by the devices of a space.
    rings: Arc<Rings>,
    /// With it, what is read is compared with its check value.
    key: OnceLock<ContentKey>,
    /// With it, what is written is encrypted.
    cipher: Option<Arc<Cipher>>,
    /// Memory for encrypted batches.
    scratch: Mutex<Vec<Box<[Bounce]>>>,
    /// Slots given back to what is below.
    discarded: AtomicU64,
    /// The next page to take off, once the device has failed.
    drain_hand: Mutex<u64>,
    drained: AtomicBool,
    /// Some page has been taken off.
    any_moved: AtomicBool,
    injector: Option<Arc<Injector>>,
}

impl FileDevice {
    /// The device for `path`: a directory (an unnamed file in it), an empty file (an unnamed one beside it), or a blank
    /// block device or one of ours. `index`: the device number in its entries. `size`: most bytes of the file, header
    /// page included.
    ///
    /// # Errors
    /// The path does not exist, is something else, or belongs to somebody else; the message says what to do.
    pub fn open(index: u8, path: &Path, size: Option<u64>) -> Result<FileDevice, DeviceError> {
        Ok(FileDevice::of(index, open::open(path, size)?))
    }

    fn of(index: u8, opened: OpenedFile) -> FileDevice {
        let (inner, own) = FileSlots::new(opened.block, opened.rotational);
        FileDevice {
            index,
            name: opened.name,
            dir: opened.dir,
            has_left: AtomicBool::new(false),
            server: None,
            mirror: None,
            mirror_failed: AtomicBool::new(false),
            caps: Caps { rotational: opened.rotational, block_size: opened.block_size, ..Caps::default() },
            slots_max: opened.slots_max,
            sharing: OnceLock::new(),
            keep_free: None,
            use_tmpfile: true,
            create: Mutex::new(()),
            own,
            inner: Mutex::new(inner),
            epoch: AtomicU32::new(0),
            frozen_below: AtomicU32::new(0),
            retry_second: AtomicI64::new(0),
            full: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            warning: Mutex::new(opened.warning.map(Warning::Odd)),
            transfers: Transfers::default(),
            write_errors: AtomicU64::new(0),
            writes_failed: AtomicU32::new(0),
            reads_failed: AtomicU32::new(0),
            read_errors: AtomicU64::new(0),
            bad_frees: AtomicU64::new(0),
            rings: Arc::new(Rings::default()),
            key: OnceLock::new(),
            cipher: None,
            scratch: Mutex::new(Vec::new()),
            discarded: AtomicU64::new(0),
            drain_hand: Mutex::new(0),
            drained: AtomicBool::new(false),
            any_moved: AtomicBool::new(false),
            injector: None,
        }
    }

    /// The same device, doing its I/O through `rings`.
    pub fn with_rings(self, rings: Arc<Rings>) -> FileDevice {
        FileDevice { rings, ..self }
    }

    /// The same device with faults in its I/O, for tests.
    pub fn with_faults(self, injector: Arc<Injector>) -> FileDevice {
        FileDevice { injector: Some(injector), ..self }
    }

    /// The same device, leaving `bytes` of the filesystem free, if given.
    pub fn with_keep_free(self, bytes: Option<u64>) -> FileDevice {
        FileDevice { keep_free: bytes, ..self }
    }

    /// The same device, encrypting what it writes with a new key.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn with_encryption(self) -> Result<FileDevice, DeviceError> {
        match Cipher::random() {
            Ok(cipher) => Ok(FileDevice { cipher: Some(Arc::new(cipher)), ..self }),
            Err(errno) => Err(DeviceError {
                name: self.name,
                reason: format!("no random bytes for its key: {}", ErrnoText(errno)),
                remedy: String::from("try again later, or leave encrypt out"),
            }),
        }
    }

    /// The same device with a priority to be shown.
    pub fn with_priority(self, priority: i32) -> FileDevice {
        FileDevice { caps: Caps { priority, ..self.caps }, ..self }
    }

    /// From now on its size is for several processes together.
    pub fn share_size(&self, with: SharedSize) {
        let _ = self.sharing.set(with);
    }

    /// From now on its descriptors are ones of this table.
    pub fn set_fd_table(&self, table: &Arc<Table>) {
        self.server.iter().for_each(|server| server.link().set_fd_table(table));
        self.each_fd(&mut |fd| fd.set_fd_table(table));
    }

    /// Shows all descriptors but a server's.
    fn each_fd(&self, look: &mut dyn FnMut(&Fd)) {
        self.dir.iter().chain(&self.mirror).for_each(&mut *look);
        let inner = self.inner.lock();
        for backing in inner.files.iter().flatten().filter_map(|f| f.backing.get()) {
            look(&backing.fd);
            backing.mirror().iter().for_each(|mirror| look(&mirror.file.fd));
        }
    }

    /// Number of this device in its entries.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Takes no more pages from now on, and says so once.
    fn fail(&self, what: &'static str, errno: Errno) -> StoreError {
        if !self.failed.swap(true, Relaxed) {
            *self.warning.lock() = Some(Warning::Failed(what, errno));
        }
        StoreError::Failed
    }
}

/// Something the user should know. Made into words by whoever says it: a read may fail in a signal handler, which must
/// not allocate.
enum Warning {
    /// It can be used, but is not what one would expect.
    Odd(String),
    /// What went wrong, for good.
    Failed(&'static str, Errno),
    /// Why it must not be used any longer.
    Unfit(&'static str),
    /// Second copies are not kept, and why.
    NoCopy(&'static str, Errno),
}

/// Pages that were transferred. In a cache line of its own: each transfer writes here.
#[derive(Default)]
#[repr(align(64))]
struct Transfers {
    read: AtomicU64,
    written: AtomicU64,
}

/// A page to go through when the caller's is not aligned.
#[repr(align(4096))]
struct Bounce(Page);

fn aligned(page: &Page) -> bool {
    page.as_ptr().addr().is_multiple_of(PAGE_SIZE)
}

impl SwapDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        Caps { discard: self.own.get().is_some_and(File::discards), ..self.caps }
    }

    fn accepts(&self) -> bool {
        self.server_accepts() && !self.failed.load(Relaxed) && (!self.full.load(Relaxed) || self.may_have_grown())
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        let mut out = [None];
        let result = self.store_batch(&[(page, check)], &mut out);
        out[0].ok_or_else(|| result.err().unwrap_or(StoreError::Full))
    }

    fn is_remote(&self) -> bool {
        self.server.is_some()
    }

    fn in_reach(&self) -> bool {
        self.mirror.is_some() || self.server.as_ref().is_none_or(|server| server.link().reach() != InReach::Waiting)
    }

    fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        self.write_all(pages, out)
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        self.read(entry, into, true)
    }

    fn load_with(&self, entry: Entry, into: &mut Page, patient: bool) -> Result<(), LoadError> {
        self.read(entry, into, patient)
    }

    fn place(&self, entry: Entry) -> Option<Place> {
        let (file, page, value) = self.find(entry)?;
        Some(self.place_in(file.backing.get()?, page, value.count))
    }

    fn complete(&self, entry: Entry, page: &mut Page) -> bool {
        self.complete_from(entry, page, false)
    }

    fn has_copy(&self, entry: Entry) -> bool {
        self.find(entry).is_some_and(|(file, ..)| file.backing.get().is_some_and(|backing| backing.mirror().is_some()))
    }

    fn resolve(&self, entry: Entry) -> Entry {
        self.went_to(entry).unwrap_or(entry)
    }

    fn check_contents(&self, key: ContentKey) {
        let _ = self.key.set(key);
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        self.find(entry).map(|(.., slot)| check_value(slot.check))
    }

    fn free(&self, entry: Entry) -> bool {
        let freed = split(entry).is_some_and(|(id, page)| {
            let (own, frozen_below) = (self.own.get(), self.frozen_below.load(Relaxed));
            let simple = own
                .filter(|own| usize::from(own.id) == id)
                .is_some_and(|file| file.free_if(page, |slot| !slot.moved && slot.epoch >= frozen_below));
            simple || self.inner.lock().free(own, id, page, self.epoch.load(Relaxed))
        });
        if !freed {
            self.bad_frees.fetch_add(1, Relaxed);
        } else if self.full.load(Relaxed) {
            self.full.store(false, Relaxed);
        }
        freed
    }

    fn add_usage(&self, usage: &mut Usage) {
        let inner = self.inner.lock();
        let files = inner.files.iter().flatten();
        let bad = inner.bad.len() as u64;
        let retired = files.clone().map(|f| f.retired.lock().len() as u64).sum::<u64>();
        let kept = inner.deferred.len() as u64 + bad + retired;
        // What was moved to another device is counted there.
        let elsewhere = kept + inner.moved.len() as u64;
        let slots = files.clone().map(|f| f.slots.in_use()).sum::<u64>().saturating_sub(elsewhere);
        usage.slots_in_use += slots;
        usage.file_bytes += slots * PAGE_SIZE as u64;
        usage.deferred_slots += inner.deferred.len() as u64;
        usage.bad_slots += bad;
        usage.meta_bytes += files.map(|f| f.slots.meta_bytes() as u64).sum::<u64>();
        usage.meta_bytes += (inner.deferred.capacity() * size_of::<(u64, u32, u32)>()) as u64;
        usage.meta_bytes += (inner.moved.capacity() * size_of::<(u64, Entry)>()) as u64;
        drop(inner);
        usage.meta_bytes += (self.scratch.lock().len() * BATCH_MAX * PAGE_SIZE) as u64;
        usage.discarded_bytes += self.discarded.load(Relaxed) * PAGE_SIZE as u64;
        usage.file_read_bytes += self.transfers.read.load(Relaxed) * PAGE_SIZE as u64;
        usage.file_write_bytes += self.transfers.written.load(Relaxed) * PAGE_SIZE as u64;
        usage.devices_full += u32::from(self.full.load(Relaxed));
        usage.devices_failed += u32::from(self.failed.load(Relaxed));
        usage.write_errors += self.write_errors.load(Relaxed);
        usage.read_errors += self.read_errors.load(Relaxed);
        usage.bad_frees += self.bad_frees.load(Relaxed);
    }

    fn fork_parent(&self) {
        let mut inner = self.inner.lock();
        inner.leases.push(self.epoch.fetch_add(1, Relaxed));
        self.frozen_below.store(inner.frozen_below(), Relaxed);
        drop(inner);
        self.keep_areas(true);
    }

    fn end_lease(&self, lease: u32) {
        let mut inner = self.inner.lock();
        inner.end_lease(self.own.get(), lease);
        self.frozen_below.store(inner.frozen_below(), Relaxed);
        let last = inner.leases.is_empty();
        drop(inner);
        if last {
            self.keep_areas(false);
        }
        self.full.store(false, Relaxed);
    }

    fn fork_child(&self, fds: &[(RawFd, RawFd)]) {
        // SAFETY: the child has one thread, which is here and has no guard. The parent's pager may have been reading a
        // page: then it looked for an inherited file, or where a page was moved, or left a warning behind.
        unsafe {
            self.inner.free_in_child();
            self.warning.free_in_child();
            self.own.get().iter().for_each(|own| own.retired.free_in_child());
        }
        self.server.iter().for_each(|server| server.fork_child());
        self.rings.fork_child();
        self.cipher.iter().for_each(|cipher| cipher.guard());
        self.each_fd(&mut |fd| fd.replace(fds, true));
        self.inner.lock().become_child(&self.own);
        self.epoch.store(0, Relaxed);
        self.frozen_below.store(0, Relaxed);
        self.retry_second.store(0, Relaxed);
        self.full.store(false, Relaxed);
        self.failed.store(false, Relaxed);
        self.drained.store(false, Relaxed);
        *self.drain_hand.lock() = 0;
        self.writes_failed.store(0, Relaxed);
        self.reads_failed.store(0, Relaxed);
        // The child's counters begin at zero, and these go into them.
        self.transfers.read.store(0, Relaxed);
        self.transfers.written.store(0, Relaxed);
    }

    fn fds(&self, out: &mut Vec<RawFd>) {
        self.each_fd(&mut |fd| out.extend(fd.raw()));
    }

    fn replace_fds(&self, fds: &[(RawFd, RawFd)]) {
        self.each_fd(&mut |fd| fd.replace(fds, false));
    }

    fn take_warning(&self) -> Option<String> {
        let Some(warning) = self.warning.lock().take() else {
            return self.server.as_ref()?.link().take_note(self.mirror.is_some());
        };
        Some(match warning {
            Warning::Odd(text) => text,
            Warning::Failed(what, errno) => format!(
                "swap device {:?}: {what}: {}; it takes no more pages, and those on it go to other devices",
                self.name,
                ErrnoText(errno)
            ),
            Warning::NoCopy(what, errno) => {
                format!("swap device {:?}: {what}: {}; some pages are on the server only", self.name, ErrnoText(errno))
            }
            Warning::Unfit(why) => {
                format!(
                    "swap device {:?}: {why}; it takes no more pages, and those on it go to other devices",
                    self.name
                )
            }
        })
    }
}

/// (file id, page of the file) of an entry of this device.
fn split(entry: Entry) -> Option<(usize, u64)> {
    let slot = entry.slot();
    Some(((slot >> PAGE_BITS) as usize, slot & PAGE_MASK)).filter(|&(_, page)| page != 0)
}

/// Seconds of the monotonic clock.
fn now_second() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec
}
