//! Which mapped pages go next. All of these name pages and leave them on their lists.
//!
//! | asked by | where pages | which |
//! | --- | --- | --- |
//! | the engine, regions in thread mode | are cached first | `oldest`; `oldest_in_turn` fills the batch up |
//! | regions in signal mode | leave at once | `oldest_unstaged` |
//!
//! Pure; the caller locks.

use super::{CREDIT, Queue, WorkingSet};
use crate::lru::{Links, List};

/// Puts pages that leave together, each with its number in the program and its place in the order of age, into the
/// order in which they are to go: neighbours one after the other, the runs in the order of their oldest pages. So what
/// does not lie together stays in the order in which it is used, in the swap cache and in the slots.
pub fn in_runs<T>(pages: &mut [(u64, usize, T)]) {
    pages.sort_unstable_by_key(|(number, ..)| *number);
    for run in pages.chunk_by_mut(|a, b| a.0.checked_add(1) == Some(b.0)) {
        let oldest = run.iter().map(|(_, age, _)| *age).min().unwrap_or(0);
        run.iter_mut().for_each(|(_, age, _)| *age = oldest);
    }
    pages.sort_unstable_by_key(|(number, age, _)| (*age, *number));
}

impl WorkingSet {
    /// Up to `out.len()` mapped pages to be unmapped next; they stay on their lists. `target`: how many pages are to be
    /// cached. The queue goes first whose cached list is shorter, compared with what it is to have.
    ///
    /// Main's list is filled up only as pages leave: what is wanted back from it makes it shorter, and if that alone
    /// took the next page of main out, all of main would go round and round beside a pass over much data.
    pub fn oldest(&self, links: &impl Links, target: u32, out: &mut [u32]) -> usize {
        let (cold, hot) = self.cached_targets(target);
        let wanted = |queue: &Queue, target: u32, keep: u32| {
            target.saturating_sub(queue.cached.len()).min(queue.mapped.len().saturating_sub(keep)) as usize
        };
        // What has just come is not unmapped again.
        let keep = self.probation_share() / 2;
        let paced = (self.credit / CREDIT) as usize;
        let (cold, hot) = (wanted(&self.probation, cold, keep), wanted(&self.main, hot, 0).min(paced));
        let first_cold = self.probation.len() > self.probation_share();
        let len = out.len();
        // Both are short: in proportion, and at least one, so that neither waits for ever.
        let of_cold = if cold + hot <= len { cold } else { (len * cold).div_ceil(cold + hot) };
        let (probation, main) = (&self.probation.mapped, &self.main.mapped);
        let mut n = tail(probation, links, &mut out[..of_cold.min(len)]);
        let from_main = hot.min(len - n);
        n += tail(main, links, &mut out[n..][..from_main]);
        if n > 0 {
            return n;
        }
        // Neither cached list is short: the queue that has pages and is to leave next.
        let (first, then) = if first_cold { (probation, main) } else { (main, probation) };
        let n = tail(first, links, out);
        n + tail(then, links, &mut out[n..])
    }

    /// Up to `out.len()` mapped pages whose turn it is to leave, of probation if it is above its share, else of main:
    /// to fill up a batch that [`WorkingSet::oldest`] left short.
    pub fn oldest_in_turn(&self, links: &impl Links, out: &mut [u32]) -> usize {
        let share = self.probation_share();
        let surplus = self.probation.len().saturating_sub(share);
        if surplus == 0 {
            return tail(&self.main.mapped, links, out);
        }
        let Queue { mapped, .. } = &self.probation;
        let most = surplus.min(mapped.len().saturating_sub(share / 2)) as usize;
        let end = most.min(out.len());
        tail(mapped, links, &mut out[..end])
    }

    /// Up to `out.len()` mapped pages that are to leave next, where pages are not cached first: what probation has
    /// above its share, then main. They stay on their lists.
    pub fn oldest_unstaged(&self, links: &impl Links, out: &mut [u32]) -> usize {
        let end = (self.probation.len().saturating_sub(self.probation_share()) as usize).min(out.len());
        let mut n = tail(&self.probation.mapped, links, &mut out[..end]);
        n += tail(&self.main.mapped, links, &mut out[n..]);
        if n > 0 { n } else { tail(&self.probation.mapped, links, out) }
    }

    /// Up to `out.len()` of the oldest mapped pages of probation, although it is not their turn: where all of main
    /// stays.
    pub fn oldest_of_probation(&self, links: &impl Links, out: &mut [u32]) -> usize {
        tail(&self.probation.mapped, links, out)
    }

    /// Up to `out.len()` of the oldest mapped pages of main, although it is not their turn: where all of probation
    /// stays.
    pub fn oldest_of_main(&self, links: &impl Links, out: &mut [u32]) -> usize {
        tail(&self.main.mapped, links, out)
    }
}

/// The oldest nodes of a list.
fn tail(list: &List, links: &impl Links, out: &mut [u32]) -> usize {
    out.iter_mut().zip(list.iter(links).rev()).map(|(out, n)| *out = n).count()
}
