//! Frees that meet a lock: carried out by the thread that has it, whatever it was taken for; and never twice.

use super::*;

/// A free of `freed`, which is swapped out with one reference, while `hold` takes the lock of its cluster for something
/// else.
fn against(prepare: fn() -> (Arc<Swap<Frames>>, Entry), hold: fn(&Swap<Frames>)) {
    loom::model(move || {
        let (swap, freed) = prepare();
        let in_use = swap.in_use(0);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            assert_eq!(other.put(freed, 1), Ok(1));
            assert_eq!(other.lookup(freed), Word::FREE);
        });
        hold(&swap);
        thread.join().unwrap();
        // Nothing may come before these that locks the cluster and so carries out what was forgotten.
        assert_eq!(swap.in_use(0), in_use - 1, "[2]");
        check(&swap);
        assert_eq!(swap.put(freed, 1), Err(CountError::NotInUse), "[25]");
    });
}

/// Slots 1 to 7; the one to be freed is 6.
fn full() -> (Arc<Swap<Frames>>, Entry) {
    let swap = swap(&[two_clusters()]);
    (0..7).for_each(|_| _ = take(&swap, 0));
    (swap, slot(6))
}

const fn slot(slot: u64) -> Entry {
    Entry { device: 0, slot }
}

#[test]
fn met_by_a_walk() {
    against(full, |swap| assert!(swap.next_in_use(0, 4, 1).is_ok()));
}

#[test]
fn met_by_numbers() {
    against(full, |swap| assert_eq!(swap.stats(0).clusters, 2));
}

#[test]
fn met_by_counts() {
    against(full, |swap| {
        assert_eq!((swap.dup(slot(5), 1), swap.count(slot(5))), (Ok(()), 2));
        assert_eq!(swap.put(slot(5), 1), Ok(0));
    });
}

#[test]
fn met_by_the_swap_cache() {
    against(full, |swap| assert_eq!(swap.cache_insert(slot(5), 1, 0), Ok(0)));
}

#[test]
fn met_by_a_zero_flag() {
    against(full, |swap| assert_eq!(swap.set_zero(slot(5), 1, true), Ok(())));
}

#[test]
fn met_by_swapoff() {
    against(full, |swap| drop(swap.swapoff(0)));
}

/// A search for a larger block looks into full clusters under the device lock.
#[test]
fn met_by_a_search_for_few() {
    against(full, |swap| {
        let device = swap.device(0).unwrap();
        let taken = device.isolate_few(1, 2, |cluster, index| swap.carry_out_pending(device, cluster, index));
        assert!(taken.is_none());
    });
}

/// A cluster that is on a stack, but was taken from the full list since, is passed over.
#[test]
fn met_by_a_search_of_a_stack() {
    fn passed() -> (Arc<Swap<Frames>>, Entry) {
        let (swap, freed) = full();
        assert_eq!(swap.put(slot(5), 1), Ok(1));
        let device = swap.device(0).unwrap();
        drop(device.isolate_few(0, 2, |_, _| ()).unwrap());
        assert_eq!(device.ready_list(Stack::Holes(0)), [1]);
        (swap, freed)
    }
    against(passed, |swap| assert!(swap.take_ready(swap.device(0).unwrap(), Stack::Holes(0)).is_none()));
}

#[test]
fn met_by_reclaim() {
    fn lazy() -> (Arc<Swap<Frames>>, Entry) {
        let (swap, freed) = full();
        // Frame 1 is always busy.
        assert_eq!((swap.cache_insert(slot(7), 1, 1), swap.put(slot(7), 1)), (Ok(0), Ok(0)));
        (swap, freed)
    }
    against(lazy, |swap| {
        swap.want_reclaim(swap.device(0).unwrap());
        while swap.work(9) {}
    });
}

/// The cluster after one that has become full.
#[test]
fn met_by_the_next_cluster() {
    fn nonfull() -> (Arc<Swap<Frames>>, Entry) {
        let swap = swap(&[two_clusters()]);
        let cpus = [0, 0, 1, 1, 1].map(|cpu| take(&swap, cpu).slot);
        assert_eq!(cpus, [1, 2, 4, 5, 6]);
        assert_eq!(swap.put(slot(5), 1), Ok(1));
        (swap, slot(4))
    }
    loom::model(|| {
        let (swap, freed) = nonfull();
        let other = swap.clone();
        let thread = thread::spawn(move || assert_eq!(other.put(freed, 1), Ok(1)));
        assert_eq!(take(&swap, 0).slot, 3);
        thread.join().unwrap();
        check(&swap);
        assert_eq!(swap.in_use(0), 4);
    });
}

#[test]
fn met_by_an_allocation() {
    loom::model(|| {
        let (swap, freed) = full();
        assert_eq!(swap.put(slot(5), 1), Ok(1));
        let other = swap.clone();
        let thread = thread::spawn(move || assert_eq!(other.put(freed, 1), Ok(1)));
        let mine = swap.alloc(0, 0, Fill::Swapped);
        thread.join().unwrap();
        assert!(mine.is_none_or(|mine| mine == slot(5) || mine == freed));
        check(&swap);
        assert_eq!(swap.in_use(0), 5 + u64::from(mine.is_some()));
    });
}

/// A block, and a single slot of the same cluster.
#[test]
fn two_frees_meet() {
    loom::model(|| {
        let (swap, _) = full();
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(slot(4), 2));
        assert_eq!(swap.put(slot(7), 1), Ok(1));
        assert_eq!(thread.join().unwrap(), Ok(2));
        assert_eq!(swap.in_use(0), 4);
        check(&swap);
    });
}

/// [25]: two free the same slot: it is freed once.
#[test]
fn a_double_free_frees_once() {
    loom::model(|| {
        let (swap, freed) = full();
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(freed, 1));
        let mine = swap.put(freed, 1);
        let theirs = thread.join().unwrap();
        assert!(mine == Ok(1) || theirs == Ok(1));
        assert_eq!(swap.in_use(0), 6, "[2], [25]");
        assert_eq!(swap.put(freed, 1), Err(CountError::NotInUse));
        check(&swap);
    });
}

/// [23]: the only reference goes while another thread binds the slot to a frame, or adds a reference.
#[test]
fn a_slot_is_free_or_bound() {
    loom::model(|| {
        let (swap, freed) = full();
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(freed, 1));
        let bound = swap.cache_insert(freed, 1, 0);
        let expected = [(Ok(0), Ok(0)), (Err(CacheError::NotInUse), Ok(1))];
        let put = thread.join().unwrap();
        assert!(expected.contains(&(bound, put)), "{bound:?} {put:?}");
        assert_eq!(swap.cache_remove(freed, 1, 0, 0).is_ok(), bound.is_ok());
        assert_eq!(swap.in_use(0), 6);
        check(&swap);
    });
}

#[test]
fn a_reference_more_or_none() {
    loom::model(|| {
        let (swap, freed) = full();
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(freed, 1));
        let more = swap.dup(freed, 1);
        let put = thread.join().unwrap();
        assert_eq!(put, Ok(usize::from(more.is_err())), "[23]");
        assert_eq!(swap.count(freed), u64::from(more.is_ok()), "[23]");
        check(&swap);
    });
}

/// [11]: a thread that has freed a slot of a full device gets one.
#[test]
fn a_pending_slot_is_waited_for() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let all: Vec<Entry> = (0..3).map(|_| take(&swap, 0)).collect();
        let (other, freed) = (swap.clone(), all[1]);
        let thread = thread::spawn(move || {
            assert_eq!(other.put(freed, 1), Ok(1));
            assert_eq!(other.alloc(1, 0, Fill::Swapped), Some(freed), "[11]");
        });
        assert_eq!(swap.count(all[0]), 1);
        thread.join().unwrap();
        check(&swap);
    });
}

/// [20]: the end of swapoff waits for what was freed before.
#[test]
fn swapoff_waits_for_pending_slots() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let last = take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let off = other.swapoff(0).unwrap();
            assert_eq!(other.put(last, 1), Ok(1));
            assert!(off.finish().is_ok(), "[20]");
        });
        swap.next_in_use(0, 2, 1).unwrap_err();
        thread.join().unwrap();
        check(&swap);
    });
}

/// A free that meets the lock of a thread that carries out another one.
#[test]
fn a_free_meets_one_that_is_carried_out() {
    loom::model(|| {
        let (swap, _) = full();
        let other = swap.clone();
        let thread = thread::spawn(move || {
            assert_eq!((other.put(slot(5), 1), other.put(slot(6), 1)), (Ok(1), Ok(1)));
        });
        assert_eq!(swap.count(slot(4)), 1);
        thread.join().unwrap();
        assert_eq!(swap.in_use(0), 5);
        check(&swap);
    });
}

/// The same, when the cluster is empty afterwards: its table goes before the second thread that frees has noted
/// anything.
#[test]
fn a_free_is_carried_out_with_another_and_the_table_goes() {
    loom::model(|| {
        let (swap, _) = full();
        assert_eq!((swap.put(slot(4), 1), swap.put(slot(7), 1)), (Ok(1), Ok(1)));
        let held = swap.lock(swap.device(0).unwrap(), 1, &sites::CLUSTER_ADMIN);
        assert_eq!(swap.put(slot(5), 1), Ok(1));
        let other = swap.clone();
        let thread = thread::spawn(move || assert_eq!(other.put(slot(6), 1), Ok(1)));
        drop(held);
        // A thread that gets a slot has it, whatever the other still does about its own.
        let mine = swap.alloc(0, 0, Fill::Swapped);
        thread.join().unwrap();
        assert!(mine.is_none_or(|mine| swap.count(mine) == 1), "{mine:?}");
        check(&swap);
    });
}
