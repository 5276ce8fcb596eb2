//! Devices that write to pages of a region after the system call that told them to has returned.

use super::*;
use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicBool;

const PAGES: usize = 512;
const BYTES: usize = PAGES * PAGE_SIZE;
/// What the file holds; not the number of a round.
const BYTE: u8 = 0x5a;
const ROUNDS: u8 = 20;

/// `struct iocb` of the kernel's interface.
#[repr(C)]
#[derive(Clone, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// Has a disk write to the first pages of a region, time and again, while another thread uses the rest, so that these
/// have to go; how many pages were wrong in the end, or `None` where the filesystem has no direct I/O.
fn lost(region: &mut Region) -> Option<usize> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    file.write_all(&vec![BYTE; BYTES]).and_then(|()| file.sync_all()).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).ok()?;
    let mut context = 0u64;
    // SAFETY: `context` is written.
    let done = unsafe { libc::syscall(libc::SYS_io_setup, PAGES, &raw mut context) };
    assert_eq!(done, 0, "{}", IoError::last_os_error());
    let (ours, others) = region.split_at_mut(BYTES);
    let over = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        let _done = Done(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                others.iter_mut().step_by(PAGE_SIZE).for_each(|byte| *byte = byte.wrapping_add(1));
            }
        });
        (0..ROUNDS).map(|round| read_all(context, &direct, ours, round)).sum()
    });
    // SAFETY: nothing is under way.
    unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    Some(wrong)
}

/// Reads all pages by requests of their own, all under way together; how many have not arrived. `old`: what they hold
/// before.
fn read_all(context: u64, direct: &File, ours: &mut [u8], old: u8) -> usize {
    ours.fill(old);
    let base = ours.as_mut_ptr() as u64;
    let read = |page: usize| Iocb {
        file: direct.as_raw_fd() as u32,
        buffer: base + (page * PAGE_SIZE) as u64,
        bytes: PAGE_SIZE as u64,
        offset: (page * PAGE_SIZE) as i64,
        ..Iocb::default()
    };
    let mut requests: Vec<Iocb> = (0..PAGES).map(read).collect();
    let mut pointers: Vec<*mut Iocb> = requests.iter_mut().map(|request| &raw mut *request).collect();
    let mut sent = 0;
    while sent < PAGES {
        // SAFETY: the requests stay until all have come back below; they name pages that stay as well, and that nothing
        // else uses meanwhile.
        let n = unsafe { libc::syscall(libc::SYS_io_submit, context, PAGES - sent, pointers[sent..].as_mut_ptr()) };
        assert!(n > 0, "{}", IoError::last_os_error());
        sent += n as usize;
    }
    let mut events = [[0u64; 4]; PAGES];
    let mut back = 0;
    while back < PAGES {
        let (least, room, none) = (1, PAGES - back, std::ptr::null::<u8>());
        // SAFETY: `events` has room for so many.
        let n = unsafe { libc::syscall(libc::SYS_io_getevents, context, least, room, events.as_mut_ptr(), none) };
        assert!(n > 0, "{}", IoError::last_os_error());
        let failed = events[..n as usize].iter().find(|event| event[2] != PAGE_SIZE as u64);
        assert!(failed.is_none(), "{failed:?}"); // mostly -EFAULT, for a page that was out when it was asked for
        back += n as usize;
    }
    ours.chunks(PAGE_SIZE).filter(|page| page.iter().any(|byte| *byte != BYTE)).count()
}

#[test]
fn what_a_device_writes_to_a_page_is_not_lost() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let Some(pager) = built_in(mode, Pager::builder().budget(4 << 20)) else { continue };
        let mut region = pager.region(BYTES + (8 << 20)).unwrap();
        // In signal mode it is for the program to hold them.
        let _held = (mode == FaultMode::Signal).then(|| region.pin(0..BYTES).unwrap());
        match lost(&mut region) {
            Some(wrong) => assert_eq!(wrong, 0, "{mode:?}"),
            None => return println!("skipped: no direct I/O here"),
        }
    }
}
