//! Where a file's functions are.
//!
//! Callers: [`super`], [`super::place`]. No locks.

use object::{Object, ObjectSymbol};

/// The address of what the file exports by this name, counted from where it is loaded.
pub fn address(file: &[u8], name: &str) -> Option<u64> {
    let file = object::File::parse(file).ok()?;
    let is_it = |symbol: &object::Symbol<'_, '_>| symbol.is_definition() && symbol.name() == Ok(name);
    file.dynamic_symbols().find(is_it).map(|symbol| symbol.address())
}

/// Where in the file a `syscall` instruction is that is loaded as code; how far from where the file is loaded.
pub fn system_call(file: &[u8]) -> Option<u64> {
    use object::{ObjectSection, SectionKind};
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let file = object::File::parse(file).ok()?;
    let code = file.sections().find(|section| section.kind() == SectionKind::Text && section.name() == Ok(".text"))?;
    let at = code.data().ok()?.windows(2).position(|bytes| bytes == SYSCALL)?;
    Some(code.address() + at as u64)
}
