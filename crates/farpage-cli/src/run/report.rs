//! What `--stats` and `--stats-json` say about a program that has ended.

use super::shown;
use super::supervise::{Ended, How};
use crate::failure::{Failure, Result, why};
use crate::json::Object;
use crate::output;
use crate::page::{Page, SHARES, duration};
use crate::trees::Tree;
use farpage::PAGE_SIZE;
use farpage::internals::conf::size;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// The table for stderr.
pub fn table(ended: &Ended, program: &OsStr, budget: u64, tree: Option<&Tree>) -> String {
    let how = match ended.how {
        How::Exited(status) => format!("exit status {status}"),
        How::Killed(signal) => format!("killed by signal {signal}"),
    };
    let mut out = format!("farpage: {}: {how}, {}\n", shown(program), duration(ended.wall.as_nanos() as u64));
    let mut row = |name: &str, value: String, more: String| {
        let line = format!("  {name:<18}{value:>12}  {more}");
        out.push_str(line.trim_end());
        out.push('\n');
    };
    row("budget", size::format(budget), String::new());
    let Some(page) = &ended.page else {
        row("max RSS", size::format(ended.max_rss), "files included".into());
        out.push_str(&format!("  the preload library did not start in {}: nothing was managed\n", shown(program)));
        return out;
    };
    if let Some(tree) = tree {
        tree_rows(tree, &mut row);
    }
    let peak = page.get("rss_anon_peak_bytes");
    let share = format!("RssAnon, {:.1}% of the budget", peak as f64 * 100.0 / budget as f64);
    match peak {
        0 => row("peak anonymous", "-".into(), "not known: it ended before anybody looked".into()),
        _ => row("peak anonymous", size::format(peak), share),
    }
    row("max RSS", size::format(ended.max_rss), "files included".into());
    if page.was_active() {
        managed_rows(page, &mut row);
    } else {
        out.push_str(match peak > budget {
            true => "  ended, or was below the budget again, before memory could be managed: nothing was\n",
            false => "  never reached the budget: nothing was managed\n",
        });
    }
    out
}

fn of_pages(pages: u64) -> String {
    size::format(pages.saturating_mul(PAGE_SIZE as u64))
}

/// Processes that are named.
const LARGEST: usize = 5;

/// What there is to say of all processes together, if there was more than one.
fn tree_rows(tree: &Tree, row: &mut dyn FnMut(&str, String, String)) {
    let header = &tree.segment.header;
    let joined = header.joined.load(Relaxed);
    if joined < 2 {
        return;
    }
    let (peak, strangers) = (header.peak.load(Relaxed), header.strangers_peak.load(Relaxed));
    let most = if peak > 0 { of_pages(peak) } else { "-".into() };
    row("all processes", most, format!("claimed at most, by {joined} processes one after the other or together"));
    if strangers > 0 {
        row("without library", of_pages(strangers), "at most, of processes that cannot be managed".into());
    }
    for (i, process) in header.largest.list().into_iter().take(LARGEST).enumerate() {
        let title = if i == 0 { "largest" } else { "" };
        row(title, of_pages(process.peak), format!("{} ({})", process.name, process.pid));
    }
    row("first process", String::new(), "what follows is of this one".into());
}

/// Below this, shares of a pool say nothing of it: what is left at the end is pieces.
const POOL_SHARES_MIN: u64 = 4 << 20;

/// The compressed pool as it was at the end, and the most that it took; bytes.
struct PoolEnd {
    bytes: u64,
    /// Compressed.
    packed: u64,
    /// Not compressed.
    orig: u64,
    peak: u64,
}

impl PoolEnd {
    fn words(&self) -> String {
        let share = |part: u64| part as f64 / self.packed.max(1) as f64;
        let (ratio, holes) = (share(self.orig), 100.0 * share(self.bytes.saturating_sub(self.packed)));
        let orig = size::format(self.orig);
        let now = match (self.packed, self.orig) {
            (_, 0) => String::new(),
            (0, _) => format!("for {orig} all same-filled, "),
            _ if self.bytes < POOL_SHARES_MIN => format!("for {orig}, "),
            _ => format!("for {orig} at {ratio:.1} to 1, {holes:.0}% holes, "),
        };
        // Counts are taken one after the other.
        let peak = size::format(self.peak.max(self.bytes));
        format!("{now}at the end; {peak} at most")
    }
}

fn managed_rows(page: &Page, row: &mut dyn FnMut(&str, String, String)) {
    let pages = |name: &str| page.get(name);
    let (out, zero, clean) = (pages("pswpout"), pages("swpout_zero"), pages("swpout_clean"));
    let mut more = format!("{out} pages");
    if zero.saturating_add(clean) > 0 {
        more.push_str(&format!(", besides {zero} all zero and {clean} unchanged"));
    }
    row("swapped out", of_pages(out), more);
    let (back, ahead) = (pages("pswpin"), pages("swap_ra"));
    let hits = pages("swap_ra_hit");
    let used =
        if hits > 0 { format!(", {:.1}% of them used", 100.0 * hits as f64 / ahead as f64) } else { String::new() };
    row("swapped in", of_pages(back), format!("{back} pages, {ahead} by readahead{used}"));
    let pool = PoolEnd {
        bytes: pages("pool_bytes"),
        packed: pages("pool_compressed_bytes"),
        orig: pages("pool_orig_bytes"),
        peak: pages("pool_peak_bytes"),
    };
    if pool.orig > 0 || pool.peak > 0 {
        row("compressed pool", size::format(pool.bytes), pool.words());
    }
    if pages("file_bytes") > 0 || pages("pool_writeback") > 0 {
        let moved = pages("pool_writeback");
        row("on files", size::format(pages("file_bytes")), format!("at the end, {moved} pages moved on from the pool"));
    }
    row("major faults", pages("pgmajfault").to_string(), format!("of {} faults served", pages("pgfault")));
    row("cache refaults", pages("workingset_refault_cached").to_string(), "served without I/O".into());
    let latency = SHARES.map(|(_, share)| page.percentile(share).map(duration));
    if let [Some(p50), Some(p99), Some(p999)] = latency {
        row("fault service", p50, format!("p50, {p99} p99, {p999} p99.9"));
    }
    for (name, what) in [
        ("allocstall", "faults waited for reclaim"),
        ("over_budget_samples", "samples were above the budget + 5%"),
        ("swap_full", "tries to swap a page out failed: no device had room"),
        ("write_errors", "device write errors"),
        ("read_errors", "device read errors"),
        ("drained_pages", "pages taken off devices that failed"),
        ("pages_lost", "pages could not be read back: SIGBUS for who touched them"),
    ] {
        if pages(name) > 0 {
            row(name, pages(name).to_string(), what.into());
        }
    }
    if pages("verified") > 0 {
        row("verified", pages("verified").to_string(), "checksums equal".into());
    }
}

/// The object for `--stats-json`.
pub fn json(ended: &Ended, program: &[OsString], budget: u64, tree: Option<&Tree>) -> Object {
    let mut object = Object::with_schema();
    let argv: Vec<String> = program.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    object.put("program", argv);
    object.put("pid", ended.pid);
    let (status, signal) = match ended.how {
        How::Exited(status) => (Some(status), None),
        How::Killed(signal) => (None, Some(signal)),
    };
    object.put("exit_status", status);
    object.put("signal", signal);
    object.put("wall_ns", ended.wall.as_nanos() as u64);
    object.put("maxrss_bytes", ended.max_rss);
    object.put("ram_bytes", budget);
    object.put("engine_started", ended.page.is_some());
    match &ended.page {
        Some(page) => page.to_json(&mut object),
        None => Page::nulls(&mut object),
    }
    match tree {
        Some(tree) => object.put_object("tree", tree.json()),
        None => object.put("tree", None::<u64>),
    }
    object
}

/// Where `--stats-json` goes.
#[derive(Debug)]
pub enum Target {
    /// `-`.
    Stderr,
    /// A regular file, replaced as a whole.
    File(PathBuf),
    /// A pipe, a terminal, /dev/null: written in place.
    Special(PathBuf),
}

impl Target {
    /// Checks before the program starts that the file can be written when it has ended.
    ///
    /// # Errors
    /// Its directory does not exist or may not be written, or it is a directory.
    pub fn prepare(path: &Path) -> Result<Target> {
        if path == Path::new("-") {
            return Ok(Target::Stderr);
        }
        let fail = |e: &io::Error| Failure::new(format!("--stats-json: cannot write {}: {}", path.display(), why(e)));
        let absolute = std::path::absolute(path).map_err(|e| fail(&e))?;
        match fs::metadata(&absolute) {
            Ok(kind) if kind.is_dir() => return Err(fail(&io::Error::from_raw_os_error(libc::EISDIR))),
            Ok(kind) if !kind.is_file() => return Ok(Target::Special(absolute)),
            _ => {}
        }
        // Through a link, its target is replaced and not the link.
        let file = absolute.canonicalize().unwrap_or(absolute);
        let dir = file.parent().unwrap_or(Path::new("/"));
        if !dir.is_dir() {
            return Err(fail(&io::Error::from_raw_os_error(libc::ENOENT)));
        }
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).map_err(|e| fail(&e.into()))?;
        Ok(Target::File(file))
    }

    /// Writes the object.
    ///
    /// # Errors
    /// Names the file and why.
    pub fn write(&self, object: &Object) -> Result<()> {
        let text = object.pretty() + "\n";
        let (path, result) = match self {
            Target::Stderr => {
                let _ = io::stderr().write_all(text.as_bytes());
                return Ok(());
            }
            Target::File(path) => (path, output::replace(path, text.as_bytes())),
            Target::Special(path) => {
                let file = OpenOptions::new().write(true).open(path);
                (path, file.and_then(|mut f| f.write_all(text.as_bytes())))
            }
        };
        result.map_err(|e| Failure::new(format!("--stats-json: cannot write {}: {}", path.display(), why(&e))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_only_of_a_pool_that_is_worth_it() {
        let words = |bytes, packed, orig, peak| PoolEnd { bytes, packed, orig, peak }.words();
        let (kib, mib) = (1 << 10, 1 << 20);
        let of_much = words(8 * mib, 6 * mib, 18 * mib, 20 * mib);
        assert_eq!(of_much, "for 18.0 MiB at 3.0 to 1, 33% holes, at the end; 20.0 MiB at most");
        assert_eq!(words(512 * kib, 26 * kib, 72 * kib, 9 * mib), "for 72.0 KiB, at the end; 9.0 MiB at most");
        assert_eq!(words(0, 0, 4 * mib, 0), "for 4.0 MiB all same-filled, at the end; 0 B at most");
        assert_eq!(words(0, 0, 0, 9 * mib), "at the end; 9.0 MiB at most");
        assert_eq!(words(mib, mib, mib, 0), "for 1.0 MiB, at the end; 1.0 MiB at most");
    }
}
