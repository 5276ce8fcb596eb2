//! Invariants 44, 45 and 47 of docs/dev/policy.md, against a simple model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: u32 = 80;
const LISTS: u8 = 3;
const GROUPS: u8 = 3;

fn place(n: u32) -> Place {
    Place { list: (n % 3) as u8, group: (n / 3 % 3) as u8 }
}

fn none_dead(page: u32) {
    panic!("page {page} was not freed");
}

/// A batch with an active and an inactive page of one group: each goes to its own list, and the lengths of both are
/// right. (In the seed's patch the second page was spliced onto the first one's list...)
#[test]
fn pages_of_one_group_go_to_the_list_that_they_name() {
    let lists = PageLists::<()>::new(PAGES, 2, 1);
    let mut batch = Batch::new();
    let (inactive, active) = (Place { list: 0, group: 0 }, Place { list: 1, group: 0 });
    for (page, place) in [(0, inactive), (1, active), (2, inactive), (3, active), (4, active)] {
        lists.add(&mut batch, page, place, Linking::Spliced, none_dead);
    }
    assert!(lists.is_empty(inactive) && lists.is_empty(active), "not before the batch is flushed");
    lists.flush(&mut batch, Linking::Spliced, none_dead);
    assert_eq!(lists.checked(), [vec![2, 0], vec![4, 3, 1]]);
}

/// ... and a page that joined a local list was counted for the list after the last one, out of bounds with four.)
#[test]
fn more_places_than_local_lists_are_counted_where_they_are() {
    let lists = PageLists::<()>::new(PAGES, LISTS, GROUPS);
    let mut batch = Batch::new();
    for page in 0..27 {
        lists.add(&mut batch, page, place(page), Linking::Spliced, none_dead);
    }
    lists.flush(&mut batch, Linking::Spliced, none_dead);
    lists.checked();
    for n in 0..9 {
        assert_eq!(lists.len(place(n)), 3);
    }
}

#[test]
fn a_page_freed_in_its_batch_is_not_linked() {
    let lists = PageLists::<()>::new(PAGES, LISTS, GROUPS);
    let mut batch = Batch::new();
    lists.add(&mut batch, 7, place(0), Linking::Spliced, none_dead);
    lists.add(&mut batch, 8, place(0), Linking::Spliced, none_dead);
    lists.release(&[7], none_dead);
    let mut freed = Vec::new();
    lists.flush(&mut batch, Linking::Spliced, |page| freed.push(page));
    assert_eq!((freed, lists.checked()[0].clone()), (vec![7], vec![8]));
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Owner {
    None,
    Batch(usize, bool),
    Isolated(bool),
    List,
}

#[derive(Debug, Clone)]
enum Op {
    Add(u32, usize, u32),
    Flush(usize),
    Isolate(u32),
    Tail(u32, usize),
    Release(Vec<u32>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..PAGES, 0..2usize, 0..9u32).prop_map(|(page, batch, at)| Op::Add(page, batch, at)),
        1 => (0..2usize).prop_map(Op::Flush),
        2 => (0..PAGES).prop_map(Op::Isolate),
        1 => (0..9u32, 0..40usize).prop_map(|(at, n)| Op::Tail(at, n)),
        1 => prop::collection::btree_set(0..PAGES, 0..40).prop_map(|set| Op::Release(set.into_iter().collect())),
    ]
}

/// What is to be true, kept by hand.
struct Model {
    owner: Vec<Owner>,
    at: Vec<u32>,
    lists: BTreeMap<u32, Vec<u32>>,
    batches: [Vec<u32>; 2],
}

impl Model {
    fn flush(&mut self, b: usize) -> Vec<u32> {
        let mut freed = Vec::new();
        for page in std::mem::take(&mut self.batches[b]) {
            if self.owner[page as usize] == Owner::Batch(b, true) {
                self.owner[page as usize] = Owner::None;
                freed.push(page);
            } else {
                self.owner[page as usize] = Owner::List;
                self.lists.entry(self.at[page as usize]).or_default().insert(0, page);
            }
        }
        freed
    }

    fn unlink(&mut self, page: u32, to: Owner) {
        self.lists.entry(self.at[page as usize]).or_default().retain(|&p| p != page);
        self.owner[page as usize] = to;
    }
}

proptest! {
    /// [44], [45]: any order of add, flush, isolate, put back and free: each page has one owner, the lists are the
    /// model's lists, whichever way they are linked; a freed page is given back once.
    #[test]
    fn lists_are_as_the_model_says(ops in prop::collection::vec(op(), 1..150)) {
        for how in [Linking::OneByOne, Linking::Batched, Linking::Spliced] {
            let lists = PageLists::<()>::new(PAGES, LISTS, GROUPS);
            let mut batches = [Batch::new(), Batch::new()];
            let mut model = Model {
                owner: vec![Owner::None; PAGES as usize],
                at: vec![0; PAGES as usize],
                lists: BTreeMap::new(),
                batches: [Vec::new(), Vec::new()],
            };
            for op in &ops {
                let (mut freed, mut expected) = (Vec::new(), Vec::new());
                match op {
                    Op::Add(page, b, at) => {
                        let dead = match model.owner[*page as usize] {
                            Owner::None => false,
                            Owner::Isolated(dead) => dead,
                            _ => continue,
                        };
                        lists.add(&mut batches[*b], *page, place(*at), how, |p| freed.push(p));
                        model.owner[*page as usize] = Owner::Batch(*b, dead);
                        model.at[*page as usize] = *at;
                        model.batches[*b].push(*page);
                        if model.batches[*b].len() == SPLICE_BATCH {
                            expected = model.flush(*b);
                        }
                    }
                    Op::Flush(b) => {
                        lists.flush(&mut batches[*b], how, |p| freed.push(p));
                        expected = model.flush(*b);
                    }
                    Op::Isolate(page) => {
                        let on = model.owner[*page as usize] == Owner::List;
                        prop_assert_eq!(lists.isolate(*page), on);
                        if on {
                            model.unlink(*page, Owner::Isolated(false));
                        }
                    }
                    Op::Tail(at, n) => {
                        let mut out = vec![0; *n];
                        let got = lists.isolate_tail(place(*at), &mut out);
                        let mut want = model.lists.get(at).cloned().unwrap_or_default();
                        want.reverse();
                        want.truncate(*n);
                        prop_assert_eq!(&out[..got], &want[..]);
                        want.iter().for_each(|&page| model.unlink(page, Owner::Isolated(false)));
                    }
                    Op::Release(pages) => {
                        let pages: Vec<u32> = pages.iter().copied().filter(|&p| {
                            !matches!(model.owner[p as usize], Owner::None)
                        }).collect();
                        lists.release(&pages, |p| freed.push(p));
                        for page in pages {
                            match &mut model.owner[page as usize] {
                                Owner::Batch(_, dead) | Owner::Isolated(dead) => *dead = true,
                                Owner::List => {
                                    model.unlink(page, Owner::None);
                                    expected.push(page);
                                }
                                Owner::None => {}
                            }
                        }
                    }
                }
                prop_assert_eq!(freed, expected);
                for (n, list) in lists.checked().into_iter().enumerate() {
                    let at = (n as u32 / 3) + (n as u32 % 3) * 3;
                    prop_assert_eq!(list, model.lists.get(&at).cloned().unwrap_or_default());
                }
            }
        }
    }

    /// [47]: a batch of frees leaves what single ones leave.
    #[test]
    fn a_batched_release_is_many_single_ones(
        at in prop::collection::vec(0..9u32, PAGES as usize),
        victims in prop::collection::btree_set(0..PAGES, 0..PAGES as usize),
    ) {
        let make = || {
            let (lists, mut batch) = (PageLists::<()>::new(PAGES, LISTS, GROUPS), Batch::new());
            for page in 0..PAGES {
                lists.add(&mut batch, page, place(at[page as usize]), Linking::Spliced, none_dead);
            }
            (lists, batch)
        };
        let victims: Vec<u32> = victims.into_iter().collect();
        let ((one, mut batch_one), (all, mut batch_all)) = (make(), make());
        let (mut freed_one, mut freed_all) = (Vec::new(), Vec::new());
        victims.iter().for_each(|v| one.release(&[*v], |p| freed_one.push(p)));
        all.release(&victims, |p| freed_all.push(p));
        one.flush(&mut batch_one, Linking::Spliced, |p| freed_one.push(p));
        all.flush(&mut batch_all, Linking::Spliced, |p| freed_all.push(p));
        prop_assert_eq!(one.checked(), all.checked());
        freed_one.sort_unstable();
        freed_all.sort_unstable();
        prop_assert_eq!(&freed_one, &freed_all);
        prop_assert_eq!(freed_all, victims);
    }
}

/// Threads that add, isolate, put back and free at random; at the end every page is where its word says, or free.
#[test]
fn threads_leave_the_lists_whole() {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    const N: u32 = 4096;
    let lists = PageLists::<()>::new(N, LISTS, GROUPS);
    let freed: Vec<AtomicU32> = (0..N).map(|_| AtomicU32::new(0)).collect();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (lists, freed, start) = (&lists, &freed, &start);
            scope.spawn(move || {
                let dead = |page: u32| {
                    freed[page as usize].fetch_add(1, Ordering::Relaxed);
                };
                let mut random = farpage_swap::sim::Random(u64::from(thread));
                let mut batch = Batch::new();
                start.wait();
                (thread * 1024..(thread + 1) * 1024).for_each(|page| {
                    lists.add(&mut batch, page, place(page), Linking::Spliced, dead);
                });
                for _ in 0..20_000 {
                    let page = random.below(N);
                    if random.below(2) == 0 && lists.isolate(page) {
                        lists.add(&mut batch, page, place(random.below(9)), Linking::Spliced, dead);
                    } else {
                        let mut out = [0; 5];
                        let n = lists.isolate_tail(place(page), &mut out);
                        for &page in &out[..n] {
                            lists.add(&mut batch, page, place(random.below(9)), Linking::Spliced, dead);
                        }
                    }
                }
                // Each page is freed by one thread, wherever it is.
                let mine: Vec<u32> = (0..N).filter(|page| page % 8 == thread).collect();
                lists.release(&mine, dead);
                lists.flush(&mut batch, Linking::Spliced, dead);
            });
        }
    });
    let all: Vec<u32> = lists.checked().concat();
    assert_eq!(all.len(), N as usize / 2);
    for page in 0..N {
        let want = u32::from(page % 8 < 4);
        assert_eq!(freed[page as usize].load(Ordering::Relaxed), want, "page {page}");
        assert_eq!(all.contains(&page), want == 0, "page {page}");
    }
}
