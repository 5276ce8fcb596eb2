//! The numbers of a pager that a program can ask for.
//!
//! One list, [`pager_stats!`](crate::pager_stats), from which [`Stats`] and the C library's `fp_stats` are made. Each
//! name is that of a field of the statistics page ([`farpage_ipc::stat`]), which is where the numbers come from. No
//! locks.

use farpage_ipc::stat::Stat;
use std::sync::atomic::Ordering::Relaxed;

/// The list: names and descriptions, in the order of `fp_stats`, which programs have been compiled with. So new ones
/// come last. `$make` is the name of a macro, which is given the list.
#[doc(hidden)]
#[macro_export]
macro_rules! pager_stats {
    ($make:ident) => {
        $make! {
            /// The budget.
            budget_bytes,
            /// What counts against it: pages of regions, frames, pool, tables.
            used_bytes,
            /// Pages present in regions.
            resident_bytes,
            /// Pages in the swap cache: read ahead and not touched yet; in thread mode also taken out, still in RAM.
            cached_bytes,
            /// Compressed pool.
            pool_bytes,
            /// Uncompressed bytes that the pool stands for.
            pool_orig_bytes,
            /// Pages in swap files.
            file_bytes,
            /// Pinned.
            pinned_bytes,
            /// Faults served.
            pgfault,
            /// Faults that read a device.
            pgmajfault,
            /// Pages read from devices, readahead included.
            pswpin,
            /// Pages written to devices.
            pswpout,
            /// Pages dropped without a write, because their copy was still the same.
            swpout_clean,
            /// Pages found all zero when they went out.
            swpout_zero,
            /// Zero pages served.
            swpin_zero,
            /// Pages read ahead.
            swap_ra,
            /// Faults served from the swap cache.
            workingset_refault_cached,
            /// Faults by writing to a page that was write-protected to see that.
            wp_fault,
            /// Faults that waited for memory.
            allocstall,
            /// Pages taken above the budget because nothing could be swapped out.
            over_budget,
            /// Of `swap_ra`, pages that were touched: exact where all pages read ahead stay unmapped until then, else
            /// in proportion.
            swap_ra_hit,
            /// Nanoseconds for which threads waited in faults, together.
            fault_wait_ns,
        }
    };
}

macro_rules! make {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Numbers of a pager, as `farpage stat` shows them from outside. Bytes where the name says so, else pages or
        /// counts since it was built; in a forked child that inherited it, since the fork.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            /// As the statistics page says now.
            pub(super) fn of(page: &Stat) -> Stats {
                let mut stats = Stats { $($name: page.$name.load(Relaxed),)+ };
                // Once more: what is a hit was read before.
                stats.swap_ra = page.swap_ra.load(Relaxed);
                stats
            }
        }
    };
}

pager_stats!(make);
