//! [46]: a batch is flushed while its pages are isolated and freed. Batches of two pages, one local list a round.

use super::*;
use farpage_swap::sync::Arc;
use loom::thread;

const HERE: Place = Place { list: 0, group: 0 };
const THERE: Place = Place { list: 1, group: 0 };

fn lists() -> Arc<PageLists> {
    Arc::new(PageLists::new(3, 2, 1))
}

/// Flush against free: the page is on its list and was not freed, or was freed once and is on none.
#[test]
fn a_freed_page_is_never_left_on_a_list() {
    for how in [Linking::Batched, Linking::Spliced] {
        loom::model(move || {
            let lists = lists();
            let mut batch = Batch::new();
            lists.add(&mut batch, 0, HERE, how, |_| panic!());
            let other = lists.clone();
            let thread = thread::spawn(move || {
                let mut freed = 0;
                other.release(&[0], |_| freed += 1);
                freed
            });
            let mut freed = 0;
            lists.flush(&mut batch, how, |_| freed += 1);
            assert_eq!(freed + thread.join().unwrap(), 1);
            assert_eq!(lists.checked(), [[].to_vec(), [].to_vec()] as [Vec<u32>; 2]);
        });
    }
}

/// Flush against isolation, by page and from the tail: one of them owns the page, or it is on the list.
#[test]
fn isolation_finds_only_pages_that_are_listed() {
    loom::model(|| {
        let lists = lists();
        let mut batch = Batch::new();
        lists.add(&mut batch, 0, HERE, Linking::Spliced, |_| panic!());
        let other = lists.clone();
        let thread = thread::spawn(move || {
            let mut out = [0; 2];
            let n = other.isolate_tail(HERE, &mut out);
            out[..n].to_vec()
        });
        lists.add(&mut batch, 1, THERE, Linking::Spliced, |_| panic!());
        let by_page = lists.isolate(0);
        let by_tail = thread.join().unwrap();
        assert_eq!(usize::from(by_page) + by_tail.len() + lists.checked()[0].len(), 1);
        assert_eq!(lists.checked()[1], [1]);
    });
}

/// Isolation against free of a listed page: one of them has the token. The isolator, if it is the one, learns of the
/// free when it puts the page back.
#[test]
fn one_of_isolation_and_free_unlinks() {
    loom::model(|| {
        let lists = lists();
        let mut batch = Batch::new();
        lists.add(&mut batch, 0, HERE, Linking::Spliced, |_| panic!());
        lists.flush(&mut batch, Linking::Spliced, |_| panic!());
        let other = lists.clone();
        let thread = thread::spawn(move || {
            let mut freed = 0;
            other.release(&[0], |_| freed += 1);
            freed
        });
        let mut freed = 0;
        if lists.isolate(0) {
            lists.add(&mut batch, 0, THERE, Linking::Spliced, |_| freed += 1);
            lists.flush(&mut batch, Linking::Spliced, |_| freed += 1);
        }
        assert_eq!(freed + thread.join().unwrap(), 1);
        lists.checked();
    });
}

/// Two batches at once.
#[test]
fn two_batches_are_both_listed() {
    loom::model(|| {
        let lists = lists();
        let other = lists.clone();
        let thread = thread::spawn(move || {
            let mut batch = Batch::new();
            other.add(&mut batch, 2, HERE, Linking::Spliced, |_| panic!());
            other.flush(&mut batch, Linking::Spliced, |_| panic!());
        });
        let mut batch = Batch::new();
        lists.add(&mut batch, 0, HERE, Linking::Spliced, |_| panic!());
        lists.add(&mut batch, 1, HERE, Linking::Spliced, |_| panic!());
        thread.join().unwrap();
        let here = &lists.checked()[0];
        assert!([[1, 0, 2], [2, 1, 0]].contains(&[here[0], here[1], here[2]]), "{here:?}");
    });
}
