//! Making what pages go to: an own file, or what stands for one on a server.
//!
//! Locks: `create` while it is made.

use super::*;
use farpage_server::Seal;
use farpage_server::nbd::space::ExportSpace;

impl FileDevice {
    /// The device of this name for pages on a server, `size` bytes of them at most.
    pub fn on_store(index: u8, name: String, size: Option<u64>, server: Box<dyn PageStores>) -> FileDevice {
        let slots = size.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64);
        let (slots_max, block_size) = (slots.min(1 << PAGE_BITS), PAGE_SIZE as u32);
        let opened =
            OpenedFile { name, dir: None, block: None, slots_max, rotational: false, block_size, warning: None };
        FileDevice { server: Some(server), ..FileDevice::of(index, opened) }
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
    pub fn with_mirror(self, path: &Path) -> Result<FileDevice, DeviceError> {
        let of_device = |error: DeviceError| DeviceError {
            reason: format!("{}: {}", error.name, error.reason),
            name: self.name.clone(),
            remedy: error.remedy,
        };
        let (mirror, warning) = open::directory(path).map_err(of_device)?;
        let warning = Mutex::new(warning.map(Warning::Odd));
        Ok(FileDevice { mirror: Some(mirror), warning, ..self })
    }

    /// Creates the own file now, if that is possible, so that the caller's descriptor table has it.
    pub fn create(&self) {
        let Some(own) = self.own.get().filter(|_| self.makes_files()) else { return };
        let _create = self.create.lock();
        if own.backing.get().is_none()
            && let Ok(backing) = self.new_file()
        {
            let _ = own.backing.set(backing);
        }
    }

    /// Makes the own file now, if any is made in a directory; the directories, by descriptor.
    pub fn directories(&self) -> impl Iterator<Item = RawFd> {
        if self.dir.is_some() || self.mirror.is_some() {
            self.create();
        }
        self.dir.iter().chain(&self.mirror).filter_map(Fd::raw)
    }

    /// The own file, and that of second copies.
    pub fn own_files(&self) -> Vec<RawFd> {
        let Some(backing) = self.own.get().and_then(|own| own.backing.get()) else { return Vec::new() };
        let copies = backing.mirror().map(|mirror| &mirror.file.fd);
        std::iter::once(&backing.fd).chain(copies).filter_map(Fd::raw).collect()
    }

    /// The program cannot reach directory `number` any more, and what is open under it now is none.
    pub fn leave_directory(&self, number: RawFd) {
        let is_own = self.dir.as_ref().is_some_and(|dir| dir.raw() == Some(number));
        self.has_left.fetch_or(is_own, Relaxed);
    }

    /// Whether there is no own file because of that: in a child.
    pub fn without_directory(&self) -> bool {
        self.has_left.load(Relaxed) && self.own.get().is_none_or(|own| own.backing.get().is_none())
    }

    /// Whether its own part can be made when it is wanted: not that of a block device.
    pub(super) fn makes_files(&self) -> bool {
        self.dir.is_some() && !self.has_left.load(Relaxed) || self.server.is_some()
    }

    pub(super) fn new_file(&self) -> Result<Backing, Errno> {
        // The second copies first: what is on the server by then would stay there.
        let mirror = self.mirror.as_ref().and_then(|mirror| {
            let made = self.new_file_in(mirror);
            made.map_err(|errno| self.no_copies("the mirror's file cannot be made", errno)).ok()
        });
        let Some(server) = &self.server else { return self.new_file_in(self.dir.as_ref().ok_or(Errno::NOENT)?) };
        let seal = self.cipher.as_ref().map(Seal::new).transpose()?;
        let on_server = Backing::of_store(server.make(seal)?)?;
        Ok(match mirror {
            Some(mirror) => on_server.with_mirror(mirror),
            None => on_server,
        })
    }

    fn new_file_in(&self, dir: &Fd) -> Result<Backing, Errno> {
        let backing = Backing::create_in(dir.borrow()?, self.use_tmpfile)?;
        self.rings.table().into_iter().for_each(|table| backing.fd.set_fd_table(table));
        Ok(backing)
    }
}
