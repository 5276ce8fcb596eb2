//! Traces made by rule.

use super::Access;

/// A small generator of pseudo-random numbers (SplitMix64, Steele et al. 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A trace by rule. Three accesses in ten are writes; `pages` is how many pages there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Synthetic {
    /// Page of rank `r` is accessed in proportion to `1 / r^theta`.
    Zipf {
        /// Exponent.
        theta: f64,
    },
    /// All pages alike.
    Uniform,
    /// All pages in order, again and again.
    Loop,
    /// An eighth of the pages is hot and accessed at random, four accesses for each page that a pass over the others
    /// takes.
    ScanHot,
    /// A hot third of the pages, accessed at random; after each quarter of the trace another third.
    Phases,
}

impl Synthetic {
    /// Reads `zipf[:THETA]`, `uniform`, `loop`, `scan` or `phases`.
    ///
    /// # Errors
    /// One line: what is not understood.
    pub fn parse(text: &str) -> Result<Synthetic, String> {
        let (name, theta) = text.split_once(':').map_or((text, None), |(name, theta)| (name, Some(theta)));
        let kind = match name {
            "zipf" => {
                let theta = theta.unwrap_or("0.99").parse::<f64>().ok().filter(|t| t.is_finite() && *t > 0.0);
                let theta =
                    theta.ok_or_else(|| format!("{text:?}: the exponent is a number above 0, as in zipf:0.99"))?;
                return Ok(Synthetic::Zipf { theta });
            }
            "uniform" => Synthetic::Uniform,
            "loop" => Synthetic::Loop,
            "scan" => Synthetic::ScanHot,
            "phases" => Synthetic::Phases,
            _ => return Err(format!("unknown workload {text:?}; zipf[:THETA], uniform, loop, scan and phases exist")),
        };
        if theta.is_some() { Err(format!("{name} takes no number: {text:?}")) } else { Ok(kind) }
    }

    /// `accesses` accesses to `pages` pages.
    pub fn trace(self, pages: u32, accesses: u64, seed: u64) -> Vec<Access> {
        let mut random = Random(seed);
        let weights = if let Synthetic::Zipf { theta } = self { cumulated(pages, theta) } else { Vec::new() };
        let (hot, third) = ((pages / 8).max(1), (pages / 3).max(1));
        (0..accesses)
            .map(|i| {
                let page = match self {
                    Synthetic::Zipf { .. } => {
                        let at = random.unit() * weights.last().copied().unwrap_or(0.0);
                        (weights.partition_point(|w| *w <= at) as u32).min(pages - 1)
                    }
                    Synthetic::Uniform => random.below(pages),
                    Synthetic::Loop => (i % u64::from(pages)) as u32,
                    Synthetic::ScanHot if i % 5 == 0 => hot + (i / 5 % u64::from((pages - hot).max(1))) as u32,
                    Synthetic::ScanHot => random.below(hot),
                    Synthetic::Phases => (i * 4 / accesses % 3) as u32 * third + random.below(third),
                };
                Access::new(page.min(pages - 1), random.below(10) < 3)
            })
            .collect()
    }
}

/// Sums of the weights of ranks 0, 0 to 1, 0 to 2, ...
fn cumulated(pages: u32, theta: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=pages)
        .map(|rank| {
            sum += f64::from(rank).powf(-theta);
            sum
        })
        .collect()
}
