//! Making the devices of a space from what the user wrote.

use super::*;
use crate::file::file_name;
use farpage_base::mem::arena::Part;
use farpage_base::mem::open::WINDOW;
use farpage_base::sys::message::message_fmt;
use farpage_ipc::conf::{Alg, Conf, DeviceKind, InjectedFault, size};
use farpage_server::redis::pages::RedisStores;
use farpage_server::redis::server::{self, Server};
use farpage_swap::pool_share::{PoolShare, pool_for};

/// Bytes that the devices inside of a budget may take together: the rest is for pages in use.
pub const fn memory_most(budget: u64) -> u64 {
    budget / 8 * 7
}

/// The least budget in which they may take so much.
const fn budget_of(most: u64) -> u64 {
    most.div_ceil(7) * 8
}

/// Whether devices that take memory of the budget leave room for pages. (Compressed memory never takes more than its
/// share, whatever its size; plain memory takes what it was given, and pages would go back and forth for ever.)
///
/// # Errors
/// The first device that does not, and the most that it can have.
pub fn check_memory(specs: &[SwapSpec], budget: u64) -> Result<(), DeviceError> {
    let memories = specs.iter().filter(|spec| spec.is_memory()).count().max(1);
    let most = memory_most(budget) / memories as u64;
    let too_large = |spec: &&SwapSpec| spec.kind == DeviceKind::Ram && spec.size.is_some_and(|size| size > most);
    match specs.iter().find(too_large) {
        Some(spec) => Err(DeviceError {
            name: spec.to_string(),
            reason: format!(
                "its memory is part of the budget of {}, and would leave no room for pages",
                size::format(budget)
            ),
            remedy: format!("give it size={most} at most, or use a file, as in file:/var/tmp"),
        }),
        None => Ok(()),
    }
}

/// Names become numbers, in place: the processes that use the device may not be able to ask for them. A server of Redis
/// is one that will do. `password`: its, unless it says where its own is.
///
/// # Errors
/// The name is not known, or none of those that have it will do.
pub fn resolve(spec: &mut SwapSpec, password: Option<&[u8]>) -> Result<(), DeviceError> {
    match &mut spec.kind {
        DeviceKind::Nbd(export) => {
            export.address = export.address.by_number().map_err(|why| DeviceError {
                name: export.name(),
                reason: why.to_string(),
                remedy: String::from("look whether the name is right, and the server runs"),
            })?;
        }
        DeviceKind::Redis(redis) => *redis = server::resolve(redis, password, Server::open)?.0,
        DeviceKind::Zram { .. } | DeviceKind::Ram | DeviceKind::File { .. } => {}
    }
    Ok(())
}

impl SwapSpace {
    /// The devices of a program: those of `specs` that can be used. Since the launcher looked at them the program may
    /// have given up rights, or left for another root; what is left out is in the second part of the result, in words.
    /// The default file was not asked for: where it cannot be used (a read-only root, a sandbox), the compressed
    /// memory is enough.
    ///
    /// # Errors
    /// Nothing would be left.
    pub fn of_program(
        conf: &Conf,
        mut specs: Vec<SwapSpec>,
        pool: Part,
        shared: Part,
    ) -> Result<(SwapSpace, Vec<String>), DeviceError> {
        check_memory(&conf.swap, conf.ram)?;
        let mut left_out = Vec::new();
        let is_default = conf.swap == SwapSpec::defaults();
        let space = loop {
            // SAFETY: the part was made for the pool alone; a space that could not be made has left
            // nothing in it.
            let error = match unsafe { SwapSpace::build(&specs, pool.base as *mut u8, pool.len, memory_most(conf.ram)) }
            {
                Ok(space) => break space,
                Err(error) => error,
            };
            let failed = |spec: &SwapSpec| match &spec.kind {
                DeviceKind::File { path, .. } => error.name == file_name(path),
                DeviceKind::Nbd(spec) => error.name == spec.name(),
                DeviceKind::Redis(spec) => error.name == spec.name(),
                DeviceKind::Zram { .. } | DeviceKind::Ram => false,
            };
            let Some(at) = specs.iter().position(failed).filter(|_| specs.len() > 1) else {
                return Err(error);
            };
            specs.remove(at);
            match (is_default, conf.verbose) {
                (true, true) => message_fmt(format_args!("{error}; going on with compressed memory only")),
                (true, false) => {}
                (false, _) => left_out.push(format!("{error}; going on without it")),
            }
        };
        space.begin_division(conf.ram);
        let mut algs = specs.iter().filter_map(|spec| match spec.kind {
            DeviceKind::Zram { alg, .. } => Some(alg),
            _ => None,
        });
        let alg = algs.next().unwrap_or_default();
        // SAFETY: the part was made for that.
        Ok((unsafe { space.with_shared(alg, conf.ram, shared) }, left_out))
    }

    /// The same with what forked processes have together, compressed by `alg`, within a budget of so many bytes. Where
    /// all of `part` is mapped (outside of the window of the arena), or there is no compressed memory, they have
    /// nothing.
    ///
    /// # Safety
    /// The addresses are for that alone as long as the process lives, and in the window nothing is mapped there.
    pub unsafe fn with_shared(mut self, alg: Alg, budget: u64, part: Part) -> SwapSpace {
        let index = u8::try_from(self.devices.len());
        let is_wanted = WINDOW.contains(&part.base) && !self.zrams.is_empty();
        let Some(index) = index.ok().filter(|_| is_wanted) else { return self };
        // SAFETY: caller's promise.
        let shared = Arc::new(unsafe { SharedCopies::new(index, alg, budget, part.base) });
        self.zrams.iter().for_each(|zram| zram.share_with(&shared));
        self.devices.push(shared.clone());
        self.lost.push(AtomicU64::new(0));
        self.shared = Some(shared);
        self.memory_most = memory_most(budget);
        self
    }

    /// How much compressed pages may have at first, with a budget of so many bytes. Without a file the pool is the last
    /// resort: it may take what the program leaves.
    pub fn begin_division(&self, budget: u64) {
        let tiered = self.is_tiered();
        self.let_raw_wait(tiered);
        self.set_pool_limit(if tiered { PoolShare::initial_limit(budget) } else { memory_most(budget) });
    }

    /// The least budget in which `more` bytes of pages can be stored beside the `held` that the pools stand for, bytes:
    /// of devices in memory, if there is no file that takes what these have no room for.
    pub fn least_budget(&self, held: u64, more: u64) -> u64 {
        match () {
            () if self.is_tiered() => 0,
            () if self.zrams.is_empty() || !self.rams.is_empty() => self.pool_bytes(),
            () => budget_of(pool_for(held, self.pool_bytes(), more)),
        }
    }

    /// Makes the devices. `pool_base..+pool_len` is the memory of the compressed pages (several zram devices share
    /// it, and `pool_limit_bytes`, equally); nothing of it is touched before pages are stored.
    /// No file is created before the first page is stored in it.
    ///
    /// # Errors
    /// The first device that cannot be used, and what to do about it.
    ///
    /// # Safety
    /// The region is private anonymous memory, page-aligned, readable, writable, that nothing else uses for as long
    /// as the space exists. It may be null if there is no zram device.
    pub unsafe fn build(
        specs: &[SwapSpec],
        pool_base: *mut u8,
        pool_len: usize,
        pool_limit_bytes: u64,
    ) -> Result<SwapSpace, DeviceError> {
        let error = |name: String, reason: &str, remedy: &str| DeviceError {
            name,
            reason: String::from(reason),
            remedy: String::from(remedy),
        };
        if specs.len() > 200 {
            return Err(error(specs[200].to_string(), "there are more than 200 devices", "name fewer"));
        }
        // A negative default as the kernel's: in the order given, after every device with a priority of its own.
        let prio = |i: usize| specs[i].prio.unwrap_or(-1);
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(prio(i)));
        let rings = Arc::new(Rings::default());
        let mut files = Vec::new();
        for (index, &i) in (0u8..).zip(&order) {
            files.extend(open_file(index, &specs[i], prio(i), &rings)?);
            files.extend(open_server(index, &specs[i], prio(i), &rings)?);
        }
        let memories = (specs.len() - files.len()).max(1);
        let (share, limit) = (pool_len / memories / SPAN_BYTES * SPAN_BYTES, pool_limit_bytes / memories as u64);
        let mut parts = 0..memories;
        let mut space = SwapSpace {
            devices: Vec::new(),
            zrams: Vec::new(),
            rams: Vec::new(),
            files: Vec::new(),
            shared: None,
            memory_most: u64::MAX,
            next_lease: AtomicU32::new(0),
            first_queued: 0,
            turn: AtomicU32::new(0),
            rings,
            queued_failures: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            lost: specs.iter().map(|_| AtomicU64::new(0)).collect(),
        };
        let mut next_file = files.iter();
        let mut part = |i: usize| -> Result<NonNull<u8>, DeviceError> {
            let no_memory = || error(specs[i].to_string(), "it was given no memory", "report this as a bug");
            let base = NonNull::new(pool_base).ok_or_else(no_memory)?;
            let at = parts.next().ok_or_else(no_memory)? * share;
            // SAFETY: the part lies in the caller's region of `pool_len` bytes.
            Ok(unsafe { base.add(at) })
        };
        for (index, &i) in (0u8..).zip(&order) {
            let size = specs[i].size;
            match &specs[i].kind {
                DeviceKind::File { .. } | DeviceKind::Nbd(_) | DeviceKind::Redis(_) => {
                    space.devices.extend(next_file.next().map(|file| file.clone() as Arc<dyn SwapDevice>));
                }
                DeviceKind::Zram { alg, recompress } => {
                    let base = part(i)?;
                    // SAFETY: the part is one of `memories` that lie side by side in the caller's region; nothing else
                    // uses it (contract of this function).
                    let pool = unsafe { Pool::new(base, share, limit) };
                    let pages_max = size.map_or(u64::from(u32::MAX), |bytes| bytes / PAGE_SIZE as u64);
                    let mut zram = Zram::new(index, *alg, pages_max, pool, files.clone()).with_priority(prio(i));
                    if *recompress {
                        zram = zram.with_recompression();
                    }
                    let zram = Arc::new(zram);
                    space.zrams.push(zram.clone());
                    space.devices.push(zram);
                }
                DeviceKind::Ram => {
                    let len = size.unwrap_or(limit).min(share as u64) as usize;
                    let base = part(i)?;
                    // SAFETY: as above.
                    let ram = Arc::new(unsafe { Ram::new(index, prio(i), base, len) });
                    space.rams.push(ram.clone());
                    space.devices.push(ram);
                }
            }
        }
        space.files = files;
        space.first_queued = space.devices.iter().take_while(|device| device.caps().synchronous).count();
        Ok(space)
    }
}

/// The device of a `file:` specification.
fn open_file(
    index: u8,
    spec: &SwapSpec,
    prio: i32,
    rings: &Arc<Rings>,
) -> Result<Option<Arc<FileDevice>>, DeviceError> {
    let DeviceKind::File { path, keep_free, encrypt, fault } = &spec.kind else { return Ok(None) };
    let mut file = FileDevice::open(index, path, spec.size)?.with_rings(rings.clone()).with_priority(prio);
    file = file.with_keep_free(*keep_free);
    if *encrypt {
        file = file.with_encryption()?;
    }
    let faults = fault.and_then(|fault| match fault {
        InjectedFault::Curable(seed) => Some(Faults::curable(seed)),
        InjectedFault::Lost(seed) => Some(Faults { lost: LOST, ..Faults::none(seed) }),
        InjectedFault::Silent(seed) => Some(Faults::silent(seed)),
        InjectedFault::Dying(seed) => Some(Faults { dead_after: Some(DYING), ..Faults::none(seed) }),
        InjectedFault::Seeks(us) => {
            rings.simulate_seeks(us as u32);
            None
        }
    });
    if let Some(faults) = faults {
        let unit = file.caps().block_size as usize;
        file = file.with_faults(Arc::new(Injector::new(faults).with_unit(unit)));
    }
    Ok(Some(Arc::new(file)))
}

/// The device of a specification of a server.
fn open_server(
    index: u8,
    spec: &SwapSpec,
    prio: i32,
    rings: &Arc<Rings>,
) -> Result<Option<Arc<FileDevice>>, DeviceError> {
    let (device, served) = match &spec.kind {
        DeviceKind::Nbd(export) => (FileDevice::on_export(index, export, spec.size)?, &export.served),
        DeviceKind::Redis(redis) => {
            let server = Server::of(redis, None)?;
            server.open()?;
            let stores = Box::new(RedisStores::new(server, redis.owner()));
            (FileDevice::on_store(index, redis.name(), spec.size, stores), &redis.served)
        }
        _ => return Ok(None),
    };
    let mut device = device.with_rings(rings.clone()).with_priority(prio);
    if served.encrypt {
        device = device.with_encryption()?;
    }
    if let Some(mirror) = &served.mirror {
        device = device.with_mirror(mirror)?;
    }
    Ok(Some(Arc::new(device)))
}

/// `fault=lost:SEED`: so many of 65536 places cannot be read.
const LOST: u16 = 600;
/// `fault=dying:SEED`: so many transfers work.
const DYING: u64 = 400;
