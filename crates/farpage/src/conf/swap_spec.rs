//! One swap device as it is written: kind, place, options.
//!
//! Callers: [`super::Conf`], the command, `swap`. No locks.

use super::error::ConfError;
use super::nbd::NbdSpec;
use super::redis::RedisSpec;
use super::size;
use rustix::fs::FileType;
use std::fmt;
use std::path::PathBuf;

/// Smallest device, bytes: a page, and slot 0, which is never used.
const SIZE_MIN: u64 = 8192;

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
        /// Pages that have not been wanted for some time are compressed again, with zstd, in the background.
        recompress: bool,
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
    /// A file (PATH a directory: an unnamed temporary file in it), or a block device.
    File {
        /// Directory, file or block device.
        path: PathBuf,
        /// Largest size in bytes; `None`: bounded by free disk space only.
        size: Option<u64>,
        /// Higher is used first; `None`: order of the command line.
        prio: Option<i32>,
        /// Least space left free on the filesystem, bytes; `None`: 5 % of it, 4 GiB at most.
        keep_free: Option<u64>,
        /// Pages are encrypted with a key that exists only in memory.
        encrypt: bool,
        /// For tests: faults of the disk.
        fault: Option<InjectedFault>,
    },
    /// An export of an NBD server.
    Nbd(NbdSpec),
    /// The memory of a Redis or Valkey server.
    Redis(RedisSpec),
}

impl SwapSpec {
    /// Compressed RAM without limits of its own.
    pub fn zram(alg: Alg) -> SwapSpec {
        SwapSpec::Zram { alg, recompress: false, size: None, prio: None }
    }

    /// A file, or an unnamed one in a directory, with the default limits.
    pub fn file(path: impl Into<PathBuf>) -> SwapSpec {
        SwapSpec::File { path: path.into(), size: None, prio: None, keep_free: None, encrypt: false, fault: None }
    }

    /// The default devices: compressed RAM first, then a file in /var/tmp.
    pub fn defaults() -> Vec<SwapSpec> {
        vec![SwapSpec::zram(Alg::Lz4), SwapSpec::file("/var/tmp")]
    }

    /// Reads `zram[,alg=lz4|zstd][,recompress=zstd][,size=SIZE][,prio=N]`, `ram[,size=SIZE][,prio=N]`,
    /// `file:PATH[,size=SIZE][,free=SIZE][,encrypt][,prio=N]`,
    /// `nbd://HOST[:PORT][/EXPORT][,size=SIZE][,timeout=TIME][,noencrypt][,mirror=file:DIR][,prio=N]`, the same with
    /// `nbd+unix:///PATH[?EXPORT]`, or
    /// `redis://[USER@]HOST[:PORT][/DB][,size=SIZE][,timeout=TIME][,trust][,noencrypt][,password-file=PATH][,prio=N]`.
    ///
    /// # Errors
    /// Unknown kind, option, algorithm, or an unreadable size or priority; the message names the offending part.
    pub fn parse(text: &str) -> Result<SwapSpec, ConfError> {
        let err = |what: String| ConfError(format!("swap device {:?}: {what}", without_password(text)));
        let bytes = |v: &str| size::parse(v).map_err(|e| err(e.to_string()));
        let number = |v: &str| {
            v.parse::<i32>().map_err(|_| err(format!("priority {v:?} is not a number; write for example 5 or -1")))
        };
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or("");
        let mut spec = match head.strip_prefix("file:") {
            Some("") => return Err(err("no path; write file:/var/tmp".into())),
            Some(path) => SwapSpec::file(path),
            None if head == "zram" => SwapSpec::zram(Alg::Lz4),
            None if head == "ram" => SwapSpec::Ram { size: None, prio: None },
            None => match (NbdSpec::parse(head), RedisSpec::parse(head)) {
                (Some(spec), _) => SwapSpec::Nbd(spec.map_err(err)?),
                (_, Some(spec)) => SwapSpec::Redis(spec.map_err(err)?),
                (None, None) => {
                    if head.starts_with(['/', '.', '~']) {
                        return Err(err(format!("unknown kind; for that file or directory write file:{text}")));
                    }
                    let kinds = "zram[,alg=lz4|zstd], file:PATH, nbd://HOST or redis://HOST";
                    return Err(err(format!("unknown kind; use {kinds}")));
                }
            },
        };
        for part in parts {
            let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
            match (&mut spec, name, value) {
                (SwapSpec::Zram { alg, .. }, "alg", Some(v)) => {
                    *alg = match v {
                        "lz4" => Alg::Lz4,
                        "zstd" => Alg::Zstd,
                        _ => return Err(err(format!("unknown algorithm {v:?}; lz4 and zstd exist"))),
                    }
                }
                (SwapSpec::Zram { recompress, .. }, "recompress", Some(v)) => {
                    let known = (v == "zstd").then_some(true);
                    *recompress = known.ok_or_else(|| err(format!("cannot recompress with {v:?}; zstd exists")))?;
                }
                (SwapSpec::File { keep_free, .. }, "free", Some(v)) => *keep_free = Some(bytes(v)?),
                (SwapSpec::File { encrypt, .. }, "encrypt", None) => *encrypt = true,
                (SwapSpec::File { fault, .. }, "fault", Some(v)) => {
                    let bad = || err(format!("{v:?} is not SEED, lost:SEED, silent:SEED or dying:SEED"));
                    *fault = Some(InjectedFault::parse(v).ok_or_else(bad)?);
                }
                (
                    SwapSpec::Zram { size, .. }
                    | SwapSpec::Ram { size, .. }
                    | SwapSpec::File { size, .. }
                    | SwapSpec::Nbd(NbdSpec { size, .. })
                    | SwapSpec::Redis(RedisSpec { size, .. }),
                    "size",
                    Some(v),
                ) => match bytes(v)? {
                    n if n < SIZE_MIN => {
                        return Err(err(format!("size {v} is below the minimum of {}", size::format(SIZE_MIN))));
                    }
                    n => *size = Some(n),
                },
                (
                    SwapSpec::Zram { prio, .. }
                    | SwapSpec::Ram { prio, .. }
                    | SwapSpec::File { prio, .. }
                    | SwapSpec::Nbd(NbdSpec { prio, .. })
                    | SwapSpec::Redis(RedisSpec { prio, .. }),
                    "prio",
                    Some(v),
                ) => *prio = Some(number(v)?),
                _ => {
                    let read = match &mut spec {
                        SwapSpec::Nbd(spec) => spec.option(name, value),
                        SwapSpec::Redis(spec) => spec.option(name, value),
                        _ => None,
                    };
                    if let Some(read) = read {
                        read.map_err(err)?;
                        continue;
                    }
                    let known = match spec {
                        SwapSpec::Zram { .. } => "alg, recompress, size and prio",
                        SwapSpec::Ram { .. } => "size and prio",
                        SwapSpec::File { .. } => "size, free, encrypt and prio",
                        SwapSpec::Nbd(_) => "size, timeout, noencrypt, mirror and prio",
                        SwapSpec::Redis(_) => {
                            "size, timeout, trust, noencrypt, mirror, password-file, password-fd and prio"
                        }
                    };
                    return Err(err(format!("unknown option {part:?}; it has {known}")));
                }
            }
        }
        Ok(spec)
    }

    /// The directory in which a second copy of every page is kept.
    pub fn mirror(&mut self) -> Option<&mut PathBuf> {
        match self {
            SwapSpec::Nbd(NbdSpec { served, .. }) | SwapSpec::Redis(RedisSpec { served, .. }) => served.mirror.as_mut(),
            _ => None,
        }
    }

    /// What was given as its priority.
    pub fn prio(&self) -> Option<i32> {
        match self {
            SwapSpec::Zram { prio, .. } | SwapSpec::Ram { prio, .. } | SwapSpec::File { prio, .. } => *prio,
            SwapSpec::Nbd(spec) => spec.prio,
            SwapSpec::Redis(spec) => spec.prio,
        }
    }

    /// Whether its pages take memory of the budget.
    pub fn is_memory(&self) -> bool {
        matches!(self, SwapSpec::Zram { .. } | SwapSpec::Ram { .. })
    }

    /// In place of a file with a name: files without one in its directory.
    pub(crate) fn beside(&mut self) {
        if let SwapSpec::File { path, .. } = self
            && rustix::fs::stat(&*path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        {
            path.pop();
        }
    }
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, prio) = match self {
            SwapSpec::Zram { alg, recompress, size, prio } => {
                let name = if *alg == Alg::Zstd { "zstd" } else { "lz4" };
                write!(f, "zram,alg={name}")?;
                f.write_str(if *recompress { ",recompress=zstd" } else { "" })?;
                (size, prio)
            }
            SwapSpec::Ram { size, prio } => {
                f.write_str("ram")?;
                (size, prio)
            }
            SwapSpec::File { path, size, prio, keep_free, encrypt, fault } => {
                write!(f, "file:{}", path.display())?;
                if let Some(bytes) = keep_free {
                    write!(f, ",free={bytes}")?;
                }
                f.write_str(if *encrypt { ",encrypt" } else { "" })?;
                if let Some(seed) = fault {
                    write!(f, ",fault={seed}")?;
                }
                (size, prio)
            }
            SwapSpec::Nbd(spec) => {
                write!(f, "{spec}")?;
                (&spec.size, &spec.prio)
            }
            SwapSpec::Redis(spec) => {
                write!(f, "{spec}")?;
                (&spec.size, &spec.prio)
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

/// A device as in `redis://USER:PASSWORD@HOST`, which is refused, may be shown to others.
fn without_password(text: &str) -> String {
    let at = text.find("://").map(|at| at + 3).zip(text.rfind('@'));
    match at.and_then(|(from, to)| text.get(from..to)?.find(':').map(|colon| (from + colon, to))) {
        Some((colon, to)) => format!("{}{}", &text[..colon], &text[to..]),
        None => text.to_owned(),
    }
}

/// What goes wrong on purpose (undocumented option `fault=` of a file), each by seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// `fault=SEED`: what the engine must get over without losing anything.
    Curable(u64),
    /// `fault=lost:SEED`: some places can never be read.
    Lost(u64),
    /// `fault=silent:SEED`: some writes store something else and report success.
    Silent(u64),
    /// `fault=dying:SEED`: after some time every write fails.
    Dying(u64),
    /// `fault=seeks:US`: a disk with heads, which take so many microseconds to move.
    Seeks(u64),
}

impl InjectedFault {
    fn parse(text: &str) -> Option<InjectedFault> {
        let (kind, seed) = text.split_once(':').unwrap_or(("", text));
        let seed = seed.parse::<u64>().ok()?;
        match kind {
            "" => Some(InjectedFault::Curable(seed)),
            "lost" => Some(InjectedFault::Lost(seed)),
            "silent" => Some(InjectedFault::Silent(seed)),
            "dying" => Some(InjectedFault::Dying(seed)),
            "seeks" => Some(InjectedFault::Seeks(seed)),
            _ => None,
        }
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectedFault::Curable(seed) => write!(f, "{seed}"),
            InjectedFault::Lost(seed) => write!(f, "lost:{seed}"),
            InjectedFault::Silent(seed) => write!(f, "silent:{seed}"),
            InjectedFault::Dying(seed) => write!(f, "dying:{seed}"),
            InjectedFault::Seeks(us) => write!(f, "seeks:{us}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of what people write, in any order.
    #[test]
    fn fuzz_swap_spec() {
        const PIECES: [&str; 31] = [
            "nbd://",
            "nbd+unix:///",
            "?socket=/x",
            ",timeout=",
            ",mirror=file:",
            ",id=",
            "[::1]",
            "zram",
            "file:",
            "/tmp/a",
            "/dev/sdb",
            "ram",
            ",",
            ",size=",
            ",alg=",
            "zstd",
            "lz4",
            ",recompress=",
            ",prio=",
            "-1",
            "4096",
            "18446744073709551615",
            "1G",
            ",free=",
            ",encrypt",
            ",fault=",
            "lost:",
            "9",
            "=",
            ":",
            "k",
        ];
        bolero::check!().with_type().for_each(|places: &Vec<u8>| {
            let text: String = places.iter().map(|at| PIECES[usize::from(*at) % PIECES.len()]).collect();
            if let Ok(spec) = SwapSpec::parse(&text) {
                let written = spec.to_string();
                assert_eq!(SwapSpec::parse(&written).as_ref(), Ok(&spec), "{text}");
            }
        });
    }
}
