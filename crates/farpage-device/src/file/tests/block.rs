//! Block devices: loop devices, where the tests may have them.

use super::*;
use crate::testing::in_a_process;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// A loop device over a sparse file, taken down on drop.
struct Loop {
    path: PathBuf,
    file: File,
    dir: tempfile::TempDir,
}

impl Loop {
    /// `None`: there are none here, or not for us.
    fn new(bytes: u64) -> Option<Loop> {
        Loop::with_sectors(bytes, 512)
    }

    fn with_sectors(bytes: u64, sector: u32) -> Option<Loop> {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = dir.path().join("disk");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let out = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector.to_string()])
            .arg(&file)
            .output()
            .ok()?;
        let path = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if !out.status.success() || path.is_empty() {
            println!("skipped: no loop device: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        let path = PathBuf::from(path);
        Some(Loop { file: File::options().read(true).write(true).open(&path).unwrap(), path, dir })
    }

    /// Bytes that the disk has been told to forget, as the kernel counts them, and bytes that its file takes.
    fn discarded_and_taken(&self) -> (u64, u64) {
        self.file.sync_all().unwrap();
        let name = self.path.file_name().unwrap().to_str().unwrap();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        // Documentation/block/stat.rst: sectors discarded.
        let sectors: u64 = stat.split_whitespace().nth(13).unwrap().parse().unwrap();
        (sectors * 512, std::fs::metadata(self.dir.path().join("disk")).unwrap().blocks() * 512)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
        self.file.sync_all().unwrap();
    }

    fn refusal(&self) -> String {
        let looked = check(&self.path).unwrap_err();
        let opened = FileDevice::open(0, &self.path, None).err().unwrap();
        assert_eq!(looked, opened);
        opened.to_string()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// In a process of their own: a child that another test forks has what is claimed here, too, until it ends.
#[test]
fn block_devices() {
    let out = in_a_process("file::tests::block::device_block", false);
    let said = String::from_utf8_lossy(&out.stdout);
    print!("{said}");
    assert!(out.status.success(), "{said}");
}

/// Runs a program that the test needs; `false`: it is not here, or failed.
fn ran(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_keeps_pages_for_one_user_at_a_time() {
    let Some(disk) = Loop::new(16 << 20) else { return };
    for round in 0..2u64 {
        assert_eq!(check(&disk.path), Ok(()), "blank, then ours");
        let device = FileDevice::open(1, &disk.path, None).unwrap();
        let refusal = disk.refusal();
        assert!(refusal.contains("somebody else has it"), "{refusal}");
        let room = ((16 << 20) - (1 << 20) - (64 << 10)) / 4096 - 1;
        let mut live = Vec::new();
        for seed in 0.. {
            match device.store(&page_of(seed + round).0, check_of(seed + round)) {
                Ok(entry) => live.push((entry, seed + round)),
                Err(error) => {
                    assert_eq!(error, StoreError::Full);
                    break;
                }
            }
        }
        assert_eq!(live.len(), room);
        live.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
        // The part before and behind the pages is as it was found.
        let mut front = vec![0; 1 << 20];
        disk.file.read_exact_at(&mut front, 0).unwrap();
        assert!(front.starts_with(backing::MAGIC) && front[backing::MAGIC.len()..].iter().all(|byte| *byte == 0));
        live.iter().for_each(|&(entry, _)| assert!(device.free(entry)));
        assert!(device.discard_one(), "a cluster is given back");
        // A forked child has no part of it.
        let mut fds = Vec::new();
        device.fds(&mut fds);
        let map: Vec<_> = fds.iter().map(|&fd| (fd, fd)).collect();
        let entry = device.store(&page_of(3).0, check_of(3)).unwrap();
        device.fork_child(&map);
        assert_eq!(device.store(&page_of(4).0, 0), Err(StoreError::Full));
        expect(&device, entry, 3);
        assert_eq!(device.take_warning(), None);
    }
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_sectors_of_a_page_are_taken_and_larger_ones_refused() {
    let Some(disk) = Loop::with_sectors(8 << 20, 4096) else { return };
    let device = FileDevice::open(1, &disk.path, None).unwrap();
    assert_eq!((device.caps().block_size, device.caps().discard), (4096, true));
    let entry = device.store(&page_of(3).0, check_of(3)).unwrap();
    expect(&device, entry, 3);
    // A disk that cannot discard: clusters are used again as they are.
    device.tables.own.get().unwrap().backing.get().unwrap().keeps_space.store(true, Relaxed);
    assert!(!device.caps().discard);
    drop(device);
    // Older kernels have none.
    let Some(disk) = Loop::with_sectors(8 << 20, 8192) else { return };
    let refusal = disk.refusal();
    assert!(refusal.contains("transfers 8192 bytes at least, and a page has 4096"), "{refusal}");
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_that_holds_something_is_refused_and_left_alone() {
    let Some(disk) = Loop::new(8 << 20) else { return };
    let end = 8 << 20;
    for at in [0, 511, 4096 + 5, (1 << 20) - 1, end - (64 << 10), end - 1] {
        disk.write(at, &[1]);
        let refusal = disk.refusal();
        assert!(refusal.contains("holds something"), "{at}: {refusal}");
        let mut byte = [0];
        disk.file.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, [1]);
        disk.write(at, &[0]);
    }
    // Ours, until somebody else writes beside the header.
    drop(FileDevice::open(0, &disk.path, None).unwrap());
    disk.write(64 << 10, b"_BHRfS_M");
    assert!(disk.refusal().contains("holds something"));
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_too_small_or_no_device_at_all() {
    let Some(disk) = Loop::new(1 << 20) else { return };
    assert!(disk.refusal().contains("too small"));
    for path in ["/dev/null", "/dev/zero"] {
        let error = check(Path::new(path)).unwrap_err().to_string();
        assert!(error.contains("neither a directory, a regular file nor a block device"), "{error}");
    }
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_in_use_is_refused_by_name() {
    let Some(disk) = Loop::new(16 << 20) else { return };
    let path = disk.path.to_str().unwrap().to_owned();
    if !ran("mkfs.ext4", &["-q", &path]) {
        println!("skipped: no mkfs.ext4");
        return;
    }
    assert!(disk.refusal().contains("holds something"));
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = place.path().to_str().unwrap();
    if ran("mount", &[&path, at]) {
        let refusal = disk.refusal();
        assert!(ran("umount", &[at]));
        assert!(refusal.contains("it is mounted at") && refusal.contains(at), "{refusal}");
    }
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_discards_what_is_not_in_use() {
    let Some(disk) = Loop::new(16 << 20) else { return };
    disk.write(4 << 20, &[7; 1 << 20]);
    let (before, old) = disk.discarded_and_taken();
    let device = FileDevice::open(0, &disk.path, None).unwrap();
    let pages = (16 << 20) - (1 << 20) - (64 << 10);
    let (at_start, blank) = disk.discarded_and_taken();
    assert_eq!(at_start - before, pages, "all of it is blank at the beginning");
    assert!(blank * 4 <= old, "{old} bytes, then {blank}");
    let live: Vec<_> = (0..512 * 5).map(|_| device.store(&page_of(7).0, 7).unwrap()).collect();
    let (none, full) = disk.discarded_and_taken();
    assert_eq!(none, at_start, "while it is in use");
    live.iter().for_each(|&entry| assert!(device.free(entry)));
    let clusters = std::iter::from_fn(|| device.discard_one().then_some(())).count() as u64;
    let (after, freed) = disk.discarded_and_taken();
    assert!(clusters >= 3, "{clusters}");
    assert_eq!(after - none, clusters * (2 << 20));
    assert_eq!(usage(&device).discarded_bytes, clusters * (2 << 20));
    // The others were only begun, by each CPU.
    assert!(freed + (clusters - 2) * (2 << 20) <= full, "{full} bytes, then {freed}");
}

/// A file or device that the kernel swaps to; not any more on drop.
struct SwapOn(PathBuf);

impl SwapOn {
    /// `None`: not here, or not for us.
    fn new(path: &Path) -> Option<SwapOn> {
        let name = path.to_str().unwrap();
        // The lowest priority: nothing comes here while there is other swap.
        if !ran("swapon", &["--priority", "0", name]) {
            println!("skipped: no swapon");
            return None;
        }
        Some(SwapOn(path.to_path_buf()))
    }
}

impl Drop for SwapOn {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

#[test]
fn device_file_that_the_kernel_swaps_to_is_refused() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("a swap\tfile");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    if !ran("mkswap", &[path.to_str().unwrap()]) {
        println!("skipped: no mkswap");
        return;
    }
    let refusal = || {
        let error = FileDevice::open(0, &path, None).err().unwrap();
        assert_eq!(check(&path), Err(error.clone()));
        error.to_string()
    };
    assert!(refusal().contains("holds something that is not farpage's"), "{}", refusal());
    // Even if it begins like one of ours: the kernel leaves that part of its header alone.
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(backing::MAGIC, 0).unwrap();
    let before = std::fs::read(&path).unwrap();
    let Some(in_use) = SwapOn::new(&path) else { return };
    let text = refusal();
    drop(in_use);
    assert!(text.contains("the kernel swaps to it"), "{text}");
    assert!(std::fs::read(&path).unwrap() == before, "left alone");
}

#[test]
#[ignore = "run by block_devices"]
fn device_block_that_the_kernel_swaps_to_is_refused() {
    let Some(disk) = Loop::new(4 << 20) else { return };
    if !ran("mkswap", &[disk.path.to_str().unwrap()]) {
        println!("skipped: no mkswap");
        return;
    }
    let Some(in_use) = SwapOn::new(&disk.path) else { return };
    let text = disk.refusal();
    drop(in_use);
    assert!(text.contains("the kernel swaps to it"), "{text}");
}
