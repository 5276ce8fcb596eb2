#!/usr/bin/env python3
"""Takes guards of the slot allocator and of the engine away, one at a time: a test or a model must notice each.

Works on a copy below target/breakages. Each breakage names a file, the text to replace (which must be there exactly
once, so that this list cannot rot) and the test that must fail. Usage: scripts/breakages.py [NAME...]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "breakages"
CRATES = ["crates/farpage-" + name for name in ("swap", "syscalls", "base", "ipc", "codec", "server", "device",
                                                   "run")]
# A model that a breakage sends into an endless loop counts as noticed.
LIMIT_S = 300

UNIT, LOOM, ENGINE = "unit", "loom", "engine"

# (name, what is taken away, file (of farpage-swap, or from `crates` on), [(text, replacement)], where, test)
BREAKAGES = [
    ("swapoff-writable", "an allocation sees that the device is being switched off", "cluster/scan.rs",
     [("if !device.writable.load(Ordering::Relaxed) {", "if false {")], LOOM, "no_slot_appears"),
    ("swapoff-pass", "swapoff passes over all cluster locks", "cluster/seed/swapoff.rs",
     [("drop(self.lock(device, index, &sites::CLUSTER_ADMIN));", "let _ = index;")],
     LOOM, "no_slot_appears"),
    ("swapoff-kill", "no reference after the end", "cluster/seed/swapoff.rs",
     [("self.device.live.kill();\n        if !self.device.live.is_drained()", "if false")], UNIT, "set_model"),
    ("off-list-again", "full again is noticed", "cluster/usage.rs",
     [("before < self.capacity.load(Ordering::Relaxed) || !self.set_off_list_if_full()", "before < u64::MAX")],
     LOOM, "full_again"),
    ("off-list-full", "a full device leaves the list", "cluster/scan.rs",
     [("if after == After::Full {", "if false {")], UNIT, "set_model"),
    ("off-list-room", "a device with room comes back", "cluster/refs.rs",
     [("if freed.after == After::HasRoom {", "if false {")], LOOM, "full_and_not_full"),
    ("usable-flag", "free and discarded clusters are not allocated from by hint", "cluster/scan.rs",
     [("let flag = matches!(self.flag, Flag::Nonfull | Flag::Frag)", "let flag = !matches!(self.flag, Flag::Full)")],
     UNIT, "set_model"),
    ("half-scan", "up to half nothing is reclaimed in the cluster that is searched", "cluster/scan.rs",
     [("lazy_block(table, reclaim_from, n)).filter(|_| self.is_half_full());", "lazy_block(table, reclaim_from, n));")],
     UNIT, "up_to_half"),
    ("turns", "devices of equal priority take turns", "cluster/swap.rs",
     [("avail.insert(behind, chosen);", "avail.insert(at, chosen);")], UNIT, "take_turns"),
    ("priority", "the turns are among equals", "cluster/swap.rs",
     [("let behind = avail.iter().position(|other| other.priority < priority).unwrap_or(avail.len());",
       "let behind = avail.len() + 0 * priority as usize;")],
     UNIT, "take_turns"),
    ("lookup-again", "a reader looks whether the table changed", "cluster/mod.rs",
     [("if self.table.load(Ordering::Relaxed) == seen {", "if seen != 0 {")], LOOM, "never_sees_another"),
    ("lookup-acquire", "a reader's word comes with what was before it", "table.rs",
     [("Word(self.0[at].load(Ordering::Acquire))", "Word(self.0[at].load(Ordering::Relaxed))")],
     LOOM, "never_sees_another"),
    ("usage-release", "words are cleared before the usage drops", "cluster/usage.rs",
     [("self.word.fetch_sub(n, Ordering::Release)", "self.word.fetch_sub(n, Ordering::Relaxed)")], LOOM, "usage_drops"),
    ("bind-once", "a bound slot is not bound again", "cluster/seed/cache.rs",
     [("View::Cached { frame } => return Err(CacheError::Bound(frame)),", "View::Cached { .. } => {}")],
     LOOM, "one_of_two_faults"),
    ("unbind-own", "only the frame that is bound is unbound", "cluster/seed/cache.rs",
     [("return Err(CacheError::NotBound);\n            }\n            let mut freed", "}\n            let mut freed")],
     UNIT, "set_model"),
    ("put-count", "a slot without references is not put", "cluster/refs.rs",
     [("!table.word(at).is_in_use() || table.word(at).count() == 0", "!table.word(at).is_in_use()")],
     UNIT, "set_model"),
    ("value-again", "a reader of a value looks whether it changed meanwhile", "slots.rs",
     [("if self.sequence.load(Ordering::Relaxed) == seen {", "if seen != 0 {")], LOOM, "whole_values"),
    ("value-changing", "no thread reads a value that is being changed", "slots.rs",
     [("if seen & CHANGING != 0 {", "if false {")], LOOM, "whole_values"),
    ("value-acquire", "a later value's word comes with its sequence number", "slots.rs",
     [("self.words[i].load(Ordering::Acquire)", "self.words[i].load(Ordering::Relaxed)")], LOOM, "whole_values"),
    ("value-lock", "who changes a value is alone", "slots.rs",
     [("let _lock = values.lock.lock(&sites::VALUES);\n        let mut value", "let mut value")],
     LOOM, "two_who_change"),
    ("value-out", "a value is out before the slot can be another's", "slots.rs",
     [("let value = self.remove_if(slot, which)?;\n        self.give_back(slot);",
       "self.give_back(slot);\n        let value = self.remove_if(slot, which)?;")], LOOM, "changes_hands"),
    ("pending-holder", "who unlocks looks for frees that met the lock", "cluster/pending.rs",
     [("self.swap.carry_out_pending(self.device, self.cluster, self.index);", "")], LOOM, "met_by_counts"),
    ("pending-self", "who left a free tries the lock again", "cluster/pending.rs",
     [("            self.carry_out_noted(device, cluster, first.cluster());\n", "")], LOOM, "met_by_numbers"),
    ("pending-fence", "the note comes before the trial", "cluster/pending.rs",
     [("            fence(Ordering::SeqCst);\n", "")], LOOM, "met_by_counts"),
    ("pending-unlock", "the unlock comes before the look for notes", "sync.rs",
     [("        fence(Ordering::SeqCst);\n", "")], LOOM, "met_by_counts"),
    ("pending-again", "the look is repeated after frees were carried out", "cluster/pending.rs",
     [("while cluster.pending.load(Ordering::Relaxed) != 0 {", "if cluster.pending.load(Ordering::Relaxed) != 0 {")],
     LOOM, "a_free_meets_one"),
    ("pending-over", "what is pending belongs to the thread that carries it out", "cluster/pending.rs",
     [("            left += 1;\n",
       "            if cluster.table.load(Ordering::Acquire) != seen {\n                break;\n            }\n"
       "            left += 1;\n")],
     LOOM, "the_table_goes"),
    ("pending-few", "the same for clusters passed over in the full list", "cluster/device.rs",
     [(".for_each(|(c, index)| passed(c, index));", ".for_each(|_| ());")], LOOM, "search_for_few"),
    ("pending-stack", "the same for clusters passed over on a stack", "cluster/ready.rs",
     [("passed(cluster, index);", "")], LOOM, "search_of_a_stack"),
    ("pending-wait", "an allocation that finds nothing waits for pending frees", "cluster/search.rs",
     [("devices.any(|device| self.carry_out_all(device))", "devices.any(|_| false)")], LOOM, "is_waited_for"),
    ("pending-swapoff", "so does the end of swapoff", "cluster/seed/swapoff.rs",
     [("        self.swap.carry_out_all(self.device);\n", "")], LOOM, "swapoff_waits"),
    ("pending-bind", "a slot is not bound once its free is pending", "cluster/seed/cache.rs",
     [("!table.replace(at, word, word.to_cached(frame))", "{ table.set(at, word.to_cached(frame)); false }")],
     LOOM, "free_or_bound"),
    ("pending-dup", "nor does it get another reference", "cluster/seed/counts.rs",
     [("if !table.replace(place, before, word) {", "table.set(place, word);\n                if false {")],
     LOOM, "a_reference_more"),
    ("pending-lookup", "for look-ups a pending slot is free", "cluster/mod.rs",
     [("if word.is_pending() { Word::FREE } else { word }", "word")], LOOM, "met_by_counts"),
    ("hint", "each CPU goes on where it was", "cluster/search.rs",
     [("let hint = self.hints.get(cpu, order);",
       "let hint: Option<Entry> = None.or(self.hints.get(cpu, order)).filter(|_| false);")],
     UNIT, "hints_follow"),
    ("pieces-stack", "clusters with pieces of larger blocks are found", "cluster/ready.rs",
     [("self.push_ready(Stack::Broken, index);", "")], UNIT, "pieces_in_any_cluster"),
    ("pieces-once", "such a cluster is pushed once", "cluster/ready.rs",
     [("if order > 0 && !state.broken && ", "if order > 0 && ")], UNIT, "pieces_in_any_cluster"),
    ("pieces-spare", "whole blocks are spared while there is anything else", "cluster/scan.rs",
     [("filter(|_| breaks)", "filter(|_| true)")], UNIT, "a_cpu_that_breaks"),
    ("user-gone", "who went elsewhere is not waited for", "cluster/hint.rs",
     [("hint.is_some_and(|hint| hint.device == device && hint.cluster() == cluster)", "hint.is_some_and(|_| true)")],
     UNIT, "is_offered_again"),
    ("rotational", "a rotational device has one place for all CPUs", "cluster/search.rs",
     [("let found = if device.rotational.load(Ordering::Relaxed) {", "let found = if false {")], UNIT, "rotational"),

    ("reserve", "a fault reserves before it looks", "farpage-run/src/pager/fault.rs",
     [("        self.reclaim.reserve(&mut self.cx, &mut self.adoption, vpn, zeros);\n", "")], ENGINE, "full_devices"),
    ("wake", "who waits for a page that is there is woken", "farpage-run/src/pager/fill.rs",
     [("self.mm.wake(page, PAGE_SIZE);", "let _ = page;")], ENGINE, "content_is_right"),
    ("slot-freed", "the slot of a page that is in and not kept is freed", "farpage-run/src/pager/fill.rs",
     [("            e.free_entry(Some(*entry));\n", "            let _ = entry;\n")], ENGINE, "full_devices"),
    ("slot-kept", "a page that moves out takes its slot along", "farpage-run/src/pager/moved.rs",
     [("e.slots.frame_entries.set(f, entry);", "e.slots.frame_entries.set(f, entry.and(None));")],
     ENGINE, "content_is_right"),
    ("discard-out", "what was discarded is not read back", "farpage-run/src/pager/cx.rs",
     [("e.table.set(node, State::None);\n                        freed.push(entry);", "let _ = entry;")],
     ENGINE, "content_is_right"),
    ("remap", "pages follow their mapping", "farpage-run/src/pager/apply_event.rs",
     [("                self.follow_remap(cx, from, to, len);\n", "")], ENGINE, "content_is_right"),
    ("adopt-scan", "what is there when a mapping is adopted is put on the lists", "farpage-run/src/pager/register.rs",
     [("        self.scans.0.extend(new);\n", "        drop(new);\n")], ENGINE, "content_is_right"),
    ("give-way", "where nothing can be reclaimed the budget gives way", "farpage-run/src/pager/reclaim.rs",
     [("cx.granted = 1;", "")], ENGINE, "full_devices"),
    ("tree-floor", "no member gives more than it can do without", "farpage-run/src/budget/share.rs",
     [(".min(promised - floor);", ";")], ENGINE, "no_more_than_its_floor"),
    ("tree-files", "a file's size is published before it is compared", "farpage-ipc/src/tree/mod.rs",
     [("let had = slots.swap(end);", "let had = slots.load();")], ENGINE, "files_of_all_members"),
    ("claims-look", "a member that claims publishes first and looks then", "claims.rs",
     [("    mine.add(want);\n", ""),
      ("saturating_add(mine.pages(now_us))", "saturating_add(mine.pages(now_us) + want)"),
      ("    if over > 0 {\n        mine.sub(over);\n    }\n    want - over",
       "    mine.add(want - over);\n    want - over")],
     LOOM, "two_claims_at_once"),
    ("claims-epoch", "the word of an earlier owner counts nothing", "claims.rs",
     [("if word >> PAGES_BITS != u64::from(self.epoch.load(SeqCst)) {", "if false {")], UNIT, "a_late_word"),
    ("claims-fade", "what the dead had counts for a while", "claims.rs",
     [("(before & DIED == 0 || self.pages(now_us) > 0)", "before & DIED == 0")], UNIT, "what_the_dead_had"),
]


def prepare():
    """A workspace of the crates that are broken."""
    (COPY / "crates").mkdir(parents=True, exist_ok=True)
    manifest = (ROOT / "Cargo.toml").read_text()
    members = re.sub(r"(?ms)^members = \[.*?\]$", f"members = {json.dumps(CRATES)}", manifest)
    (COPY / "Cargo.toml").write_text(members)
    shutil.copy(ROOT / "Cargo.lock", COPY / "Cargo.lock")


def restore():
    for crate in CRATES:
        shutil.rmtree(COPY / crate, ignore_errors=True)
        shutil.copytree(ROOT / crate, COPY / crate)


def test(package, where, name):
    """(builds, passes, last lines)"""
    env = dict(os.environ, CARGO_TARGET_DIR=str(COPY / f"target-{where}"), CARGO_PROFILE_RELEASE_LTO="off",
               RUST_BACKTRACE="0", RUSTFLAGS="--cfg loom -Awarnings" if where == LOOM else "-Awarnings")
    env.setdefault("LOOM_MAX_PREEMPTIONS", "3")
    env.setdefault("LOOM_MAX_BRANCHES", "20000")
    profile = "checked" if where == ENGINE else "release"
    features = [] if where == ENGINE else ["--features", "seed"]
    command = ["cargo", "test", "--profile", profile, "--quiet", "-p", package, *features, "--lib"]
    built = subprocess.run([*command, "--no-run"], cwd=COPY, env=env, capture_output=True, text=True)
    if built.returncode != 0:
        return False, False, built.stderr
    # A session of its own, so that the test program ends with cargo.
    run = subprocess.Popen([*command, name], cwd=COPY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, start_new_session=True)
    try:
        output, _ = run.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return True, False, "does not end"
    if "running 0 tests" in output:
        return False, False, f"no test is called {name}"
    reasons = re.findall(r"(?m)^(?:assertion.*|.*\[\d+\].*|.*overflow.*|.*unwrap.*)$", output)
    return True, run.returncode == 0, (reasons or [""])[0].strip()


def main():
    prepare()
    chosen = [b for b in BREAKAGES if not sys.argv[1:] or b[0] in sys.argv[1:]]
    failed = 0
    for name, guard, file, changes, where, what in chosen:
        restore()
        package = file.split("/")[0] if where == ENGINE else "farpage-swap"
        path = COPY / "crates" / (file if where == ENGINE else f"farpage-swap/src/{file}")
        text = path.read_text()
        for old, new in changes:
            if text.count(old) != 1:
                sys.exit(f"breakages: {name}: {file} has the text {text.count(old)} times, not once: {old}")
            text = text.replace(old, new)
        path.write_text(text)
        builds, passes, why = test(package, where, what)
        verdict = "does not build" if not builds else "NOT NOTICED" if passes else "noticed"
        failed += verdict != "noticed"
        print(f"{verdict:<12} {name:<17} {guard} ({where} {what}){': ' + why[:100] if why else ''}", flush=True)
    restore()
    sys.exit(1 if failed else 0)


main()
