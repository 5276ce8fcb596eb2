//! How many threads have had faults: a time for which several waited is not one that passed.
//!
//! One thread, the pager's. No locks. Each fault looks here, so the set is small, of one size, and never moves.

/// Places; a power of two.
const PLACES: usize = 512;
/// Threads that are told apart: half of the places, so that a look ends soon.
const THREADS_MAX: usize = 255;

/// The threads, by the kernel's numbers. One that ended and whose number came back is not told from the new one.
#[derive(Debug)]
pub(crate) struct FaultThreads {
    /// Mostly it is this one again.
    last: u32,
    /// A hash table; 0: free.
    known: [u32; PLACES],
    count: usize,
}

impl Default for FaultThreads {
    fn default() -> FaultThreads {
        FaultThreads { last: 0, known: [0; PLACES], count: 0 }
    }
}

impl FaultThreads {
    /// Thread `tid` has a fault; whether it is another one than all before.
    pub(crate) fn is_new(&mut self, tid: u32) -> bool {
        if tid == self.last {
            return false;
        }
        self.last = tid;
        if self.count == THREADS_MAX {
            return false;
        }
        // Numbers of threads follow one another, so they are spread already.
        let places = (0..PLACES).map(|distance| (tid as usize).wrapping_add(distance) % PLACES);
        for at in places {
            match self.known[at] {
                0 => {
                    self.known[at] = tid;
                    self.count += 1;
                    return true;
                }
                known if known == tid => return false,
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_is_counted_once_and_so_many_at_most() {
        let mut threads = FaultThreads::default();
        let mut new = |tids: &mut dyn Iterator<Item = u32>| tids.filter(|tid| threads.is_new(*tid)).count();
        assert_eq!(new(&mut [7, 7, 9, 7, 9, 7].into_iter()), 2);
        // The same place.
        assert_eq!(new(&mut [7 + PLACES as u32, 7, 7 + PLACES as u32].into_iter()), 1);
        assert_eq!(new(&mut (1000..2000)), THREADS_MAX - 3);
        assert_eq!(new(&mut (1000..9000)), 0);
    }
}
