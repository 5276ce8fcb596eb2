//! Calls of many kinds, each once with ordinary memory and once with memory that is absent: the answers are the same.

use super::*;
use linux_raw_sys::general as n;
use std::io::Write;
use std::os::fd::AsRawFd;

/// An argument.
enum A {
    /// A number.
    N(usize),
    /// Memory with this content.
    M(Vec<u8>),
    /// Memory with addresses of other memory in it: where, and what is there.
    P(Vec<u8>, Vec<(usize, Vec<u8>)>),
}
use A::{M, N, P};

fn path(text: &str) -> A {
    M([text.as_bytes(), &[0]].concat())
}

fn zeros(len: usize) -> A {
    M(vec![0; len])
}

fn words(words: &[u64]) -> A {
    M(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// Makes the call with its memory where `place` puts it: the answer, and all that is there afterwards.
fn make(nr: u32, args: &[A], place: &mut dyn FnMut(&[u8]) -> usize) -> (i64, i32, Vec<(usize, usize)>) {
    let mut placed = Vec::new();
    let mut put = |bytes: &[u8]| {
        let at = place(bytes);
        placed.push((at, bytes.len()));
        at
    };
    let mut numbers = [0usize; 6];
    for (number, arg) in numbers.iter_mut().zip(args) {
        *number = match arg {
            N(value) => *value,
            M(bytes) => put(bytes),
            P(bytes, others) => {
                let mut bytes = bytes.clone();
                for (at, other) in others {
                    bytes[*at..at + 8].copy_from_slice(&put(other).to_ne_bytes());
                }
                put(&bytes)
            }
        };
    }
    let [a, b, c, d, e, f] = numbers;
    // SAFETY: a call of this list, with memory as it needs it.
    let result = unsafe { libc::syscall(nr.into(), a, b, c, d, e, f) };
    let errno = if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 };
    (result, errno, placed)
}

#[test]
fn calls_answer_as_they_do_with_ordinary_memory() {
    let memory = absent();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![b'x'; 9000]).unwrap();
    let (name, name_of_dir) = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    let open = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let fd = open.as_raw_fd() as usize;
    let cwd = libc::AT_FDCWD as usize;
    let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let (left, right) = (a.as_raw_fd() as usize, b.as_raw_fd() as usize);
    // SAFETY: new descriptors, closed with the process.
    let (poll, timer) = unsafe { (libc::epoll_create1(0), libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)) };
    let (poll, timer) = (good(poll) as usize, good(timer) as usize);
    let vector = |len: usize| {
        let mut bytes = [0u64, len as u64].map(u64::to_ne_bytes).concat();
        bytes.extend_from_slice(&[0u64, 10].map(u64::to_ne_bytes).concat());
        P(bytes, vec![(0, vec![b'v'; len]), (16, vec![b'w'; 10])])
    };
    let me = std::process::id() as usize;
    let calls: Vec<(&str, u32, Vec<A>)> = vec![
        ("pread64", n::__NR_pread64, vec![N(fd), zeros(8000), N(8000), N(3)]),
        ("pwrite64", n::__NR_pwrite64, vec![N(fd), M(vec![b'y'; 8000]), N(8000), N(3)]),
        ("preadv", n::__NR_preadv, vec![N(fd), vector(5000), N(2), N(0)]),
        ("pwritev", n::__NR_pwritev, vec![N(fd), vector(5000), N(2), N(0)]),
        ("pwritev2", n::__NR_pwritev2, vec![N(fd), vector(5000), N(2), N(0), N(0), N(0)]),
        ("open", n::__NR_open, vec![path(name), N(0)]),
        ("openat", n::__NR_openat, vec![N(cwd), path(name), N(0)]),
        ("openat2", n::__NR_openat2, vec![N(cwd), path(name), words(&[0, 0, 0]), N(24)]),
        ("open of what is not there", n::__NR_open, vec![path("/not/there"), N(0)]),
        ("access", n::__NR_access, vec![path(name), N(4)]),
        ("faccessat", n::__NR_faccessat, vec![N(cwd), path(name), N(4)]),
        ("stat", n::__NR_stat, vec![path(name), zeros(144)]),
        ("lstat", n::__NR_lstat, vec![path(name), zeros(144)]),
        ("fstat", n::__NR_fstat, vec![N(fd), zeros(144)]),
        ("newfstatat", n::__NR_newfstatat, vec![N(cwd), path(name), zeros(144), N(0)]),
        ("statx", n::__NR_statx, vec![N(cwd), path(name), N(0), N(0x7ff), zeros(256)]),
        ("statfs", n::__NR_statfs, vec![path("/proc"), zeros(120)]),
        ("fstatfs", n::__NR_fstatfs, vec![N(fd), zeros(120)]),
        ("readlink", n::__NR_readlink, vec![path("/proc/self/exe"), zeros(5000), N(5000)]),
        ("readlinkat", n::__NR_readlinkat, vec![N(cwd), path("/proc/self/exe"), zeros(500), N(500)]),
        ("getcwd", n::__NR_getcwd, vec![zeros(4096), N(4096)]),
        ("truncate", n::__NR_truncate, vec![path(name), N(9000)]),
        ("chmod", n::__NR_chmod, vec![path(name), N(0o600)]),
        ("utimensat", n::__NR_utimensat, vec![N(cwd), path(name), words(&[1, 0, 2, 0]), N(0)]),
        ("getxattr", n::__NR_getxattr, vec![path(name), path("user.none"), zeros(100), N(100)]),
        ("listxattr", n::__NR_listxattr, vec![path(name), zeros(100), N(100)]),
        ("mkdir", n::__NR_mkdir, vec![path(name_of_dir), N(0o700)]),
        ("rename", n::__NR_rename, vec![path("/not/there"), path("/not/here")]),
        ("link", n::__NR_link, vec![path("/not/there"), path("/not/here")]),
        ("symlinkat", n::__NR_symlinkat, vec![path("/not/there"), N(cwd), path("/not/here/either")]),
        ("fcntl", n::__NR_fcntl, vec![N(fd), N(libc::F_GETLK as usize), words(&[0, 0, 0, 0])]),
        ("ioctl", n::__NR_ioctl, vec![N(right), N(libc::FIONREAD as usize), zeros(4)]),
        ("poll", n::__NR_poll, vec![words(&[left as u64 | 4 << 32]), N(1), N(0)]),
        ("ppoll", n::__NR_ppoll, vec![words(&[left as u64 | 4 << 32]), N(1), words(&[0, 0]), words(&[0]), N(8)]),
        ("select", n::__NR_select, vec![N(64), zeros(8), zeros(8), zeros(8), words(&[0, 0])]),
        ("pselect6", n::__NR_pselect6, {
            let mask = P([0u64, 8].map(u64::to_ne_bytes).concat(), vec![(0, vec![0; 8])]);
            vec![N(64), zeros(8), zeros(8), zeros(8), words(&[0, 0]), mask]
        }),
        ("epoll_ctl", n::__NR_epoll_ctl, vec![N(poll), N(3), N(timer), zeros(12)]),
        ("epoll_wait", n::__NR_epoll_wait, vec![N(poll), zeros(120), N(10), N(0)]),
        ("epoll_pwait2", n::__NR_epoll_pwait2, vec![N(poll), zeros(120), N(10), words(&[0, 0]), words(&[0]), N(8)]),
        ("timerfd_settime", n::__NR_timerfd_settime, vec![N(timer), N(0), words(&[0, 0, 9999, 0]), zeros(32)]),
        ("timerfd_gettime", n::__NR_timerfd_gettime, vec![N(timer), zeros(32)]),
        ("pipe2", n::__NR_pipe2, vec![zeros(8), N(libc::O_CLOEXEC as usize)]),
        ("socketpair", n::__NR_socketpair, vec![N(1), N(2), N(0), zeros(8)]),
        ("getsockname", n::__NR_getsockname, vec![N(left), zeros(110), M(110u32.to_ne_bytes().to_vec())]),
        ("getsockopt", n::__NR_getsockopt, vec![N(left), N(1), N(3), zeros(4), M(4u32.to_ne_bytes().to_vec())]),
        ("setsockopt", n::__NR_setsockopt, vec![N(left), N(1), N(2), M(vec![1, 0, 0, 0]), N(4)]),
        ("bind", n::__NR_bind, vec![N(left), M(vec![9; 16]), N(16)]),
        ("connect", n::__NR_connect, vec![N(left), M(vec![9; 16]), N(16)]),
        ("sendto", n::__NR_sendto, vec![N(left), M(vec![5; 6000]), N(6000), N(0), N(0), N(0)]),
        ("recvfrom", n::__NR_recvfrom, {
            vec![N(right), zeros(6000), N(6000), N(0), zeros(110), M(110u32.to_ne_bytes().to_vec())]
        }),
        ("rt_sigaction", n::__NR_rt_sigaction, vec![N(10), N(0), zeros(32), N(8)]),
        ("rt_sigprocmask", n::__NR_rt_sigprocmask, vec![N(0), words(&[0]), zeros(8), N(8)]),
        ("rt_sigpending", n::__NR_rt_sigpending, vec![zeros(8), N(8)]),
        ("rt_sigtimedwait", n::__NR_rt_sigtimedwait, vec![words(&[512]), zeros(128), words(&[0, 0]), N(8)]),
        ("sigaltstack", n::__NR_sigaltstack, vec![N(0), zeros(24)]),
        ("nanosleep", n::__NR_nanosleep, vec![words(&[0, 1]), zeros(16)]),
        ("clock_nanosleep", n::__NR_clock_nanosleep, vec![N(1), N(0), words(&[0, 1]), zeros(16)]),
        ("clock_gettime", n::__NR_clock_gettime, vec![N(1), zeros(16)]),
        ("clock_getres", n::__NR_clock_getres, vec![N(1), zeros(16)]),
        ("gettimeofday", n::__NR_gettimeofday, vec![zeros(16), zeros(8)]),
        ("times", n::__NR_times, vec![zeros(32)]),
        ("getitimer", n::__NR_getitimer, vec![N(2), zeros(32)]),
        ("getrusage", n::__NR_getrusage, vec![N(0), zeros(144)]),
        ("prlimit64", n::__NR_prlimit64, vec![N(0), N(7), N(0), zeros(16)]),
        ("wait4", n::__NR_wait4, vec![N(me), zeros(4), N(1), zeros(144)]),
        ("getgroups", n::__NR_getgroups, vec![N(1024), zeros(4096)]),
        ("getresuid", n::__NR_getresuid, vec![zeros(4), zeros(4), zeros(4)]),
        ("capget", n::__NR_capget, vec![words(&[0x2008_0522]), zeros(24)]),
        ("sched_getparam", n::__NR_sched_getparam, vec![N(0), zeros(4)]),
        ("sched_getaffinity", n::__NR_sched_getaffinity, vec![N(0), N(128), zeros(128)]),
        ("sched_getattr", n::__NR_sched_getattr, vec![N(0), zeros(56), N(56), N(0)]),
        ("getcpu", n::__NR_getcpu, vec![zeros(4), zeros(4)]),
        ("prctl", n::__NR_prctl, vec![N(16), zeros(16)]),
        ("uname", n::__NR_uname, vec![zeros(390)]),
        ("sysinfo", n::__NR_sysinfo, vec![zeros(112)]),
        ("getrandom", n::__NR_getrandom, vec![zeros(6000), N(6000), N(0)]),
        ("mincore", n::__NR_mincore, vec![N(0), N(0), zeros(8)]),
        ("futex", n::__NR_futex, vec![zeros(4), N(128), N(1), words(&[0, 1])]),
        ("semop", n::__NR_semop, vec![N(usize::MAX), zeros(6), N(1)]),
        ("msgsnd", n::__NR_msgsnd, vec![N(usize::MAX), words(&[1, 1]), N(8), N(0)]),
        ("mq_open", n::__NR_mq_open, vec![path("farpage-none"), N(0), N(0), words(&[0; 8])]),
        ("mq_unlink", n::__NR_mq_unlink, vec![path("farpage-none")]),
        ("memfd_create", n::__NR_memfd_create, vec![path("name"), N(1)]),
        ("inotify_add_watch", n::__NR_inotify_add_watch, vec![N(fd), path(name), N(1)]),
        ("process_vm_readv", n::__NR_process_vm_readv, vec![N(me), vector(5000), N(2), vector(5000), N(2), N(0)]),
        ("io_setup", n::__NR_io_setup, vec![N(1), zeros(8)]),
        ("execve", n::__NR_execve, {
            let arguments = || P(vec![0; 16], vec![(0, b"argument\0".to_vec())]);
            vec![path("/not/there"), arguments(), arguments()]
        }),
        ("add_key", n::__NR_add_key, vec![path("none"), path("none"), zeros(8), N(8), N(0)]),
        ("bpf", n::__NR_bpf, vec![N(999), zeros(64), N(64)]),
        ("perf_event_open", n::__NR_perf_event_open, vec![zeros(128), N(0), N(usize::MAX), N(usize::MAX), N(0)]),
        ("landlock_create_ruleset", n::__NR_landlock_create_ruleset, vec![words(&[1]), N(8), N(0)]),
        ("cachestat", n::__NR_cachestat, vec![N(fd), words(&[0, 4096]), zeros(40), N(0)]),
    ];
    let random =
        ["getrandom", "clock_gettime", "gettimeofday", "times", "getrusage", "sysinfo", "getcpu", "sched_getattr"];
    let mut wrong = Vec::new();
    for (name, nr, args) in &calls {
        let mut ordinary: Vec<Box<[u8]>> = Vec::new();
        let mut beside = |bytes: &[u8]| {
            let mut own: Box<[u8]> = bytes.into();
            let at = own.as_mut_ptr() as usize;
            ordinary.push(own);
            at
        };
        let (plain, plain_errno, there) = make(*nr, args, &mut beside);
        let (ours, errno, here) = make(*nr, args, &mut |bytes| memory.take(bytes));
        if errno != plain_errno || errno == libc::EFAULT {
            wrong.push(format!("{name}: errno {errno}, with ordinary memory {plain_errno}"));
        }
        // Descriptors and numbers of things are new ones each time.
        let is_new = matches!(*name, "times" | "openat2" | "memfd_create" | "landlock_create_ruleset")
            || name.starts_with("open");
        if ours != plain && !(is_new && ours >= 0) {
            wrong.push(format!("{name}: {ours}, with ordinary memory {plain}"));
        }
        for ((at, len), (other, _)) in there.into_iter().zip(here) {
            // SAFETY: what was placed above.
            let plain = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
            let seen = memory.content(other, len);
            // One that does not return here is let go of by the next call of this thread.
            assert!(*name == "execve" || memory.is_free(other, len), "{name} is still held");
            let differs = ["pipe2", "socketpair", "io_setup", "fstat", "timerfd_gettime", "timerfd_settime", "wait4"];
            let pointers = args.iter().any(|arg| matches!(arg, P(..)));
            let times = name.contains("stat") || name.contains("epoll");
            let may_differ = random.contains(name) || differs.contains(name) || pointers || times;
            if plain != seen && !may_differ {
                wrong.push(format!("{name}: what is there differs"));
            }
        }
    }
    assert!(calls.len() > 80 && wrong.is_empty(), "{wrong:#?}");
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 250) as u8).collect()
}

#[test]
fn messages_with_headers_buffers_and_descriptors() {
    let memory = absent();
    let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let text = message(9000);
    let (from, to) = (memory.take(&text), memory.take(&vec![0; 9000]));
    for (fd, at, nr) in [(a.as_raw_fd(), from, n::__NR_sendmsg), (b.as_raw_fd(), to, n::__NR_recvmsg)] {
        let buffers = [[at as u64, 4000], [at as u64 + 4000, 5000]];
        let buffers = memory.take(&buffers.as_flattened().iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>());
        let header: Vec<u8> = [0, 0, buffers as u64, 2, 0, 0, 0].iter().flat_map(|w: &u64| w.to_ne_bytes()).collect();
        let header = memory.take(&header);
        // SAFETY: this test's memory.
        assert_eq!(good(unsafe { libc::syscall(nr.into(), fd, header, 0) }), 9000);
        assert!(memory.is_free(header, 56) && memory.is_free(buffers, 32) && memory.is_free(at, 9000));
    }
    assert!(memory.content(to, 9000) == text);
}

/// A program is executed with its arguments in memory that is absent, by a thread that libc makes.
#[test]
fn a_program_is_executed() {
    let memory = absent();
    let strings =
        ["/bin/sh", "-c", "test \"$WORD\" = there && exit 7"].map(|s| memory.take(format!("{s}\0").as_bytes()));
    let array = |of: &[usize]| memory.take(&of.iter().chain(&[0]).flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>());
    let (arguments, environment) = (array(&strings), array(&[memory.take(b"WORD=there\0")]));
    // SAFETY: the child only executes, or ends.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::execve(strings[0] as *const _, arguments as *const _, environment as *const _);
            libc::_exit(99);
        }
        child
    };
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(good(unsafe { libc::waitpid(child, &mut status, 0) }), child.into());
    assert_eq!(libc::WEXITSTATUS(status), 7);
}

/// Whether this glibc cancels a thread wherever it waits in a call; newer ones only in a certain piece of libc.
fn cancels_anywhere() -> bool {
    // SAFETY: a string that stays.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned();
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).is_some_and(|minor: u32| minor < 41)
}

/// What a call held whose thread is cancelled is let go of.
#[test]
fn a_thread_that_is_cancelled_in_a_call_holds_nothing() {
    let memory = absent();
    let at = memory.take(&[0; 100]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    extern "C" fn waits(of: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
        // SAFETY: what the test gives.
        let [fd, at] = unsafe { *of.cast::<[usize; 2]>() };
        // SAFETY: as above.
        unsafe { libc::read(fd as i32, at as *mut _, 100) };
        std::ptr::null_mut()
    }
    let mut of = [reader.as_raw_fd() as usize, at];
    let mut thread: libc::pthread_t = 0;
    // SAFETY: a thread that is joined below; `of` lives as long.
    unsafe {
        let given = std::ptr::from_mut(&mut of).cast();
        assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), waits, given), 0);
        while memory.is_free(at, 100) {
            std::thread::yield_now();
        }
        assert_eq!(libc::pthread_cancel(thread), 0);
        if !cancels_anywhere() {
            writer.write_all(&[1]).unwrap();
        }
        let mut ended = std::ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &mut ended), 0);
        assert!(ended as isize == -1 || !cancels_anywhere(), "it was not cancelled");
    }
    // Places are not scarce yet: it is still noted. The next look for the ended lets go of it, as soon as the kernel
    // has forgotten the thread, which may be after the join.
    while !memory.is_free(at, 100) {
        held::sweep();
        std::thread::yield_now();
    }
}
