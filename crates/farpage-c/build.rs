//! Link options of the shared library.

fn main() {
    // Programs are linked against the name with the interface's version. The library stays loaded after dlclose: the
    // process's SIGBUS handler is in it.
    for option in ["-soname,libfarpage.so.0", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
