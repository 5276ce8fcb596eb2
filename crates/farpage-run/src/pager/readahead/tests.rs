use super::*;

fn of(text: &str) -> Readahead {
    Readahead::new(Tuning::parse(text).unwrap(), 64 << 20)
}

fn pages(plan: Plan) -> Vec<u64> {
    match plan {
        Plan::Run(w) | Plan::Each(w) => w.iter().collect(),
        Plan::Slots(slots) => slots.collect(),
    }
}

/// Most faults are here.
const MAPPING: (Vpn, Vpn) = (Vpn::new(1000), Vpn::new(2_000_000));

fn miss(r: &mut Readahead, page: u64) -> Vec<u64> {
    pages(r.on_miss(Vpn::new(page), Entry::new(1, 43).unwrap(), MAPPING, false, |_| false))
}

fn hit(r: &mut Readahead, page: u64) {
    r.on_hit(Vpn::new(page), MAPPING.0, true);
}

#[test]
fn each_rule_has_its_windows() {
    let sizes = |text| {
        let (mut r, mut at) = (of(text), 1000);
        let mut next = || {
            let n = miss(&mut r, at).len();
            at += n as u64;
            n
        };
        [(); 6].map(|()| next())
    };
    assert_eq!(sizes("none"), [1; 6]);
    assert_eq!(sizes("stream,page_cluster=0"), [1; 6]);
    assert_eq!(sizes("stream"), [1, 4, 8, 16, 32, 32]);
    assert_eq!(sizes("stream,page_cluster=9"), [1, 4, 8, 16, 32, 64]);
    assert_eq!(Readahead::new(Tuning::parse("page_cluster=9").unwrap(), 8 << 20).max, 32);
    // The kernel's, clipped to the mapping, and to its own limit of 32.
    let mut vma = of("vma,page_cluster=9");
    assert_eq!(miss(&mut vma, 1000), (1000..1005).collect::<Vec<_>>());
    (1001..1005).for_each(|page| hit(&mut vma, page));
    assert_eq!(miss(&mut vma, 1005), (1005..1013).collect::<Vec<_>>());
    let mut slots = of("vma_ra_enabled=0");
    (0..6).for_each(|_| hit(&mut slots, 0));
    assert_eq!(miss(&mut slots, 1000), (40..48).collect::<Vec<_>>(), "around the slot, not the page");
    let mut strided = of("stream");
    let windows = [0, 9, 18, 27].map(|i| miss(&mut strided, 5000 + i));
    assert_eq!(windows[3], [5027, 5036]);
}

#[test]
fn slot_order_is_for_disks_with_heads_and_what_no_stream_explains() {
    let mut r = of("stream");
    let miss = |r: &mut Readahead, page, slot, rotational| {
        r.on_miss(Vpn::new(page), Entry::new(1, slot).unwrap(), MAPPING, rotational, |_| false)
    };
    let slots = |r: &mut Readahead, page, slot| match miss(r, page, slot, true) {
        Plan::Slots(slots) => slots.end - slots.start,
        plan => panic!("{plan:?}"),
    };
    // Eight at first; not used: less each time.
    let anywhere = [(90_000, 70), (50_000, 500), (7000, 300), (400_000, 100)];
    assert_eq!(anywhere.map(|(page, slot)| slots(&mut r, page, slot)), [8, 4, 2, 1]);
    // The slot behind the last one: two, and more while they are used.
    assert_eq!(slots(&mut r, 300_000, 101), 2);
    (0..9).for_each(|_| hit(&mut r, 0));
    assert_eq!(slots(&mut r, 120_000, 103), 8);
    // A stream knows better, and memory has no heads.
    assert_eq!(pages(miss(&mut r, 60_001, 17, true)).len(), 4);
    assert_eq!(miss(&mut r, 110_000, 18, false), Plan::Run(Window::single(110_000)));
}

#[test]
fn threads_have_streams_of_their_own_and_take_over_each_others() {
    let mut r = of("stream");
    let windows = |r: &mut Readahead, tid, page| {
        r.fault_of(tid);
        miss(r, page).len()
    };
    assert_eq!((windows(&mut r, 1, 1000), windows(&mut r, 1, 1001)), (1, 4));
    // More faults at random of another thread than there are streams.
    (0..100).for_each(|i| assert_eq!(windows(&mut r, 2, 100_000 + i * i * 77), 1));
    assert_eq!(windows(&mut r, 1, 1005), 8);
    assert_eq!(windows(&mut r, 3, 1013), 16, "handed on");
}

#[test]
fn the_kernels_rule_has_a_state_for_each_mapping() {
    let mut r = of("vma");
    let mut miss = |mapping: u64, page| {
        let mapping = (Vpn::new(mapping), Vpn::new(mapping + 1000));
        let plan = r.on_miss(Vpn::new(page), Entry::new(1, 1).unwrap(), mapping, false, |_| false);
        pages(plan).len()
    };
    // Random faults in one end its readahead; the other does not know.
    let random = [300, 100, 900, 350, 700].map(|page| miss(0, page));
    assert_eq!((random, miss(5000, 5300)), ([8, 4, 2, 1, 1], 8));
    (1..20).for_each(|i| assert_eq!(miss(i * 10_000, i * 10_000 + 300), 8));
    assert_eq!(miss(0, 300), 8, "forgotten");
}
