//! What an engine is told when it starts: budget, swap devices, checks.
//!
//! The launcher passes it in one environment variable, `FARPAGE_CONF`, pairs separated by `;`:
//! `ram:536870912;swap:zram,alg=lz4;swap:file:/var/tmp,size=4G,prio=5;readahead:page_cluster=4;verify`.
//! The same text works without the launcher (`LD_PRELOAD=... FARPAGE_CONF=ram:512M program`).

pub mod address;
pub mod nbd;
pub mod redis;
mod server_options;
pub mod size;
mod time;
pub mod tuning;

use farpage_swap::readahead::Tuning;
use nbd::NbdSpec;
use redis::RedisSpec;
use rustix::fs::FileType;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use tuning::{Pins, TuneScope};

/// Name of the environment variable that carries a [`Conf`].
pub const ENV_CONF: &str = "FARPAGE_CONF";
/// Number of an inherited, open `/dev/userfaultfd` (not close-on-exec, so that exec'ed children find it too).
pub const ENV_UFFD_FD: &str = "FARPAGE_UFFD_FD";
/// `FD:PID`: an inherited memfd that holds the statistics page, meant for process PID only.
pub const ENV_STAT_FD: &str = "FARPAGE_STAT_FD";
/// Set to anything but `0` or the empty string: the preload library does nothing.
pub const ENV_DISABLE: &str = "FARPAGE_DISABLE";

/// What an environment would say if the process had been started by `farpage run`: it runs already, and its environment
/// is its own.
static GIVEN: OnceLock<Vec<(&'static str, String)>> = OnceLock::new();

/// The value of one of these variables.
pub fn variable(name: &str) -> Option<String> {
    let given = GIVEN.get().and_then(|given| given.iter().find(|(known, _)| *known == name));
    given.map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
}

/// In a process that runs already: what [`variable`] says from now on. Once.
pub fn give_variables(variables: Vec<(&'static str, String)>) {
    // A second start is refused before.
    let _ = GIVEN.set(variables);
}

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

/// `--idle-poll`: when CPUs may be kept from sleeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Idle {
    /// On machines of up to [`Idle::CPUS_MAX`] CPUs.
    #[default]
    Auto,
    /// On any machine.
    Always,
    /// Never.
    Never,
}

impl Idle {
    /// Most CPUs of a machine that [`Idle::Auto`] keeps from sleeping.
    pub const CPUS_MAX: usize = 8;

    /// Reads `auto`, `always` or `never`.
    pub fn parse(text: &str) -> Option<Idle> {
        [Idle::Auto, Idle::Always, Idle::Never].into_iter().find(|idle| idle.to_string() == text)
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Idle::Auto => "auto",
            Idle::Always => "always",
            Idle::Never => "never",
        })
    }
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

/// Everything an engine is told at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// Budget: most resident anonymous memory of a process, bytes. That of a tree is in its segment ([`crate::tree`]).
    pub ram: u64,
    /// Swap devices in the order given.
    pub swap: Vec<SwapSpec>,
    /// Readahead: `stream` or `none`, and `page_cluster`.
    pub readahead: Tuning,
    /// Keep a checksum of every swapped-out page and abort on a mismatch.
    pub verify: bool,
    /// For tests: whenever zeros need a frame, all that can be taken out of the program is taken out first.
    pub debug_evict_all: bool,
    /// One line on stderr when something noteworthy happens (activation, a device that is skipped).
    pub verbose: bool,
    /// No warnings: only errors go to stderr.
    pub quiet: bool,
    /// A process that has been idle for so long is parked ([`crate::run::budget::park`]).
    pub idle: Option<Duration>,
    /// When idle CPUs are kept from sleeping.
    pub idle_poll: Idle,
    /// Controllers that are held at a value.
    pub tune: Pins,
    /// Record in this file what the program touches ([`crate::run::pager::trace`]).
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

/// A device as in `redis://USER:PASSWORD@HOST`, which is refused, may be shown to others.
fn without_password(text: &str) -> String {
    let at = text.find("://").map(|at| at + 3).zip(text.rfind('@'));
    match at.and_then(|(from, to)| text.get(from..to)?.find(':').map(|colon| (from + colon, to))) {
        Some((colon, to)) => format!("{}{}", &text[..colon], &text[to..]),
        None => text.to_owned(),
    }
}

/// Smallest device, bytes: a page, and slot 0, which is never used.
const SIZE_MIN: u64 = 8192;

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
                    let kinds = "zram[,alg=lz4|zstd], file:PATH, nbd://HOST, redis://HOST or ram";
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

impl Conf {
    /// A configuration with the default devices.
    pub fn new(ram: u64) -> Conf {
        Conf {
            ram,
            swap: SwapSpec::defaults(),
            readahead: Tuning::default(),
            verify: false,
            debug_evict_all: false,
            verbose: false,
            quiet: false,
            idle: None,
            idle_poll: Idle::Auto,
            tune: Pins::default(),
            trace: None,
        }
    }

    /// Reads the text form. Empty `swap` means the default devices.
    ///
    /// # Errors
    /// No `ram`, a budget below [`RAM_MIN`], an unknown pair, or a bad device.
    pub fn parse(text: &str) -> Result<Conf, ConfError> {
        let mut conf = Conf { swap: Vec::new(), ..Conf::new(0) };
        for pair in text.split(';').filter(|p| !p.is_empty()) {
            match pair.split_once(':').unwrap_or((pair, "")) {
                ("ram", v) => conf.ram = size::parse(v).map_err(|e| ConfError(e.to_string()))?,
                ("swap", v) => conf.swap.push(SwapSpec::parse(v)?),
                ("readahead", v) => conf.readahead = parse_readahead(v)?,
                ("idle", v) => conf.idle = Some(parse_idle(v)?),
                ("idle-poll", v) => conf.idle_poll = parse_idle_poll(v)?,
                ("verify", "") => conf.verify = true,
                ("debug_evict_all", "") => conf.debug_evict_all = true,
                ("tune", v) => conf.tune.add(v, TuneScope::Run).map_err(|e| ConfError(e.0))?,
                ("verbose", "") => conf.verbose = true,
                ("quiet", "") => conf.quiet = true,
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

/// Reads the tunables of readahead for a whole program.
///
/// # Errors
/// An unknown part.
pub fn parse_readahead(text: &str) -> Result<Tuning, ConfError> {
    Tuning::parse(text).map_err(|e| ConfError(e.to_string()))
}

/// Reads how long a process is idle before it is parked: `90s`, `10m`, `2h`.
///
/// # Errors
/// Anything else, or less than a second.
pub fn parse_idle(text: &str) -> Result<Duration, ConfError> {
    let error = || ConfError(format!("idle {text:?}: write a time as 90s, 10m or 2h, of at least a second"));
    time::parse(text).ok_or_else(error)
}

/// Reads when idle CPUs are kept from sleeping.
///
/// # Errors
/// An unknown word.
pub fn parse_idle_poll(text: &str) -> Result<Idle, ConfError> {
    Idle::parse(text).ok_or_else(|| ConfError(format!("idle-poll {text:?}: write auto, always or never")))
}

impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ram:{}", self.ram)?;
        for spec in &self.swap {
            write!(f, ";swap:{spec}")?;
        }
        if self.readahead != Tuning::default() {
            write!(f, ";readahead:{}", self.readahead)?;
        }
        if let Some(idle) = self.idle {
            write!(f, ";idle:{}", idle.as_secs())?;
        }
        if self.idle_poll != Idle::Auto {
            write!(f, ";idle-poll:{}", self.idle_poll)?;
        }
        if !self.tune.is_empty() {
            write!(f, ";{}", self.tune)?;
        }
        let flags = [
            (self.verify, "verify"),
            (self.debug_evict_all, "debug_evict_all"),
            (self.verbose, "verbose"),
            (self.quiet, "quiet"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, ";{name}"))?;
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
    fn times_of_idle_programs() {
        let seconds = |text| parse_idle(text).ok().map(|time| time.as_secs());
        assert_eq!(["90", "90s", "10m", "2h"].map(seconds), [Some(90), Some(90), Some(600), Some(7200)]);
        for text in ["", "s", "0", "soon", "1d", "-1s", "1.5h", "99999999999h", "1 m"] {
            assert!(parse_idle(text).unwrap_err().to_string().contains("90s, 10m or 2h"), "{text}");
        }
    }

    #[test]
    fn text_form_round_trips() {
        for text in [
            "ram:536870912;swap:zram,alg=zstd,size=1073741824;swap:file:/var/tmp,fault=7,prio=5;swap:ram,size=8192;readahead:stream,page_cluster=4;tune:stage=4;tune:decompressor=1;verify;debug_evict_all;quiet;trace:/tmp/a:b",
            "ram:536870912;swap:zram,alg=lz4,recompress=zstd;swap:file:/dev/sdb,free=4096,encrypt,fault=lost:7,size=8192",
            "ram:536870912;swap:file:/a,fault=dying:9;swap:file:/c,fault=seeks:5;swap:file:/b,fault=silent:3;idle-poll:never;verbose",
            "ram:536870912;swap:zram,alg=lz4;idle:600",
        ] {
            assert_eq!(Conf::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Conf::parse("ram:512M").unwrap().swap, SwapSpec::defaults());
    }

    #[test]
    fn fuzz_conf_text() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(conf) = Conf::parse(&text) {
                let written = conf.to_string();
                assert_eq!(Conf::parse(&written).map(|again| again.to_string()), Ok(written));
            }
        });
    }

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

    #[test]
    fn bad_text_is_refused_by_name() {
        for (text, part) in [
            ("ram:1M", "minimum"),
            ("swap:zram", "minimum"),
            ("ram:512M;bogus:1", "bogus"),
            ("ram:512M;readahead:sideways", "sideways"),
            ("ram:512M;readahead:vma_ra_enabled=2", "vma_ra_enabled=2"),
            ("ram:512M;idle-poll:often", "often"),
            ("ram:512M;tune:depht=1", "depth"),
            ("ram:512M;tune:depth=99", "from 0 to 4"),
            ("ram:512M;swap:tape", "tape"),
            ("ram:512M;swap:zram,alg=gzip", "gzip"),
            ("ram:512M;swap:file:", "path"),
            ("ram:512M;swap:zram,prio=x", "prio"),
            ("ram:512M;swap:zram,recompress=lz4", "recompress"),
            ("ram:512M;swap:zram,encrypt", "encrypt"),
            ("ram:512M;swap:file:/a,encrypt=yes", "encrypt=yes"),
            ("ram:512M;swap:file:/a,free=x", "free"),
        ] {
            let message = Conf::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
