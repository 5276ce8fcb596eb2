//! Which thread is borrowed, and where: at a place at which it holds no lock of the allocator's or the loader's.
//!
//! * In the kernel, in a call in which programs wait for something else than a lock: those calls are listed
//!   ([`WAITS`]). One that reads a regular file may be the loader's.
//! * Else in code that is neither libc's nor an allocator's, and that they do not call: not in what defines `malloc`,
//!   not in the loader, not in the unwinder, which walks the loader's list.
//!
//! And not in a signal handler, which may have interrupted anything: a signal that the program catches and that is
//! blocked says that one may run. A thread that waits is left alone only for those that an instruction causes.
//!
//! Caller: [`super`]. No locks.

use super::memory::{Mapping, Memory};
use super::symbols;
use crate::process::Status;
use std::collections::BTreeMap;
use std::fs;

/// Calls in which a thread waits for others, for time, for input. Those that the kernel begins again by itself come
/// first; the others return EINTR, which their callers have to expect.
#[rustfmt::skip]
const WAITS: [i64; 38] = [
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_restart_syscall, libc::SYS_poll, libc::SYS_ppoll,
    libc::SYS_select, libc::SYS_pselect6, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_accept, libc::SYS_accept4,
    libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_read, libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64,
    libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_connect, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_flock, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_pause,
    libc::SYS_rt_sigsuspend, libc::SYS_semop, libc::SYS_semtimedop, libc::SYS_rt_sigtimedwait, libc::SYS_io_getevents,
    libc::SYS_io_uring_enter, libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_futex,
];

/// Signals that instructions cause: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
const FORCED: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10;

/// Of `futex`, what waits for a condition, as `pthread_cond_wait` does; locks are waited for without a bit set.
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 127;
/// The loader, libc and what they have in older versions, allocators, and the unwinder: parts of names.
#[rustfmt::skip]
const UNSAFE: [&str; 11] = [
    "ld-linux", "libc.so", "libc-2", "libdl", "libpthread", "libgcc_s", "malloc", "mimalloc", "hoard", "[v",
    "libasan",
];

/// What is known of the process's code.
pub struct Places<'a> {
    pid: u32,
    memory: &'a Memory,
    mappings: Vec<Mapping>,
    /// Whether a file defines an allocator, by its name.
    allocators: BTreeMap<String, bool>,
    /// A file of which that is to be found out, while no thread is stopped: it may be large.
    unknown: Option<Mapping>,
}

impl<'a> Places<'a> {
    /// Of a process.
    pub fn new(pid: u32, memory: &'a Memory, mappings: Vec<Mapping>) -> Places<'a> {
        Places { pid, memory, mappings, allocators: BTreeMap::new(), unknown: None }
    }

    /// Its threads, those first that wait where the kernel lets them go on by itself.
    pub fn threads(&self) -> Vec<i32> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mut ranked: Vec<(usize, i32)> = tids.map(|tid| (self.rank(tid), tid)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, tid)| tid).collect()
    }

    /// Whether it is worth stopping: what `/proc` says of it says nothing against it.
    pub fn may_be_safe(&self, tid: i32) -> bool {
        let directory = format!("/proc/{}/task/{tid}", self.pid);
        let read = |name: &str| fs::read_to_string(format!("{directory}/{name}")).unwrap_or_default();
        // The kernel's own, for io_uring: it never comes back to the program.
        if read("comm").starts_with("iou-") {
            return false;
        }
        let call = read("syscall");
        // After that: a filter that it sets before it waits is seen.
        if !self.is_like_the_main_thread(tid) {
            return false;
        }
        let mut words = call.split(' ');
        match words.next().unwrap_or_default().trim() {
            "running" => true,
            number => {
                let hex = |word: Option<&str>| u64::from_str_radix(word?.trim_start_matches("0x"), 16).ok();
                let (first, second) = (hex(words.next()).unwrap_or(0), hex(words.next()).unwrap_or(0));
                number.parse().is_ok_and(|number| self.waits(number, first, second))
                    && !self.may_handle_a_signal(tid, FORCED)
            }
        }
    }

    /// Engine threads will have the credentials, the filters and the namespaces of the thread that starts them.
    fn is_like_the_main_thread(&self, tid: i32) -> bool {
        const SAME: [&str; 7] = ["Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
        let status = |tid: i32| Status::of_thread(self.pid, tid);
        let (Ok(of_main), Ok(own)) = (status(self.pid as i32), status(tid)) else { return false };
        let link = |tid: i32, name: &str| fs::read_link(format!("/proc/{}/task/{tid}/{name}", self.pid)).ok();
        SAME.iter().all(|name| of_main.value(name) == own.value(name))
            && ["root", "ns/mnt", "ns/user", "ns/pid", "ns/net"]
                .iter()
                .all(|name| link(tid, name) == link(self.pid as i32, name))
    }

    fn rank(&self, tid: i32) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", self.pid)).unwrap_or_default();
        let number = text.split(' ').next().and_then(|word| word.parse::<i64>().ok());
        match number {
            Some(number) => WAITS.iter().position(|wait| *wait == number).unwrap_or(WAITS.len() + 1),
            // It runs.
            None => WAITS.len(),
        }
    }

    /// Whether a thread that is stopped with these registers may call functions.
    pub fn is_safe(&mut self, tid: i32, registers: &libc::user_regs_struct) -> bool {
        if (registers.orig_rax as i64) < 0 {
            return !self.may_handle_a_signal(tid, u64::MAX) && self.is_safe_code(registers.rip as usize);
        }
        // A handler that waits has hardly interrupted an allocator, but for one of what an instruction has caused.
        self.waits(registers.orig_rax as i64, registers.rdi, registers.rsi) && !self.may_handle_a_signal(tid, FORCED)
    }

    /// Whether a call with these first arguments waits for something that is no lock.
    fn waits(&self, number: i64, first: u64, second: u64) -> bool {
        match number {
            libc::SYS_futex => second & FUTEX_COMMAND == FUTEX_WAIT_BITSET,
            libc::SYS_read => self.is_no_regular_file(first),
            number => WAITS.contains(&number),
        }
    }

    fn is_no_regular_file(&self, fd: u64) -> bool {
        fs::metadata(format!("/proc/{}/fd/{fd}", self.pid)).is_ok_and(|metadata| !metadata.is_file())
    }

    /// One of these signals, which the program catches, is blocked in this thread, as while its handler runs.
    fn may_handle_a_signal(&self, tid: i32, signals: u64) -> bool {
        let status = Status::of_thread(self.pid, tid).ok();
        let set = |name: &str| {
            let hex = status.as_ref().map(|status| status.value(name));
            hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(u64::MAX)
        };
        set("SigBlk:") & set("SigCgt:") & signals != 0
    }

    fn is_safe_code(&mut self, at: usize) -> bool {
        let Some(mapping) = self.mappings.iter().find(|m| (m.range.0..m.range.1).contains(&at)).cloned() else {
            return false;
        };
        if UNSAFE.iter().any(|part| mapping.file_name().contains(part)) {
            return false;
        }
        // Code that was made while the program runs.
        if !mapping.name.starts_with('/') {
            return true;
        }
        let known = self.allocators.get(&mapping.name).copied();
        if known.is_none() {
            self.unknown = Some(mapping);
        }
        known == Some(false)
    }

    /// Looks at the file in which a thread was found, if it was not known.
    pub fn learn(&mut self) {
        let Some(mapping) = self.unknown.take() else { return };
        let defines = self.memory.file_of(&mapping).map_or(true, |file| symbols::address(&file, "malloc").is_some());
        self.allocators.insert(mapping.name, defines);
    }
}
