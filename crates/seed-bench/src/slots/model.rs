//! A paper model of many CPUs: a discrete-event simulation of the three variants, fed with hold times and rates that
//! were measured here by one thread. It shows the shape of the curve, not the numbers of any machine.

use super::{Extra, Row, VARIANTS};
use crate::meter::Count;
use farpage_swap::lock::sites;
use farpage_swap::sim::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds to pass a contended lock's cache line to the next holder, on one socket: 50 to 100 on servers.
const HANDOVER_NS: f64 = 70.0;
/// Other system time for each allocation or free: the fault, the compression, the page tables. About 18 us a page that
/// is swapped out and in again, for an allocation and a free, on this project's machine.
const ELSE_NS: f64 = 9_000.0;
/// Clusters that frees meet at random.
const CLUSTERS: u64 = 512;
/// Operations of each CPU that are simulated.
const OPS: u32 = 2_000;

/// What a variant does with locks.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Device-lock acquisitions an operation, and how long it is held.
    device_per_op: f64,
    device_hold_ns: f64,
    /// A cluster's lock is taken for each operation and held so long; 0: no cluster locks.
    cluster_hold_ns: f64,
}

/// Holds of one lock: (acquisitions, mean hold without the clock's own cost, nanoseconds).
fn holds(row: &Row, extra: &Extra, lock: &str) -> (f64, f64) {
    let all = sites::ALL.iter().copied().chain(super::single::SITES).filter(|site| site.lock == lock);
    let total = all.fold(Count::default(), |mut total, site| {
        total.acquired += row.counted.counts[site.index].acquired;
        total.held += row.counted.counts[site.index].held;
        total
    });
    let mean = total.held as f64 * extra.ns_per_tick / total.acquired.max(1) as f64 - extra.clock_ns;
    (total.acquired as f64, mean.max(5.0))
}

fn shape(row: &Row, extra: &Extra) -> Shape {
    let (device, device_hold_ns) = holds(row, extra, "device");
    let (cluster, cluster_hold_ns) = holds(row, extra, "cluster");
    let cluster_hold_ns = if cluster > 0.0 { cluster_hold_ns } else { 0.0 };
    Shape { device_per_op: device / row.counted.ops.max(1) as f64, device_hold_ns, cluster_hold_ns }
}

/// A lock that gives way in the order of arrival.
#[derive(Clone, Copy, Default)]
struct Server {
    free_at: f64,
}

impl Server {
    /// When a CPU that asks at `now` and holds for `hold` is done.
    fn pass(&mut self, now: f64, hold: f64) -> f64 {
        let contended = self.free_at > now;
        let start = if contended { self.free_at + HANDOVER_NS } else { now };
        self.free_at = start + hold;
        self.free_at
    }
}

/// (operations a second, CPU time an operation in ns, waiting of it).
fn simulate(shape: Shape, cpus: usize) -> (f64, f64, f64) {
    let mut device = Server::default();
    let mut clusters = vec![Server::default(); CLUSTERS as usize + cpus];
    let mut random = Random(0);
    let mut next = |n: u64| random.index(n as usize) as u64;
    // Times in thousandths of a nanosecond order the CPUs; each entry: when, which, operations done.
    let mut queue: BinaryHeap<Reverse<(u64, usize, u32)>> =
        (0..cpus).map(|cpu| Reverse((next(ELSE_NS as u64 * 1000), cpu, 0))).collect();
    let (mut end, mut done, mut waited, mut busy) = (0.0f64, 0u64, 0.0, 0.0);
    while let Some(Reverse((at, cpu, ops))) = queue.pop() {
        let from = at as f64 / 1000.0;
        let mut now = from;
        let mut work = 0.0;
        if shape.cluster_hold_ns > 0.0 {
            // Allocations in the CPU's own cluster, frees anywhere.
            let index = if ops % 2 == 0 { CLUSTERS as usize + cpu } else { next(CLUSTERS) as usize };
            now = clusters[index].pass(now, shape.cluster_hold_ns);
            work += shape.cluster_hold_ns;
        }
        if (next(1 << 20) as f64) < shape.device_per_op * (1 << 20) as f64 {
            now = device.pass(now, shape.device_hold_ns);
            work += shape.device_hold_ns;
        }
        waited += now - from - work;
        // Other work varies, so that CPUs do not march in step.
        let other = ELSE_NS * (0.5 + next(1000) as f64 / 1000.0);
        busy += now - from + other;
        now += other;
        done += 1;
        end = end.max(now);
        if ops + 1 < OPS {
            queue.push(Reverse(((now * 1000.0) as u64, cpu, ops + 1)));
        }
    }
    (done as f64 * 1e9 / end, busy / done as f64, waited / done as f64)
}

/// Prints the model up to `cpus`.
pub fn print(rows: &[Row], extra: &Extra, cpus: usize) {
    let find = |variant| {
        let one =
            |row: &&Row| (row.variant, row.load.mixed, row.load.fill_pct, row.load.threads) == (variant, false, 60, 1);
        rows.iter().find(one).or_else(|| rows.iter().find(|row| row.variant == variant && !row.load.mixed))
    };
    let shapes: Vec<Shape> = (0..3).filter_map(find).map(|row| shape(row, extra)).collect();
    println!("\nmodel: order 0, 60% full, 1 to {cpus} CPUs (computed, not measured)");
    println!(
        "  assumed: {ELSE_NS} ns of other system time an operation; {HANDOVER_NS} ns to hand a contended lock over; locks"
    );
    println!("  give way in order of arrival; waiting is spinning (system time, as in the kernel); memory bandwidth,");
    println!("  other locks and NUMA cost nothing; allocations use the CPU's own cluster, frees one of {CLUSTERS}");
    for (shape, name) in shapes.iter().zip(VARIANTS) {
        println!(
            "  measured, {name}: device lock {:.4} an operation, held {:.0} ns; cluster lock held {:.0} ns",
            shape.device_per_op, shape.device_hold_ns, shape.cluster_hold_ns
        );
    }
    // What the seed's kernel held its lock for, roughly: from its table, so that the shape can be compared.
    let worse = 5.0;
    println!(
        "  also with holds {worse} times as long (cold caches, accounting under the lock: nearer to the seed's kernel)"
    );
    for factor in [1.0, worse] {
        println!("  holds x {factor}: CPU time an operation, us (of it waiting) | isolate against single");
        let mut at = 1;
        loop {
            let results: Vec<(f64, f64, f64)> = shapes
                .iter()
                .map(|shape| {
                    let scaled = Shape {
                        device_hold_ns: shape.device_hold_ns * factor,
                        cluster_hold_ns: shape.cluster_hold_ns * factor,
                        ..*shape
                    };
                    simulate(scaled, at)
                })
                .collect();
            let cells: Vec<String> = results
                .iter()
                .zip(VARIANTS)
                .map(|(r, name)| format!("{name} {:>7.2} ({:>6.2})", r.1 / 1e3, r.2 / 1e3))
                .collect();
            let change = match (results.first(), results.get(2)) {
                (Some(single), Some(real)) => 100.0 * (real.1 / single.1 - 1.0),
                _ => 0.0,
            };
            println!("  {at:>4} CPUs  {}  | {change:+.1}%", cells.join("  "));
            if at >= cpus {
                break;
            }
            at = if at < 6 { (at * 2).min(6) } else { at * 2 }.min(cpus);
        }
    }
    println!(
        "  the seed (48 cores, 96 threads; system time after against before): 6: -0.3%, 12: -3.3%, 24: -18.7%, \
         48: -47.7%, 96: -46.7%"
    );
}
