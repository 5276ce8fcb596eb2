//! One swap device as it is written: kind, place, options.
//!
//! Callers: [`super::Conf`], the command, `swap`. No locks.

use super::error::ConfError;
use super::nbd::NbdSpec;
use super::redis::RedisSpec;
use super::server_error::ServerSpecError;
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
pub struct SwapSpec {
    /// What it is.
    pub kind: DeviceKind,
    /// Most bytes of pages it takes, before they are compressed. `None`: a file is bounded by free disk space only, an
    /// export by its own size, plain memory by its share of what compressed memory may take; the others have no limit
    /// of their own.
    pub size: Option<u64>,
    /// Higher is used first; `None`: order of the command line.
    pub prio: Option<i32>,
}

/// What a swap device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// Compressed RAM inside the budget.
    Zram {
        /// Algorithm.
        alg: Alg,
        /// Pages that have not been wanted for some time are compressed again, with zstd, in the background.
        recompress: bool,
    },
    /// Plain memory inside the budget: saves nothing; for measurements and tests.
    Ram,
    /// A file (PATH a directory: an unnamed temporary file in it), or a block device.
    File {
        /// Directory, file or block device.
        path: PathBuf,
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

impl From<DeviceKind> for SwapSpec {
    fn from(kind: DeviceKind) -> SwapSpec {
        SwapSpec { kind, size: None, prio: None }
    }
}

impl SwapSpec {
    /// Compressed RAM without limits of its own.
    pub fn zram(alg: Alg) -> SwapSpec {
        DeviceKind::Zram { alg, recompress: false }.into()
    }

    /// A file, or an unnamed one in a directory, with the default limits.
    pub fn file(path: impl Into<PathBuf>) -> SwapSpec {
        DeviceKind::File { path: path.into(), keep_free: None, encrypt: false, fault: None }.into()
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
        let server_error = |error: ServerSpecError| err(error.to_string());
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or("");
        let mut spec = match head.strip_prefix("file:") {
            Some("") => return Err(err("no path; write file:/var/tmp".into())),
            Some(path) => SwapSpec::file(path),
            None if head == "zram" => SwapSpec::zram(Alg::Lz4),
            None if head == "ram" => DeviceKind::Ram.into(),
            None => match (NbdSpec::parse(head), RedisSpec::parse(head)) {
                (Some(spec), _) => DeviceKind::Nbd(spec.map_err(server_error)?).into(),
                (_, Some(spec)) => DeviceKind::Redis(spec.map_err(server_error)?).into(),
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
            match (name, value) {
                ("size", Some(v)) => match size::parse(v).map_err(|e| err(e.to_string()))? {
                    n if n < SIZE_MIN => {
                        return Err(err(format!("size {v} is below the minimum of {}", size::format(SIZE_MIN))));
                    }
                    n => spec.size = Some(n),
                },
                ("prio", Some(v)) => {
                    let wrong = |_| err(format!("priority {v:?} is not a number; write for example 5 or -1"));
                    spec.prio = Some(v.parse().map_err(wrong)?);
                }
                _ => match spec.kind.option(name, value) {
                    Some(read) => read.map_err(|ConfError(what)| err(what))?,
                    None => return Err(err(format!("unknown option {part:?}; it has {}", spec.kind.options()))),
                },
            }
        }
        Ok(spec)
    }

    /// The directory in which a second copy of every page is kept.
    pub fn mirror(&mut self) -> Option<&mut PathBuf> {
        match &mut self.kind {
            DeviceKind::Nbd(NbdSpec { served, .. }) | DeviceKind::Redis(RedisSpec { served, .. }) => {
                served.mirror.as_mut()
            }
            _ => None,
        }
    }

    /// Whether its pages take memory of the budget.
    pub fn is_memory(&self) -> bool {
        matches!(self.kind, DeviceKind::Zram { .. } | DeviceKind::Ram)
    }

    /// In place of a file with a name: files without one in its directory.
    pub fn beside(&mut self) {
        if let DeviceKind::File { path, .. } = &mut self.kind
            && rustix::fs::stat(&*path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        {
            path.pop();
        }
    }
}

impl DeviceKind {
    /// Takes an option that only some devices have; `None`: not this one.
    fn option(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), ConfError>> {
        let read = match (self, name, value) {
            (DeviceKind::Zram { alg, .. }, "alg", Some(v)) => {
                *alg = match v {
                    "lz4" => Alg::Lz4,
                    "zstd" => Alg::Zstd,
                    _ => return Some(Err(ConfError(format!("unknown algorithm {v:?}; lz4 and zstd exist")))),
                };
                Ok(())
            }
            (DeviceKind::Zram { recompress, .. }, "recompress", Some(v)) => {
                *recompress = v == "zstd";
                recompress.then_some(()).ok_or_else(|| ConfError(format!("cannot recompress with {v:?}; zstd exists")))
            }
            (DeviceKind::File { keep_free, .. }, "free", Some(v)) => {
                size::parse(v).map(|bytes| *keep_free = Some(bytes)).map_err(|e| ConfError(e.to_string()))
            }
            (DeviceKind::File { encrypt, .. }, "encrypt", None) => {
                *encrypt = true;
                Ok(())
            }
            (DeviceKind::File { fault, .. }, "fault", Some(v)) => {
                let bad = || ConfError(format!("{v:?} is not SEED, lost:SEED, silent:SEED or dying:SEED"));
                InjectedFault::parse(v).map(|read| *fault = Some(read)).ok_or_else(bad)
            }
            (DeviceKind::Nbd(spec), ..) => spec.option(name, value)?.map_err(|e| ConfError(e.to_string())),
            (DeviceKind::Redis(spec), ..) => spec.option(name, value)?.map_err(|e| ConfError(e.to_string())),
            _ => return None,
        };
        Some(read)
    }

    /// Those that a device of this kind has, for users.
    fn options(&self) -> &'static str {
        match self {
            DeviceKind::Zram { .. } => "alg, recompress, size and prio",
            DeviceKind::Ram => "size and prio",
            DeviceKind::File { .. } => "size, free, encrypt and prio",
            DeviceKind::Nbd(_) => "size, timeout, noencrypt, mirror and prio",
            DeviceKind::Redis(_) => "size, timeout, trust, noencrypt, mirror, password-file, password-fd and prio",
        }
    }
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            DeviceKind::Zram { alg, recompress } => {
                let name = if *alg == Alg::Zstd { "zstd" } else { "lz4" };
                write!(f, "zram,alg={name}{}", if *recompress { ",recompress=zstd" } else { "" })?;
            }
            DeviceKind::Ram => f.write_str("ram")?,
            DeviceKind::File { path, keep_free, encrypt, fault } => {
                write!(f, "file:{}", path.display())?;
                if let Some(bytes) = keep_free {
                    write!(f, ",free={bytes}")?;
                }
                f.write_str(if *encrypt { ",encrypt" } else { "" })?;
                if let Some(seed) = fault {
                    write!(f, ",fault={seed}")?;
                }
            }
            DeviceKind::Nbd(spec) => write!(f, "{spec}")?,
            DeviceKind::Redis(spec) => write!(f, "{spec}")?,
        }
        if let Some(size) = self.size {
            write!(f, ",size={size}")?;
        }
        self.prio.map_or(Ok(()), |prio| write!(f, ",prio={prio}"))
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
