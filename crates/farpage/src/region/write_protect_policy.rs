//! Whether pages of a region that come in are written before they leave.
//!
//! Where hardly any is, they come in write-protected: when a page leaves that no thread has written, its copy on the
//! device is good without a look at its content, and no sweep has to protect it (`evict`). The price of a wrong guess
//! is a fault for the first write. One a region. Pure. Callers: `fault` (writes), `evict` (departures), `swap_in` (the
//! question).

use farpage_swap::score::Score;

/// From here on pages come in protected: fewer than one in nine was written.
const SURE: i32 = 256;
/// More does not count: what was so for long may change.
const MOST: i32 = 512;
/// A page that left changed counts as much as so many that did not: its fault costs more than theirs save.
const CHANGED: i32 = 8;
/// A fault, at once: it will be counted again when it leaves.
const WRITTEN: i32 = 16;

/// What was seen lately.
#[derive(Debug, Default)]
pub struct WriteProtectPolicy(Score<MOST>);

impl WriteProtectPolicy {
    /// A page that had come in leaves.
    pub fn left(&self, unchanged: bool) {
        self.0.add(if unchanged { 1 } else { -CHANGED });
    }

    /// A page that had come in protected is written.
    pub fn written(&self) {
        self.0.add(-WRITTEN);
    }

    /// Hardly any was written lately.
    pub fn stays_unwritten(&self) -> bool {
        self.0.get() >= SURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sure_after_many_and_doubtful_after_a_few() {
        let policy = WriteProtectPolicy::default();
        (0..SURE - 1).for_each(|_| policy.left(true));
        assert!(!policy.stays_unwritten());
        policy.left(true);
        assert!(policy.stays_unwritten());
        (0..9999).for_each(|_| policy.left(true));
        let faults = (0..9999).take_while(|_| (policy.written(), policy.stays_unwritten()).1).count();
        assert_eq!(faults, (MOST - SURE) as usize / WRITTEN as usize);
        (0..9999).for_each(|_| policy.left(false));
        (0..MOST + SURE).for_each(|_| policy.left(true));
        assert!(policy.stays_unwritten(), "and it forgets");
    }

    #[test]
    fn one_changed_page_in_nine_is_too_many() {
        let policy = WriteProtectPolicy::default();
        (0..9999).for_each(|i| policy.left(i % 9 != 0));
        assert!(!policy.stays_unwritten());
        (0..9999).for_each(|i| policy.left(i % 20 != 0));
        assert!(policy.stays_unwritten());
    }
}
