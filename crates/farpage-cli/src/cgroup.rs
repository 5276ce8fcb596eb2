//! The limit that the memory cgroup of this process sets, v1 or v2, the smallest one on the way to the root.

use farpage::internals::sys::escape::unescape;
use std::fs;
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
    fn no_limit() {
        let dir = tree(&[("m/memory.limit_in_bytes", "9223372036854771712\n"), ("u/memory.max", "max\n")]);
        let mounts = "1 1 0:1 / /m rw - cgroup cgroup rw,memory\n2 1 0:2 / /u rw - cgroup2 none rw\n";
        assert_eq!(limit_in(dir.path(), "4:memory:/\n0::/\n", mounts, RAM), None);
    }
}
