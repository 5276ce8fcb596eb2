//! Calls on more than may be held, and what is held meanwhile.

use super::*;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 253) as u8).collect()
}

const LARGE: usize = 5 * MOST + 1234;

#[test]
fn a_file_takes_and_gives_all() {
    let memory = absent();
    let content = text(LARGE);
    let at = memory.take(&content);
    let mut file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::write(fd, at as *const _, LARGE) }), LARGE as i64);
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::pwrite(fd, at as *const _, LARGE, LARGE as i64) }), LARGE as i64);
    let mut seen = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut seen).unwrap();
    assert!(seen[..LARGE] == content && seen[LARGE..] == content);
    let to = memory.take(&vec![0; LARGE]);
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::pread(fd, to as *mut _, LARGE, 0) }), LARGE as i64);
    assert!(memory.content(to, LARGE) == content);
    // To the end of the file, and not beyond.
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::pread(fd, to as *mut _, LARGE, LARGE as i64 + 10) }), LARGE as i64 - 10);
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }), 2 * LARGE as i64);
    assert!(memory.is_free(at, LARGE) && memory.is_free(to, LARGE));
}

#[test]
fn vectors_go_on_in_the_middle_of_a_buffer() {
    let memory = absent();
    let content = text(LARGE);
    let at = memory.take(&content);
    let mut file = tempfile::tempfile().unwrap();
    let mut own = vec![7u8; 3000];
    let buffer = |base: usize, len| libc::iovec { iov_base: base as *mut _, iov_len: len };
    let cut = LARGE - 777;
    let list =
        [buffer(at, 100), buffer(own.as_ptr() as usize, 3000), buffer(at + 100, cut - 100), buffer(at + cut, 777)];
    // SAFETY: as above.
    let sum = LARGE as i64 + 3000;
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::writev(file.as_raw_fd(), list.as_ptr(), 4) }), sum);
    let mut seen = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut seen).unwrap();
    let expected = [&content[..100], &own[..], &content[100..]].concat();
    assert!(seen == expected);
    memory.content(at, LARGE);
    own.fill(0);
    // SAFETY: as above; all of it is read over.
    unsafe { std::ptr::write_bytes(at as *mut u8, 0, LARGE) };
    memory.drop(at, LARGE);
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::preadv(file.as_raw_fd(), list.as_ptr(), 4, 0) }), sum);
    assert!(memory.content(at, LARGE) == content && own.iter().all(|byte| *byte == 7));
    // Many small ones.
    let small: Vec<_> = (0..1024).map(|i| buffer(at + i * 100, 100)).collect();
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::pwritev(file.as_raw_fd(), small.as_ptr(), 1024, 0) }), 102_400);
    assert!(memory.is_free(at, LARGE));
}

/// The quick look at the sites: arrays of all lengths, of which none, the first or the last buffer is ours; and such as
/// are none, which are for the kernel.
#[test]
fn arrays_of_any_length_are_looked_at() {
    let memory = absent();
    let at = memory.take(&[b'a'; 8]);
    let out = tempfile::tempfile().unwrap();
    let own = [b'o'; 8];
    for count in [0usize, 1, 2, 3, 63, 64, 65, 200, 1024] {
        for ours in [None, Some(0), count.checked_sub(1)] {
            let place = |i: usize| if Some(i) == ours { at } else { own.as_ptr() as usize };
            let list: Vec<_> = (0..count).map(|i| libc::iovec { iov_base: place(i) as *mut _, iov_len: 1 }).collect();
            let fd = out.as_raw_fd();
            // SAFETY: this test's memory.
            assert_eq!(good(unsafe { libc::pwritev(fd, list.as_ptr(), count as i32, 0) }), count as i64);
            memory.drop(at, 8);
            let (left, right) = std::os::unix::net::UnixDatagram::pair().unwrap();
            // SAFETY: zero bits are a value; the list lives as long.
            let sent = unsafe {
                let mut header: libc::msghdr = std::mem::zeroed();
                (header.msg_iov, header.msg_iovlen) = (list.as_ptr().cast_mut(), count);
                libc::sendmsg(left.as_raw_fd(), &header, 0)
            };
            let mut seen = [0; 2000];
            assert_eq!((good(sent), right.recv(&mut seen).unwrap()), (count as i64, count));
            assert!((0..count).all(|i| seen[i] == if Some(i) == ours { b'a' } else { b'o' }), "{count} {ours:?}");
            memory.drop(at, 8);
        }
    }
    for array in [0usize, 8, 1 << 48, usize::MAX - 64] {
        // SAFETY: the kernel refuses it.
        let result = unsafe { libc::writev(out.as_raw_fd(), array as *const _, 3) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((result, errno), (-1, Some(libc::EFAULT)), "{array:#x}");
    }
}

#[test]
fn what_is_no_file_gives_what_it_has() {
    let memory = absent();
    let to = memory.take(&vec![0; LARGE]);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(&text(MOST + 10)).unwrap();
    // A second piece would wait for ever.
    // SAFETY: this test's memory.
    let got = good(unsafe { libc::read(theirs.as_raw_fd(), to as *mut _, LARGE) }) as usize;
    assert!((1..=MOST + 10).contains(&got), "{got}");
    assert!(memory.content(to, got) == text(MOST + 10)[..got]);
    // With this flag it is to wait.
    let from = std::thread::spawn(move || ours.write_all(&text(LARGE)).map(|()| ours));
    let rest = MOST + 10 - got;
    let flags = libc::MSG_WAITALL;
    // SAFETY: this test's memory.
    let all = unsafe { libc::recv(theirs.as_raw_fd(), to as *mut _, rest + LARGE, flags) };
    assert_eq!(good(all) as usize, rest + LARGE);
    assert!(memory.content(to, rest + LARGE)[rest..] == text(LARGE));
    from.join().unwrap().unwrap();
}

#[test]
fn a_pipe_takes_all() {
    let memory = absent();
    let at = memory.take(&text(LARGE));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let seen = std::thread::spawn(move || {
        let mut seen = Vec::new();
        reader.read_to_end(&mut seen).map(|_| seen)
    });
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::write(writer.as_raw_fd(), at as *const _, LARGE) }), LARGE as i64);
    drop(writer);
    assert!(seen.join().unwrap().unwrap() == text(LARGE));
}

#[test]
fn a_datagram_is_not_cut() {
    let memory = absent();
    let len = 2 * MOST + 100;
    let at = memory.take(&text(len));
    let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::send(a.as_raw_fd(), at as *const _, len, 0) }), len as i64);
    let to = memory.take(&vec![0; len]);
    // SAFETY: this test's memory.
    assert_eq!(good(unsafe { libc::recv(b.as_raw_fd(), to as *mut _, len, 0) }), len as i64);
    assert!(memory.content(to, len) == text(len) && memory.is_free(at, len) && memory.is_free(to, len));
}

/// A handler's calls do not let go of what the call that it interrupted holds; and that of a call that was left is let
/// go of by the next.
#[test]
fn calls_in_handlers_hold_for_themselves() {
    let memory = absent();
    let (outer, inner) = (memory.take(&[1; 100]), memory.take(&[2; 100]));
    static INNER: AtomicUsize = AtomicUsize::new(0);
    static FILE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn on_signal(_: i32) {
        let (fd, at) = (FILE.load(Ordering::SeqCst) as i32, INNER.load(Ordering::SeqCst));
        // SAFETY: the test's memory.
        assert_eq!(unsafe { libc::pwrite(fd, at as *const _, 100, 0) }, 100);
    }
    let mut file = tempfile::tempfile().unwrap();
    INNER.store(inner, Ordering::SeqCst);
    FILE.store(file.as_raw_fd() as usize, Ordering::SeqCst);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: a handler of this type; this thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(_) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
            tell.send(libc::pthread_self()).unwrap();
        }
        // SAFETY: the test's memory.
        unsafe { libc::read(reader.as_raw_fd(), outer as *mut _, 100) }
    });
    let id = told.recv().unwrap();
    // Until it waits.
    while memory.is_free(outer, 100) {
        std::thread::yield_now();
    }
    // SAFETY: the thread waits until something is written.
    unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
    let mut seen = Vec::new();
    while seen.is_empty() {
        file.rewind().unwrap();
        file.read_to_end(&mut seen).unwrap();
    }
    while !memory.is_free(inner, 100) {
        std::thread::yield_now();
    }
    assert!(seen == [2; 100] && !memory.is_free(outer, 100));
    writer.write_all(&[9; 100]).unwrap();
    assert_eq!(thread.join().unwrap(), 100);
    assert!(memory.is_free(outer, 100) && memory.content(outer, 100) == [9; 100]);
}
