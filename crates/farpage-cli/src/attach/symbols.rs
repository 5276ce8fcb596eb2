//! Where a file's functions are.
//!
//! As the loader does, only what program headers lead to is read: section headers may have been cut off, as those of
//! the library that the command carries are. Callers: [`super`], [`super::place`]. No locks.

use object::LittleEndian as Little;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Dyn64, FileHeader64, PF_X, PT_LOAD, ProgramHeader64,
    SHN_UNDEF, Sym64,
};
use object::pod::slice_from_bytes;
use object::read::StringTable;
use object::read::elf::{Dyn, FileHeader, GnuHashTable, HashTable, ProgramHeader, Sym};

type Header = FileHeader64<Little>;

/// A file's program headers.
struct Elf<'a> {
    file: &'a [u8],
    headers: &'a [ProgramHeader64<Little>],
}

impl<'a> Elf<'a> {
    fn parse(file: &'a [u8]) -> Option<Elf<'a>> {
        let headers = Header::parse(file).ok()?.program_headers(Little, file).ok()?;
        Some(Elf { file, headers })
    }

    fn loaded(&self) -> impl Iterator<Item = &'a ProgramHeader64<Little>> {
        self.headers.iter().filter(|header| header.p_type(Little) == PT_LOAD)
    }

    /// What the file has from an address on, to the end of its segment.
    fn from(&self, address: u64) -> Option<&'a [u8]> {
        self.loaded().find_map(|header| {
            let offset = address.checked_sub(header.p_vaddr(Little))?;
            header.data(Little, self.file).ok()?.get(offset as usize..)
        })
    }

    fn dynamic(&self) -> Option<&'a [Dyn64<Little>]> {
        self.headers.iter().find_map(|header| header.dynamic(Little, self.file).ok()?)
    }

    /// The symbols that the loader finds by name, and their names.
    fn symbols(&self) -> Option<(&'a [Sym64<Little>], StringTable<'a>)> {
        let dynamic = self.dynamic()?;
        let value = |tag: u32| dynamic.iter().find(|entry| entry.tag32(Little) == Some(tag)).map(|e| e.d_val(Little));
        let strings = self.from(value(DT_STRTAB)?)?;
        let end = value(DT_STRSZ).unwrap_or(u64::MAX).min(strings.len() as u64);
        let hash = |tag: u32| self.from(value(tag)?);
        let of_gnu = |data: &'a [u8]| GnuHashTable::<Header>::parse(Little, data).ok()?.symbol_table_length(Little);
        let of_old = |data: &'a [u8]| Some(HashTable::<Header>::parse(Little, data).ok()?.symbol_table_length());
        let count = hash(DT_GNU_HASH).and_then(of_gnu).or_else(|| of_old(hash(DT_HASH)?))?;
        let (symbols, _) = slice_from_bytes(self.from(value(DT_SYMTAB)?)?, count as usize).ok()?;
        Some((symbols, StringTable::new(strings, 0, end)))
    }
}

/// The address of what the file exports by this name, counted from where it is loaded.
pub fn address(file: &[u8], name: &str) -> Option<u64> {
    let (symbols, names) = Elf::parse(file)?.symbols()?;
    let is_it = |symbol: &&Sym64<Little>| {
        symbol.st_shndx(Little) != SHN_UNDEF && symbol.name(Little, names) == Ok(name.as_bytes())
    };
    symbols.iter().find(is_it).map(|symbol| symbol.st_value(Little))
}

/// Where in the file a `syscall` instruction is that is loaded as code; how far from where the file is loaded.
pub fn system_call(file: &[u8]) -> Option<u64> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    Elf::parse(file)?.loaded().filter(|header| header.p_flags(Little) & PF_X != 0).find_map(|header| {
        let code = header.data(Little, file).ok()?;
        let at = code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?;
        Some(header.p_vaddr(Little) + at as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSymbol};

    /// The C library that this test uses, as a file.
    fn libc() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc.so")));
        std::fs::read(path.unwrap()).unwrap()
    }

    #[test]
    fn with_and_without_sections() {
        let mut file = libc();
        let parsed = object::File::parse(file.as_slice()).unwrap();
        let wanted = |name| parsed.dynamic_symbols().find(|s| s.is_definition() && s.name() == Ok(name));
        let names = ["dlopen", "dlerror", "malloc", "getpid"].map(|name| (name, wanted(name).unwrap().address()));
        for (name, at) in names {
            assert_eq!(address(&file, name), Some(at), "{name}");
        }
        let call = system_call(&file).unwrap();
        // e_shoff, e_shnum and e_shstrndx.
        file[40..48].fill(0);
        file[60..64].fill(0);
        assert!(object::File::parse(file.as_slice()).unwrap().dynamic_symbols().next().is_none());
        for (name, at) in names {
            assert_eq!(address(&file, name), Some(at), "{name}");
        }
        assert_eq!((address(&file, "no_such_function"), system_call(&file)), (None, Some(call)));
    }

    #[test]
    fn damaged_files_have_nothing() {
        let file = libc();
        for bytes in [&file[..0], &file[..64], &file[..1000], b"#!/bin/sh\n"] {
            assert_eq!((address(bytes, "malloc"), system_call(bytes)), (None, None));
        }
    }
}
