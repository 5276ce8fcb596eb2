//! Memory cgroups, v1 and v2: the limit of this process, the smallest one on the way to the root; what one has.
//!
//! Callers: [`crate::budget`], [`crate::guard`], which watches them, and [`crate::attach`], for the processes of one.
//! No locks.

use crate::process;
use farpage_base::sys::escape::unescape;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The limit in bytes and the file that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// Where it was read.
    pub file: PathBuf,
}

/// A mounted memory hierarchy.
struct Mount {
    /// Which cgroup the mount shows at its top.
    root: PathBuf,
    point: PathBuf,
    v2: bool,
}

/// The limit of this process; `None` where there is none below `physical` bytes.
pub fn limit(physical: u64) -> Option<Limit> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
    limit_in(Path::new("/"), &cgroup, &mountinfo, physical)
}

fn limit_in(fs_root: &Path, cgroup: &str, mountinfo: &str, physical: u64) -> Option<Limit> {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(memory_mount).collect();
    let mut best: Option<Limit> = None;
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let v2 = id == "0" && controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
        for mount in mounts.iter().filter(|m| m.v2 == v2) {
            let top = fs_root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
            // Outside its namespace's root ("/../x"), or below another root: only the mount's top can be read.
            let below = Path::new(path).strip_prefix(&mount.root).ok().filter(|p| !p.starts_with(".."));
            for dir in top.join(below.unwrap_or(Path::new(""))).ancestors().take_while(|d| d.starts_with(&top)) {
                let file = dir.join(file);
                let bytes = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
                if let Some(bytes) = bytes
                    && bytes < physical
                    && best.as_ref().is_none_or(|b| bytes < b.bytes)
                {
                    best = Some(Limit { bytes, file });
                }
            }
        }
    }
    best
}

/// One line of mountinfo, if it is a memory hierarchy: `31 23 0:28 ROOT POINT OPTS [TAGS]... - TYPE SOURCE SUPEROPTS`.
fn memory_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1).unwrap_or(""));
    let v2 = kind == "cgroup2";
    let v1 = kind == "cgroup" && options.split(',').any(|o| o == "memory");
    (v1 || v2).then(|| Mount { root: unescape(root), point: unescape(point), v2 })
}

/// Where the memory hierarchies are mounted, and whether each is v2.
fn tops() -> Vec<(PathBuf, bool)> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mountinfo.lines().filter_map(memory_mount).map(|mount| (mount.point, mount.v2)).collect()
}

/// A memory cgroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    dir: PathBuf,
    v2: bool,
}

impl Group {
    /// The cgroup of a directory, or of a name below where the memory hierarchy is mounted.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &Path) -> io::Result<Group> {
        let below = name.strip_prefix("/").unwrap_or(name);
        let places = tops().into_iter().flat_map(|(top, _)| [name.to_owned(), top.join(below)]);
        places.into_iter().find_map(Group::at).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The cgroup whose limit is that of this process, if it has one below `physical` bytes.
    pub fn of_limit(physical: u64) -> Option<Group> {
        Group::at(limit(physical)?.file.parent()?.to_owned())
    }

    fn at(dir: PathBuf) -> Option<Group> {
        let has = |file: &str| dir.join(file).exists();
        // The root of v2 has no memory.max.
        let v2 = has("cgroup.controllers");
        (v2 || has("memory.limit_in_bytes")).then_some(Group { dir, v2 })
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// This one, and those in which it is.
    pub fn with_all_above(&self) -> Vec<Group> {
        self.dir.ancestors().map_while(|dir| Group::at(dir.to_owned())).collect()
    }

    /// This one, and all below.
    pub fn with_all_below(&self) -> BTreeSet<Group> {
        let mut found = BTreeSet::from([self.clone()]);
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for child in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            found.extend(Group { dir: child.path(), v2: self.v2 }.with_all_below());
        }
        found
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }

    fn number(&self, v1: &str, v2: &str) -> Option<u64> {
        self.read(if self.v2 { v2 } else { v1 })?.trim().parse().ok()
    }

    /// Its own limit, bytes; `None`: it has none below `physical` bytes, or is gone.
    pub fn limit(&self, physical: u64) -> Option<u64> {
        self.number("memory.limit_in_bytes", "memory.max").filter(|bytes| *bytes < physical)
    }

    /// What it has and could not drop without writing it somewhere, bytes: all but pages of files. `None`: it is gone.
    pub fn needed(&self) -> Option<u64> {
        let usage = self.number("memory.usage_in_bytes", "memory.current")?;
        let stat = self.read("memory.stat")?;
        let names = match self.v2 {
            true => ["inactive_file", "active_file"],
            false => ["total_inactive_file", "total_active_file"],
        };
        let of_files = names.iter().map(|name| keyed(&stat, name).unwrap_or(0)).sum();
        Some(usage.saturating_sub(of_files))
    }

    /// For how long its processes have waited for memory, us, where the kernel counts that.
    pub fn stalled_us(&self) -> Option<u64> {
        self.v2.then(|| stalled_us(&self.read("memory.pressure")?)).flatten()
    }

    /// How many processes of it and of those below the kernel has killed.
    pub fn kills(&self) -> u64 {
        let of = |group: &Group, file| group.read(file).and_then(|text| keyed(&text, "oom_kill")).unwrap_or(0);
        match self.v2 {
            true => of(self, "memory.events"),
            // There, each counts its own.
            false => self.with_all_below().iter().map(|group| of(group, "memory.oom_control")).sum(),
        }
    }

    /// The processes of it and of all below, as far as they are in this process's pid namespace.
    pub fn processes(&self) -> Vec<u32> {
        let groups = self.with_all_below();
        let lists = groups.iter().filter_map(|group| group.read("cgroup.procs"));
        lists.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }
}

/// The processes of a cgroup of any hierarchy, and of those below: of a directory, or of a name as `/proc/PID/cgroup`
/// has it.
pub fn members(name: &Path) -> Vec<u32> {
    if name.join("cgroup.procs").exists() {
        return Group { dir: name.to_owned(), v2: false }.processes();
    }
    let name = Path::new("/").join(name);
    by_path(|path| Path::new(path).starts_with(&name).then_some(())).into_values().flatten().collect()
}

/// Whether that is the top of a hierarchy, as far as this process sees it.
pub fn has_all(name: &Path) -> bool {
    match name.join("cgroup.procs").exists() {
        true => !name.join("../cgroup.procs").exists(),
        false => Path::new("/").join(name).parent().is_none(),
    }
}

/// The processes of a unit of systemd, whose cgroup has its name, in whatever hierarchy that is; by the path of that
/// cgroup, because several users may have units of one name.
pub fn of_unit(unit: &str) -> BTreeMap<String, Vec<u32>> {
    by_path(|path| unit_in(path, unit).map(str::to_owned))
}

/// The path of a cgroup up to the name of a unit, if that is in it.
fn unit_in<'a>(path: &'a str, unit: &str) -> Option<&'a str> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| &path[..end]).find(|place| place.rsplit('/').next() == Some(unit))
}

/// All processes, by what `key` makes of the first path of their cgroups of which it makes something.
fn by_path<K: Ord>(key: impl Fn(&str) -> Option<K>) -> BTreeMap<K, Vec<u32>> {
    let mut found: BTreeMap<K, Vec<u32>> = BTreeMap::new();
    for pid in process::all().unwrap_or_default() {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let keys = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(&key);
        keys.into_iter().for_each(|key| found.entry(key).or_default().push(pid));
    }
    found
}

/// The number of the line `NAME NUMBER`.
pub fn keyed(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The time that some task has waited for memory, us, in the text of a `pressure` file.
pub fn stalled_us(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("some ")?.rsplit_once("total=")?.1.parse().ok())
}

/// The name of the memory cgroup of a process, as `/proc/PID/cgroup` has it.
pub fn of_process(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then(|| path.to_owned())
        })
    };
    path(&|controllers| controllers.split(',').any(|c| c == "memory")).or_else(|| path(&str::is_empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: u64 = 8 << 30;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_units_cgroup_is_where_its_name_is() {
        let of = |path| unit_in(path, "app.service");
        assert_eq!(of("/system.slice/app.service"), Some("/system.slice/app.service"));
        assert_eq!(of("/user.slice/app.service/worker/1"), Some("/user.slice/app.service"));
        assert_eq!(of("/system.slice/my-app.service/app.services"), None);
        assert!([of("/"), of("")].into_iter().all(|place| place.is_none()));
    }

    #[test]
    fn v2_takes_the_smallest_of_the_ancestors() {
        let dir = tree(&[
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
        ]);
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let limit = limit_in(dir.path(), "0::/a/b/c\n", mounts, RAM).unwrap();
        assert_eq!(limit.bytes, 1 << 30);
        assert!(limit.file.ends_with("a/memory.max"));
    }

    #[test]
    fn v1_in_a_container_without_namespace_reads_the_mounts_top() {
        let dir = tree(&[("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")]);
        let mounts = "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        for path in ["/docker/x", "/elsewhere", "/../y"] {
            let cgroup = format!("4:memory:{path}\n0::/\n");
            assert_eq!(limit_in(dir.path(), &cgroup, mounts, RAM).unwrap().bytes, 512 << 20, "{path}");
        }
    }

    #[test]
    fn what_a_group_has() {
        let dir = tree(&[
            ("new/cgroup.controllers", "memory\n"),
            ("new/memory.max", "1048576\n"),
            ("new/memory.current", "900000\n"),
            ("new/memory.stat", "anon 500000\ninactive_file 100000\nactive_file 50000\n"),
            ("new/memory.pressure", "some avg10=1.00 avg60=0.00 total=1234\nfull avg10=0 avg60=0 total=7\n"),
            ("new/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n"),
            ("new/cgroup.procs", "12\n13\n"),
            ("new/below/cgroup.procs", "14\n"),
            ("old/memory.limit_in_bytes", "1048576\n"),
            ("old/memory.usage_in_bytes", "900000\n"),
            ("old/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\ntotal_active_file 60000\n"),
            ("old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"),
        ]);
        let group = |name: &str| Group::named(&dir.path().join(name)).unwrap();
        let (new, old) = (group("new"), group("old"));
        assert_eq!(
            (new.limit(RAM), new.needed(), new.stalled_us(), new.kills()),
            (Some(1 << 20), Some(750_000), Some(1234), 2)
        );
        assert_eq!(
            (old.limit(RAM), old.needed(), old.stalled_us(), old.kills()),
            (Some(1 << 20), Some(740_000), None, 5)
        );
        assert_eq!(old.limit(1000), None);
        assert_eq!(new.processes(), [12, 13, 14]);
        assert!(Group::named(&dir.path().join("none")).is_err());
    }

    #[test]
    fn no_limit() {
        let dir = tree(&[("m/memory.limit_in_bytes", "9223372036854771712\n"), ("u/memory.max", "max\n")]);
        let mounts = "1 1 0:1 / /m rw - cgroup cgroup rw,memory\n2 1 0:2 / /u rw - cgroup2 none rw\n";
        assert_eq!(limit_in(dir.path(), "4:memory:/\n0::/\n", mounts, RAM), None);
    }
}
