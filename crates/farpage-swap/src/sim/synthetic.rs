//! Traces made by rule.

use super::{Access, Random, Zipf};
use std::fmt;

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

/// Why a rule was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyntheticError {
    /// There is none of this name.
    Unknown(String),
    /// Of Zipf's law.
    Exponent(String),
    /// Behind the name of one that takes none: the name, and all of it.
    Number(String, String),
}

impl fmt::Display for SyntheticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyntheticError::Unknown(text) => {
                write!(f, "unknown workload {text:?}; zipf[:THETA], uniform, loop, scan and phases exist")
            }
            SyntheticError::Exponent(text) => {
                write!(f, "{text:?}: the exponent is a number above 0, as in zipf:0.99")
            }
            SyntheticError::Number(name, text) => write!(f, "{name} takes no number: {text:?}"),
        }
    }
}

impl std::error::Error for SyntheticError {}

impl Synthetic {
    /// Reads `zipf[:THETA]`, `uniform`, `loop`, `scan` or `phases`.
    ///
    /// # Errors
    /// One line: what is not understood.
    pub fn parse(text: &str) -> Result<Synthetic, SyntheticError> {
        let (name, theta) = text.split_once(':').map_or((text, None), |(name, theta)| (name, Some(theta)));
        let kind = match name {
            "zipf" => {
                let theta = theta.unwrap_or("0.99").parse::<f64>().ok().filter(|t| t.is_finite() && *t > 0.0);
                let theta = theta.ok_or_else(|| SyntheticError::Exponent(text.into()))?;
                return Ok(Synthetic::Zipf { theta });
            }
            "uniform" => Synthetic::Uniform,
            "loop" => Synthetic::Loop,
            "scan" => Synthetic::ScanHot,
            "phases" => Synthetic::Phases,
            _ => return Err(SyntheticError::Unknown(text.into())),
        };
        if theta.is_some() { Err(SyntheticError::Number(name.into(), text.into())) } else { Ok(kind) }
    }

    /// `accesses` accesses to `pages` pages.
    pub fn trace(self, pages: u32, accesses: u64, seed: u64) -> Vec<Access> {
        let mut random = Random(seed);
        let zipf = if let Synthetic::Zipf { theta } = self { Some(Zipf::new(pages.into(), theta)) } else { None };
        let (hot, third) = ((pages / 8).max(1), (pages / 3).max(1));
        (0..accesses)
            .map(|i| {
                let page = match self {
                    Synthetic::Zipf { .. } => zipf.map_or(0, |zipf| zipf.rank(&mut random)) as u32,
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
