//! What a call that is not about the memory costs, before and after: nanoseconds, the medians of rounds.
//!
//! `cargo run --release -p farpage-syscalls --example cost`

use farpage_syscalls::Memory;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Memory that nothing is asked of here.
struct None;

impl Memory for None {
    fn hold(&self, _: usize, _: usize, _: bool, _: &dyn Fn(usize)) -> usize {
        0
    }

    fn release(&self, _: usize, _: usize, _: &dyn Fn()) {}

    fn contains(&self, _: usize) -> bool {
        false
    }

    fn most(&self, _: usize) -> usize {
        4096
    }
}

type Call = (&'static str, Box<dyn Fn()>);

const ROUNDS: usize = 41;
const CALLS: usize = 20_000;

/// Median of the rounds, and the fastest and the slowest quarter's ends.
fn measure(mut call: impl FnMut()) -> [f64; 3] {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let since = Instant::now();
            (0..CALLS).for_each(|_| call());
            since.elapsed().as_nanos() as f64 / CALLS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    [ROUNDS / 2, ROUNDS / 4, ROUNDS * 3 / 4].map(|at| rounds[at])
}

fn main() {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").expect("/dev/null");
    let fd = null.as_raw_fd();
    let mut buffer = [0u8; 64];
    let at = buffer.as_mut_ptr();
    let vector = [libc::iovec { iov_base: at.cast(), iov_len: 1 }, libc::iovec { iov_base: at.cast(), iov_len: 2 }];
    // SAFETY: calls about memory of this function, which lives as long.
    let calls: [Call; 4] = unsafe {
        [
            ("getppid", Box::new(|| _ = libc::getppid())),
            ("write", Box::new(move || _ = libc::write(fd, at.cast(), 1))),
            ("writev, 2 buffers", Box::new(move || _ = libc::writev(fd, vector.as_ptr(), 2))),
            ("syscall(write)", Box::new(move || _ = libc::syscall(libc::SYS_write, fd, at, 1))),
        ]
    };
    let show = |when: &str| {
        for (name, call) in &calls {
            let [median, low, high] = measure(call);
            println!("{when:>12} {name:<18} {median:7.1} ns   ({low:.1} to {high:.1})");
        }
    };
    show("before");
    println!("{:?}", farpage_syscalls::install(&None).expect("libc's calls can be looked at"));
    show("no memory");
    farpage_syscalls::cover(1 << 44, 1 << 30);
    show("with memory");
    show("with memory");
    farpage_syscalls::cover_nothing(|| true);
    show("no memory");
}
