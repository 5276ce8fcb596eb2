//! The feedback controllers, all of them: what each one moves, between which limits, and how to hold it.
//!
//! A controller measures what something earns, and moves one value by it. The rule of each is in the file that
//! [`ControllerInfo`] names. What they have in common is here: a name, what their value means, the value as it is now
//! (for `farpage stat PID --tuning`), and under `farpage run` a *pin* that holds it for an experiment (conf
//! `tune:NAME=VALUE`).
//!
//! Callers: the controllers, on any thread; the thread that publishes statistics. No locks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where a controller works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TuneScope {
    /// In `farpage run` and in pagers of regions.
    Both,
    /// In `farpage run`.
    Run,
    /// In pagers of regions.
    Region,
}

/// What there is to know of a controller.
#[derive(Debug)]
pub struct ControllerInfo {
    /// As in `tune:NAME=VALUE`.
    pub name: &'static str,
    /// What its value counts.
    pub unit: &'static str,
    /// Least and largest value that it can be held at.
    pub range: (u64, u64),
    /// Where it works.
    pub place: TuneScope,
    /// What it decides, and by what.
    pub what: &'static str,
    /// The file with its rule and its constants.
    pub file: &'static str,
}

macro_rules! controllers {
    ($(
        $id:ident, $name:literal, $unit:literal, $least:literal..=$most:literal, $place:ident,
            $what:literal,
            $file:literal;
    )+) => {
        /// A controller.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Controller {
            $(#[doc = $what] $id,)+
        }

        /// All of them, in the order of [`Controller`].
        pub const CONTROLLERS: &[ControllerInfo] = &[$(
            ControllerInfo {
                name: $name, unit: $unit, range: ($least, $most), place: TuneScope::$place, what: $what, file: $file,
            },
        )+];
    };
}

controllers! {
    CleanSlots, "clean-slots", "0|1", 0..=1, Both,
        "a page that comes in keeps its slot, while a quarter leave unchanged",
        "farpage-swap/src/clean_slots.rs";
    Promotion, "promotion", "0|1", 0..=1, Both,
        "a page from a file goes into the pool, while one in eight is loaded there",
        "swap/zram/promote_policy.rs";
    Stage, "stage", "1/64 of memory", 2..=24, Both,
        "unmapped pages in memory: more while they spare reads, fewer while not",
        "farpage-swap/src/workingset.rs";
    Pool, "pool", "% of the budget", 6..=75, Both,
        "limit of the compressed pool beside files, by what faults would cost",
        "farpage-swap/src/pool_share.rs";
    Immovable, "immovable", "pages", 0..=4294967295, Run,
        "estimate of managed pages that cannot be taken out, by a round of reclaim",
        "farpage-swap/src/pool_share.rs";
    Margin, "margin", "pages", 0..=4294967295, Run,
        "more distance from the budget after the program outran the engine",
        "run/shared/budget.rs";
    Colocate, "colocate", "0|1", 0..=1, Run,
        "pager and writer share a CPU while one thread has all faults, by trial",
        "run/cpus/affinity.rs";
    Spin, "spin", "us", 0..=1000, Run,
        "how long the pager looks for the next fault, while that finds some",
        "run/cpus/affinity.rs";
    IdleCpus, "idle-cpus", "0|1", 0..=1, Run,
        "idle CPUs are kept awake while faults come fast (--idle-poll)",
        "run/cpus/cpu_latency.rs";
    Crowd, "crowd", "0|1", 0..=1, Run,
        "several threads wait for pages, so reads from files are queued",
        "run/pager/prefetch/windows.rs";
    Depth, "depth", "windows", 0..=4, Run,
        "windows read in advance for one reader: one more when one was late",
        "run/pager/prefetch/windows.rs";
    Decompressor, "decompressor", "0|1", 0..=1, Run,
        "a thread loads compressed windows in advance, by trial",
        "run/pager/prefetch/begin.rs";
    Helpers, "helpers", "threads", 0..=4, Run,
        "threads that load pages beside the pager while several wait, by trial",
        "run/pager/lot.rs";
    Protect, "protect", "0|1", 0..=1, Region,
        "pages come in write-protected, while fewer than one in nine is written",
        "region/write_protect_policy.rs";
    Background, "background", "0|1", 0..=1, Region,
        "windows are read in the background, while they come in time",
        "region/readahead.rs";
}

/// How many there are.
pub const COUNT: usize = CONTROLLERS.len();

/// Why a controller cannot be held so. `Display` is one line that names what there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TuneError(pub String);

/// Values that controllers are held at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins([Option<u64>; COUNT]);

impl Pins {
    /// Holds a controller of `farpage run` as `NAME=VALUE` says.
    ///
    /// # Errors
    /// No such name there (the message lists those that there are), or a value out of range.
    pub fn add(&mut self, text: &str) -> Result<(), TuneError> {
        let err = |what: String| Err(TuneError(format!("tune {text:?}: {what}")));
        let works = |info: &ControllerInfo| info.place != TuneScope::Region;
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let Some(at) = CONTROLLERS.iter().position(|info| info.name == name && works(info)) else {
            let names: Vec<&str> = CONTROLLERS.iter().filter(|info| works(info)).map(|info| info.name).collect();
            return err(format!("no such name; there are {}", names.join(", ")));
        };
        let ControllerInfo { name, unit, range: (least, most), .. } = CONTROLLERS[at];
        match value.parse::<u64>() {
            Ok(value) if (least..=most).contains(&value) => self.0[at] = Some(value),
            _ => return err(format!("write {name}=VALUE with a number from {least} to {most} ({unit})")),
        }
        Ok(())
    }

    /// What the controller is held at.
    pub fn get(&self, which: Controller) -> Option<u64> {
        self.0[which as usize]
    }

    /// None is held.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// One bit for each controller that is held.
    pub fn mask(&self) -> u64 {
        self.0.iter().enumerate().filter(|(_, pin)| pin.is_some()).fold(0, |mask, (at, _)| mask | 1 << at)
    }
}

const _: () = assert!(COUNT <= 64);

/// As in a conf: `tune:NAME=VALUE` for each, separated by `;`.
impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pins = CONTROLLERS.iter().zip(self.0).filter_map(|(info, pin)| Some((info.name, pin?)));
        for (i, (name, value)) in pins.enumerate() {
            write!(f, "{}tune:{name}={value}", if i > 0 { ";" } else { "" })?;
        }
        Ok(())
    }
}

/// The controllers of an engine or of a pager: what they are held at, and where they are.
#[derive(Debug)]
pub struct Controls {
    pins: Pins,
    /// Value + 1; 0: it has not decided anything yet.
    now: [AtomicU64; COUNT],
}

impl Controls {
    /// Nothing decided yet.
    pub fn new(pins: Pins) -> Controls {
        Controls { pins, now: [const { AtomicU64::new(0) }; COUNT] }
    }

    /// The value to go by: the one that the controller is held at, or its `own`.
    #[inline]
    pub fn value_for(&self, which: Controller, own: u64) -> u64 {
        let value = self.pins.get(which).unwrap_or(own);
        let now = &self.now[which as usize];
        // Mostly it is the same as before, and the line is another CPU's, too.
        if now.load(Relaxed) != value + 1 {
            now.store(value + 1, Relaxed);
        }
        value
    }

    /// As [`Controls::value_for`], of a decision.
    #[inline]
    pub fn decide(&self, which: Controller, own: bool) -> bool {
        self.value_for(which, own.into()) != 0
    }

    /// What the controller is held at.
    pub fn pinned(&self, which: Controller) -> Option<u64> {
        self.pins.get(which)
    }

    /// Puts all of it on a statistics page.
    pub fn publish(&self, now: &[AtomicU64], mask: &AtomicU64) {
        now.iter().zip(&self.now).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        mask.store(self.pins.mask(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_and_written() {
        let mut pins = Pins::default();
        assert!(pins.is_empty() && pins.to_string().is_empty());
        for text in ["depth=2", "clean-slots=0", "depth=3"] {
            pins.add(text).unwrap();
        }
        assert_eq!(pins.to_string(), "tune:clean-slots=0;tune:depth=3");
        assert_eq!((pins.get(Controller::Depth), pins.get(Controller::Spin)), (Some(3), None));
        assert_eq!(pins.mask(), 1 << Controller::CleanSlots as u64 | 1 << Controller::Depth as u64);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |text: &str| Pins::default().add(text).unwrap_err().to_string();
        for (text, part) in [
            ("dept=2", "there are clean-slots, promotion, stage"),
            ("depth", "from 0 to 4 (windows)"),
            ("depth=5", "from 0 to 4 (windows)"),
            ("depth=x", "from 0 to 4 (windows)"),
            ("stage=1", "from 2 to 24"),
            ("", "there are"),
        ] {
            assert!(refused(text).contains(part), "{text}");
        }
        let of_regions = refused("protect=1");
        assert!(of_regions.contains("depth,") && !of_regions.contains("background"), "{of_regions}");
    }

    #[test]
    fn the_table_for_users_has_them_all() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/user/statistics.md");
        let page = std::fs::read_to_string(page).unwrap();
        for ControllerInfo { name, what, .. } in CONTROLLERS {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            assert!(row.is_some_and(|row| row.ends_with(&format!("| {what} |"))), "{name}: {row:?}");
        }
    }

    #[test]
    fn a_pin_wins_and_both_are_shown() {
        let mut pins = Pins::default();
        pins.add("depth=1").unwrap();
        let controls = Controls::new(pins);
        assert_eq!((controls.value_for(Controller::Depth, 4), controls.value_for(Controller::Stage, 9)), (1, 9));
        assert!(controls.decide(Controller::Colocate, true) && !controls.decide(Controller::Spin, false));
        let (shown, mask) = ([const { AtomicU64::new(0) }; COUNT], AtomicU64::new(0));
        controls.publish(&shown, &mask);
        let shown = |which: Controller| shown[which as usize].load(Relaxed);
        assert_eq!((shown(Controller::Depth), shown(Controller::Stage), shown(Controller::Spin)), (2, 10, 1));
        assert_eq!((shown(Controller::Pool), mask.load(Relaxed)), (0, 1 << Controller::Depth as u64));
    }
}
