//! A small Linpack: a dense system of equations, factored in place (LU with partial pivoting) and solved.
//!
//! Column by column, in panels that stay in memory: each panel is brought up to date with all panels left of it (they
//! are read once, in order), then factored. So memory is read about `n / (2 * PANEL)` times.

use std::time::Instant;

/// Columns of a panel.
const PANEL: usize = 64;

/// What came out.
#[derive(Debug, Clone, Copy)]
pub struct Solved {
    /// Factor and solve.
    pub seconds: f64,
    /// Million floating point operations a second.
    pub mflops: f64,
    /// The usual test: the residual, scaled, is a small number.
    pub is_right: bool,
}

/// The order of a matrix of about so many bytes.
pub fn order_of(bytes: u64) -> usize {
    ((bytes / 8) as f64).sqrt() as usize
}

/// Element of the matrix: between -0.5 and 0.5.
fn element(row: usize, column: usize) -> f64 {
    let x = ((row as u64) << 32 | column as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 11) as f64 / (1u64 << 53) as f64 - 0.5
}

/// Fills `a` (`n` times `n`, by columns), factors it and solves for a right-hand side of which the solution is all
/// ones.
pub fn run(a: &mut [f64], n: usize) -> Solved {
    let mut b = vec![0.0; n];
    for (j, column) in a.chunks_exact_mut(n).enumerate() {
        for (i, x) in column.iter_mut().enumerate() {
            *x = element(i, j);
            b[i] += *x;
        }
    }
    let start = Instant::now();
    let pivots = factor(a, n);
    let mut x = b.clone();
    solve(a, n, &pivots, &mut x);
    let seconds = start.elapsed().as_secs_f64();
    // The matrix is gone; its elements can be had again.
    let mut residual: f64 = 0.0;
    for (i, b) in b.iter().enumerate() {
        let sum: f64 = x.iter().enumerate().map(|(j, x)| element(i, j) * x).sum();
        residual = residual.max((sum - b).abs());
    }
    let scaled = residual / (n as f64 * f64::EPSILON * n as f64 * 0.25);
    let n = n as f64;
    Solved { seconds, mflops: (2.0 / 3.0 * n * n * n + 2.0 * n * n) / seconds / 1e6, is_right: scaled < 16.0 }
}

/// `y[i] -= f * x[i]`.
fn subtract(y: &mut [f64], x: &[f64], f: f64) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y -= f * x);
}

fn factor(a: &mut [f64], n: usize) -> Vec<usize> {
    let mut pivots = vec![0; n];
    for first in (0..n).step_by(PANEL) {
        let end = (first + PANEL).min(n);
        let (left, rest) = a.split_at_mut(first * n);
        let panel = &mut rest[..(end - first) * n];
        for (done, before) in left.chunks(PANEL * n).enumerate() {
            // Multipliers of a panel were exchanged with later rows of the same panel: all its exchanges first.
            let ks = done * PANEL..done * PANEL + before.len() / n;
            panel.chunks_exact_mut(n).for_each(|column| ks.clone().for_each(|k| column.swap(k, pivots[k])));
            for (k, l) in ks.zip(before.chunks_exact(n)) {
                for column in panel.chunks_exact_mut(n) {
                    let f = column[k];
                    subtract(&mut column[k + 1..], &l[k + 1..], f);
                }
            }
        }
        for k in first..end {
            let (done, rest) = panel.split_at_mut((k - first) * n);
            for (i, l) in done.chunks_exact(n).enumerate() {
                let (row, column) = (first + i, &mut rest[..n]);
                let f = column[row];
                subtract(&mut column[row + 1..], &l[row + 1..], f);
            }
            let column = &mut rest[..n];
            let pivot = (k..n).max_by(|i, j| column[*i].abs().total_cmp(&column[*j].abs())).unwrap_or(k);
            pivots[k] = pivot;
            // The columns left of it in the panel have their multipliers exchanged with the row, those right of it too.
            panel.chunks_exact_mut(n).for_each(|column| column.swap(k, pivot));
            let column = &mut panel[(k - first) * n..][..n];
            let f = 1.0 / column[k];
            column[k + 1..].iter_mut().for_each(|x| *x *= f);
        }
    }
    pivots
}

fn solve(a: &[f64], n: usize, pivots: &[usize], x: &mut [f64]) {
    // As in `factor`: exchanges and elimination alternate panel by panel.
    for first in (0..n).step_by(PANEL) {
        let end = (first + PANEL).min(n);
        (first..end).for_each(|k| x.swap(k, pivots[k]));
        for k in first..end {
            let f = x[k];
            subtract(&mut x[k + 1..], &a[k * n + k + 1..(k + 1) * n], f);
        }
    }
    for k in (0..n).rev() {
        x[k] /= a[k * n + k];
        let f = x[k];
        subtract(&mut x[..k], &a[k * n..k * n + k], f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_solves_what_it_was_given() {
        for n in [1, 2, 63, 64, 65, 200, 333] {
            let mut a = vec![0.0; n * n];
            assert!(run(&mut a, n).is_right, "{n}");
            let mut broken = vec![0.0; n * n];
            let mut x: Vec<f64> = (0..n).map(|i| (0..n).map(|j| element(i, j)).sum()).collect();
            broken.chunks_exact_mut(n).enumerate().for_each(|(j, c)| (0..n).for_each(|i| c[i] = element(i, j)));
            let pivots = factor(&mut broken, n);
            solve(&broken, n, &pivots, &mut x);
            assert!(x.iter().all(|x| (x - 1.0).abs() < 1e-6), "{n}: {x:?}");
        }
    }
}
