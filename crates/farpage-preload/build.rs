//! How the preload library is linked.

use std::{env, fs, path::PathBuf, process};

fn main() {
    // What it exports is for the program. Its own code calls its own functions, whatever another library has of these
    // names.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // The unwinder is linked in: every program that is started would have to load its library, too, which takes a
    // fifth of a millisecond. The linker looks here first for what the standard library asks for, `gcc_s`.
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        println!("cargo:warning=no OUT_DIR");
        process::exit(1);
    };
    if let Err(error) = fs::write(out.join("libgcc_s.so"), "INPUT ( libgcc_eh.a libgcc.a )\n") {
        println!("cargo:warning=cannot write to {}: {error}", out.display());
        process::exit(1);
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rerun-if-changed=build.rs");
}
