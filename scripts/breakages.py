#!/usr/bin/env python3
"""Takes the guards of the slot allocator away, one at a time, and shows that a test or a model notices.

Works on a copy below target/breakages. Each breakage names a file, the text to replace (which must be there exactly once,
so that this list cannot rot) and the test that must fail. Usage: scripts/breakages.py [NAME...]
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "breakages"
CRATE = "crates/farpage-swap"
# A model that a breakage sends into an endless loop counts as noticed.
LIMIT_S = 300

UNIT, LOOM = "unit", "loom"

# (name, what is taken away, file, [(text, replacement)], where, test)
BREAKAGES = [
    ("swapoff-writable", "an allocation sees that the device is being switched off", "cluster/scan.rs",
     [("if !device.writable.load(Ordering::Relaxed) {", "if false {")], LOOM, "no_slot_appears"),
    ("swapoff-pass", "swapoff passes over all cluster locks", "cluster/swap.rs",
     [("drop(device.cluster(index).map(|cluster| cluster.state.lock(&sites::CLUSTER_ADMIN)));", "let _ = index;")],
     LOOM, "no_slot_appears"),
    ("swapoff-kill", "no reference after the end", "cluster/swap.rs",
     [("self.device.live.kill();\n        if !self.device.live.is_drained()", "if false")], UNIT, "set_model"),
    ("off-list-again", "full again is noticed", "cluster/usage.rs",
     [("before < self.capacity.load(Ordering::Relaxed) || !self.set_off_list_if_full()", "before < u64::MAX")],
     LOOM, "full_again"),
    ("off-list-full", "a full device leaves the list", "cluster/scan.rs",
     [("if after == After::Full {", "if false {")], UNIT, "set_model"),
    ("off-list-room", "a device with room comes back", "cluster/refs.rs",
     [("if after == After::HasRoom {", "if false {")], LOOM, "full_and_not_full"),
    ("usable-flag", "free and discarded clusters are not allocated from by hint", "cluster/scan.rs",
     [("let flag = matches!(self.flag, Flag::Nonfull | Flag::Frag)", "let flag = !matches!(self.flag, Flag::Full)")],
     UNIT, "set_model"),
    ("lookup-again", "a reader looks whether the table changed", "cluster/mod.rs",
     [("if self.table.load(Ordering::Relaxed) == seen {", "if seen != 0 {")], LOOM, "never_sees_another"),
    ("lookup-acquire", "a reader's word comes with what was before it", "table.rs",
     [("Word(self.0[at].load(Ordering::Acquire))", "Word(self.0[at].load(Ordering::Relaxed))")],
     LOOM, "never_sees_another"),
    ("usage-release", "words are cleared before the usage drops", "cluster/usage.rs",
     [("self.word.fetch_sub(n, Ordering::Release)", "self.word.fetch_sub(n, Ordering::Relaxed)")], LOOM, "usage_drops"),
    ("bind-once", "a bound slot is not bound again", "cluster/cache.rs",
     [("View::Cached { frame } => return Err(CacheError::Bound(frame)),", "View::Cached { .. } => {}")],
     LOOM, "one_of_two_faults"),
    ("unbind-own", "only the frame that is bound is unbound", "cluster/cache.rs",
     [("return Err(CacheError::NotBound);\n            }\n            let mut freed", "}\n            let mut freed")],
     UNIT, "set_model"),
    ("put-count", "a slot without references is not put", "cluster/refs.rs",
     [("!table.word(at).is_in_use() || table.word(at).count() == 0", "!table.word(at).is_in_use()")], UNIT, "set_model"),
]


def prepare():
    """A workspace of the one crate."""
    (COPY / "crates").mkdir(parents=True, exist_ok=True)
    manifest = (ROOT / "Cargo.toml").read_text()
    members = re.sub(r"(?m)^members = .*$", f'members = ["{CRATE}"]', manifest)
    (COPY / "Cargo.toml").write_text(re.sub(r"(?m)^farpage = .*\n", "", members))
    shutil.copy(ROOT / "Cargo.lock", COPY / "Cargo.lock")


def restore():
    shutil.rmtree(COPY / CRATE, ignore_errors=True)
    shutil.copytree(ROOT / CRATE, COPY / CRATE)


def test(where, name):
    """(builds, passes, last lines)"""
    env = dict(os.environ, CARGO_TARGET_DIR=str(COPY / f"target-{where}"), CARGO_PROFILE_RELEASE_LTO="off",
               RUST_BACKTRACE="0", RUSTFLAGS="--cfg loom -Awarnings" if where == LOOM else "-Awarnings")
    env.setdefault("LOOM_MAX_PREEMPTIONS", "3")
    command = ["cargo", "test", "--release", "--quiet", "-p", "farpage-swap", "--lib"]
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
        path = COPY / CRATE / "src" / file
        text = path.read_text()
        for old, new in changes:
            if text.count(old) != 1:
                sys.exit(f"breakages: {name}: {file} has the text {text.count(old)} times, not once: {old}")
            text = text.replace(old, new)
        path.write_text(text)
        builds, passes, why = test(where, what)
        verdict = "does not build" if not builds else "NOT NOTICED" if passes else "noticed"
        failed += verdict != "noticed"
        print(f"{verdict:<12} {name:<17} {guard} ({where} {what}){': ' + why[:100] if why else ''}", flush=True)
    restore()
    sys.exit(1 if failed else 0)


main()
