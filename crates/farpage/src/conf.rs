//! What an engine is told when it starts: budget, swap devices, checks.
//!
//! The launcher passes it in one environment variable, `FARPAGE_CONF`, pairs separated by `;`:
//! `ram:536870912;swap:zram,alg=lz4;swap:file:/var/tmp,size=4G,prio=5;verify`.
//! The same text works without the launcher (`LD_PRELOAD=... FARPAGE_CONF=ram:512M program`).

use crate::size;
use std::fmt;
use std::path::PathBuf;

/// Name of the environment variable that carries a [`Conf`].
pub const ENV_CONF: &str = "FARPAGE_CONF";
/// Number of an inherited, open `/dev/userfaultfd` (not close-on-exec, so that exec'ed children find it too).
pub const ENV_UFFD_FD: &str = "FARPAGE_UFFD_FD";
/// `FD:PID`: an inherited memfd that holds the statistics page, meant for process PID only.
pub const ENV_STAT_FD: &str = "FARPAGE_STAT_FD";
/// Set to anything but `0` or the empty string: the preload library does nothing.
pub const ENV_DISABLE: &str = "FARPAGE_DISABLE";

/// Smallest budget an engine accepts, bytes: frames, metadata and stacks must fit several times over.
pub const RAM_MIN: u64 = 16 << 20;

/// Compression algorithm of a zram device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alg {
    /// LZ4: about 8 us to compress a page, 3 us to decompress.
    #[default]
    Lz4,
    /// zstd level 1: about 20 us and 9 us, better ratio.
    Zstd,
}

/// One `--swap SPEC`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapSpec {
    /// Compressed RAM inside the budget.
    Zram {
        /// Algorithm.
        alg: Alg,
        /// Most bytes of *uncompressed* pages it takes; `None`: no limit of its own.
        size: Option<u64>,
        /// Higher is used first; `None`: order of the command line.
        prio: Option<i32>,
    },
    /// Plain memory inside the budget: saves nothing; for measurements and tests.
    Ram {
        /// Most bytes it takes; `None`: its share of what compressed RAM may take.
        size: Option<u64>,
        /// Higher is used first; `None`: order of the command line.
        prio: Option<i32>,
    },
    /// A file (PATH a directory: an unnamed temporary file in it).
    File {
        /// Directory or file.
        path: PathBuf,
        /// Largest size in bytes; `None`: bounded by free disk space only.
        size: Option<u64>,
        /// Higher is used first; `None`: order of the command line.
        prio: Option<i32>,
        /// For tests: faults of the disk, by seed, that the engine must get over without losing anything.
        fault: Option<u64>,
    },
}

/// Everything an engine is told at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// Budget: most resident anonymous memory of the process, bytes.
    pub ram: u64,
    /// Swap devices in the order given.
    pub swap: Vec<SwapSpec>,
    /// Keep a checksum of every swapped-out page and abort on a mismatch.
    pub verify: bool,
    /// One line on stderr when something noteworthy happens (activation, a device that is skipped).
    pub verbose: bool,
    /// Record the faults in this file ([`crate::trace`]).
    pub trace: Option<PathBuf>,
}

/// Why a configuration was refused. `Display` is one line that names the part and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfError(pub String);

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfError {}

impl SwapSpec {
    /// The default devices: compressed RAM first, then a file in /var/tmp.
    pub fn defaults() -> Vec<SwapSpec> {
        vec![
            SwapSpec::Zram { alg: Alg::Lz4, size: None, prio: None },
            SwapSpec::File { path: PathBuf::from("/var/tmp"), size: None, prio: None, fault: None },
        ]
    }

    /// Reads `zram[,alg=lz4|zstd][,size=SIZE][,prio=N]`, `ram[,size=SIZE][,prio=N]` or
    /// `file:PATH[,size=SIZE][,prio=N]`.
    ///
    /// # Errors
    /// Unknown kind, option, algorithm, or an unreadable size or priority; the message names the offending part.
    pub fn parse(text: &str) -> Result<SwapSpec, ConfError> {
        let err = |what: String| ConfError(format!("swap device {text:?}: {what}"));
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or("");
        let mut alg = Alg::Lz4;
        let (mut size_max, mut prio, mut fault) = (None, None, None);
        let zram = head == "zram";
        let path = head.strip_prefix("file:");
        if !zram && path.is_none() && head != "ram" {
            return Err(err("unknown kind; use zram[,alg=lz4|zstd], file:PATH or ram".into()));
        }
        if path == Some("") {
            return Err(err("no path; write file:/var/tmp".into()));
        }
        for part in parts {
            match part.split_once('=') {
                Some(("alg", v)) if zram => {
                    alg = match v {
                        "lz4" => Alg::Lz4,
                        "zstd" => Alg::Zstd,
                        _ => return Err(err(format!("unknown algorithm {v:?}; lz4 and zstd exist"))),
                    }
                }
                Some(("size", v)) => {
                    let bytes = size::parse(v).map_err(|e| err(e.to_string()))?;
                    size_max = Some(bytes);
                }
                Some(("prio", v)) => {
                    let n = v.parse::<i32>().map_err(|_| err(format!("priority {v:?} is not a number")))?;
                    prio = Some(n);
                }
                Some(("fault", v)) if path.is_some() => {
                    let seed = v.parse::<u64>().map_err(|_| err(format!("seed {v:?} is not a number")))?;
                    fault = Some(seed);
                }
                _ => return Err(err(format!("unknown option {part:?}"))),
            }
        }
        Ok(match path {
            Some(p) => SwapSpec::File { path: PathBuf::from(p), size: size_max, prio, fault },
            None if zram => SwapSpec::Zram { alg, size: size_max, prio },
            None => SwapSpec::Ram { size: size_max, prio },
        })
    }
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, prio) = match self {
            SwapSpec::Zram { alg, size, prio } => {
                let name = if *alg == Alg::Zstd { "zstd" } else { "lz4" };
                write!(f, "zram,alg={name}")?;
                (size, prio)
            }
            SwapSpec::Ram { size, prio } => {
                f.write_str("ram")?;
                (size, prio)
            }
            SwapSpec::File { path, size, prio, fault } => {
                write!(f, "file:{}", path.display())?;
                if let Some(seed) = fault {
                    write!(f, ",fault={seed}")?;
                }
                (size, prio)
            }
        };
        if let Some(size) = size {
            write!(f, ",size={size}")?;
        }
        if let Some(prio) = prio {
            write!(f, ",prio={prio}")?;
        }
        Ok(())
    }
}

impl Conf {
    /// A configuration with the default devices.
    pub fn new(ram: u64) -> Conf {
        Conf { ram, swap: SwapSpec::defaults(), verify: false, verbose: false, trace: None }
    }

    /// Reads the text form. Empty `swap` means the default devices.
    ///
    /// # Errors
    /// No `ram`, a budget below [`RAM_MIN`], an unknown pair, or a bad device.
    pub fn parse(text: &str) -> Result<Conf, ConfError> {
        let mut conf = Conf { ram: 0, swap: Vec::new(), verify: false, verbose: false, trace: None };
        for pair in text.split(';').filter(|p| !p.is_empty()) {
            match pair.split_once(':').unwrap_or((pair, "")) {
                ("ram", v) => conf.ram = size::parse(v).map_err(|e| ConfError(e.to_string()))?,
                ("swap", v) => conf.swap.push(SwapSpec::parse(v)?),
                ("verify", "") => conf.verify = true,
                ("verbose", "") => conf.verbose = true,
                ("trace", path) if !path.is_empty() => conf.trace = Some(PathBuf::from(path)),
                _ => return Err(ConfError(format!("invalid conf pair {pair:?}"))),
            }
        }
        if conf.ram < RAM_MIN {
            let min = size::format(RAM_MIN);
            return Err(ConfError(format!("budget of {} is below the minimum of {min}", size::format(conf.ram))));
        }
        if conf.swap.is_empty() {
            conf.swap = SwapSpec::defaults();
        }
        Ok(conf)
    }
}

impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ram:{}", self.ram)?;
        for spec in &self.swap {
            write!(f, ";swap:{spec}")?;
        }
        if self.verify {
            f.write_str(";verify")?;
        }
        if self.verbose {
            f.write_str(";verbose")?;
        }
        if let Some(path) = &self.trace {
            write!(f, ";trace:{}", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let text = "ram:536870912;swap:zram,alg=zstd,size=1073741824;swap:file:/var/tmp,fault=7,prio=5;swap:ram,size=4096;verify;trace:/tmp/a:b";
        let conf = Conf::parse(text).unwrap();
        assert_eq!(conf.to_string(), text);
        assert_eq!(Conf::parse("ram:512M").unwrap().swap, SwapSpec::defaults());
    }

    #[test]
    fn bad_text_is_refused_by_name() {
        for (text, part) in [
            ("ram:1M", "minimum"),
            ("swap:zram", "minimum"),
            ("ram:512M;bogus:1", "bogus"),
            ("ram:512M;swap:tape", "tape"),
            ("ram:512M;swap:zram,alg=gzip", "gzip"),
            ("ram:512M;swap:file:", "path"),
            ("ram:512M;swap:zram,prio=x", "prio"),
        ] {
            let message = Conf::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
