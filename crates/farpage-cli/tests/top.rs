//! `farpage top` where it cannot draw, and where it panics. What it looks like: beside the source, and
//! `tests/situations/test_top.py`.

#![cfg(feature = "top")]

mod common;

use common::{farpage, refused, text};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Output, Stdio};

/// A terminal of 80 columns and 24 lines: the side that is looked at, and that of programs.
fn terminal() -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: two numbers to be written, a size to be read; the rest may be null.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, name, modes, &size) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: new descriptors, which are this test's.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// The modes of a terminal, as stty prints them.
fn modes(terminal: &OwnedFd) -> String {
    let out = Command::new("stty").arg("-g").stdin(terminal.try_clone().unwrap()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

/// Runs it on a terminal of this kind; its status, what the terminal was sent, and whether its modes are as before.
fn on_terminal(kind: &str, variables: &[(&str, &str)]) -> (Output, String, bool) {
    let (mut ours, theirs) = terminal();
    let before = modes(&theirs);
    let mut command = farpage();
    command.arg("top").env("TERM", kind).envs(variables.iter().copied());
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(Stdio::piped());
    let out = command.spawn().unwrap().wait_with_output().unwrap();
    let same = modes(&theirs) == before;
    drop((command, theirs));
    let mut sent = Vec::new();
    // When all have closed their side, that is an error.
    let _ = ours.read_to_end(&mut sent);
    assert!(ours.as_raw_fd() >= 0);
    (out, text(&sent), same)
}

#[test]
fn terminals_that_cannot_be_drawn_on() {
    refused(farpage().arg("top").stdin(Stdio::null()), 1, "standard output, which is no terminal");
    for kind in ["dumb", ""] {
        let (out, sent, same) = on_terminal(kind, &[]);
        let said = text(&out.stderr);
        assert_eq!((out.status.code(), sent.as_str(), same), (Some(1), "", true), "{said}");
        let words = format!("a terminal without cursor movement (TERM={kind}): use    farpage stat --watch\n");
        assert_eq!(said, format!("farpage: cannot draw on {words}"));
    }
    for interval in ["0", "-1", "nan", "x"] {
        let status = farpage().arg("top").arg(format!("--interval={interval}")).output().unwrap().status;
        assert_eq!(status.code(), Some(2), "{interval}");
    }
}

#[test]
fn a_panic_leaves_the_terminal_as_it_was() {
    if !cfg!(debug_assertions) {
        println!("skipped: only a build with assertions panics when it is asked to");
        return;
    }
    let (out, sent, same) = on_terminal("xterm", &[("FARPAGE_TOP_PANICS", "1")]);
    assert!(!out.status.success() && text(&out.stderr).contains("asked to panic"), "{out:?}");
    let at = |part: &str| sent.rfind(part).unwrap_or_else(|| panic!("{part:?} is not in {sent:?}"));
    let (taken, drawn, left, shown) = (at("\x1b[?1049h"), at("farpage top"), at("\x1b[?1049l"), at("\x1b[?25h"));
    assert!(taken < drawn && drawn < left && left < shown && same, "{sent:?}");
}
