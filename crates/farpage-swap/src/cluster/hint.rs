//! Per-CPU hints: where each CPU's next block of each order should come from.
//!
//! A hint may name a cluster that is long gone, another CPU's, or another device's: a thread that follows it takes the
//! cluster's lock and looks. So plain loads and stores do, also where two threads have the same CPU number.

use super::{Entry, ORDERS};
use crate::sync::{AtomicU64, Ordering};

const SLOT_BITS: u32 = 40;

/// What takes blocks: a CPU, by its hints, or all of them together.
pub(super) type User = u16;
/// No user.
pub(super) const NO_USER: User = 0;
/// All CPUs, at the one place of a rotational device.
pub(super) const ALL: User = User::MAX;

/// One CPU's hints: device number + 1 above the slot, 0 for none. Two cache lines, to which no other CPU writes.
#[repr(align(128))]
struct Cpu([AtomicU64; ORDERS]);

pub(super) struct Hints(Box<[Cpu]>);

impl Hints {
    pub(super) fn new(cpus: usize) -> Hints {
        Hints((0..cpus.max(1)).map(|_| Cpu(std::array::from_fn(|_| AtomicU64::new(0)))).collect())
    }

    #[inline]
    fn index(&self, cpu: usize) -> usize {
        let len = self.0.len();
        if cpu < len { cpu } else { cpu % len }
    }

    #[inline]
    fn place(&self, cpu: usize, order: u8) -> &AtomicU64 {
        &self.0[self.index(cpu)].0[usize::from(order)]
    }

    #[inline]
    pub(super) fn get(&self, cpu: usize, order: u8) -> Option<Entry> {
        let raw = self.place(cpu, order).load(Ordering::Relaxed);
        let device = (raw >> SLOT_BITS).checked_sub(1)? as u8;
        Some(Entry { device, slot: raw & ((1 << SLOT_BITS) - 1) })
    }

    #[inline]
    pub(super) fn set(&self, cpu: usize, order: u8, next: Option<Entry>) {
        let raw = next.map_or(0, |next| (u64::from(next.device) + 1) << SLOT_BITS | next.slot);
        self.place(cpu, order).store(raw, Ordering::Relaxed);
    }

    /// The user that a CPU is.
    pub(super) fn user(&self, cpu: usize) -> User {
        self.index(cpu).min(usize::from(ALL) - 2) as User + 1
    }

    /// Whether a user goes on in this cluster with blocks of `order`: as of a moment ago.
    pub(super) fn is_at(&self, user: User, order: u8, device: u8, cluster: u32) -> bool {
        match user {
            NO_USER => false,
            ALL => true,
            cpu => {
                let hint = self.get(usize::from(cpu) - 1, order);
                hint.is_some_and(|hint| hint.device == device && hint.cluster() == cluster)
            }
        }
    }

    /// Drops all hints to a device. One that is stored meanwhile does no harm.
    #[cfg(feature = "seed")]
    pub(super) fn forget(&self, device: u8) {
        for place in self.0.iter().flat_map(|cpu| &cpu.0) {
            let raw = place.load(Ordering::Relaxed);
            if raw >> SLOT_BITS == u64::from(device) + 1 {
                let _ = place.compare_exchange(raw, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val::<[Cpu]>(&self.0)
    }
}
