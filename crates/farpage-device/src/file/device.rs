//! A file device: its parts, how it is made, and what all that is done with it begins with.
//!
//! Locks: `create` while the own file is made.

use super::health::FileHealth;
use super::open::{self, OpenedFile};
use super::page_io::PageIo;
use super::seal::FileSeal;
use super::site::FileSite;
use super::table::{FileTables, PAGE_BITS};
use crate::io::Rings;
use crate::io::inject::Injector;
use crate::{Caps, DeviceError, Entry};
use farpage_base::sys::fd::Fd;
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::table::Table;
use farpage_codec::crypt::Cipher;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_server::PageStores;
use farpage_server::nbd::space::ExportSpace;
use farpage_swap::PAGE_SIZE;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// Several processes may have `most` slots together in their files of this device. This one wants `end` in all, and
/// gets the result.
pub type SharedSize = fn(device: u8, end: u64, most: u64) -> u64;

/// Swap in a file.
pub struct FileDevice {
    pub(super) index: u8,
    pub(super) name: String,
    pub(super) caps: Caps,
    /// Slots of a file at most, header included.
    pub(super) slots_max: u64,
    /// The other processes that have a part of that.
    pub(super) sharing: OnceLock<SharedSize>,
    pub(super) site: FileSite,
    /// Held while the own file is made, or grows.
    pub(super) create: Mutex<()>,
    pub(super) tables: FileTables,
    pub(super) health: FileHealth,
    pub(super) io: PageIo,
    pub(super) seal: FileSeal,
}

impl FileDevice {
    /// The device for `path`: a directory (an unnamed file in it), an empty file (an unnamed one beside it), or a blank
    /// block device or one of ours. `index`: the device number in its entries. `size`: most bytes of the file, header
    /// page included.
    ///
    /// # Errors
    /// The path does not exist, is something else, or belongs to another user; the message says what to do.
    pub fn open(index: u8, path: &Path, size: Option<u64>) -> Result<FileDevice, DeviceError> {
        Ok(FileDevice::of(index, open::open(path, size)?))
    }

    fn of(index: u8, opened: OpenedFile) -> FileDevice {
        let health = FileHealth::default();
        health.warn(opened.warning);
        FileDevice {
            index,
            name: opened.name,
            caps: Caps { rotational: opened.rotational, block_size: opened.block_size, ..Caps::default() },
            slots_max: opened.slots_max,
            sharing: OnceLock::new(),
            site: FileSite::in_directory(opened.dir),
            create: Mutex::new(()),
            tables: FileTables::new(opened.block, opened.rotational),
            health,
            io: PageIo::default(),
            seal: FileSeal::default(),
        }
    }

    /// The device of this name for pages on a server, `size` bytes of them at most.
    pub fn on_store(index: u8, name: String, size: Option<u64>, server: Box<dyn PageStores>) -> FileDevice {
        let slots = size.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64);
        let (slots_max, block_size) = (slots.min(1 << PAGE_BITS), PAGE_SIZE as u32);
        let opened =
            OpenedFile { name, dir: None, block: None, slots_max, rotational: false, block_size, warning: None };
        let mut device = FileDevice::of(index, opened);
        device.site.server = Some(server);
        device
    }

    /// The device for an export of a server, `size` bytes of it at most.
    ///
    /// # Errors
    /// It cannot be used; the message says what to do.
    pub fn on_export(index: u8, spec: &NbdSpec, size: Option<u64>) -> Result<FileDevice, DeviceError> {
        let space = Arc::new(ExportSpace::open(spec, size)?);
        Ok(FileDevice::on_store(index, spec.name(), Some(space.slots() * PAGE_SIZE as u64), Box::new(space)))
    }

    /// The same device, keeping a second copy of every page in a directory.
    ///
    /// # Errors
    /// No files can be made there.
    pub fn with_mirror(mut self, path: &Path) -> Result<FileDevice, DeviceError> {
        let of_device = |error: DeviceError| DeviceError {
            reason: format!("{}: {}", error.name, error.reason),
            name: self.name.clone(),
            remedy: error.remedy,
        };
        let (mirror, warning) = open::directory(path).map_err(of_device)?;
        self.health.warn(warning);
        self.site.mirror = Some(mirror);
        Ok(self)
    }

    /// The same device, doing its I/O through `rings`.
    pub fn with_rings(mut self, rings: Arc<Rings>) -> FileDevice {
        self.io.rings = rings;
        self
    }

    /// The same device with faults in its I/O, for tests.
    pub fn with_faults(mut self, injector: Arc<Injector>) -> FileDevice {
        self.io.injector = Some(injector);
        self
    }

    /// The same device, leaving `bytes` of the filesystem free, if given.
    pub fn with_keep_free(mut self, bytes: Option<u64>) -> FileDevice {
        self.site.keep_free = bytes;
        self
    }

    /// The same device, encrypting what it writes with a new key.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn with_encryption(mut self) -> Result<FileDevice, DeviceError> {
        let cipher = Cipher::random().map_err(|errno| {
            let reason = format!("no random bytes for its key: {}", ErrnoText(errno));
            DeviceError::new(self.name.clone(), reason, "try again later, or leave encrypt out")
        })?;
        self.seal.cipher = Some(Arc::new(cipher));
        Ok(self)
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
        self.site.server.iter().for_each(|server| server.link().set_fd_table(table));
        self.each_fd(&mut |fd| fd.set_fd_table(table));
    }

    /// Shows all descriptors but a server's.
    pub(super) fn each_fd(&self, look: &mut dyn FnMut(&Fd)) {
        self.site.each_fd(look);
        self.tables.each_fd(look);
    }

    /// Number of this device in its entries.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Creates the own file now, if that is possible, so that the caller's descriptor table has it.
    pub fn create(&self) {
        let Some(own) = self.tables.own.get().filter(|_| self.site.makes_files()) else { return };
        let _create = self.create.lock();
        if own.backing.get().is_none()
            && let Ok(backing) = self.site.make(self.seal.cipher.as_ref(), &self.io.rings, &self.health)
        {
            let _ = own.backing.set(backing);
        }
    }

    /// Makes the own file now, if any is made in a directory; the directories, by descriptor.
    pub fn directories(&self) -> impl Iterator<Item = RawFd> {
        if self.site.directories().next().is_some() {
            self.create();
        }
        self.site.directories()
    }

    /// The own file, and that of second copies.
    pub fn own_files(&self) -> Vec<RawFd> {
        let mut files = Vec::new();
        self.tables.own_backing().iter().for_each(|backing| backing.each_fd(&mut |fd| files.extend(fd.raw())));
        files
    }

    /// The program cannot reach directory `number` any more, and what is open under it now is none.
    pub fn leave_directory(&self, number: RawFd) {
        self.site.leave_directory(number);
    }

    /// Whether there is no own file because of that: in a child.
    pub fn without_directory(&self) -> bool {
        self.site.has_left.load(Relaxed) && self.tables.own_backing().is_none()
    }

    /// The entry of a page of a file.
    pub(super) fn entry(&self, file: u8, page: u64) -> Option<Entry> {
        Entry::new(self.index, u64::from(file) << PAGE_BITS | page)
    }
}
