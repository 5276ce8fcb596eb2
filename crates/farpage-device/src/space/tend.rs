//! What a background thread does for the devices, a little at a time.

use super::load::retry;
use super::*;

/// Pages taken off a failed device in one turn.
const DRAIN: usize = 16;
/// Pages compressed anew in one turn: about 30 us each.
const RECOMPRESS: usize = 8;

/// A page-aligned buffer.
#[repr(align(4096))]
struct Buffer(Page);

impl SwapSpace {
    /// A turn of what is not urgent; whether there was anything to do. Devices that have failed are drained. With
    /// `idle` (nothing else is to be done): space that is not in use is given back to disk or filesystem, and pages
    /// that have not been wanted for some time are compressed anew. For a background thread; waits for disks.
    pub fn tend(&self, idle: bool) -> bool {
        let mut worked = self.drain(DRAIN) > 0;
        for file in &self.files {
            worked |= file.look_after_server();
        }
        if idle {
            worked |= self.files.iter().any(|file| file.discard_one());
            worked |= self.zrams.iter().map(|zram| zram.recompress(RECOMPRESS)).sum::<usize>() > 0;
        }
        worked
    }

    /// Nothing is stored for some time: gives memory back that only storing needs.
    pub fn rest(&self) {
        self.zrams.iter().for_each(|zram| zram.rest());
        self.shared.iter().for_each(|shared| shared.rest());
    }

    /// Moves up to `pages` pages from devices that have failed to others; how many. A page that cannot be read stays:
    /// if it is wanted, its own read says so.
    fn drain(&self, pages: usize) -> usize {
        let mut moved = 0;
        for file in self.files.iter().filter(|file| file.wants_drain()) {
            let mut buffer = Buffer([0; PAGE_SIZE]);
            for _ in 0..pages {
                let Some((entry, check)) = file.next_to_drain() else { break };
                if retry(|| file.load(entry, &mut buffer.0)).is_err() {
                    continue;
                }
                let Ok(to) = self.store(&buffer.0, check) else {
                    // No room elsewhere for now.
                    file.drain_again_from(entry);
                    break;
                };
                if file.moved_to(entry, to) {
                    moved += 1;
                } else {
                    self.free(to);
                }
            }
        }
        self.drained.fetch_add(moved as u64, Relaxed);
        moved
    }
}
