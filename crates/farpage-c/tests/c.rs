//! C programs against the shared and the static library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a static library of Rust code needs besides (`rustc --print native-static-libs`); as in farpage.pc.
const PRIVATE: [&str; 6] = ["-pthread", "-lgcc_s", "-lutil", "-lrt", "-lm", "-ldl"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts the libraries. `cargo test` does not build them, so this does, as `make build` would; else an old
/// one could be tested. `make unit` has built them just before, of the crates that the tests are made of, and says so.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let directory = exe.ancestors().nth(2).unwrap();
        if std::env::var_os("FARPAGE_BUILT").is_some() {
            return directory.into();
        }
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "--target-dir"]).arg(directory.parent().unwrap());
        let profile = directory.file_name().unwrap().to_str().unwrap();
        cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
        assert!(cargo.current_dir(root().join("../..")).status().unwrap().success(), "the libraries cannot be built");
        directory.into()
    })
}

/// Compiles a C program against both libraries, runs it, and returns what it printed, once.
fn run(source: &str) -> String {
    let libraries = libraries();
    let dir = tempfile::tempdir().unwrap();
    // As it is installed: under the name that programs are linked against.
    std::os::unix::fs::symlink(libraries.join("libfarpage.so"), dir.path().join("libfarpage.so.0")).unwrap();
    let mut printed = Vec::new();
    for shared in [true, false] {
        let program = dir.path().join(if shared { "shared" } else { "static" });
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]);
        cc.arg(root().join("include")).arg(root().join(source)).arg("-o").arg(&program);
        if shared {
            cc.arg(libraries.join("libfarpage.so")).arg(format!("-Wl,-rpath,{}", dir.path().display()));
        } else {
            cc.arg(libraries.join("libfarpage.a")).args(PRIVATE);
        }
        assert!(cc.status().unwrap().success(), "{source} does not compile, shared: {shared}");
        let output = Command::new(&program).env("FARPAGE", libraries.join("farpage")).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{source}, shared: {shared}: {}\n{stdout}{stderr}", output.status);
        eprint!("{stderr}");
        printed.push(stdout.into_owned());
    }
    assert_eq!(printed[0], printed[1]);
    printed.swap_remove(0)
}

#[test]
fn the_example_works() {
    let rows = 8u64 << 20;
    assert_eq!(run("examples/table.c"), format!("{}\n", rows * (rows - 1) / 2 + 20_000));
}

#[test]
fn every_function_does_and_refuses_what_the_header_says() {
    assert_eq!(run("tests/interface.c"), "");
}

#[test]
fn an_allocator_has_large_blocks_in_regions() {
    assert_eq!(run("tests/allocator.c"), "");
}

#[test]
fn a_handler_that_interrupts_malloc_or_farpage_may_touch_a_region() {
    assert_eq!(run("tests/handler.c"), "");
}

#[test]
fn farpage_stat_shows_the_pagers_of_a_c_program() {
    assert_eq!(run("tests/stat.c"), "");
}

#[test]
fn the_header_is_one_for_c_plus_plus_too() {
    let mut cc = Command::new("cc");
    cc.args(["-x", "c", "-std=c99", "-pedantic-errors", "-Wall", "-Werror", "-fsyntax-only"]);
    assert!(cc.arg(root().join("include/farpage.h")).status().unwrap().success());
    if Command::new("c++").arg("--version").output().is_err() {
        return eprintln!("skipped for C++: no c++");
    }
    let mut cxx = Command::new("c++");
    cxx.args(["-x", "c++", "-std=c++11", "-Wall", "-Werror", "-fsyntax-only"]);
    assert!(cxx.arg(root().join("include/farpage.h")).status().unwrap().success());
}
