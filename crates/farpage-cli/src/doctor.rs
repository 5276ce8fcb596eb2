//! `farpage doctor`: what works here for this user, why not, and how to allow it.

use crate::args::DoctorArgs;
use crate::budget::Machine;
use crate::defaults::{self, Defaults};
use crate::doctor_swap;
use crate::failure::Result;
use crate::output::SCHEMA;
use crate::preload;
use farpage_base::sys::pm_qos;
use farpage_base::sys::raw::ErrnoText;
use farpage_ipc::conf::{ENV_DEFAULTS, size};
use farpage_run::probe::wake::WakeUp;
use farpage_run::probe::{self, FEATURES, Probe, Verdict};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// Runs the subcommand; exit status 1 where `farpage run` does not work.
pub fn main(args: &DoctorArgs) -> Result<ExitCode> {
    if !args.swap.is_empty() {
        args.swap.iter().try_for_each(|text| doctor_swap::look(text))?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = Report {
        probe: Probe::take(probe::inherited_device()),
        wake_up: WakeUp::measure(),
        machine: Machine::read(),
        library: preload::find(),
        defaults: Defaults::read(),
        settings: SETTINGS.map(|(name, path)| (name, setting(path))),
        disk: free_for_files(),
    };
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{}", report.text(args.verbose));
    }
    Ok(if report.works() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Name shown, file.
const SETTINGS: [(&str, &str); 5] = [
    ("vm.unprivileged_userfaultfd", "/proc/sys/vm/unprivileged_userfaultfd"),
    ("vm.max_map_count", "/proc/sys/vm/max_map_count"),
    ("vm.overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("kernel.io_uring_disabled", "/proc/sys/kernel/io_uring_disabled"),
    ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
];

struct Report {
    probe: Probe,
    wake_up: WakeUp,
    machine: Result<Machine>,
    library: Result<std::path::PathBuf>,
    defaults: Result<Defaults>,
    settings: [(&'static str, Option<String>); 5],
    /// Bytes that are free where swap files go, if one can be made there.
    disk: rustix::io::Result<u64>,
}

/// Where swap files go unless `--swap` says otherwise.
const FILES: &str = "/var/tmp";

/// Makes a file without a name, as an engine would, and asks how much there is room for.
fn free_for_files() -> rustix::io::Result<u64> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::open(FILES, flags, Mode::RUSR | Mode::WUSR)?;
    let fs = rustix::fs::fstatvfs(file)?;
    Ok(fs.f_bavail * fs.f_frsize)
}

/// A setting's value; of `always [madvise] never` the chosen word.
fn setting(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    Some(chosen.unwrap_or(text.trim()).to_owned())
}

impl Report {
    fn works(&self) -> bool {
        self.probe.verdict().is_ok() && self.library.is_ok() && self.defaults.is_ok()
    }

    fn text(&self, all: bool) -> String {
        let uid = rustix::process::geteuid().as_raw();
        let mut out = self.verdict_text();
        out.push_str(&format!("\nfarpage {} on Linux {}, uid {uid}\n", env!("CARGO_PKG_VERSION"), self.probe.release));
        let facts = if all { self.all_facts() } else { Vec::new() };
        for (name, text) in facts.into_iter().chain(self.sizes()) {
            out.push_str(&format!("  {name:<30}{text}\n"));
        }
        if !all {
            out.push_str("  (farpage doctor -v shows everything that was tried)\n");
        }
        out
    }

    /// How much there is of what a run takes.
    fn sizes(&self) -> Vec<(String, String)> {
        let mut facts: Vec<(String, String)> = Vec::new();
        let mut line = |name: &str, text: String| facts.push((name.into(), text));
        match &self.machine {
            Ok(machine) => {
                line("physical RAM", size::format(machine.total));
                let limit = machine.limit.as_ref();
                let limit = limit.map(|l| format!("{} ({})", size::format(l.bytes), l.file.display()));
                line("memory cgroup limit", limit.unwrap_or_else(|| "none".into()));
                let budget = machine.budget(self.ram());
                line("budget without --ram", budget.map_or_else(|f| f.sentence, |b| size::format(b.bytes)));
            }
            Err(failure) => line("budget without --ram", format!("none: {}", failure.sentence)),
        }
        let defaults = self.defaults.as_ref().map_or(&[][..], |defaults| &defaults.0);
        if defaults.iter().all(|default| default.option != "swap") {
            line("swap files without --swap", format!("{FILES}: {}", self.files()));
        }
        for default in defaults {
            line(&format!("--{} by default", default.option), format!("{} ({})", default.value(), default.origin));
        }
        if defaults.is_empty() && self.defaults.is_ok() {
            let files: Vec<_> = defaults::files().iter().map(|path| path.display().to_string()).collect();
            let none = || format!("none in {}", files.join(" or "));
            line("other defaults", if files.is_empty() { format!("none: {ENV_DEFAULTS} is 0") } else { none() });
        }
        facts
    }

    /// The default of `--ram`, if there is one.
    fn ram(&self) -> Option<&str> {
        self.defaults.as_ref().ok()?.of("ram")?.values.first().map(String::as_str)
    }

    /// Where a program's swap file would be, by default.
    fn files(&self) -> String {
        match &self.disk {
            Ok(free) => format!("{} free", size::format(*free)),
            Err(e) => format!("no file can be made, so only compressed memory is used: {}", ErrnoText(*e)),
        }
    }

    /// All that was tried: its name in words, where it has a line of its own, and in JSON.
    fn checks(&self) -> [(&'static str, &'static str, Option<&Verdict>); 10] {
        let probe = &self.probe;
        [
            ("full userfaultfd, inherited", "uffd_full_inherited", probe.inherited.as_ref()),
            ("full userfaultfd, device", "uffd_full_device", Some(&probe.device)),
            ("full userfaultfd, system call", "uffd_full_syscall", Some(&probe.syscall)),
            ("user-mode-only userfaultfd", "uffd_user_mode_only", Some(&probe.user_mode_only)),
            ("fork events", "uffd_fork_events", Some(&probe.fork_events)),
            ("UFFDIO_MOVE", "uffdio_move", Some(&probe.move_page)),
            ("PAGEMAP_SCAN", "pagemap_scan", Some(&probe.pagemap_scan)),
            ("io_uring (optional)", "io_uring", Some(&probe.io_uring)),
            ("", "fork_pidfd_getfd", Some(&probe.fork_fetched)),
            ("", "fork_socket", Some(&probe.fork_sent)),
        ]
    }

    fn all_facts(&self) -> Vec<(String, String)> {
        let mut facts: Vec<(String, String)> = Vec::new();
        for (name, json, outcome) in self.checks() {
            let mut line = |name: &str, text: String| facts.push((name.into(), text));
            match json {
                "uffd_fork_events" => line("userfaultfd features", self.features()),
                "io_uring" => line("descriptors for children", self.forks()),
                _ => {}
            }
            outcome.filter(|_| !name.is_empty()).inspect(|outcome| line(name, shown(outcome)));
        }
        facts.push(("waking an idle CPU".into(), self.wake_up()));
        let settings = self.settings.iter();
        facts.extend(settings.map(|(name, value)| (name.to_string(), value.as_deref().unwrap_or("not found").into())));
        let library = self.library.as_ref().map_or_else(|_| "no".into(), |p| p.display().to_string());
        facts.push(("preload library".into(), library));
        facts
    }

    fn features(&self) -> String {
        if self.probe.features.is_none() {
            return "unknown: no userfaultfd".into();
        }
        let has = |yes: bool| -> Vec<&str> {
            FEATURES.iter().filter(|(_, bit)| self.probe.has(*bit) == yes).map(|(name, _)| *name).collect()
        };
        let missing = has(false);
        let mut text = has(true).join(" ");
        if !missing.is_empty() {
            text.push_str(&format!("; missing: {}", missing.join(" ")));
        }
        text
    }

    fn forks(&self) -> String {
        match (self.probe.forks(), &self.probe.fork_fetched) {
            (Ok(()), Ok(())) => "yes".into(),
            (Ok(()), Err(why)) => format!("yes, over a socket (pidfd_getfd: {why})"),
            (Err(why), _) => format!("no: {why}"),
        }
    }

    fn wake_up(&self) -> String {
        let us = |time: Duration| format!("{:.1} us", time.as_nanos() as f64 / 1000.0);
        let Some(plain) = self.wake_up.plain else { return "not measured: one CPU".into() };
        match &self.wake_up.awake {
            Ok(Some(awake)) => format!("{}; kept from sleeping (--idle-poll): {}", us(plain), us(*awake)),
            Ok(None) => us(plain),
            Err(Errno::OPNOTSUPP) => format!("{}; they cannot be kept from sleeping here", us(plain)),
            Err(e) => format!("{}; may not be kept from sleeping: {}: {}", us(plain), pm_qos::DEVICE, ErrnoText(*e)),
        }
    }

    /// A long way to wake up, and permission is all that is missing.
    fn sleeps_too_deep(&self) -> bool {
        const LONG: Duration = Duration::from_micros(8);
        let denied = matches!(self.wake_up.awake, Err(Errno::ACCESS | Errno::PERM | Errno::NOENT));
        denied && self.wake_up.plain.is_some_and(|time| time > LONG)
    }

    fn verdict_text(&self) -> String {
        let works = if self.works() { "works" } else { "does not work" };
        let mut out = format!("farpage run {works} here for this user\n");
        if let Err(refusal) = self.probe.verdict() {
            out.push_str(&format!("{refusal}\n"));
        }
        if self.probe.forks().is_err() {
            out.push_str(
                "  help: a program whose memory is managed cannot fork here: allow pidfd_getfd, or sockets of AF_UNIX, in the \
                 sandbox's seccomp profile\n",
            );
        }
        for failure in [self.library.as_ref().err(), self.defaults.as_ref().err()].into_iter().flatten() {
            out.push_str(&format!("{}\n", failure.sentence));
            failure.details.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
        }
        if self.io_uring_switched_off() {
            out.push_str(
                "  help: io_uring is switched off here; to allow it    sudo sysctl kernel.io_uring_disabled=0\n",
            );
        }
        if self.sleeps_too_deep() {
            let allow = match self.wake_up.awake {
                Err(Errno::NOENT) => format!("in a container: docker run --device {} ...", pm_qos::DEVICE),
                _ => format!("sudo setfacl -m u:{}:w {}", rustix::process::geteuid().as_raw(), pm_qos::DEVICE),
            };
            out.push_str(&format!(
                "  help: it can be faster: idle CPUs sleep deeply here, and farpage may not keep them awake    {allow}\n"
            ));
        }
        out
    }

    fn io_uring_switched_off(&self) -> bool {
        let disabled = self.settings.iter().find(|s| s.0 == "kernel.io_uring_disabled").and_then(|s| s.1.as_deref());
        self.probe.io_uring.is_err() && disabled.is_some_and(|v| v != "0")
    }

    fn json(&self) -> Value {
        let probe = &self.probe;
        let mut object = json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": probe.release.as_str(),
            "uid": rustix::process::geteuid().as_raw(),
            "works": self.works(),
        });
        let mut checks = json!({});
        for (_, name, outcome) in self.checks() {
            let why = outcome.and_then(|o| o.err()).map(|e| e.to_string());
            checks[name] = json!({ "works": outcome.map(|o| o.is_ok()), "why": why });
        }
        object["checks"] = checks;
        let ns = |time: Option<Duration>| time.map(|t| t.as_nanos() as u64);
        object["wake_up_ns"] = json!(ns(self.wake_up.plain));
        object["wake_up_kept_awake_ns"] = json!(ns(self.wake_up.awake.ok().flatten()));
        let mut features = json!({});
        for (name, bit) in FEATURES {
            features[name] = json!(probe.features.map(|_| probe.has(bit)));
        }
        object["features"] = features;
        let mut settings = json!({});
        for (name, value) in &self.settings {
            settings[name] = json!(value);
        }
        object["settings"] = settings;
        let machine = self.machine.as_ref().ok();
        object["ram_bytes"] = json!(machine.map(|m| m.total));
        object["available_bytes"] = json!(machine.map(|m| m.available));
        object["cgroup_limit_bytes"] = json!(machine.and_then(|m| Some(m.limit.as_ref()?.bytes)));
        object["default_budget_bytes"] = json!(machine.and_then(|m| Some(m.budget(self.ram()).ok()?.bytes)));
        object["swap_files_free_bytes"] = json!(self.disk.ok());
        object["preload_library"] = json!(self.library.as_ref().ok().map(|p| p.display().to_string()));
        let mut defaults = json!({});
        for default in self.defaults.iter().flat_map(|defaults| &defaults.0) {
            defaults[&default.option] = json!({ "values": default.values, "from": default.origin });
        }
        object["defaults"] = defaults;
        object["defaults_error"] = json!(self.defaults.as_ref().err().map(|failure| &failure.sentence));
        let refusal = probe.verdict().err();
        object["refusal"] = json!(refusal.as_ref().map(|r| &r.sentence));
        object["help"] = json!(refusal.map(|r| r.help).unwrap_or_default());
        object
    }
}

fn shown(outcome: &Verdict) -> String {
    match outcome {
        Ok(()) => "yes".into(),
        Err(why) => format!("no: {why}"),
    }
}
