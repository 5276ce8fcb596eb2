//! Numbers without a pattern, the same for the same seed: for traces, measurements and tests. No state but a
//! [`Random`]'s own.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What [`Random`] gives first from the state `x`: mixes all bits of a number.
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A small generator (SplitMix64, Steele et al. 2014); its seed may be any number.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// A number below `n`.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// A place in a list of `len`; 0 in an empty one.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        ((u128::from(self.bits()) * len as u128) >> 64) as usize
    }

    /// In [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks, of which `r` comes in proportion to `1 / (r + 1)^theta`: by rejection from the integral of the law, without a
/// table (Hörmann and Derflinger 1996).
#[derive(Debug, Clone, Copy)]
pub struct Zipf {
    theta: f64,
    n: f64,
    /// The integral from 1 to where the first rank begins, and to where the last one ends.
    ends: (f64, f64),
    /// So near to the middle of a rank nothing is rejected.
    sure: f64,
}

impl Zipf {
    /// Ranks 0 to `n` - 1; `theta` is above 0.
    pub fn new(n: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { theta, n: n.max(1) as f64, ends: (0.0, 0.0), sure: 0.0 };
        zipf.ends = (zipf.integral(1.5) - 1.0, zipf.integral(zipf.n + 0.5));
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// A rank.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.ends.1 + random.unit() * (self.ends.0 - self.ends.1);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }

    /// Of `x^-theta`, from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let (log, of_one) = (x.ln(), 1.0 - self.theta);
        if of_one == 0.0 { log } else { (of_one * log).exp_m1() / of_one }
    }

    fn inverse(&self, area: f64) -> f64 {
        let of_one = 1.0 - self.theta;
        if of_one == 0.0 { area.exp() } else { ((of_one * area).max(-1.0).ln_1p() / of_one).exp() }
    }
}
