//! What `--stats` and `--stats-json` say about a program that has ended.

use super::supervise::{Ended, How};
use crate::failure::{Failure, Result, shown, why};
use crate::output;
use crate::output::SCHEMA;
use crate::page::{Page, SHARES, duration};
use crate::preload;
use crate::trees::{Tree, bytes, size_of};
use farpage_ipc::conf::size;
use farpage_ipc::stat::{FULL, Waiting};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

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
    let (wall, several) = (ended.wall, tree.filter(|tree| tree.segment.header.has_several()));
    let all = several.map(|tree| Page::of_tree(&tree.segment.header.sums)).filter(Page::was_active);
    let page = all.as_ref().or(ended.page.as_ref());
    let waited = waiting(ended, tree);
    if let Some((page, waited)) = page.filter(|page| page.was_active()).zip(waited) {
        waiting_rows(page, waited, &words(&waited), &mut row);
    }
    if let Some(tree) = several {
        tree_rows(tree, &mut row);
    } else {
        if let Some(page) = &ended.page {
            peak_row(page.get("rss_anon_peak_bytes"), budget, &mut row);
        }
        row("max RSS", size::format(ended.max_rss), "files included".into());
    }
    if let Some(page) = page {
        if page.was_active() {
            managed_rows(page, &mut row);
        } else {
            out.push_str(match page.get("rss_anon_peak_bytes") > budget {
                true => "  ended, or was below the budget again, before memory could be managed: nothing was\n",
                false => "  never reached the budget: nothing was managed\n",
            });
        }
    }
    if ended.page.is_none() {
        out.push_str(&format!("  {}\n", preload::did_not_start(shown(program))));
    }
    let said = page.zip(waited).and_then(|(page, waited)| advice(page, &waited, budget, wall, several.is_none()));
    out + &said.map(|said| format!("  {said}\n")).unwrap_or_default()
}

/// What the program, or all processes where there were several, waited; `None`: nothing is known of it.
fn waiting(ended: &Ended, tree: Option<&Tree>) -> Option<Waiting> {
    let of_all = tree.map(|tree| &tree.segment.header).map(|header| (header.has_several(), &header.sums));
    match (of_all, &ended.page) {
        (Some((true, sums)), _) => Some(sums.waiting(ended.wall)),
        (Some((false, sums)), Some(page)) => Some(page.waiting(ended.wall).of_any(sums.waited(), ended.wall)),
        (_, page) => page.as_ref().map(|page| page.waiting(ended.wall)),
    }
}

fn words(waited: &Waiting) -> String {
    format!("by all threads; for {:.0}% of the time at least one waited", 100.0 * waited.share)
}

fn peak_row(peak: u64, budget: u64, row: &mut dyn FnMut(&str, String, String)) {
    let share = format!("RssAnon, {:.1}% of the budget", peak as f64 * 100.0 / budget as f64);
    match peak {
        0 => row("peak anonymous", "-".into(), "not known: it ended before anybody looked".into()),
        _ => row("peak anonymous", size::format(peak), share),
    }
}

/// What it came to for the user, before what the engine did for it.
fn waiting_rows(page: &Page, waited: Waiting, words: &str, row: &mut dyn FnMut(&str, String, String)) {
    row("waited for memory", duration(waited.ns), words.into());
    let moved = |name: &str| bytes(page.get(name));
    let (read, written) = (page.get("file_read_bytes"), page.get("file_write_bytes"));
    // What goes out goes to the pool or to files; what the pool moves on goes to files without having come in.
    let direct = written.saturating_sub(moved("pool_writeback"));
    let pool = (moved("pswpout").saturating_sub(direct), moved("pswpin").saturating_sub(read));
    for (name, (written, read)) in [("pool", pool), ("files", (written, read))] {
        if written > 0 || read > 0 {
            row(name, size::format(written), format!("written, {} read", size::format(read)));
        }
    }
}

/// Of its time a program waited less than this: it would hardly notice more.
const WAITED_LITTLE: f64 = 0.01;
/// Pages that came back a second, so that waiting that is not counted may be more than little.
const BACK_OFTEN: f64 = 100.0;

/// What to do about it, as far as what was measured says that. `alone`: no other process has a part of the budget.
fn advice(page: &Page, waited: &Waiting, budget: u64, wall: Duration, alone: bool) -> Option<String> {
    let get = |name: &str| page.get(name);
    if !page.was_active() {
        let peak = get("rss_anon_peak_bytes");
        // What it had is known to one look of many, so not a budget that is just above that.
        let little = alone && peak > 0 && peak < budget / 2;
        return little.then(|| "it used less than half of the budget: a smaller --ram does, too".into());
    }
    if get("swap_full") > 0 {
        return Some(waited.advice("the time").unwrap_or_else(|| FULL.into()));
    }
    let major = get("pgmajfault");
    let back = major.saturating_add(get("workingset_refault_cached")) as f64 / wall.as_secs_f64().max(1e-9);
    if waited.share < WAITED_LITTLE && back < BACK_OFTEN {
        return alone.then(|| "it hardly waited for memory: a smaller --ram may do".into());
    }
    Some(match (waited.advice("the time"), waited.files()) {
        (Some(advice), _) => advice,
        (None, Some(files)) => format!("{files}: more --ram shortens that"),
        (None, None) if major == 0 && get("pswpout") + get("swpout_zero") == 0 => return None,
        (None, None) if major == 0 => "no page was read back: it waited while others were taken out".into(),
        (None, None) => "pages came back from memory, mostly: only more --ram shortens the waiting".into(),
    })
}

/// Processes that are named.
const LARGEST: usize = 5;

/// What there is to say of all processes together, where there was more than one.
fn tree_rows(tree: &Tree, row: &mut dyn FnMut(&str, String, String)) {
    let header = &tree.segment.header;
    let joined = header.joined.load(Relaxed);
    let (peak, strangers) = (header.peak.load(), header.strangers_peak.load());
    let most = if peak > 0 { size_of(peak) } else { "-".into() };
    row("all processes", most, format!("claimed at most, by {joined} processes one after the other or together"));
    if strangers > 0 {
        row("without library", size_of(strangers), "at most, of processes that cannot be managed".into());
    }
    for (i, process) in header.largest.list().into_iter().take(LARGEST).enumerate() {
        let title = if i == 0 { "largest" } else { "" };
        row(title, size_of(process.peak), format!("{} ({})", process.name, process.pid));
    }
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

/// Of all processes where there were several: then neither levels at the end nor the times of single faults are known.
fn managed_rows(page: &Page, row: &mut dyn FnMut(&str, String, String)) {
    let pages = |name: &str| page.get(name);
    let (out, zero, clean) = (pages("pswpout"), pages("swpout_zero"), pages("swpout_clean"));
    let mut more = format!("{out} pages");
    if zero.saturating_add(clean) > 0 {
        more.push_str(&format!(", besides {zero} all zero and {clean} unchanged"));
    }
    row("swapped out", size_of(out), more);
    let (back, ahead) = (pages("pswpin"), pages("swap_ra"));
    let hits = pages("swap_ra_hit");
    let used =
        if hits > 0 { format!(", {:.1}% of them used", 100.0 * hits as f64 / ahead as f64) } else { String::new() };
    row("swapped in", size_of(back), format!("{back} pages, {ahead} by readahead{used}"));
    let pool = PoolEnd {
        bytes: pages("pool_bytes"),
        packed: pages("pool_compressed_bytes"),
        orig: pages("pool_orig_bytes"),
        peak: pages("pool_peak_bytes"),
    };
    if pool.orig > 0 || pool.peak > 0 {
        row("compressed pool", size::format(pool.bytes), pool.words());
    }
    if pages("file_bytes") > 0 {
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
pub fn json(ended: &Ended, program: &[OsString], budget: u64, tree: Option<&Tree>) -> Value {
    let (status, signal) = match ended.how {
        How::Exited(status) => (Some(status), None),
        How::Killed(signal) => (None, Some(signal)),
    };
    let share = ended.page.as_ref().and_then(|_| waiting(ended, tree)).map(|waited| waited.share);
    let mut object = json!({
        "schema": SCHEMA,
        "program": program.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>(),
        "pid": ended.pid,
        "exit_status": status,
        "signal": signal,
        "wall_ns": ended.wall.as_nanos() as u64,
        "maxrss_bytes": ended.max_rss,
        "ram_bytes": budget,
        "engine_started": ended.page.is_some(),
        "wait_share": share.map(|share| (share * 1e4).round() / 1e4),
    });
    match &ended.page {
        Some(page) => page.to_json(&mut object),
        None => Page::nulls(&mut object),
    }
    object["tree"] = json!(tree.map(Tree::json));
    object
}

/// Where `--stats-json` or `--report` goes.
#[derive(Debug)]
pub struct Target {
    option: &'static str,
    /// `-`: standard error.
    path: PathBuf,
    /// A pipe, a terminal, /dev/null: written in place. A regular file is replaced as a whole.
    is_special: bool,
}

impl Target {
    /// Checks before the program starts that the file can be written when it has ended.
    ///
    /// # Errors
    /// Its directory does not exist or may not be written, or it is a directory.
    pub fn prepare(option: &'static str, path: &Path) -> Result<Target> {
        let target = Target { option, path: path.to_owned(), is_special: false };
        match target.is_stderr() {
            true => Ok(target),
            false => Target::prepare_file(option, path).map_err(|e| target.failure(&e)),
        }
    }

    fn prepare_file(option: &'static str, path: &Path) -> io::Result<Target> {
        let absolute = std::path::absolute(path)?;
        match fs::metadata(&absolute) {
            Ok(kind) if kind.is_dir() => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Ok(kind) if !kind.is_file() => return Ok(Target { option, path: absolute, is_special: true }),
            _ => {}
        }
        // Through a link, its target is replaced and not the link.
        let path = absolute.canonicalize().unwrap_or(absolute);
        let dir = path.parent().unwrap_or(Path::new("/"));
        if !dir.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?;
        Ok(Target { option, path, is_special: false })
    }

    fn is_stderr(&self) -> bool {
        self.path == Path::new("-")
    }

    fn failure(&self, error: &io::Error) -> Failure {
        Failure::new(format!("{}: cannot write {}: {}", self.option, self.path.display(), why(error)))
    }

    /// Writes what belongs there.
    ///
    /// # Errors
    /// Names the file and why.
    pub fn write(&self, text: &str) -> Result<()> {
        let written = match self.is_special {
            _ if self.is_stderr() => {
                let _ = io::stderr().write_all(text.as_bytes());
                Ok(())
            }
            true => OpenOptions::new().write(true).open(&self.path).and_then(|mut f| f.write_all(text.as_bytes())),
            false => output::replace(&self.path, text.as_bytes()),
        };
        written.map_err(|e| self.failure(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage::PAGE_SIZE;
    use farpage_ipc::stat::Stat;

    const SECOND: Duration = Duration::from_secs(1);
    const BUDGET: u64 = 64 << 20;

    fn active(set: impl FnOnce(&Stat)) -> Page {
        Page::for_test(|stat| {
            stat.active.store(1, Relaxed);
            stat.rss_anon_peak_bytes.store(BUDGET, Relaxed);
            set(stat);
        })
    }

    fn waits(ms: u64, major: u64, of_files: u64) -> Page {
        active(|stat| {
            stat.fault_wait_ns.store(ms * 1_000_000, Relaxed);
            stat.pgmajfault.store(major, Relaxed);
            stat.pgmajfault_file.store(of_files, Relaxed);
            stat.pswpout.store(major, Relaxed);
        })
    }

    #[test]
    fn at_least_one_waited_for_as_much_as_all_on_average() {
        let page = |threads| {
            active(|stat| {
                stat.fault_wait_ns.store(1_200_000_000, Relaxed);
                stat.alloc_wait_ns.store(50_000_000, Relaxed);
                stat.fault_threads.store(threads, Relaxed);
            })
        };
        let words = |threads| words(&page(threads).waiting(SECOND * 5));
        assert_eq!(page(4).waiting(SECOND * 5).ns, 1_250_000_000);
        assert_eq!(words(1), "by all threads; for 25% of the time at least one waited");
        assert_eq!((words(0), &*words(5)), (words(1), "by all threads; for 5% of the time at least one waited"));
        assert!(waits(1, 0, 0).waiting(Duration::ZERO).share.is_finite());
    }

    #[test]
    fn what_went_to_the_pool_and_to_files_is_told_apart() {
        let page = active(|stat| {
            stat.pswpout.store(1000, Relaxed);
            stat.pswpin.store(900, Relaxed);
            stat.pool_writeback.store(200, Relaxed);
            // 300 past the pool, 200 out of it.
            stat.file_write_bytes.store(500 * PAGE_SIZE as u64, Relaxed);
            stat.file_read_bytes.store(400 * PAGE_SIZE as u64, Relaxed);
        });
        let mut rows = Vec::new();
        waiting_rows(&page, page.waiting(SECOND), "", &mut |name, value, more| {
            rows.push(format!("{name}: {value} {more}"))
        });
        assert_eq!(rows[1..], ["pool: 2.7 MiB written, 2.0 MiB read", "files: 2.0 MiB written, 1.6 MiB read"]);
    }

    #[test]
    fn advice_follows_from_what_was_measured() {
        let said = |page: &Page, alone| advice(page, &page.waiting(SECOND), BUDGET, SECOND, alone).unwrap_or_default();
        for (page, part) in [
            (waits(700, 9000, 0), "for 70% of the time at least one thread waited for memory: give it more --ram"),
            (waits(700, 9000, 9000), "waited for memory, 100% of major faults waited for files: give it more --ram"),
            (waits(300, 9000, 6000), "67% of major faults waited for files: more --ram shortens that"),
            (waits(300, 9000, 3000), "only more --ram"),
            (waits(300, 0, 0).with(|stat| &stat.pswpout), "no page was read back"),
            (waits(3, 0, 0).with(|stat| &stat.swap_full), "the swap devices were full: more --swap"),
            (
                waits(700, 9000, 0).with(|stat| &stat.swap_full),
                "waited for memory, and the swap devices were full: more --swap",
            ),
            (waits(3, 99, 99), "hardly waited for memory: a smaller --ram"),
            // Many short waits: the part of each that is not counted may come to something.
            (waits(3, 200, 0), "only more --ram"),
        ] {
            assert!(said(&page, true).contains(part), "{part}: {}", said(&page, true));
        }
        let below = |peak: u64| Page::for_test(|stat| stat.rss_anon_peak_bytes.store(peak, Relaxed));
        assert!(said(&below(BUDGET / 4), true).contains("less than half of the budget"));
        // Nothing was taken out; not known; near; and others have a part of the budget.
        for (page, alone) in [
            (waits(700, 0, 0), true),
            (waits(300, 0, 0), true),
            (below(0), true),
            (below(BUDGET / 2), true),
            (below(1), false),
            (waits(3, 9, 9), false),
        ] {
            assert_eq!(said(&page, alone), "");
        }
    }

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
