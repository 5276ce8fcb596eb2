//! What an engine is told when it starts: budget, swap devices, checks.
//!
//! The launcher passes it in one environment variable, `FARPAGE_CONF`, pairs separated by `;`:
//! `ram:536870912;swap:zram,alg=lz4;swap:file:/var/tmp,size=4G,prio=5;readahead:page_cluster=4;verify`.
//! The same text works without the launcher (`LD_PRELOAD=... FARPAGE_CONF=ram:512M program`).

pub mod address;
mod error;
pub mod nbd;
pub mod redis;
pub mod server_error;
mod server_options;
pub mod size;
mod swap_spec;
mod time;

use farpage_base::mem::lock::lock;
use farpage_swap::readahead::Tuning;
use farpage_swap::tuning::Pins;
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

pub use error::{ConfError, DeviceError};
pub use swap_spec::{Alg, DeviceKind, InjectedFault, SwapSpec};

/// Name of the environment variable that carries a [`Conf`].
pub const ENV_CONF: &str = "FARPAGE_CONF";
/// Number of an inherited, open `/dev/userfaultfd` (not close-on-exec, so that exec'ed children find it too).
pub const ENV_UFFD_FD: &str = "FARPAGE_UFFD_FD";
/// `FD:PID`: an inherited memfd that holds the statistics page, meant for process PID only.
pub const ENV_STAT_FD: &str = "FARPAGE_STAT_FD";
/// Set to anything but `0` or the empty string: the preload library does nothing.
pub const ENV_DISABLE: &str = "FARPAGE_DISABLE";

/// Set to `0`: `farpage run` takes no options from files. For those that measure, or start it from a program.
pub const ENV_DEFAULTS: &str = "FARPAGE_DEFAULTS";

/// What an environment would say if the process had been started by `farpage run`: it runs already, and its environment
/// is its own.
static GIVEN: Mutex<Vec<(&'static str, String)>> = Mutex::new(Vec::new());

/// The value of one of these variables.
pub fn variable(name: &str) -> Option<String> {
    let given = lock(&GIVEN).iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    given.or_else(|| std::env::var(name).ok())
}

/// In a process that runs already: what [`variable`] says from now on.
pub fn give_variables(variables: Vec<(&'static str, String)>) {
    *lock(&GIVEN) = variables;
}

/// Smallest budget an engine accepts, bytes: frames, metadata and stacks must fit several times over.
pub const RAM_MIN: u64 = 16 << 20;

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
    /// A process that has been idle for so long is parked (`farpage_run::budget::park`).
    pub idle: Option<Duration>,
    /// When idle CPUs are kept from sleeping.
    pub idle_poll: Idle,
    /// Controllers that are held at a value.
    pub tune: Pins,
    /// Record in this file what the program touches (`farpage_run::pager::trace`).
    pub trace: Option<PathBuf>,
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
                ("tune", v) => conf.tune.add(v).map_err(|e| ConfError(e.0))?,
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
            write!(f, ";idle:{}s", idle.as_secs())?;
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
        assert_eq!(["90s", "10m", "2h"].map(seconds), [Some(90), Some(600), Some(7200)]);
        for text in ["", "s", "10", "0s", "soon", "1d", "-1s", "1.5h", "99999999999h", "1 m"] {
            assert!(parse_idle(text).unwrap_err().to_string().contains("90s, 10m or 2h"), "{text}");
        }
    }

    #[test]
    fn text_form_round_trips() {
        for text in [
            "ram:536870912;swap:zram,alg=zstd,size=1073741824;swap:file:/var/tmp,fault=7,prio=5;swap:ram,size=8192;readahead:stream,page_cluster=4;tune:stage=4;tune:decompressor=1;verify;debug_evict_all;quiet;trace:/tmp/a:b",
            "ram:536870912;swap:zram,alg=lz4,recompress=zstd;swap:file:/dev/sdb,free=4096,encrypt,fault=lost:7,size=8192",
            "ram:536870912;swap:file:/a,fault=dying:9;swap:file:/c,fault=seeks:5;swap:file:/b,fault=silent:3;idle-poll:never;verbose",
            "ram:536870912;swap:zram,alg=lz4;idle:600s",
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
