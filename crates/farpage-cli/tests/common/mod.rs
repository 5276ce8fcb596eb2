//! What the tests of the command share: the command itself, small programs and libraries built with cc.

#![allow(dead_code, missing_docs, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A library in which nothing starts.
const INERT: &str = "int farpage_inert;";

/// By which the command takes a library for its own.
const NOTE: &str = r#"
const struct { unsigned name_len, version_len, kind; char name[8], version[32]; } farpage_note
    __attribute__((section(".note.farpage"), aligned(4), used)) = { 8, 32, 1, "farpage", VERSION };
"#;

/// A library that sets up the statistics page as an engine would: value n (in the order of `Stat::values`) is n * 1000,
/// and fault bucket 40 counts 7. Its monitor thread holds the page.
const FAKE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
static void *monitor(void *unused) {
    prctl(PR_SET_NAME, "farpage-monitor");
    for (;;) pause();
}
__attribute__((constructor)) static void start(void) {
    int fd = -1, pid = 0;
    const char *given = getenv("FARPAGE_STAT_FD");
    if (!given || sscanf(given, "%d:%d", &fd, &pid) != 2 || pid != getpid()) {
        fd = memfd_create("farpage-stat", 0);
        if (ftruncate(fd, STAT_BYTES)) abort();
    }
    uint64_t *page = mmap(NULL, STAT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    for (int i = 0; i < VALUES; i++) page[2 + i] = i * 1000;
    page[FAULT_NS + 40] = 7;
    page[1] = getpid();
    page[0] = MAGIC;
    pthread_t thread;
    pthread_create(&thread, NULL, monitor, NULL);
}
"#;

struct Libraries {
    dir: TempDir,
    inert: PathBuf,
    fake: PathBuf,
}

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();

/// A static is never dropped.
extern "C" fn remove_libraries() {
    if let Some(libraries) = LIBRARIES.get() {
        let _ = std::fs::remove_dir_all(libraries.dir.path());
    }
}

fn libraries() -> &'static Libraries {
    LIBRARIES.get_or_init(|| {
        // SAFETY: a function that may be called when the process ends.
        unsafe { libc::atexit(remove_libraries) };
        let dir = public_tempdir();
        // SAFETY: Stat is made of u64 atomics; all-zero is valid.
        let stat: Box<farpage_ipc::stat::Stat> = Box::new(unsafe { std::mem::zeroed() });
        let version = concat!("-DVERSION=\"", env!("CARGO_PKG_VERSION"), "\"");
        let values = format!("-DVALUES={}", stat.values().len());
        let magic = format!("-DMAGIC={}ULL", farpage_ipc::stat::MAGIC);
        let bytes = format!("-DSTAT_BYTES={}", farpage_ipc::stat::STAT_BYTES);
        let faults = format!("-DFAULT_NS={}", std::mem::offset_of!(farpage_ipc::stat::Stat, fault_ns) / 8);
        let inert = cc(dir.path(), "inert.so", &format!("{NOTE}{INERT}"), &["-shared", "-fPIC", version]).unwrap();
        let flags = ["-shared", "-fPIC", "-pthread", version, &values, &magic, &bytes, &faults];
        let fake = cc(dir.path(), "fake.so", &format!("{FAKE}{NOTE}"), &flags).unwrap();
        Libraries { dir, inert, fake }
    })
}

/// A library in which no engine starts.
pub fn inert() -> &'static Path {
    &libraries().inert
}

/// A library that fakes an engine.
pub fn fake() -> &'static Path {
    &libraries().fake
}

/// What `cargo test` does not build, but `make unit` does, and says so.
fn built(package: &str, file: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let directory = exe.ancestors().nth(2).unwrap();
    if std::env::var_os("FARPAGE_BUILT").is_none() {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(directory.parent().unwrap());
        let profile = directory.file_name().unwrap().to_str().unwrap();
        cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(cargo.current_dir(root).status().unwrap().success(), "{package} cannot be built");
    }
    directory.join(file)
}

/// The real library.
pub fn preload() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("farpage-preload", "libfarpage_preload.so"))
}

/// The command `farpage-bench`.
pub fn bench() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("seed-bench", "farpage-bench"))
}

/// A directory that every user may enter.
pub fn public_tempdir() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir();
    dir.unwrap()
}

/// Compiles C; `Err` holds the compiler's words.
pub fn cc(dir: &Path, name: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let (input, output) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&input, source).unwrap();
    let out = Command::new("cc").args(["-O1", "-w"]).arg(&input).arg("-o").arg(&output).args(flags).output();
    let out = out.expect("cc is needed by these tests");
    if out.status.success() { Ok(output) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

/// Copies a file that will be executed, in another process: while this one has a file open for writing, a thread beside
/// us may fork, and until that child execs, executing the file fails with ETXTBSY.
pub fn install(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().unwrap().success());
}

/// Writes a file that will be executed.
pub fn executable(path: &Path, bytes: impl AsRef<[u8]>) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let draft = path.with_extension("draft");
    std::fs::write(&draft, bytes).unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
    install(&draft, path);
    path.to_path_buf()
}

/// The command with the inert library and a clean farpage environment.
pub fn farpage() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    for name in ["FARPAGE_CONF", "FARPAGE_UFFD_FD", "FARPAGE_STAT_FD", "FARPAGE_DISABLE", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.env("FARPAGE_PRELOAD", inert());
    command
}

/// `farpage run` with a budget; where this user may not have a userfaultfd, with `--force`.
pub fn run() -> Command {
    let mut command = farpage();
    command.args(["run", "--ram", "64M"]);
    if !works_here() {
        command.args(["--force", "-q"]);
    }
    command
}

/// `farpage run` is not refused for this user.
pub fn works_here() -> bool {
    farpage_run::probe::Probe::take(None).verdict().is_ok()
}

/// The tests run as root.
pub fn root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it and checks the status, an empty stdout and that stderr starts with `farpage: ` and names `part`.
#[track_caller]
pub fn refused(command: &mut Command, status: i32, part: &str) -> String {
    let out = command.output().unwrap();
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{command:?}: {error}");
    assert_eq!(text(&out.stdout), "", "{command:?}");
    assert!(error.starts_with("farpage: "), "{command:?}: {error}");
    assert!(error.contains(part), "{command:?}: {part:?} is not in: {error}");
    let first = error.lines().next().unwrap();
    assert!(!first.ends_with('.'), "{first}");
    error
}

/// Runs it and checks that it succeeds silently; answers stdout.
#[track_caller]
pub fn quiet(command: &mut Command) -> String {
    let out: Output = command.output().unwrap();
    assert_eq!(text(&out.stderr), "", "{command:?}");
    assert_eq!(out.status.code(), Some(0), "{command:?}");
    text(&out.stdout)
}

/// Why the kernel's side cannot be tested here, if it cannot.
pub fn obstacle_to_swap() -> Option<&'static str> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root");
    }
    if !Path::new("/sys/class/zram-control/hot_add").exists() {
        return Some("no zram");
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let memory = mounts.lines().any(|l| l.contains(" cgroup ") && l.contains("memory") || l.contains(" cgroup2 "));
    (!memory).then_some("no memory cgroup")
}

/// Longer than anything here takes on a busy machine, seconds: what is not so by then hangs.
const HANG: u64 = 300;

/// Waits for something that must come to pass.
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(HANG) {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not come to pass: {what}");
}
