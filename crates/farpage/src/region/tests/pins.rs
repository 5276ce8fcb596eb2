//! Pinned pages, and system calls on them.

use super::*;

#[test]
fn pinned_pages_stay_and_work_for_system_calls() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    region[..1 << 20].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 3) as u8);
    let sweep =
        |region: &mut Region| region[1 << 20..].iter_mut().step_by(512).enumerate().for_each(|(i, b)| *b = i as u8);
    sweep(&mut region);
    let into_pipe = |region: &Region| {
        let (_reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, &region[500 << 10..501 << 10])
    };
    assert_eq!(into_pipe(&region), Err(rustix::io::Errno::FAULT), "not present: the documented error");
    let pin = region.pin(0..1 << 20).unwrap();
    let second = region.pin(0..1).unwrap();
    let pinned = pager.stats().unwrap().pinned_bytes;
    sweep(&mut region);
    assert_eq!(into_pipe(&region), Ok(1024));
    region.advise(0..1 << 20, Advice::DontNeed).unwrap();
    assert!(region[..1 << 20].iter().enumerate().all(|(i, b)| *b == (i / 3) as u8), "pinned pages are not discarded");
    assert_eq!((pinned, pager.stats().unwrap().pinned_bytes), (1 << 20, 1 << 20));
    drop(pin);
    assert_eq!(pager.stats().unwrap().pinned_bytes, PAGE_SIZE as u64);
    drop(second);
    assert!(matches!(region.pin(0..16 << 20), Err(Error::PinLimit(_))));
    assert_eq!(pager.stats().unwrap().pinned_bytes, 0);
    let pin = region.pin(0..4096).unwrap();
    drop((region, pager));
    drop(pin); // keeps the memory until here
}

/// Reclaim write-protects what is present, now and then; system calls go on to write to what is pinned, before and
/// after.
#[test]
fn system_calls_write_to_pinned_pages() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    let pipe = || std::io::pipe().unwrap();
    let read_into = |region: &mut Region, at: usize, byte: u8| {
        let (reader, writer) = pipe();
        rustix::io::write(&writer, &[byte; 3000]).unwrap();
        assert_eq!(rustix::io::read(&reader, &mut region[at..at + 3000]), Ok(3000), "page {}", at / PAGE_SIZE);
    };
    let mut model = vec![0u8; 4096];
    for round in 0..8u64 {
        let page = mix(round) as usize % 4000;
        let (start, len) = (page * PAGE_SIZE, 16 * PAGE_SIZE);
        // Present, and perhaps write-protected, or not present.
        let pin = region.pin(start..start + len).unwrap();
        let sweeps = || pager.owner.core.wp_sweeps_done.load(Ordering::Relaxed);
        let before = sweeps();
        // In no order, so that single pages go out.
        let order = (0..4096).map(|i| i * 1009 % 4096);
        for other in order.filter(|other| !(page..page + 16).contains(other)) {
            let at = other * PAGE_SIZE;
            assert_eq!(region[at], model[other], "round {round}, page {other}");
            model[other] = model[other].wrapping_add(1 + other as u8 % 7);
            region[at] = model[other];
            if other % 64 == 0 {
                read_into(&mut region, start + other / 64 % 16 * PAGE_SIZE, other as u8);
            }
        }
        assert!(sweeps() > before, "nothing was protected");
        for (pinned, byte) in model.iter_mut().enumerate().skip(page).take(16) {
            *byte = pinned as u8 ^ round as u8;
            read_into(&mut region, pinned * PAGE_SIZE, *byte);
        }
        drop(pin);
    }
    // What was written while it was pinned went out as it was then.
    assert!((0..4096).all(|page| region[page * PAGE_SIZE] == model[page]));
}
