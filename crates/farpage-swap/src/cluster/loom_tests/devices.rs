//! Devices that go while they are used.

use super::*;

/// [19]: when swapoff has begun, the device's slots only become fewer.
#[test]
fn no_slot_appears_once_swapoff_has_begun() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let first = take(&swap, 0);
        let other = swap.clone();
        // By hint, and by the lists.
        let thread = thread::spawn(move || (other.alloc(0, 0, Fill::Swapped), other.alloc(1, 0, Fill::Swapped)));
        let off = swap.swapoff(0).unwrap();
        let seen = swap.in_use(0);
        let (a, b) = thread.join().unwrap();
        assert_eq!(swap.in_use(0), seen, "[19]");
        assert_eq!(seen, 1 + u64::from(a.is_some()) + u64::from(b.is_some()));
        for entry in [Some(first), a, b].into_iter().flatten() {
            assert_eq!(swap.put(entry, 1), Ok(1));
        }
        assert!(off.finish().is_ok());
        check(&swap);
    });
}

/// [14], [20]: a device goes and another comes under its number, while a thread has a hint and asks for a reference.
#[test]
fn a_reference_after_the_end_fails() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let first = take(&swap, 0);
        assert_eq!(swap.put(first, 1), Ok(1));
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let held = other.get(0);
            let capacity = other.capacity(0);
            // While a reference is held the device is the old one.
            assert!(held.is_none() || capacity == 3, "[20]");
        });
        if let Ok(()) = swap.swapoff(0).unwrap().finish() {
            assert!(swap.get(0).is_none(), "[20]");
        }
        thread.join().unwrap();
        check(&swap);
    });
}

/// [14]: the same for an allocation by a hint: it gets a slot of the device that is there, or none.
#[test]
fn a_hint_to_a_device_that_went() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let first = take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let mine = other.alloc(0, 0, Fill::Swapped);
            mine.inspect(|&mine| assert!(other.put(mine, 1) == Ok(1)))
        });
        assert_eq!(swap.put(first, 1), Ok(1));
        let finished = swap.swapoff(0).unwrap().finish().is_ok();
        if finished {
            assert_eq!(swap.swapon(DeviceOptions { slots: 3, ..DeviceOptions::default() }), Ok(0));
        }
        let mine = thread.join().unwrap();
        assert!(mine.is_none_or(|mine| mine.slot < 4));
        assert_eq!(swap.in_use(0), 0);
        check(&swap);
    });
}
