//! The budget: what the kernel says to it, and when it gives way.

use super::*;
use crate::region::reclaim::ReclaimStep;

/// Resident anonymous memory is what the budget promises, by the kernel's own count.
#[test]
fn the_kernel_agrees_with_the_budget() {
    let output = in_a_process("budget::rss_in_a_process_of_its_own");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by the_kernel_agrees_with_the_budget, in a process without other tests"]
fn rss_in_a_process_of_its_own() {
    let rss = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap().trim();
        line.trim_end_matches(" kB").parse::<i64>().unwrap() << 10
    };
    let before = rss();
    let budget = 32 << 20;
    let pager = pager(budget as u64);
    let mut region = pager.region(128 << 20).unwrap();
    let mut most = 0;
    for i in 0..3 * (128 << 20) / PAGE_SIZE {
        let page = if i < 128 << 8 { i } else { mix(i as u64) as usize % (128 << 8) };
        let bytes = &mut region[page * PAGE_SIZE..(page + 1) * PAGE_SIZE];
        bytes[..2000].iter_mut().enumerate().for_each(|(j, b)| *b = mix((i * 4096 + j) as u64 / 8 / 3) as u8);
        if i % 500 == 0 {
            most = most.max(rss() - before);
        }
    }
    let used = pager.stats().unwrap().used_bytes as i64;
    assert!(most < budget + budget / 20 + (1 << 20), "{most} resident of {budget}, {used} by our own count");
    assert!(most > budget / 4 * 3, "{most} resident of {budget}: the budget was not used");
    drop((region, pager));
    assert!(rss() - before < 4 << 20, "{} stay behind", rss() - before);
}

/// Each pager says so, once.
#[test]
fn a_full_device_makes_the_budget_give_way() {
    let out = in_a_process("budget::full_devices");
    let (said, warned) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}{warned}");
    let is_warning = |line: &str| {
        line.starts_with("farpage: a region goes on above its budget: ") && line.ends_with("give its pager more swap")
    };
    assert!(warned.lines().count() == 2 && warned.lines().all(is_warning), "{warned}");
}

#[test]
#[ignore = "run by a_full_device_makes_the_budget_give_way, which looks at what it says"]
fn full_devices() {
    let small = SwapSpec::parse(&format!("file:{},size=1M", std::env::temp_dir().display())).unwrap();
    for _ in 0..2 {
        let pager = Pager::builder().budget(4 << 20).swap([small.clone()]).build().unwrap();
        let mut region = pager.region(12 << 20).unwrap();
        let mut before = 0;
        for _ in 0..2 {
            let words: &mut [u64] = region.view_mut();
            words.iter_mut().enumerate().for_each(|(i, w)| *w = mix(i as u64));
            assert!(words.iter().enumerate().all(|(i, w)| *w == mix(i as u64)));
            let stats = pager.stats().unwrap();
            assert!(stats.over_budget > before, "{stats:?}");
            before = stats.over_budget;
            // Room again: back within the budget.
            region.advise(0..12 << 20, Advice::DontNeed).unwrap();
            region[0] = 1;
            assert!(pager.stats().unwrap().resident_bytes <= 64 * PAGE_SIZE as u64);
        }
    }
}

/// "By and by", without another request: what was there goes, and the content stays.
#[test]
fn a_smaller_budget_is_reached() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let Some(pager) = built_in(mode, Pager::builder().budget(24 << 20).swap([file()])) else { return };
        let mut region = pager.region(32 << 20).unwrap();
        let words: &mut [u64] = region.view_mut();
        words.iter_mut().enumerate().for_each(|(i, w)| *w = mix(i as u64));
        let full = pager.stats().unwrap();
        assert!(full.resident_bytes > 18 << 20, "{mode:?}: the budget was not used: {full:?}");
        let small = 6 << 20;
        pager.resize_budget(small).unwrap();
        assert!(soon(|| pager.stats().unwrap().used_bytes <= small), "{mode:?}: {:?}", pager.stats());
        let stats = pager.stats().unwrap();
        assert!(stats.budget_bytes == small && stats.resident_bytes <= small, "{mode:?}: {stats:?}");
        assert!(stats.resident_bytes > small / 2, "{mode:?}: more has gone than had to: {stats:?}");
        // It is kept under load, too, and a larger one is used again.
        let words: &[u64] = region.view();
        assert!(words.iter().enumerate().all(|(i, w)| *w == mix(i as u64)), "{mode:?}");
        let stats = pager.stats().unwrap();
        assert!(stats.used_bytes <= small + small / 20, "{mode:?}: {stats:?}");
        pager.resize_budget(24 << 20).unwrap();
        assert!(words.iter().enumerate().all(|(i, w)| *w == mix(i as u64)), "{mode:?}");
        let stats = pager.stats().unwrap();
        assert!(stats.resident_bytes > 18 << 20 && stats.over_budget == 0, "{mode:?}: {stats:?}");
    }
}

/// A thread that waited counts as waiting until it has a CPU again, which takes long on a busy machine. Helpers must
/// not empty the budget meanwhile.
#[test]
fn helpers_stop_at_the_mark() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let builder = Pager::builder().budget(24 << 20).swap([file()]).reclaim_threads(2);
        let Some(pager) = built_in(mode, builder) else { return };
        let mut region = pager.region(32 << 20).unwrap();
        let words: &mut [u64] = region.view_mut();
        words.iter_mut().enumerate().for_each(|(i, w)| *w = mix(i as u64));
        let core = &pager.owner.core;
        core.wakeups.waiting.fetch_add(1, Ordering::SeqCst);
        for _ in 0..50 {
            core.wake_reclaim(true);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        core.wakeups.waiting.fetch_sub(1, Ordering::SeqCst);
        let stats = pager.stats().unwrap();
        assert!(stats.resident_bytes > 20 << 20, "{mode:?}: {stats:?}");
    }
}

/// Another thread of reclaim has freed what this one was to free: nothing is stuck, so no thread goes above the budget.
#[test]
fn a_step_with_nothing_left_to_do_is_not_stuck() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let Some(pager) = built_in(mode, Pager::builder().budget(4 << 20)) else { return };
        assert_eq!(pager.owner.core.reclaim_step(), ReclaimStep::Gained, "{mode:?}");
    }
}
