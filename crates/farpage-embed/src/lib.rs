//! Puts the preload library into the command: `farpage-cli` (`src/embedded.rs`) calls [`preload_library`].
//!
//! `cargo install` installs commands, and no libraries. So this one carries its library along. cargo builds the library
//! before the command, which names it as a dependency; but no stable cargo says where it is (that would be artifact
//! dependencies). A build script runs too early to find it. A macro runs while the command itself is compiled, in the
//! compiler, whose arguments name the directory that cargo builds everything into.

use proc_macro::{Literal, TokenStream, TokenTree};
use std::fs;
use std::path::{Path, PathBuf};

/// `Some` of a name that goes with the library's content, and of its bytes; `None` where the compiler only checks, and
/// there need not be a library.
///
/// # Panics
/// There is no library, or more than one: the panic's text is the compiler's message.
#[proc_macro]
pub fn preload_library(_: TokenStream) -> TokenStream {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(directory) = built_into(&arguments) else {
        return "::core::option::Option::None".parse().expect("this is Rust");
    };
    let path = library(Path::new(directory)).unwrap_or_else(|why| {
        panic!("{why}; to build the command without the library in it: --no-default-features, see docs/user/install.md")
    });
    let elf = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let loaded = without_sections(elf).unwrap_or_else(|| panic!("{}: not a library", path.display()));
    let name = TokenTree::from(Literal::string(&format!("{:016x}", fingerprint(&loaded))));
    let bytes = TokenTree::from(Literal::byte_string(&loaded));
    format!("::core::option::Option::Some(({name}, {bytes}))").parse().expect("this is Rust")
}

/// The directory that the compiler writes to; `None`: it makes no object code.
fn built_into(arguments: &[String]) -> Option<&str> {
    let value = |name: &str| {
        let at =
            arguments.iter().position(|a| a == name || a.strip_prefix(name).is_some_and(|v| v.starts_with('=')))?;
        let inline = arguments[at].strip_prefix(name)?.strip_prefix('=');
        inline.or_else(|| arguments.get(at + 1).map(String::as_str))
    };
    value("--out-dir").filter(|_| value("--emit").is_some_and(|kinds| kinds.split(',').any(|kind| kind == "link")))
}

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
enum LibraryError {
    #[error("{path}: {error}", path = .0.display(), error = .1)]
    Unreadable(PathBuf, std::io::Error),
    #[error("no libfarpage_preload.so in {}", .0.display())]
    None(PathBuf),
    #[error("{} or {}? remove them (they are built again), or name an empty CARGO_TARGET_DIR", .0.display(), .1.display())]
    Two(PathBuf, PathBuf),
}

/// The library in that directory. cargo adds a hash to its name where the sources are not in a local directory.
fn library(directory: &Path) -> Result<PathBuf, LibraryError> {
    let entries = fs::read_dir(directory).map_err(|error| LibraryError::Unreadable(directory.into(), error))?;
    let is_it = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix("libfarpage_preload")?.strip_suffix(".so"))
            .is_some_and(|hash| hash.is_empty() || hash.starts_with('-'))
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| is_it(path)).collect();
    match (found.pop(), found.pop()) {
        (Some(path), None) => Ok(path),
        (None, _) => Err(LibraryError::None(directory.into())),
        (Some(one), Some(other)) => Err(LibraryError::Two(one, other)),
    }
}

/// The library as far as the dynamic linker reads it: up to the end of the last segment. Symbols and line numbers for
/// debuggers lie behind that; they are nine tenths of it.
fn without_sections(mut elf: Vec<u8>) -> Option<Vec<u8>> {
    let number = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(elf.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, entry_bytes, entries) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut end = table + entry_bytes * entries;
    for at in (0..entries).map(|n| table + n * entry_bytes) {
        end = end.max(number(at + 8, 8)?.checked_add(number(at + 32, 8)?)?);
    }
    if end > elf.len() {
        return None;
    }
    elf.truncate(end);
    // There is no table of sections any more: its place, its length and where their names are.
    elf[40..48].fill(0);
    elf[60..64].fill(0);
    Some(elf)
}

/// FNV-1a: content that differs has another name.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn nothing_is_looked_for_where_the_compiler_only_checks() {
        let built = arguments("rustc --crate-type bin --emit=dep-info,link -C opt-level=3 --out-dir /t/release/deps");
        assert_eq!(built_into(&built), Some("/t/release/deps"));
        assert_eq!(built_into(&arguments("rustc --emit link --out-dir=/t/deps")), Some("/t/deps"));
        assert_eq!(built_into(&arguments("rustc --emit=dep-info,metadata --out-dir /t/release/deps")), None);
        assert_eq!(built_into(&arguments("rustdoc --out-dir /t/doc")), None);
        assert_eq!(built_into(&arguments("rust-analyzer proc-macro")), None);
    }

    #[test]
    fn exactly_one_library() {
        let directory = std::env::temp_dir().join(format!("farpage-embed-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let made = |name: &str| fs::write(directory.join(name), "").unwrap();
        made("libfarpage_preload.d");
        made("libfarpage.so");
        let none = library(&directory);
        made("libfarpage_preload-0123456789abcdef.so");
        let one = library(&directory);
        made("libfarpage_preload.so");
        let two = library(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert!(none.unwrap_err().to_string().starts_with("no libfarpage_preload.so in /"));
        assert_eq!(one.unwrap(), directory.join("libfarpage_preload-0123456789abcdef.so"));
        assert!(two.unwrap_err().to_string().contains(" or /"));
    }

    #[test]
    fn what_is_loaded_stays() {
        let whole = fs::read("/proc/self/exe").unwrap();
        let cut = without_sections(whole.clone()).unwrap();
        assert!(cut.len() < whole.len());
        assert_eq!(cut[64..], whole[64..cut.len()]);
        // It is as short as it can be.
        assert_eq!(without_sections(cut.clone()), Some(cut.clone()));
        assert_eq!(without_sections(cut[..cut.len() - 1].to_vec()), None);
        assert_eq!(without_sections(b"no library".to_vec()), None);
        assert_ne!(fingerprint(&cut), fingerprint(&whole));
    }
}
