//! What `farpage run` refuses before the program starts: status 125, 126 or 127, one sentence, nothing on stdout.

mod common;

use common::{cc, farpage, public_tempdir, quiet, refused, root, run, text, works_here};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NOBODY: u32 = 65534;

#[test]
fn programs_that_are_not_there() {
    refused(run().arg("no-such-program-here"), 127, "cannot run no-such-program-here: not found");
    refused(run().arg("/no/such/program"), 127, "cannot run /no/such/program: no such file");
    refused(run().arg(""), 127, "cannot run \"\"");
    refused(run().arg("/etc/passwd"), 126, "ermission denied");
    refused(run().arg("/tmp"), 126, "ermission denied");
    refused(run().env("PATH", "/nonexistent").arg("sh"), 127, "not found in PATH");
}

#[test]
fn usage_errors_are_125_under_run_only() {
    for args in [&["run"][..], &["run", "--bogus", "true"], &["run", "--ram"], &["run", "-q", "-v", "true"]] {
        let out = farpage().args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(125), "{args:?}");
        assert_eq!(text(&out.stdout), "");
        assert!(text(&out.stderr).starts_with("error: "), "{args:?}: {}", text(&out.stderr));
    }
    for args in [&["stat", "x"][..], &["bogus"], &["stat", "--watch=0"], &["stat", "--watch", "86401"]] {
        assert_eq!(farpage().args(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn who_writes_ram_wrong_gets_a_tip() {
    let error = |args: &[&str]| text(&farpage().args(args).output().unwrap().stderr);
    let tip = "tip: a similar argument exists: '--ram'";
    for wrong in ["-r", "--rma", "--arm=64M"] {
        for command in [&["run"][..], &["attach", "1"], &["set", "1"], &["bench", "program"]] {
            let said = error(&[command, &[wrong, "64M", "true"]].concat());
            assert!(said.contains(tip), "{command:?} {wrong}: {said}");
        }
        // It has none.
        assert!(!error(&["stat", wrong]).contains("ram"), "stat {wrong}");
    }
    assert!(!error(&["run", "--bogus", "true"]).contains("--ram'"));
}

#[test]
fn sizes() {
    for text in ["", "x", "0", "-1", "12Q", "1..2", "101%", "99999999999T"] {
        refused(farpage().arg("run").arg(format!("--ram={text}")).arg("true"), 125, &format!("size {text:?}"));
    }
    let error = refused(farpage().args(["run", "--ram", "1M", "true"]), 125, "below the minimum of 16.0 MiB");
    assert!(error.contains("help: give at least --ram 16M"), "{error}");
}

#[test]
fn devices() {
    for (spec, part) in [
        ("tape", "unknown kind"),
        ("zram,alg=gzip", "gzip"),
        ("zram,color=red", "unknown option \"color=red\""),
        ("zram,size=0", "size \"0\""),
        ("zram,prio=x", "priority \"x\""),
        ("zram,size=100", "below the minimum"),
        ("file:/var/tmp,size=4K", "below the minimum"),
        ("ram,size=1G", "would leave no room for pages"),
        ("file:/var/tmp/no-such-dir/", "/var/tmp/no-such-dir/: cannot look at it: no such file"),
        ("file:/etc/passwd", "it holds something that is not farpage's"),
        ("file:", "no path"),
        ("file:/var/tmp,alg=lz4", "unknown option \"alg=lz4\""),
        ("file:/no/such/dir/file", "/no/such/dir/file: cannot look at it: no such file"),
        ("file:/proc/no-such-file", "file:/proc/no-such-file: cannot create files there"),
        ("file:/dev/null", "neither a directory, a regular file nor a block device"),
    ] {
        refused(run().args(["--swap", spec, "true"]), 125, part);
    }
    assert_ne!(std::fs::metadata("/etc/passwd").unwrap().len(), 0, "looked at, not taken");
    let error = refused(run().args(["--trace", "/no/such/dir/trace", "true"]), 125, "cannot make /no/such/dir/trace");
    assert!(error.contains("help: "), "{error}");
    // A link that leads nowhere is not followed, and nothing is made before all else is known to be right.
    let dir = public_tempdir();
    let at = |name: &str| format!("file:{}/{name}", dir.path().display());
    std::os::unix::fs::symlink(dir.path().join("target"), dir.path().join("link")).unwrap();
    refused(run().args(["--swap", &at("link"), "true"]), 125, "/link: cannot look at it: no such file");
    refused(run().args(["--swap", &at("new"), "--swap", &at("no/new"), "true"]), 125, "/no/new: cannot look at it");
    refused(run().args(["--swap", &at("new"), "no-such-program-here"]), 127, "not found");
    refused(run().args(["--swap", &at("new"), "--stats-json", "/no/such/dir/x", "true"]), 125, "--stats-json");
    refused(run().args(["--swap", &at("semi;colon"), "true"]), 125, "semicolon");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was made");
    let dir = tempfile::Builder::new().prefix("semi;colon").tempdir().unwrap();
    refused(run().arg("--swap").arg(format!("file:{}", dir.path().display())).arg("true"), 125, "semicolon");
}

#[test]
fn relative_device_paths_become_absolute() {
    let dir = public_tempdir();
    let real = dir.path().canonicalize().unwrap();
    let out = quiet(run().current_dir(&real).args(["--swap", "file:.,prio=3", "env"]));
    assert!(out.contains(&format!("swap:file:{},prio=3\n", real.display())), "{out}");
}

/// As an empty file that the user made: it stands for its directory, and stays as it is.
#[test]
fn a_swap_file_that_does_not_exist_is_made() {
    let dir = public_tempdir();
    let real = dir.path().canonicalize().unwrap();
    for (spec, size) in [("file:a", ""), ("file:b,size=1M", ",size=1048576")] {
        let mut command = run();
        // SAFETY: umask is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::umask(0);
                Ok(())
            })
        };
        // Both devices name it, and only the first finds none.
        command.current_dir(&real).args(["--swap", spec, "--swap", spec, "env"]);
        let file = real.join(&spec[5..6]);
        assert!(quiet(&mut command).contains(&format!("swap:file:{}{size};", file.display())));
        let metadata = std::fs::metadata(&file).unwrap();
        assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (0, 0o600), "{spec}");
    }
    assert_eq!(std::fs::read_dir(&real).unwrap().count(), 2);
}

#[test]
fn preload_library() {
    let missing = refused(run().env("FARPAGE_PRELOAD", "/no/lib.so").arg("true"), 125, "no file /no/lib.so");
    assert!(missing.contains("help: set FARPAGE_PRELOAD"), "{missing}");
    refused(run().env("FARPAGE_PRELOAD", "/etc/passwd").arg("true"), 125, "not a shared library");
    for name in ["a b", "a:b"] {
        let dir = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        let copy = dir.path().join("l.so");
        std::fs::copy(common::inert(), &copy).unwrap();
        refused(run().env("FARPAGE_PRELOAD", &copy).arg("true"), 125, "LD_PRELOAD cannot carry");
    }
    // Next to the command, in ../lib/farpage, and in itself.
    let dir = public_tempdir();
    std::fs::create_dir_all(dir.path().join("bin")).unwrap();
    let exe = dir.path().join("bin/farpage");
    common::install(env!("CARGO_BIN_EXE_farpage"), &exe);
    let command = || {
        let mut command = Command::new(&exe);
        command.args(["run", "--ram", "64M", "--force", "-q", "env"]).env_remove("LD_PRELOAD");
        command
    };
    if cfg!(feature = "embed") {
        // Root would write to /var/cache.
        let cache = dir.path().join("cache");
        std::fs::create_dir(&cache).unwrap();
        let mut command = command();
        command.env("XDG_CACHE_HOME", &cache);
        if common::root() {
            std::os::unix::fs::chown(&cache, Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        }
        assert!(quiet(&mut command).contains(&format!("LD_PRELOAD={}/farpage/", cache.display())));
    } else {
        refused(&mut command(), 125, &format!("no file {}/bin/libfarpage_preload.so, ", dir.path().display()));
    }
    std::fs::create_dir_all(dir.path().join("lib/farpage")).unwrap();
    for place in ["lib/farpage", "bin"] {
        let library = dir.path().join(place).join("libfarpage_preload.so");
        std::fs::copy(common::inert(), &library).unwrap();
        assert!(quiet(&mut command()).contains(&format!("LD_PRELOAD={}\n", library.display())), "{place}");
    }
}

const TRUE: &str = "int main(void) { return 0; }";

/// `/bin/true`'s bytes with some changed.
fn patched(dir: &Path, at: usize, bytes: &[u8]) -> PathBuf {
    let mut elf = std::fs::read("/bin/true").unwrap();
    elf[at..at + bytes.len()].copy_from_slice(bytes);
    common::executable(&dir.join(format!("patched{at}")), elf)
}

#[test]
fn static_programs() {
    let dir = public_tempdir();
    for flag in ["-static", "-static-pie"] {
        match cc(dir.path(), &flag[1..], TRUE, &[flag]) {
            Err(why) => println!("skipped {flag}: no static libc: {}", why.lines().next().unwrap_or_default()),
            Ok(program) => {
                refused(run_unforced().arg(&program), 125, "it is statically linked");
                let out = farpage().args(["run", "--ram", "64M", "--force"]).arg(&program).output().unwrap();
                assert_eq!(out.status.code(), Some(0));
                assert!(text(&out.stderr).contains("going on because of --force"), "{}", text(&out.stderr));
                quiet(farpage().args(["run", "--ram", "64M", "--force", "-q"]).arg(&program));
            }
        }
    }
}

/// Refusals of programs come after the probe, so they can only be seen where the probe passes.
fn run_unforced() -> Command {
    let mut command = farpage();
    command.args(["run", "--ram", "64M"]);
    command
}

#[test]
fn other_machines_and_loaders() {
    if !works_here() {
        println!("skipped: farpage run does not work for this user");
        return;
    }
    let dir = public_tempdir();
    refused(run_unforced().arg(patched(dir.path(), 18, &183u16.to_le_bytes())), 125, "a 64-bit Arm program");
    refused(run_unforced().arg(patched(dir.path(), 4, &[1])), 125, "x32");
    let musl = cc(dir.path(), "musl", TRUE, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]).unwrap();
    refused(run_unforced().arg(&musl), 125, "linked against musl");
    let script = common::executable(&dir.path().join("script"), format!("#!{}\n", musl.display()));
    refused(run_unforced().arg(&script), 125, "its interpreter");
    let gone = cc(dir.path(), "gone", TRUE, &["-Wl,--dynamic-linker=/no/ld.so"]).unwrap();
    refused(run_unforced().arg(&gone), 127, "its loader /no/ld.so does not exist");
}

#[test]
fn limits_too_low_for_the_engine() {
    if !works_here() {
        println!("skipped: farpage run does not work for this user");
        return;
    }
    let limited = |resource, to: u64| {
        let mut command = run_unforced();
        command.arg("true");
        // SAFETY: setrlimit is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
                if libc::setrlimit(resource, &limit) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
        command
    };
    for (resource, to, says, help) in [
        (
            libc::RLIMIT_DATA,
            8 << 20,
            "the limit on private memory (ulimit -d) is 8.0 MiB; farpage needs",
            "ulimit -d unlimited",
        ),
        (libc::RLIMIT_NOFILE, 16, "the limit on open files (ulimit -n) is 16; farpage needs", "ulimit -n 1024"),
    ] {
        let error = refused(&mut limited(resource, to), 125, says);
        assert!(error.contains(help), "{error}");
    }
}

#[test]
fn setuid_programs() {
    if !root() {
        println!("skipped: only root can make setuid files of another user");
        return;
    }
    let dir = public_tempdir();
    let copy = |name: &str, mode: u32, owner: u32, group: u32| {
        let path = dir.path().join(name);
        common::install("/bin/true", &path);
        std::os::unix::fs::chown(&path, Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    refused(run_unforced().arg(copy("suid", 0o4755, 65534, 0)), 125, "it is setuid");
    refused(run_unforced().arg(copy("sgid", 0o2755, 0, 65534)), 125, "it is setgid");
    quiet(run_unforced().arg(copy("own", 0o6755, 0, 0)));
    refused(run_unforced().args(["--user", "nobody"]).arg(dir.path().join("own")), 125, "it is setuid");
}

#[test]
fn files_with_capabilities() {
    if !root() {
        println!("skipped: only root can set file capabilities");
        return;
    }
    let dir = public_tempdir();
    let path = dir.path().join("caps");
    common::install("/bin/true", &path);
    // struct vfs_cap_data, revision 2, effective: CAP_NET_RAW.
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(why) = rustix::fs::setxattr(&path, "security.capability", &value, flags) {
        println!("skipped: this file system takes no capabilities: {why}");
        return;
    }
    quiet(run_unforced().arg(&path));
    refused(run_unforced().args(["--user", "nobody"]).arg(&path), 125, "file capabilities");
}

#[test]
fn stats_file_is_checked_first() {
    refused(run().args(["--stats-json", "/no/such/dir/x", "true"]), 125, "--stats-json: cannot write /no/such/dir/x");
    refused(run().args(["--stats-json", "/tmp", "true"]), 125, "directory");
}
