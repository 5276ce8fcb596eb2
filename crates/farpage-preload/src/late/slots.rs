//! Calls between libraries go through slots that the loader has filled: one for each function that a library asks for.
//! Those of what is loaded already have other functions in them than a preloaded library would have had put there. So
//! they are filled anew.
//!
//! A slot is changed only if it has what stands behind ours (found by name, as the loader would: an allocator that was
//! preloaded stays the one that is used), or if the loader has not looked it up yet. Slots that the loader has
//! protected
//! are made writable for that moment. Libraries that are loaded later are taken over when the next thread, or the next
//! child, is started. What the program has stored as the address of a function (`dlsym`) stays what it was.
//!
//! Callers: [`super`], and the functions that start threads and children, on program threads.

use super::is_late;
use libc::{dl_iterate_phdr, dl_phdr_info};
use rustix::mm::{MprotectFlags, mprotect};
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
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

/// A function of this library that stands in front of another.
struct Function {
    name: &'static CStr,
    ours: usize,
    /// What the program calls by that name.
    behind: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
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
    relocations: [(usize, usize); 2],
}

impl Loaded {
    /// # Safety
    /// The loader describes a library that stays loaded meanwhile.
    unsafe fn of(info: &dl_phdr_info) -> Option<Loaded> {
        let base = info.dlpi_addr as usize;
        // SAFETY: caller's promise.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
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
        let mut loaded =
            Loaded { path, base, start, end, relro, strings: 0, symbols: 0, hash: 0, relocations: [(0, 0); 2] };
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
                DT_JMPREL => loaded.relocations[0].0 = address,
                DT_PLTRELSZ => loaded.relocations[0].1 = value as usize,
                DT_RELA => loaded.relocations[1].0 = address,
                DT_RELASZ => loaded.relocations[1].1 = value as usize,
                _ => {}
            }
            // SAFETY: not the last one.
            at = unsafe { at.add(1) };
        }
        let is_inside = |at: usize| (start..end).contains(&at);
        (is_inside(loaded.strings) && is_inside(loaded.symbols)).then_some(loaded)
    }

    fn is_this_one(&self) -> bool {
        (self.start..self.end).contains(&(take_over as *const () as usize))
    }

    fn has(&self, at: usize) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// Indices of the symbols of its relocations: those that it asks for.
    fn all_symbols(&self) -> impl Iterator<Item = usize> {
        self.relocations.into_iter().flat_map(|(at, bytes)| {
            (0..bytes / size_of::<Relocation>()).map(move |i| {
                // SAFETY: a relocation of the library's own table.
                (unsafe { &*(at as *const Relocation).add(i) }.info >> 32) as usize
            })
        })
    }

    fn symbol(&self, index: usize) -> &Symbol {
        // SAFETY: an index of the library's own, in a table that it has.
        unsafe { &*(self.symbols as *const Symbol).add(index) }
    }

    fn name(&self, symbol: &Symbol) -> &'static CStr {
        // SAFETY: a string of the library's table; those that are kept are this library's, which is never unloaded.
        unsafe { CStr::from_ptr((self.strings + symbol.name as usize) as *const _) }
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
            let is_function = symbol.info & 15 == STT_FUNC && symbol.value != 0;
            is_function.then(|| (self.name(symbol), self.base + symbol.value as usize))
        };
        self.defined().filter_map(of).filter(|(name, _)| !name.to_bytes().starts_with(OWN)).collect()
    }

    /// Fills its slots.
    fn fill(&self, functions: &[Function]) {
        let mut is_open = false;
        for (at, bytes) in self.relocations {
            for i in 0..bytes / size_of::<Relocation>() {
                // SAFETY: a relocation of the library's own table.
                let relocation = unsafe { &*(at as *const Relocation).add(i) };
                let kind = relocation.info as u32;
                if kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT {
                    continue;
                }
                let slot = self.base + relocation.offset as usize;
                if !(self.start..self.end).contains(&slot) || !slot.is_multiple_of(size_of::<usize>()) {
                    continue;
                }
                // SAFETY: a slot of the library's, which its threads read at any time and the loader writes.
                let place = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
                let has = place.load(SeqCst);
                // Not looked up yet: it has an address in the library itself.
                let is_lazy = kind == R_X86_64_JUMP_SLOT && (self.start..self.end).contains(&has);
                let known = functions.partition_point(|function| function.behind < has);
                if !is_lazy && functions.get(known).is_none_or(|function| function.behind != has) {
                    continue;
                }
                let symbol = self.symbol((relocation.info >> 32) as usize);
                let name = self.name(symbol);
                // What it defines itself, it may mean.
                let is_asked = is_lazy && symbol.section == 0;
                let function = functions.iter().find(|function| function.name == name);
                let Some(function) = function.filter(|f| is_asked || f.behind == has) else { continue };
                if (self.relro.0..self.relro.1).contains(&slot) && !is_open {
                    is_open = self.protect(MprotectFlags::READ | MprotectFlags::WRITE);
                    if !is_open {
                        return;
                    }
                }
                place.store(function.ours, SeqCst);
            }
        }
        if is_open {
            self.protect(MprotectFlags::READ);
        }
    }

    fn protect(&self, how: MprotectFlags) -> bool {
        let (from, to) = self.relro;
        // SAFETY: pages of the library that have nothing but what the loader has written; readable all the time.
        unsafe { mprotect(from as *mut c_void, to - from, how) }.is_ok()
    }
}

/// What was loaded when slots were filled last: the loader's count.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// What the program calls by a name: the function, also where its own executable has a stub that stands for it (an
/// executable at a fixed address that takes a function's address has one, and the loader gives that to all who ask).
/// 0: there is none.
pub fn what_the_program_calls(name: &CStr) -> usize {
    // SAFETY: only looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    let mut objects: Vec<(Vec<u8>, usize, usize)> = Vec::new();
    let mut is_stub = false;
    each(&mut |loaded| {
        if loaded.path.is_empty() && loaded.has(found) {
            let is_asked = |i: &usize| loaded.symbol(*i).section == 0 && loaded.name(loaded.symbol(*i)) == name;
            is_stub |= loaded.all_symbols().any(|i| is_asked(&i));
        } else if !loaded.is_this_one() {
            objects.push((loaded.path.clone(), loaded.start, loaded.end));
        }
    });
    if !is_stub {
        return found;
    }
    let defines = |(path, start, end): (Vec<u8>, usize, usize)| {
        let path = CString::new(path).ok()?;
        // SAFETY: it is loaded: only its number of users changes.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: a handle of a library that stays loaded.
        let at = unsafe { libc::dlsym(handle, name.as_ptr()) } as usize;
        // SAFETY: opened above.
        unsafe { libc::dlclose(handle) };
        (start..end).contains(&at).then_some(at)
    };
    objects.into_iter().find_map(defines).unwrap_or(0)
}

/// Has all that is loaded call this library's functions.
pub fn take_over() {
    let (mut named, mut bases) = (Vec::new(), Vec::new());
    each(&mut |loaded| {
        bases.push(loaded.base);
        if loaded.is_this_one() {
            named = loaded.functions();
        }
    });
    // Not above: the loader holds its lock there, and takes another one here, which come in the other order elsewhere.
    // That one it holds while it loads: what was there above has been loaded by the time that a name has been found.
    let behind = |name: &CStr| Some(what_the_program_calls(name)).filter(|at| *at != 0);
    let function = |(name, ours)| Some(Function { name, ours, behind: behind(name).filter(|at| *at != ours)? });
    let mut functions: Vec<Function> = named.into_iter().filter_map(function).collect();
    functions.sort_by_key(|function| function.behind);
    each(&mut |loaded| {
        if !loaded.is_this_one() && bases.contains(&loaded.base) {
            loaded.fill(&functions);
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
