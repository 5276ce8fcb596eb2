//! How the preload library is linked.

fn main() {
    // What it exports is for the program. Its own code calls its own functions, whatever another library has of these
    // names.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
