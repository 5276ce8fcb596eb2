use super::*;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

pub(crate) fn table() -> PageTable {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), TABLE_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags) };
    // SAFETY: zeroed, ours, never unmapped.
    unsafe { PageTable::new(Part { base: base.unwrap() as usize, len: TABLE_BYTES }) }
}

pub(crate) fn cached(frame: u32) -> State {
    State::Cached(FrameNo::new(frame))
}

pub(crate) fn writeback(frame: u32) -> State {
    State::Writeback(FrameNo::new(frame))
}

#[test]
fn words_round_trip() {
    let entry = Entry::from_raw(0x1234_5678_9abc).unwrap();
    for s in
        [State::None, State::Mapped(None), State::Mapped(Some(entry)), cached(7), writeback(0), State::Swapped(entry)]
    {
        assert_eq!(State::decode(s.encode()), s);
    }
}

#[test]
fn a_rank_stays_until_the_word_is_set() {
    let t = table();
    let node = t.node_or_create(Vpn::new(7)).unwrap();
    t.set_ranked(node, cached(9), Rank::MAX);
    assert_eq!((t.state(node), t.rank(node.0)), (cached(9), Rank::MAX));
    t.set_rank(node.0, Rank::HOT);
    assert_eq!((t.state(node), t.rank(node.0)), (cached(9), Rank::HOT));
    assert!(!t.change(node, cached(8), State::None));
    assert!(t.change(node, cached(9), writeback(9)));
    assert_eq!((t.state(node), t.rank(node.0)), (writeback(9), Rank::NEW));
    t.set_rank(node.0, Rank::MAX);
    assert_eq!((t.state(node), t.rank(node.0)), (writeback(9), Rank::NEW));
}

#[test]
fn a_page_is_ahead_until_its_word_changes() {
    let t = table();
    let node = t.node_or_create(Vpn::new(7)).unwrap();
    t.set_ahead(node, FrameNo::new(9));
    assert!(t.is_ahead(node) && t.state(node) == cached(9) && t.rank(node.0) == Rank::NEW);
    assert!(t.change(node, cached(9), writeback(9)) && !t.is_ahead(node));
    // A writer that could not store it puts it back: whether it is wanted is not known any more.
    assert!(t.change(node, writeback(9), cached(9)) && !t.is_ahead(node));
    // The same bit means another thing in another word.
    let entry = Entry::from_raw(5).unwrap();
    t.set(node, State::Swapped(entry));
    t.mark_reading(node, entry);
    assert!(!t.is_ahead(node));
}

#[test]
fn a_page_that_changes_is_not_being_read_any_more() {
    let t = table();
    let node = t.node_or_create(Vpn::new(7)).unwrap();
    let (one, other) = (Entry::from_raw(5).unwrap(), Entry::from_raw(6).unwrap());
    t.set(node, State::Swapped(one));
    assert!(!t.is_reading(node, one));
    t.mark_reading(node, other);
    assert!(!t.is_reading(node, one) && !t.is_reading(node, other));
    t.mark_reading(node, one);
    assert!(t.is_reading(node, one) && !t.is_reading(node, other));
    assert_eq!(t.state(node), State::Swapped(one));
    // Gone and back, to the same place: what was read is old.
    t.set(node, writeback(3));
    assert!(t.change(node, writeback(3), State::Swapped(one)));
    assert!(!t.is_reading(node, one));
}

#[test]
fn pages_that_are_out_are_counted() {
    let t = table();
    let entry = Entry::from_raw(5).unwrap();
    let nodes = [7, 8, 9].map(|n| t.node_or_create(Vpn::new(n)).unwrap());
    for node in nodes {
        t.set(node, writeback(1));
        assert!(t.change(node, writeback(1), State::Swapped(entry)));
        t.mark_reading(node, entry);
    }
    t.set(nodes[0], State::Swapped(entry));
    assert_eq!(t.swapped_pages(), 3);
    t.set_ranked(nodes[0], State::Mapped(Some(entry)), Rank::HOT);
    t.set(nodes[1], State::None);
    assert!(!t.change(nodes[2], State::None, cached(1)));
    assert_eq!(t.swapped_pages(), 1);
    assert!(t.change(nodes[2], State::Swapped(entry), State::None));
    assert_eq!(t.swapped_pages(), 0);
}

#[test]
fn pages_lose_their_copies_and_nothing_else() {
    let t = table();
    let entry = |raw| Entry::from_raw(raw).unwrap();
    // In two leaves, the others in between.
    let nodes: Vec<Node> = [7, 8, 9, 600, 601].map(|n| t.node_or_create(Vpn::new(n)).unwrap()).into();
    t.set_ranked(nodes[0], State::Mapped(Some(entry(5))), Rank::HOT);
    t.set(nodes[1], State::Mapped(None));
    t.set(nodes[2], State::Swapped(entry(6)));
    t.set(nodes[3], State::Mapped(Some(entry(7))));
    t.set(nodes[4], State::Mapped(Some(entry(8))));
    assert_eq!(t.copies(), 3);
    let (mut hand, mut taken) = (0, Vec::new());
    t.take_clean_slots(&mut hand, 2, &mut taken);
    assert_eq!((taken.as_slice(), t.copies()), (&[entry(5), entry(7)][..], 1));
    assert_eq!((t.state(nodes[0]), t.rank(nodes[0].0)), (State::Mapped(None), Rank::HOT));
    // A page behind the hand is found the next time around.
    t.set(nodes[1], State::Mapped(Some(entry(9))));
    taken.clear();
    t.take_clean_slots(&mut hand, 9, &mut taken);
    assert_eq!((taken.as_slice(), t.copies()), (&[entry(8), entry(9)][..], 0));
    assert_eq!(t.state(nodes[2]), State::Swapped(entry(6)));
    t.take_clean_slots(&mut hand, 9, &mut taken);
    assert_eq!(taken.len(), 2);
}

#[test]
fn leaves_come_and_go() {
    let t = table();
    let vpn = Vpn::of(0x7fff_1234_5678);
    assert_eq!(t.node(vpn), None);
    let node = t.node_or_create(vpn).unwrap();
    assert_eq!(t.vpn(node), vpn);
    assert_eq!(t.state(node), State::None);
    t.set(node, cached(9));
    assert!(!t.change(node, cached(8), State::None));
    t.drop_empty_leaves(vpn, vpn + 1);
    assert_eq!(t.node(vpn), Some(node));
    assert!(t.change(node, cached(9), State::None));
    t.drop_empty_leaves(vpn, vpn + 1);
    assert_eq!(t.node(vpn), None);
    let other = t.node_or_create(Vpn::new(5)).unwrap();
    assert_eq!((other.0 >> 9, t.vpn(other)), (node.0 >> 9, Vpn::new(5)));
    let mut seen = Vec::new();
    t.for_each(Vpn::new(3), Vpn::new(2000), |v, n| seen.push((v, t.vpn(n))));
    assert_eq!(seen.len(), 509);
    assert!(seen.iter().all(|(a, b)| a == b));
    assert!(t.node_or_create(Vpn::new(1 << 40)).is_none());
}

/// A table in the window: memory is there for what is used.
#[test]
fn far_pages_take_what_they_need() {
    let base = farpage_base::mem::open::WINDOW.end - (64 << 30);
    // SAFETY: addresses that nobody else uses.
    let t = unsafe { PageTable::new(Part { base, len: TABLE_BYTES }) };
    // Each in a piece of its own.
    let far = |i: u64| Vpn::new(i * (PIECE * LEAF_PAGES) as u64 + 5);
    for i in [0, 7, PIECES as u64 - 1] {
        assert_eq!(t.node(far(i)), None);
        let node = t.node_or_create(far(i)).unwrap();
        t.set(node, cached(i as u32));
        assert_eq!((t.vpn(node), t.node(far(i))), (far(i), Some(node)));
        assert_eq!(t.node(far(i) + LEAF_PAGES), None);
    }
    assert_eq!(t.bytes(), 3 * 2 * PAGE_SIZE);
    assert_eq!(t.node(far(PIECES as u64)), None);
    assert!(t.has_room(far(2), far(3)) && !t.has_room(far(2), far(PIECES as u64)) && !t.is_short());
}

#[test]
fn parts_that_are_out_begin_and_end_with_such_a_page() {
    let t = table();
    let start = Vpn::of(0x7fff_0000_0000);
    let all = |from: usize, to: usize| vec![(start + from, start + to)];
    // No leaf, no piece.
    assert_eq!(t.out_parts(start, start + 5000), all(0, 5000));
    assert_eq!(t.out_parts(Vpn::of(1 << 45), Vpn::of(1 << 46)), [(Vpn::of(1 << 45), Vpn::of(1 << 46))]);
    for page in 0..4 * LEAF_PAGES {
        t.set(t.node_or_create(start + page).unwrap(), State::Mapped(None));
    }
    assert_eq!(t.out_parts(start, start + 4 * LEAF_PAGES), []);
    let out = [
        (100, State::None),
        (511, cached(1)),
        (512, writeback(2)),
        (1024 + 7, State::Swapped(Entry::from_raw(5).unwrap())),
    ];
    for (page, state) in out {
        t.set(t.node(start + page).unwrap(), state);
    }
    let parts = [all(100, 513), all(1031, 1032)].concat();
    assert_eq!(t.out_parts(start, start + 4 * LEAF_PAGES), parts);
    assert_eq!(t.out_parts(start + 101, start + 512), all(511, 512));
}
