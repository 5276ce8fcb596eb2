//! Pool memory whose bytes somebody has changed: it lies where the program can write. A load of such an object gives a
//! page, be it a wrong one, or says that it is corrupt; nothing beyond object and page is read or written.

use super::*;
use farpage_swap::PAGE_SIZE;
use rustix::mm::{MprotectFlags, mprotect};

/// Two pages of memory between pages that nobody may touch.
struct Guarded(Region);

impl Guarded {
    fn new() -> Guarded {
        let region = Region::new(4 * PAGE_SIZE);
        for page in [0, 3] {
            // SAFETY: a page of the region, to which nothing refers yet.
            let guard = unsafe { region.base().add(page * PAGE_SIZE) };
            // SAFETY: as above.
            unsafe { mprotect(guard.as_ptr().cast(), PAGE_SIZE, MprotectFlags::empty()) }.unwrap();
        }
        Guarded(region)
    }

    /// The last `len` bytes before the guard behind, or, with `front`, the first ones behind the guard in front.
    fn bytes(&mut self, len: usize, front: bool) -> &mut [u8] {
        let from = if front { PAGE_SIZE } else { 3 * PAGE_SIZE - len };
        // SAFETY: inside the two pages (len is two pages at most), which are initialised and only reached through this.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr().add(from), len) }
    }
}

fn damage(rng: &mut Random, bytes: &mut [u8]) {
    for _ in 0..1 + rng.index(8) {
        let at = rng.index(bytes.len());
        let run = (1 + rng.index(16)).min(bytes.len() - at);
        let kind = rng.index(4);
        for byte in &mut bytes[at..at + run] {
            match kind {
                0 => *byte ^= 1 << rng.index(8),
                1 => *byte = 0xff, // lengths that go on
                2 => *byte = 0,
                _ => *byte = rng.bits() as u8,
            }
        }
    }
}

#[test]
fn decoders_stay_within_object_and_page() {
    for alg in [Alg::Lz4, Alg::Zstd] {
        let codec = Codec::new(alg);
        let (mut input, mut output) = (Guarded::new(), Guarded::new());
        let mut rng = Random(0x5eed_0001);
        let mut refused = 0;
        for round in 0..15_000u64 {
            let whole = codec.compress(&page_of(round % 64).0, <[u8]>::to_vec).unwrap();
            // As it is, but damaged; or cut; or nothing of it.
            let mut bytes = match round % 3 {
                0 => whole,
                1 => whole[..rng.index(whole.len() + 1)].to_vec(),
                _ => (0..rng.index(COMPRESSED_MAX)).map(|_| rng.bits() as u8).collect(),
            };
            if !bytes.is_empty() {
                damage(&mut rng, &mut bytes);
            }
            let len = bytes.len().min(2 * PAGE_SIZE);
            let object = input.bytes(len, round % 2 == 0);
            object.copy_from_slice(&bytes[..len]);
            let page: &mut Page = output.bytes(PAGE_SIZE, round % 4 < 2).try_into().unwrap();
            refused += u64::from(!codec.decompress(object, page));
        }
        assert!(refused > 4_000, "{alg:?}: {refused}");
    }
}

#[test]
fn a_load_of_a_damaged_object_is_a_page_or_an_error() {
    for (alg, seed) in [(Alg::Lz4, 1), (Alg::Zstd, 2)] {
        let region = Region::new(8 << 20);
        let device = zram(&region, alg, 8 << 20, Vec::new()).with_recompression();
        let store = |seed| match device.store(&page_of(seed).0, check_of(seed)) {
            Err(StoreError::Incompressible) => device.store_raw(&page_of(seed).0, check_of(seed)).unwrap(),
            other => other.unwrap(),
        };
        let mut entries: Vec<Entry> = (0..600).map(store).collect();
        let mut rng = Random(0x5eed_1000 + seed);
        let (mut page, mut corrupt) = (Frame::boxed(), 0);
        for round in 0..60 {
            let used = device.pool_bytes() as usize;
            for _ in 0..200 {
                let at = rng.index(used - 64);
                // SAFETY: inside the pool's memory, which nobody reads or writes at this moment.
                damage(&mut rng, unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr().add(at), 64) });
            }
            for entry in &entries {
                match device.load(*entry, &mut page.0) {
                    Ok(()) => {}
                    Err(LoadError::Corrupt { .. }) => corrupt += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            // What works on objects in the background meets them, too.
            device.recompress(64);
            device.compact(64);
            // Metadata is no part of the pool: every object can be freed, once, and its place is used again.
            for _ in 0..50 {
                let entry = entries.swap_remove(rng.index(entries.len()));
                assert!(device.free(entry) && !device.free(entry));
            }
            entries.extend((0..50).map(|i| store(1000 + round * 50 + i)));
        }
        assert!(corrupt > 1000, "{alg:?}: {corrupt}");
    }
}
