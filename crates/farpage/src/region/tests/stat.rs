//! What is seen of a pager from outside.

use super::inherit::{ended_well, fork};
use super::*;
use farpage_ipc::stat::{MAGIC, MEMFD_NAME, STAT_BYTES, Stat};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The pages of this process that a reader outside takes for its own, with their paths.
fn pages() -> Vec<(PathBuf, Box<Stat>)> {
    let of = |path: PathBuf| {
        let link = std::fs::read_link(&path).ok()?;
        link.to_str()?.starts_with(&format!("/memfd:{MEMFD_NAME}")).then_some(())?;
        let mut bytes = vec![0; STAT_BYTES];
        File::open(&path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        // SAFETY: atomics only, valid for all bit patterns; the source is larger.
        let stat = Box::new(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<Stat>()) });
        let ours = stat.magic.load(Relaxed) == MAGIC && stat.pid.load(Relaxed) == u64::from(std::process::id());
        ours.then_some((path, stat))
    };
    // In the tables of the pagers' threads. Those of other tests come and go.
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let entries = tasks.filter_map(|task| std::fs::read_dir(task.path().join("fd")).ok()).flatten();
    entries.flatten().filter_map(|entry| of(entry.path())).collect()
}

/// The page of one pager.
fn page_of(pager: &Pager) -> Option<(PathBuf, Box<Stat>)> {
    let number = pager.owner.core.stat.pager.load(Relaxed);
    pages().into_iter().find(|(_, page)| page.pager.load(Relaxed) == number)
}

fn fill(region: &mut Region) {
    let words: &mut [u64] = region.view_mut();
    words.iter_mut().enumerate().for_each(|(i, w)| *w = word(i / 512, i % 512, 2));
}

#[test]
fn the_counters_are_those_that_are_seen_from_outside() {
    let pager = pager(4 << 20);
    let mut region = pager.region(12 << 20).unwrap();
    fill(&mut region);
    assert!(region.view::<u64>().iter().step_by(512).filter(|w| **w == 0).count() < 100);
    let before = pager.stats().unwrap();
    let (_, page) = page_of(&pager).unwrap();
    let after = pager.stats().unwrap();
    for (name, from, to) in [
        ("pgfault", before.pgfault, after.pgfault),
        ("pgmajfault", before.pgmajfault, after.pgmajfault),
        ("fault_wait_ns", before.fault_wait_ns, after.fault_wait_ns),
        ("pswpin", before.pswpin, after.pswpin),
        ("pswpout", before.pswpout, after.pswpout),
        ("swpin_zero", before.swpin_zero, after.swpin_zero),
        ("swap_ra", before.swap_ra, after.swap_ra),
        ("swap_ra_hit", before.swap_ra_hit, after.swap_ra_hit),
        ("workingset_refault_cached", before.workingset_refault_cached, after.workingset_refault_cached),
        ("budget_bytes", 4 << 20, 4 << 20),
        ("managed_bytes", 12 << 20, 12 << 20),
    ] {
        let seen = page.values().iter().find(|v| v.name == name).map(|v| v.value).unwrap();
        assert!(from > 0 && (from..=to).contains(&seen), "{name}: {seen} is not in {from}..={to}");
    }
    assert!(page.values().iter().all(|v| v.name != "active" && v.name != "event_unmap"), "values of the engine");
    // Levels follow without a call.
    let core = &pager.owner.core;
    let places = (core.space.page_at(region.as_ptr() as usize).unwrap(), region.len() / PAGE_SIZE);
    let swapped = || {
        let words = (places.0..places.0 + places.1 as u32).map(|page| core.space.word(page).load().state());
        words.filter(|state| matches!(state, PageState::Swapped(_))).count() as u64 * PAGE_SIZE as u64
    };
    assert!(soon(|| page_of(&pager).is_some_and(|(_, page)| page.swapped_bytes.load(Relaxed) == swapped())));
    assert!(swapped() > 6 << 20);
    pager.resize_budget(8 << 20).unwrap();
    let shown = |page: &Stat| (page.budget_bytes.load(Relaxed), page.readahead[0].start.load(Relaxed) as usize);
    let wanted = (8 << 20, region.as_ptr() as usize / PAGE_SIZE);
    assert!(soon(|| page_of(&pager).is_some_and(|(_, page)| shown(&page) == wanted)));
    // No process can write or shorten it.
    let (path, _) = page_of(&pager).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert!(file.set_len(0).is_err() && file.write_all_at(&[1; 8], 64).is_err());
    drop((region, pager));
}

#[test]
fn a_page_goes_with_its_pager() {
    let pager = pager(4 << 20);
    let number = pager.owner.core.stat.pager.load(Relaxed);
    assert!(page_of(&pager).is_some());
    drop(pager);
    assert!(pages().iter().all(|(_, page)| page.pager.load(Relaxed) != number));
}

#[test]
fn a_child_without_the_regions_neither_has_nor_writes_the_page() {
    let parent = pager(4 << 20);
    let mut region = parent.region(8 << 20).unwrap();
    fill(&mut region);
    let before = parent.stats().unwrap();
    ended_well(fork(|| {
        let inherited = page_of(&parent).is_some();
        let Ok(own) = Pager::builder().budget(4 << 20).build() else { return false };
        let Ok(mut region) = own.region(8 << 20) else { return false };
        fill(&mut region);
        !inherited && page_of(&own).is_some_and(|(_, page)| page.pgfault.load(Relaxed) > 0)
    }));
    assert_eq!(parent.stats().unwrap().pgfault, before.pgfault);
}

#[test]
fn a_child_with_the_regions_has_a_page_of_its_own() {
    let pager = Pager::builder().budget(4 << 20).inherit(true).build().unwrap();
    let mut region = pager.region(8 << 20).unwrap();
    fill(&mut region);
    let before = pager.stats().unwrap().pgfault;
    ended_well(fork(|| {
        let Some((_, page)) = page_of(&pager) else { return false };
        // All this before a fault of the child.
        let fresh = page.pgfault.load(Relaxed) < before && page.swapped_bytes.load(Relaxed) > 2 << 20;
        let start = pager.stats().map_or(0, |s| s.pgfault);
        fill(&mut region);
        let counted = page_of(&pager).is_some_and(|(_, page)| page.pgfault.load(Relaxed) > start);
        fresh && counted
    }));
    assert_eq!(pager.stats().unwrap().pgfault, before, "the child counted in its parent's page");
    assert!(page_of(&pager).is_some());
}

#[test]
fn the_program_does_not_have_the_pages_descriptor() {
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    fill(&mut region);
    let number = pager.owner.core.stat.fd().unwrap();
    // Other pagers' pages have the same name, and one may have the number for a moment.
    let inode = |path: &Path| std::fs::metadata(path).ok().map(|file| file.ino());
    let mine = inode(&page_of(&pager).unwrap().0);
    assert!(mine.is_some());
    assert_ne!(inode(Path::new(&format!("/proc/self/fd/{number}"))), mine);
}

#[test]
fn without_a_memfd_there_is_a_pager_all_the_same() {
    let out = in_a_process("stat::where_memfds_are_refused");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
#[ignore = "run by without_a_memfd_there_is_a_pager_all_the_same"]
fn where_memfds_are_refused() {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_memfd_create as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: a filter that is read by the call; it takes a right away from this thread and those that it starts.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    fill(&mut region);
    let stats = pager.stats().unwrap();
    assert!(page_of(&pager).is_none() && stats.pgfault > 0 && stats.budget_bytes == 4 << 20, "{stats:?}");
}
