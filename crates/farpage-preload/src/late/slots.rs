//! Calls between libraries go through slots that the loader has filled: one for each function that a library asks for.
//! Those of what is loaded already have other functions in them than a preloaded library would have had put there. So
//! they are filled anew.
//!
//! A slot is changed only if it has what stands behind ours (found by name, as the loader would: an allocator that was
//! preloaded stays the one that is used), or if the loader has not looked it up yet. Slots that the loader has
//! protected are made writable for that moment. Libraries that are loaded later are taken over when the next thread, or
//! the next child, is started. What the program has stored as the address of a function (`dlsym`) stays what it was.
//!
//! Callers: [`super`], the look-up of what stands behind ours ([`crate::real`]), and the functions that start
//! threads and children; on program threads. No locks but the loader's.

use farpage_base::sys::thread::is_engine_thread;
use farpage_run::mappings::library_guard::ProgramChange;
use farpage_run::shared::state::engine;
use libc::{Elf64_Rela, Elf64_Sym, PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD, dl_iterate_phdr, dl_phdr_info};
use rustix::mm::{MprotectFlags, mprotect};
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::size_of;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;
const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
/// Ours that stand in front of nothing.
const OWN: &[u8] = b"farpage_";

/// The library was not preloaded: what stands behind its functions is what the program has.
static IS_LATE: AtomicBool = AtomicBool::new(false);

/// Whether this is a late start.
pub fn is_late() -> bool {
    IS_LATE.load(SeqCst)
}

/// From now on it is.
pub fn begin_late() {
    IS_LATE.store(true, SeqCst);
}

/// Whether the program finds this library's functions by their names: what stands behind them is to be looked up in
/// another way then.
pub fn is_preloaded() -> bool {
    look_up(libc::RTLD_DEFAULT, c"_exit") == crate::_exit as *const () as usize
}

/// A function of this library that stands in front of another.
struct Function {
    name: &'static CStr,
    ours: usize,
    /// What the program calls by that name.
    behind: usize,
}

/// One loaded library, as far as it matters here. Addresses are in memory.
struct Loaded {
    /// Empty: the program itself.
    path: Vec<u8>,
    base: usize,
    start: usize,
    end: usize,
    relro: (usize, usize),
    strings: usize,
    symbols: usize,
    hash: usize,
    /// Two tables: where, and how many bytes.
    tables: [(usize, usize); 2],
}

impl Loaded {
    /// # Safety
    /// The loader describes a library that stays loaded meanwhile.
    unsafe fn of(info: &dl_phdr_info) -> Option<Loaded> {
        let base = info.dlpi_addr as usize;
        // SAFETY: caller's promise.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let loads = || headers.iter().filter(|header| header.p_type == PT_LOAD);
        let start = base + loads().map(|header| header.p_vaddr as usize).min()?;
        let end = base + loads().map(|header| (header.p_vaddr + header.p_memsz) as usize).max()?;
        let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let relro = headers.iter().find(|header| header.p_type == PT_GNU_RELRO).map_or((0, 0), |header| {
            let from = base + header.p_vaddr as usize;
            // As the loader rounds.
            (from & !(PAGE - 1), (from + header.p_memsz as usize) & !(PAGE - 1))
        });
        let path = match info.dlpi_name.is_null() {
            true => Vec::new(),
            // SAFETY: the loader's string.
            false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes().to_vec(),
        };
        let mut loaded = Loaded { path, base, start, end, relro, strings: 0, symbols: 0, hash: 0, tables: [(0, 0); 2] };
        let mut at = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        loop {
            // SAFETY: the dynamic section ends in DT_NULL.
            let [tag, value] = unsafe { *at };
            // Some loaders write addresses there, some leave offsets.
            let address = if (value as usize) < base { base + value as usize } else { value as usize };
            match tag {
                DT_NULL => break,
                DT_STRTAB => loaded.strings = address,
                DT_SYMTAB => loaded.symbols = address,
                DT_GNU_HASH => loaded.hash = address,
                DT_JMPREL => loaded.tables[0].0 = address,
                DT_PLTRELSZ => loaded.tables[0].1 = value as usize,
                DT_RELA => loaded.tables[1].0 = address,
                DT_RELASZ => loaded.tables[1].1 = value as usize,
                _ => {}
            }
            // SAFETY: not the last one.
            at = unsafe { at.add(1) };
        }
        (loaded.has(loaded.strings) && loaded.has(loaded.symbols)).then_some(loaded)
    }

    fn is_this_one(&self) -> bool {
        self.has(take_over as *const () as usize)
    }

    fn has(&self, at: usize) -> bool {
        (self.start..self.end).contains(&at)
    }

    fn relocations(&self) -> impl Iterator<Item = &Elf64_Rela> {
        self.tables.into_iter().filter(|(at, _)| *at != 0).flat_map(|(at, bytes)| {
            // SAFETY: the library's own table, which stays where it is.
            unsafe { slice::from_raw_parts(at as *const Elf64_Rela, bytes / size_of::<Elf64_Rela>()) }
        })
    }

    fn symbol(&self, index: usize) -> &Elf64_Sym {
        // SAFETY: an index of the library's own, in a table that it has.
        unsafe { &*(self.symbols as *const Elf64_Sym).add(index) }
    }

    fn name(&self, symbol: &Elf64_Sym) -> &'static CStr {
        // SAFETY: a string of the library's table; those that are kept are this library's, which is never unloaded.
        unsafe { CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _) }
    }

    /// The symbol of a relocation, and its name.
    fn wanted(&self, relocation: &Elf64_Rela) -> (&Elf64_Sym, &'static CStr) {
        let symbol = self.symbol((relocation.r_info >> 32) as usize);
        (symbol, self.name(symbol))
    }

    /// Indices of the symbols that it defines: those in its hash table.
    fn defined(&self) -> impl Iterator<Item = usize> {
        // The table: numbers of buckets, first symbol, words of the filter, shift; filter; buckets; chains, each with
        // the lowest bit set in its last one.
        // SAFETY: the layout of the format; the table is this library's.
        let word = |index: usize| unsafe { *(self.hash as *const u32).add(index) };
        let (buckets, first, filter) = (word(0) as usize, word(1) as usize, word(2) as usize);
        let at = 4 + 2 * filter;
        let last = (0..buckets).map(|i| word(at + i) as usize).max().filter(|last| *last >= first);
        let end = last.map(|last| (last..).find(|i| word(at + buckets + i - first) & 1 == 1).unwrap_or(last) + 1);
        first..end.unwrap_or(first)
    }

    /// The names and addresses of its functions.
    fn functions(&self) -> Vec<(&'static CStr, usize)> {
        let of = |index: usize| {
            let symbol = self.symbol(index);
            let is_function = symbol.st_info & 15 == STT_FUNC && symbol.st_value != 0;
            is_function.then(|| (self.name(symbol), self.base + symbol.st_value as usize))
        };
        self.defined().filter_map(of).filter(|(name, _)| !name.to_bytes().starts_with(OWN)).collect()
    }

    /// Fills its slots.
    fn fill(&self, functions: &[Function]) {
        let (mut is_open, mut change) = (false, None);
        for relocation in self.relocations() {
            let kind = relocation.r_info as u32;
            let slot = self.base + relocation.r_offset as usize;
            let is_slot = kind == R_X86_64_JUMP_SLOT || kind == R_X86_64_GLOB_DAT;
            if !is_slot || !self.has(slot) || !slot.is_multiple_of(size_of::<usize>()) {
                continue;
            }
            // SAFETY: a slot of the library's, which its threads read at any time and the loader writes.
            let place = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
            let has = place.load(SeqCst);
            // Not looked up yet: it has an address in the library itself.
            let is_lazy = kind == R_X86_64_JUMP_SLOT && self.has(has);
            let known = functions.partition_point(|function| function.behind < has);
            if !is_lazy && functions.get(known).is_none_or(|function| function.behind != has) {
                continue;
            }
            let (symbol, name) = self.wanted(relocation);
            // What it defines itself, it may mean.
            let is_asked = is_lazy && symbol.st_shndx == 0;
            let function = functions.iter().find(|function| function.name == name);
            let Some(function) = function.filter(|f| is_asked || f.behind == has) else { continue };
            if (self.relro.0..self.relro.1).contains(&slot) && !is_open {
                change = change_of_libraries();
                is_open = self.protect(MprotectFlags::READ | MprotectFlags::WRITE);
                if !is_open {
                    return;
                }
            }
            place.store(function.ours, SeqCst);
        }
        if is_open {
            self.protect(MprotectFlags::READ);
        }
        drop(change);
    }

    fn protect(&self, how: MprotectFlags) -> bool {
        let (from, to) = self.relro;
        // SAFETY: pages of the library that have nothing but what the loader has written; readable all the time.
        unsafe { mprotect(from as *mut c_void, to - from, how) }.is_ok()
    }
}

/// Libraries may change from now on, until this is dropped. `None`: it does not matter.
pub fn change_of_libraries() -> Option<ProgramChange> {
    let minds = !is_engine_thread() && engine().is_some_and(|e| e.is_active() && e.fork.is_home());
    minds.then(ProgramChange::begin)
}

/// What was loaded when slots were filled last: the loader's count.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// Where the loader finds a name; 0: nowhere.
pub(crate) fn look_up(handle: *mut c_void, name: &CStr) -> usize {
    // SAFETY: only looks a name up; the handle is one of the loader's.
    unsafe { libc::dlsym(handle, name.as_ptr()) as usize }
}

/// What the program calls by a name: the function, also where its own executable has a stub that stands for it (an
/// executable at a fixed address that takes a function's address has one, and the loader gives that to all that ask).
/// 0: there is none.
pub fn what_the_program_calls(name: &CStr) -> usize {
    let found = look_up(libc::RTLD_DEFAULT, name);
    if !is_stub(name, found) {
        return found;
    }
    let mut others: Vec<(Vec<u8>, usize, usize)> = Vec::new();
    each(&mut |loaded| {
        if !loaded.path.is_empty() && !loaded.is_this_one() {
            others.push((loaded.path.clone(), loaded.start, loaded.end));
        }
    });
    let defined = |(path, start, end): (Vec<u8>, usize, usize)| {
        let path = CString::new(path).ok()?;
        // SAFETY: it is loaded: only its number of users changes.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let at = look_up(handle, name);
        // SAFETY: opened above.
        unsafe { libc::dlclose(handle) };
        (start..end).contains(&at).then_some(at)
    };
    others.into_iter().find_map(defined).unwrap_or(0)
}

/// Whether what was found by a name is in the executable, which asks for it.
fn is_stub(name: &CStr, found: usize) -> bool {
    let mut is_stub = false;
    each(&mut |loaded| {
        if loaded.path.is_empty() && loaded.has(found) {
            let asks = |(symbol, wanted): (&Elf64_Sym, &CStr)| symbol.st_shndx == 0 && wanted == name;
            is_stub |= loaded.relocations().any(|relocation| asks(loaded.wanted(relocation)));
        }
    });
    is_stub
}

/// This library's functions, and what stands behind them, by the latter's address.
fn functions() -> &'static [Function] {
    static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut named = Vec::new();
        each(&mut |loaded| {
            if loaded.is_this_one() {
                named = loaded.functions();
            }
        });
        // Not above: the loader holds its lock there, and takes another one here, which come in the other order
        // elsewhere.
        let function = |(name, ours)| {
            let behind = what_the_program_calls(name);
            (behind != 0 && behind != ours).then_some(Function { name, ours, behind })
        };
        let mut functions: Vec<Function> = named.into_iter().filter_map(function).collect();
        functions.sort_by_key(|function| function.behind);
        functions
    })
}

/// Has all that is loaded call this library's functions.
pub fn take_over() {
    let functions = functions();
    let mut bases = Vec::new();
    each(&mut |loaded| bases.push(loaded.base));
    // The loader holds a lock while it loads, which this takes: what was there above has been loaded by now.
    look_up(libc::RTLD_DEFAULT, c"dlsym");
    each(&mut |loaded| {
        if !loaded.is_this_one() && bases.contains(&loaded.base) {
            loaded.fill(functions);
        }
    });
}

/// The same for what was loaded meanwhile, in a process with a late start. Called where a thread or a child is started.
pub fn take_over_new() {
    if is_late() && count() != LOADED.load(SeqCst) {
        take_over();
    }
}

/// How many libraries were loaded so far.
fn count() -> u64 {
    unsafe extern "C" fn first(info: *mut dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the loader's, and the caller's number.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut count = 0u64;
    // SAFETY: calls the function above with this number.
    unsafe { dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

fn each(act: &mut dyn FnMut(&Loaded)) {
    unsafe extern "C" fn one(info: *mut dl_phdr_info, _: usize, act: *mut c_void) -> c_int {
        // SAFETY: the caller's closure.
        let act = unsafe { &mut *act.cast::<&mut dyn FnMut(&Loaded)>() };
        // SAFETY: the loader's, which holds its lock meanwhile.
        let info = unsafe { &*info };
        LOADED.store(info.dlpi_adds, SeqCst);
        // SAFETY: as above.
        if let Some(loaded) = unsafe { Loaded::of(info) } {
            act(&loaded);
        }
        0
    }
    let mut act: &mut dyn FnMut(&Loaded) = act;
    // SAFETY: calls the function above with this closure, while it lives.
    unsafe { dl_iterate_phdr(Some(one), (&raw mut act).cast()) };
}
