//! `farpage run`: everything that happens between the command line and the program's first instruction.
//!
//! Order matters: the budget and devices are read first (nothing has happened yet), the userfaultfd device is opened
//! while there is privilege to open it, and the library is found, which may be written then. `--user` gives the
//! privilege up, and all that follows (can the library be read, probe, program lookup) is seen with the program's own
//! rights.

mod by_mapping;
mod elf;
mod exec;
mod lock_limit;
mod program;
mod record;
mod report;
pub mod server;
mod supervise;

use crate::args::{EngineArgs, RunArgs};
use crate::budget::{Budget, ENV_RAM, budget, budget_of, never_acts};
use crate::early;
use crate::failure::{Failure, OrCannot, Result, say, shown, why};
use crate::preload;
use crate::trees;
use crate::user;
use exec::Image;
use farpage::PAGE_SIZE;
use farpage_base::sys::cpu;
use farpage_base::sys::descriptor::keep_across_exec;
use farpage_command::machine::{System, meminfo};
use farpage_device::space::build::check_memory;
use farpage_ipc::conf::size;
use farpage_ipc::conf::{self, Conf, DeviceKind, SwapSpec};
use farpage_ipc::tree::{self, Segment};
use farpage_run::monitor::build::start_bytes;
use farpage_run::probe::{self, Probe};
use record::Recording;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the subcommand. Where nothing is to be done after the program it returns only on failure.
pub fn main(args: RunArgs) -> Result<ExitCode> {
    let note = |text: &dyn std::fmt::Display| {
        if args.verbose {
            say(format_args!("farpage: {text}"));
        }
    };
    let (mut conf, all) = configuration(&args, &note)?;
    // Here already: what comes next opens some.
    check_open_files().or_else(|failure| forgivable(&args, failure))?;
    let user = args.user.as_deref().map(user::lookup).transpose()?;
    let device = device_for_program(&note);
    let library = preload::locate()?;
    if let Some(user) = &user {
        user::become_user(user)?;
        note(&format_args!("running as uid {}, gid {}", user.uid, user.gid));
    }
    preload::check(&library)?;
    note(&format_args!("preload library {}", library.display()));

    let forgivable = |failure: Failure| forgivable(&args, failure);
    let probe = Probe::take(device);
    probe.verdict().map_err(Failure::from).or_else(forgivable)?;
    if let Err(why) = probe.forks()
        && !args.quiet
    {
        say(format_args!("farpage: a program whose memory is managed cannot fork here: {why}; see farpage doctor"));
    }
    check_limits().or_else(forgivable)?;
    let name = args.program.first().cloned().unwrap_or_default();
    let path = program::find(&name, std::env::var_os("PATH").as_deref())?;
    note(&format_args!("program {}", path.display()));
    elf::check(&path).or_else(forgivable)?;
    let mut password = None;
    if args.engine.swap.is_empty() {
        conf.swap.retain_mut(|spec| match resolve_file(spec) {
            Ok(()) => true,
            Err(failure) => {
                if !args.quiet {
                    say(format_args!("{failure}\n  going on with compressed memory only"));
                }
                false
            }
        });
    } else {
        conf.swap.iter_mut().try_for_each(resolve_named)?;
        password = server::resolve_all(&mut conf.swap)?;
        conf.swap.iter().filter(|_| !args.quiet).filter_map(above_filesystem).for_each(say);
    }
    conf.trace.as_deref().map(check_trace).transpose()?;
    let exports = server::take_all(&mut conf.swap)?;
    let conf_text = conf_text(&conf)?;
    note(&format_args!("{}={conf_text}", conf::ENV_CONF));
    let is_disabled = preload::is_disabled();
    if is_disabled && !args.quiet {
        let name = conf::ENV_DISABLE;
        say(format_args!("farpage: {name} is set: the program runs without a budget, unless it unsets that"));
    }

    if let Err(failure) = lock_limit::apply(conf.ram)
        && !args.quiet
    {
        say(failure);
    }
    let mut image = Image::new(&path, &args.program)?;
    image.set(conf::ENV_CONF, conf_text.as_bytes())?;
    password.as_ref().map_or(Ok(()), |password| image.set(conf::redis::ENV_PASSWORD, password))?;
    let outer = outer_tree(); // Open until the exec.
    let segment = new_tree(outer, all, &conf, &note);
    match &segment {
        Ok((_, name)) => image.set(tree::ENV_TREE_FD, name.as_bytes())?,
        Err(failure) => {
            if !args.quiet {
                say(format_args!("{failure}\n  going on with that budget for each process"));
            }
            image.unset(tree::ENV_TREE_FD);
        }
    }
    image.set("LD_PRELOAD", &preload::ld_preload(&library, std::env::var_os("LD_PRELOAD").as_deref()))?;
    image.unset(conf::ENV_STAT_FD);
    image.unset(ENV_RAM);
    image.unset(conf::ENV_DEFAULTS);
    match device {
        Some(device) => image.set(conf::ENV_UFFD_FD, device.as_raw_fd().to_string().as_bytes())?,
        None => image.unset(conf::ENV_UFFD_FD),
    }
    for (key, value) in user.iter().flat_map(|u| &u.env) {
        image.set(key, value.as_bytes())?;
    }
    let prepare =
        |option, path: &Option<PathBuf>| path.as_deref().map(|path| report::Target::prepare(option, path)).transpose();
    let target = prepare("--stats-json", &args.stats_json)?;
    let page = prepare("--report", &args.report)?;
    if !args.engine.swap.is_empty() {
        conf.swap.iter().try_for_each(|spec| make_file(spec, &note))?;
    }
    // This process has to be there afterwards: to report, or to remove what is left on servers.
    let has_servers = conf.swap.iter().any(|spec| matches!(spec.kind, DeviceKind::Nbd(_) | DeviceKind::Redis(_)));
    if !args.stats && target.is_none() && page.is_none() && !has_servers {
        early::restore_sigpipe();
        return Err(image.failure(&image.exec()));
    }
    let segment = segment.ok().map(|(fd, _)| fd);
    let tree_of = |pid: u32| trees::open(pid, segment.as_ref()?.as_fd()).ok();
    let mut recording = page.as_ref().map(|_| Recording::new());
    let mut tree = None;
    let mut look = |pid: u32, page: &File, is_last: bool| {
        tree = tree.take().or_else(|| tree_of(pid));
        let next = recording.as_mut().map(|recording| recording.look(pid, page, tree.as_ref(), conf.ram, is_last));
        server::stay_owner(&exports).min(next.unwrap_or(Duration::MAX))
    };
    let ended = supervise::run(&image, outer, (page.is_some() || !exports.is_empty()).then_some(&mut look))?;
    let tree = tree.or_else(|| tree_of(ended.pid as u32));
    server::clean_up(&conf.swap, &exports, password.as_deref(), tree.as_ref());
    if args.stats {
        let table = report::table(&ended, &name, conf.ram, tree.as_ref());
        let _ = io::Write::write_all(&mut io::stderr(), table.as_bytes());
    }
    if ended.page.is_none() && !args.stats && !args.quiet && !is_disabled {
        say(format_args!("farpage: {}", preload::did_not_start(shown(&name))));
    }
    let mut counters = report::json(&ended, &args.program, conf.ram, tree.as_ref());
    if let Some(Err(failure)) = target.map(|t| t.write(&format!("{counters:#}\n"))) {
        say(failure);
    }
    if let (Some(page), Some(recording)) = (page, recording) {
        counters["samples"] = recording.json();
        counters["mappings"] = recording.mappings(ended.page.as_ref());
        counters["environment"] = environment(&conf_text);
        page.write(&crate::report::of_run(&counters)).unwrap_or_else(say);
    }
    ended.leave()
}

/// Where a run was, in words.
fn environment(configuration: &str) -> Value {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let system = System::here();
    json!({
        "farpage": env!("CARGO_PKG_VERSION"),
        "kernel": system.kernel,
        "cpus": system.cpus,
        "cpu": system.cpu,
        "memory": size::format(system.memory),
        "ended_unix_s": since.as_secs(),
        "configuration": configuration,
    })
}

/// The tree that this process is in.
fn outer_tree() -> Option<&'static Segment> {
    let (fd, _) = tree::inherited()?;
    // SAFETY: open, and not owned.
    tree::open(unsafe { BorrowedFd::borrow_raw(fd) }).ok()
}

/// Makes the segment of a tree with a budget of `bytes`, with a number that programs leave alone. Within another tree,
/// as much of its budget is claimed for this one, or what there is.
fn new_tree(
    outer: Option<&Segment>,
    all: Option<u64>,
    conf: &Conf,
    note: &dyn Fn(&dyn std::fmt::Display),
) -> Result<(OwnedFd, String)> {
    let mut bytes = all.unwrap_or(tree::UNLIMITED);
    let each = (conf.ram < bytes).then_some(conf.ram);
    if let Some(outer) = outer {
        let least = conf::RAM_MIN.min(bytes);
        bytes = tree::nest(outer, bytes.min(outer.budget() * PAGE_SIZE as u64)).max(least);
        note(&format_args!("within another farpage run, whose budget leaves {}", size::format(bytes)));
    }
    let made = tree::create(bytes, each).map_err(io::Error::from).and_then(|fd| {
        let fd = keep_across_exec(fd.as_fd())?;
        let name = tree::named(fd.as_fd())?;
        Ok((fd, name))
    });
    made.or_cannot("make the memory that all processes of a tree share")
}

/// Budget, devices and switches, with everything checked that needs no privilege and no file system. And the budget of
/// all processes together, if there is one, bytes.
fn configuration(args: &RunArgs, note: &dyn Fn(&dyn std::fmt::Display)) -> Result<(Conf, Option<u64>)> {
    let each = args.ram_per_process.as_deref().map(|text| budget_of("--ram-per-process", Some(text))).transpose()?;
    let all = match (&args.ram, &each) {
        (None, Some(_)) => None,
        (ram, _) => Some(budget(ram.as_deref())?),
    };
    for (budget, of) in [(&all, "budget"), (&each, "budget of each process")] {
        if let Some(budget) = budget {
            note(&format_args!("{of} {} ({})", size::format(budget.bytes), budget.origin));
        }
    }
    // Within another tree, it has at most a part of that one's budget.
    let given = [("--ram", &args.ram, &all), ("--ram-per-process", &args.ram_per_process, &each)];
    let why = |(option, text, budget): (&str, &Option<String>, &Option<Budget>)| {
        never_acts(option, text.as_deref()?, budget.as_ref()?)
    };
    if !args.quiet
        && tree::inherited().is_none()
        && let Some(why) = given.into_iter().find_map(why)
    {
        say(format_args!("farpage: {why}"));
    }
    let bytes = [&all, &each].into_iter().flatten().map(|budget| budget.bytes).min().unwrap_or(conf::RAM_MIN);
    let mut conf = engine_configuration(bytes, &args.engine)?;
    conf.verbose = args.verbose;
    conf.quiet = args.quiet;
    conf.trace = args.trace.as_deref().map(new_file).transpose()?;
    Ok((conf, all.map(|budget| budget.bytes)))
}

/// How the engine is to work within `bytes`.
fn engine_configuration(bytes: u64, args: &EngineArgs) -> Result<Conf> {
    let mut conf = Conf::new(bytes);
    conf.verify = args.verify;
    if let Some(text) = &args.readahead {
        conf.readahead = conf::parse_readahead(text).map_err(|e| Failure::new(e.to_string()))?;
    }
    if let Some(text) = &args.idle {
        conf.idle = Some(conf::parse_idle(text).map_err(|e| Failure::new(format!("--{e}")))?);
    }
    if let Some(text) = &args.idle_poll {
        conf.idle_poll = conf::parse_idle_poll(text).map_err(|e| Failure::new(e.to_string()))?;
    }
    if !args.swap.is_empty() {
        conf.swap = args.swap.iter().map(|spec| parse_spec(spec)).collect::<Result<_>>()?;
    }
    check_memory(&conf.swap, conf.ram)
        .map_err(|e| Failure::new(format!("--swap: {}: {}", e.name, e.reason)).help(e.remedy))?;
    Ok(conf)
}

/// Whether an option can have a value, as far as its text says.
///
/// # Errors
/// It cannot.
pub fn check_option(option: &str, value: &str) -> Result<()> {
    let conf_error = |error: conf::ConfError| Failure::new(format!("--{option}: {error}"));
    match option {
        "ram" | "ram-per-process" => budget_of(&format!("--{option}"), Some(value)).map(drop),
        "swap" => parse_spec(OsStr::new(value)).map(drop),
        "idle" => conf::parse_idle(value).map(drop).map_err(conf_error),
        "readahead" => conf::parse_readahead(value).map(drop).map_err(conf_error),
        _ => Ok(()),
    }
}

/// For a program that runs already: what `farpage run` would have told it, and the text of that. It does not expect
/// others to write to its standard error.
///
/// # Errors
/// What is asked for cannot be.
pub fn configuration_of_running(bytes: u64, args: &EngineArgs) -> Result<(Conf, String)> {
    let mut conf = engine_configuration(bytes, args)?;
    conf.quiet = true;
    match args.swap.is_empty() {
        true => conf.swap.retain_mut(|spec| resolve_file(spec).is_ok()),
        false => conf.swap.iter_mut().try_for_each(resolve_named)?,
    }
    server::resolve_for_running(&mut conf.swap)?;
    let text = conf_text(&conf)?;
    Ok((conf, text))
}

/// Files that the engine has open besides those of its devices, one more for each CPU.
const FILES: u64 = 48;

/// Bytes that the kernel has left to promise, where it never promises more than it has (`vm.overcommit_memory=2`).
fn commit_left() -> Option<u64> {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    let limit = meminfo("CommitLimit").filter(|_| mode.trim() == "2")?;
    Some(limit.saturating_sub(meminfo("Committed_AS")?))
}

/// Whether the program is tried all the same.
fn forgivable(args: &RunArgs, failure: Failure) -> Result<()> {
    if !args.force {
        return Err(failure);
    }
    if !args.quiet {
        say(format_args!("{failure}\n  going on because of --force"));
    }
    Ok(())
}

/// Whether the engine can have the memory that it begins with.
fn check_limits() -> Result<()> {
    let need = start_bytes();
    for (resource, what, flag) in [(Resource::As, "address space", "-v"), (Resource::Data, "private memory", "-d")] {
        if let Some(limit) = getrlimit(resource).current.filter(|limit| *limit < need) {
            return Err(Failure::new(format!(
                "the limit on {what} (ulimit {flag}) is {}; farpage needs {} for itself\n  \
                 raise the limit (ulimit {flag} unlimited); --ram limits memory instead",
                size::format(limit),
                size::format(need)
            )));
        }
    }
    if let Some(left) = commit_left().filter(|left| *left < need) {
        return Err(Failure::new(format!(
            "vm.overcommit_memory is 2, and the kernel has {} of memory left to promise; farpage needs {} for itself\n  \
             add swap, raise vm.overcommit_ratio, or set vm.overcommit_memory to 0",
            size::format(left),
            size::format(need)
        )));
    }
    Ok(())
}

/// Whether the engine can open its files.
fn check_open_files() -> Result<()> {
    let files = FILES + cpu::count() as u64;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < files => Err(Failure::new(format!(
            "the limit on open files (ulimit -n) is {limit}; farpage needs {files}\n  raise it: ulimit -n {}",
            1024.max(files)
        ))),
        _ => Ok(()),
    }
}

/// The absolute path of a file that does not exist yet: the engine makes it, perhaps after the program changed its
/// directory.
fn new_file(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        let sentence = format!("--trace: {} exists already", shown(path));
        return Err(Failure::new(sentence).help("choose another name, or remove it"));
    }
    std::path::absolute(path).map_err(|e| no_trace(path, &e))
}

fn no_trace(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("--trace: cannot make {}: {}", shown(path), why(error)))
}

/// Whether the program's user can make the file.
fn check_trace(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|e| no_trace(path, &e.into()).help("name a file in a directory that exists and that you may write to"))
}

fn parse_spec(spec: &OsStr) -> Result<SwapSpec> {
    let text = spec.to_str().ok_or_else(|| Failure::new(format!("--swap: {spec:?} is not UTF-8")))?;
    SwapSpec::parse(text).map_err(|e| Failure::new(format!("--swap: {e}")))
}

/// Makes the path of a file device absolute (the program may change its directory) and checks that it can be used.
fn resolve_file(spec: &mut SwapSpec) -> Result<()> {
    let DeviceKind::File { path, .. } = &mut spec.kind else { return Ok(()) };
    *path = absolute(path);
    check_file(path, path)
}

/// The same for a device that the user named. A file that does not exist can be used where one can be made; it is made
/// when nothing else can be refused any more.
fn resolve_named(spec: &mut SwapSpec) -> Result<()> {
    if let Some(mirror) = spec.mirror() {
        *mirror = absolute(mirror);
        let checked = farpage_device::file::check_mirror(mirror);
        checked.map_err(|e| Failure::new(format!("--swap: cannot use {}: {}", e.name, e.reason)).help(e.remedy))?;
    }
    let DeviceKind::File { path, .. } = &mut spec.kind else { return Ok(()) };
    *path = absolute(path);
    check_file(path, directory_of_new(path).unwrap_or(path))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Checks in `place` whether the file device of `path` can be used.
fn check_file(path: &Path, place: &Path) -> Result<()> {
    farpage_device::file::check(place).map_err(|e| no_file(path, &e.reason).help(e.remedy))
}

fn no_file(path: &Path, reason: &str) -> Failure {
    Failure::new(format!("--swap: cannot use file:{}: {reason}", path.display()))
}

/// The directory in which a file of this name can be made: it exists, and nothing in it has that name.
fn directory_of_new(path: &Path) -> Option<&Path> {
    // "no/": a directory is meant.
    let is_file = !path.as_os_str().as_bytes().ends_with(b"/");
    let is_new = std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    path.parent().filter(|directory| is_file && is_new && directory.is_dir())
}

/// Makes the file of a device, if there is none: empty as it stays, and its owner's alone.
fn make_file(spec: &SwapSpec, note: &dyn Fn(&dyn std::fmt::Display)) -> Result<()> {
    let DeviceKind::File { path, .. } = &spec.kind else { return Ok(()) };
    if directory_of_new(path).is_none() {
        return Ok(());
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => note(&format_args!("made {}", path.display())),
        // The same file for two devices, or another process was faster.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => check_file(path, path)?,
        Err(e) => {
            let failure = no_file(path, &format!("cannot make it: {}", why(&e)));
            return Err(failure.help("use a directory, as in file:/var/tmp"));
        }
    }
    Ok(())
}

/// Whether a file may become larger than its filesystem, so that its size is none; in words.
fn above_filesystem(spec: &SwapSpec) -> Option<String> {
    let (DeviceKind::File { path, .. }, Some(most)) = (&spec.kind, spec.size) else { return None };
    // The filesystem in which a block device has its name is not what is on it.
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return None;
    }
    let fs = rustix::fs::statvfs(directory_of_new(path).unwrap_or(path)).ok()?;
    let has = fs.f_blocks.saturating_mul(fs.f_frsize);
    // Some do not say.
    let above = (1..most).contains(&has);
    let (path, most, has) = (shown(path), size::format(most), size::format(has));
    above.then(|| format!("farpage: --swap file:{path}: the size of {most} will never act: its filesystem has {has}"))
}

/// The text for the engine, refused if it would be read differently from what is meant.
fn conf_text(conf: &Conf) -> Result<String> {
    let text = conf.to_string();
    match Conf::parse(&text) {
        Ok(read) if read == *conf => Ok(text),
        _ => Err(Failure::new("--swap and --trace: a path cannot contain a comma, a semicolon or unprintable bytes")),
    }
}

/// An open /dev/userfaultfd that the program inherits.
fn device_for_program(note: &dyn Fn(&dyn std::fmt::Display)) -> Option<BorrowedFd<'static>> {
    if let Some(fd) = probe::inherited_device() {
        note(&format_args!("userfaultfd device inherited as descriptor {}", fd.as_raw_fd()));
        return Some(fd);
    }
    match probe::open_device().and_then(|fd| keep_across_exec(fd.as_fd())) {
        Ok(fd) => {
            note(&format_args!("userfaultfd device open as descriptor {}", fd.as_raw_fd()));
            let stays_open: &OwnedFd = Box::leak(Box::new(fd));
            Some(stays_open.as_fd())
        }
        Err(error) => {
            note(&format_args!("{} cannot be opened: {}", probe::DEVICE, why(&error.into())));
            None
        }
    }
}
