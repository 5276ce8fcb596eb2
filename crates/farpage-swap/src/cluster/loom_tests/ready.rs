//! The stacks of full clusters with holes; the background worker; what a drop of the usage counter says.

use super::*;

/// For models that are large: one preemption fewer than the others.
fn few_preemptions(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.saturating_sub(1).max(1));
    builder.check(model);
}

fn full() -> (Arc<Swap<Frames>>, Vec<Entry>) {
    let swap = swap(&[two_clusters()]);
    let all = (0..7).map(|_| take(&swap, 0)).collect();
    (swap, all)
}

/// [4], [12]: two clusters are pushed at the same time: none is lost.
#[test]
fn two_frees_push_two_clusters() {
    loom::model(|| {
        let (swap, all) = full();
        let (other, freed) = (swap.clone(), all[5]);
        let thread = thread::spawn(move || other.put(freed, 1));
        assert_eq!(swap.put(all[0], 1), Ok(1));
        assert_eq!(thread.join().unwrap(), Ok(1));
        check(&swap);
        assert_eq!(swap.device(0).unwrap().ready_list(Stack::Holes(0)).len(), 2);
        assert!(swap.alloc(0, 0, Fill::Swapped).is_some() && swap.alloc(0, 0, Fill::Swapped).is_some());
        check(&swap);
    });
}

/// [12]: a search pops, while the cluster on top is popped and pushed again by another thread.
#[test]
fn a_cluster_is_popped_and_pushed_during_a_pop() {
    few_preemptions(|| {
        let (swap, all) = full();
        assert_eq!((swap.put(all[0], 1), swap.put(all[5], 1)), (Ok(1), Ok(1)));
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let entry = other.alloc(1, 0, Fill::Swapped);
            entry.into_iter().for_each(|entry| assert_eq!(other.put(entry, 1), Ok(1)));
        });
        let mine = take(&swap, 0);
        thread.join().unwrap();
        assert!(mine == all[0] || mine == all[5]);
        check(&swap);
        let rest = take(&swap, 0);
        assert!(rest != mine && swap.in_use(0) == 7, "[12]");
    });
}

/// [4], [5]: a cluster that is on a stack is emptied and taken for another order while a search pops it.
#[test]
fn an_emptied_cluster_is_passed_over() {
    few_preemptions(|| {
        let (swap, all) = full();
        assert_eq!(swap.put(all[3], 1), Ok(1));
        assert_eq!(swap.device(0).unwrap().ready_list(Stack::Holes(0)), [1]);
        let other = swap.clone();
        let (first, rest) = (all[4], all[5]);
        let thread = thread::spawn(move || {
            assert_eq!((other.put(first, 1), other.put(rest, 2)), (Ok(1), Ok(2)));
            other.alloc(1, 2, Fill::Swapped)
        });
        let mine = swap.alloc(0, 0, Fill::Swapped);
        let whole = thread.join().unwrap();
        assert!(mine.is_none_or(|mine| mine.slot / 4 == 1 && whole.is_none()), "[8] {mine:?} {whole:?}");
        check(&swap);
    });
}

/// [4], [8]: two slots of the same larger block are freed by two threads, and order 0 looks for them meanwhile: the
/// cluster is pushed once, and nothing is given out twice or lost.
#[test]
fn a_block_is_broken_while_pieces_are_wanted() {
    few_preemptions(|| {
        let swap = swap(&[two_clusters()]);
        let pairs = [swap.alloc(0, 1, Fill::Swapped).unwrap(), swap.alloc(0, 1, Fill::Swapped).unwrap()];
        (0..3).for_each(|_| _ = take(&swap, 0));
        assert_eq!(swap.put(pairs[0], 1), Ok(1));
        let (other, freed) = (swap.clone(), pairs[1].offset(1));
        let thread = thread::spawn(move || other.put(freed, 1));
        let mine = take(&swap, 1);
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert!(mine == pairs[0] || mine == freed, "[8] {mine:?}");
        check(&swap);
        let rest = take(&swap, 0);
        assert!(rest != mine && swap.in_use(0) == 7, "[8], [11]");
        check(&swap);
    });
}

/// [4], [5]: a cluster that is on the stack of broken blocks is emptied and taken for another order while order 0 pops
/// it.
#[test]
fn a_broken_block_is_gone_when_it_is_looked_for() {
    few_preemptions(|| {
        let swap = swap(&[two_clusters()]);
        let pairs = [swap.alloc(0, 1, Fill::Swapped).unwrap(), swap.alloc(0, 1, Fill::Swapped).unwrap()];
        (0..3).for_each(|_| _ = take(&swap, 0));
        assert_eq!(swap.put(pairs[0], 1), Ok(1));
        assert_eq!(swap.device(0).unwrap().ready_list(Stack::Broken), [1]);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            assert_eq!((other.put(pairs[0].offset(1), 1), other.put(pairs[1], 2)), (Ok(1), Ok(2)));
            other.alloc(1, 2, Fill::Swapped)
        });
        let mine = swap.alloc(0, 0, Fill::Swapped);
        let whole = thread.join().unwrap();
        assert!(mine.is_none_or(|mine| mine.slot / 4 == 1 && whole.is_none()), "[8] {mine:?} {whole:?}");
        check(&swap);
    });
}

/// Discards that are not asked for again: a step of the worker against the free that empties a cluster. Either the step
/// sees it, or the owner is told.
#[test]
fn work_is_never_forgotten() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { discard: true, ..two_clusters() }]);
        let entries: Vec<Entry> = (0..7).map(|_| take(&swap, 0)).collect();
        assert_eq!(swap.put(entries[3], 3), Ok(3));
        while swap.work(9) {}
        let before = swap.env().wanted.load(Ordering::Relaxed);
        let (other, last) = (swap.clone(), entries[6]);
        let thread = thread::spawn(move || other.put(last, 1));
        while swap.work(9) {
            thread::yield_now();
        }
        assert_eq!(thread.join().unwrap(), Ok(1));
        if swap.device(0).unwrap().list_len(Flag::Discard, 0) > 0 {
            assert!(swap.env().wanted.load(Ordering::Relaxed) > before);
            assert!(!swap.work(9));
        }
        assert_eq!(swap.env().discards.load(Ordering::Relaxed), 1, "[15]");
        check(&swap);
    });
}

/// [21]: a thread that sees that nothing is in use any more sees the words cleared.
#[test]
fn words_are_cleared_before_the_usage_drops() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let entry = take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            if other.in_use(0) == 0 {
                assert_eq!(other.lookup(entry), Word::FREE, "[21]");
            }
        });
        assert_eq!(swap.put(entry, 1), Ok(1));
        thread.join().unwrap();
        check(&swap);
    });
}
