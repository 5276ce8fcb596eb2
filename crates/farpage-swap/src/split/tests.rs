use super::*;
use proptest::prelude::*;

proptest! {
    /// Whatever the order, each piece is taken once, the helper's from the front, the owner's from the back.
    #[test]
    fn each_piece_is_taken_once(posts in prop::collection::vec((1u16..40, prop::collection::vec(0u8..8, 0..60)), 1..5)) {
        let split = Split::default();
        prop_assert!(split.is_over());
        for (pieces, steps) in posts {
            split.post(pieces);
            let (mut front, mut back, mut done) = (0, u32::from(pieces), 0);
            for step in steps {
                match step {
                    0..3 => {
                        let want = (front < back).then_some(front);
                        front += u32::from(want.is_some());
                        prop_assert_eq!(split.first(), want);
                    }
                    3..5 => {
                        let some = front < back;
                        back -= u32::from(some);
                        prop_assert_eq!(split.last(), some.then_some(back));
                    }
                    5..7 if done < front => {
                        prop_assert!(!split.finish());
                        done += 1;
                    }
                    _ => {}
                }
                prop_assert_eq!((split.helped(), split.is_over()), (front, front == back && done == front));
            }
            prop_assert_eq!(split.rest(), back - front);
            prop_assert_eq!((split.first(), split.last(), split.rest()), (None, None, 0));
            while done < front {
                let seen = split.must_wait().expect("the helper is not done");
                prop_assert!(split.finish(), "the owner waits");
                prop_assert!(split.word().load(Ordering::Relaxed) != seen);
                done += 1;
            }
            prop_assert!(split.is_over() && split.must_wait().is_none());
        }
    }
}
