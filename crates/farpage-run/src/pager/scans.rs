//! Registered ranges whose present pages are not on the lists yet.
//!
//! Callers: `register`, `apply_event`, `let_go`, on the pager's thread. No locks.

use farpage_base::mem::units::Vpn;

/// Ranges (pages), the one that is scanned next last.
#[derive(Default)]
pub(crate) struct Scans(pub(crate) Vec<(Vpn, Vpn)>);

impl Scans {
    /// Takes `[first, last)` out and returns the parts taken out. A scan must not take discarded
    /// pages, which may be there for another moment, for present ones.
    pub(crate) fn cut(&mut self, first: Vpn, last: Vpn) -> Vec<(Vpn, Vpn)> {
        let (mut cut, mut kept) = (Vec::new(), Vec::new());
        for &(s, t) in &self.0 {
            if s < last && first < t {
                cut.push((s.max(first), t.min(last)));
                kept.extend([(s, first), (last, t)].iter().filter(|(s, t)| s < t));
            } else {
                kept.push((s, t));
            }
        }
        self.0 = kept;
        cut
    }
}
