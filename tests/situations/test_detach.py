"""A process that was attached to goes on without farpage: all of its memory is there, nothing of ours is at work.
It may be attached to again."""

import ctypes
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from holder import HOLDER, MIB, PYTHON, Holding, resident
from situation import FARPAGE, HANG, NOBODY, build, unless_root, unless_there

SEIZE, INTERRUPT, LET_GO = 0x4206, 0x4207, 17


def threads(pid):
    """Threads by number, with their names."""
    return {int(task.name): (task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()}


@unless_there(PYTHON)
class Detach(Holding):
    def attach(self, pid, ram="24M", *options):
        done = self.run_plain(FARPAGE, "attach", pid, "--ram", ram, *options)
        if "does not become smaller" in done.stderr:
            # Beside busy neighbours a process that forks all the time makes no headway for some seconds.
            done = self.run_plain(FARPAGE, "set", pid, "--ram", ram)
        self.assertEqual(done.returncode, 0, done.stderr)

    def detach(self, pid):
        done = self.run_plain(FARPAGE, "detach", pid)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertIn("goes on without farpage", done.stderr)
        return done.stderr

    def refused(self, pid, why):
        self.assert_refused(self.run_plain(FARPAGE, "detach", pid), why)

    def holder(self, **options):
        return self.begin(PYTHON, "-c", HOLDER, **options)

    def ours(self, pid):
        """What it has of the engine's: descriptors (its own are pipes), threads."""
        descriptors = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if int(fd.name) > 2}
        descriptors = {file for file in descriptors if not file.startswith("pipe:")}
        return descriptors, [name for name in threads(pid).values() if "farpage" in name or "iou" in name]

    def members(self):
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        return {member["pid"] for tree in trees for member in tree["members"]}

    def assert_plain(self, process, had, rounds=1):
        """It goes on as it was; of each engine a part of the heap stays, and its stacks."""
        pid = process.pid
        self.wait_until("its threads are gone", lambda: self.ours(pid) == (set(), []))
        self.assertLess(abs(resident(pid) - had), (6 + 2 * rounds) * MIB)
        self.assertNotIn(pid, self.members())
        self.assertEqual([self.ask(process, line) for line in ["digest", "fork", "grow 3000", "digest", "fork"]],
                         ["True", "0", "grown", "True", "0"])
        for how in ["run", "pipe", "shell"]:
            self.assertEqual(self.ask(process, f"{how} grep -c farpage_preload /proc/self/maps"), "0", how)
        self.assertEqual(self.ours(pid), (set(), []))
        self.assertIn("does not run under", self.run_plain(FARPAGE, "set", pid, "--ram", "24M").stderr)
        process.stdin.close()
        self.assertEqual((process.wait(HANG), process.stdout.read()), (0, ""))

    def test_it_goes_on_as_it_was(self):
        process = self.holder()
        had = resident(process.pid)
        self.attach(process.pid)
        self.assertLess(resident(process.pid), 24 * MIB)
        self.detach(process.pid)
        self.assert_plain(process, had)

    @unless_root
    def test_another_users(self):
        process = self.holder(user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
        had = resident(process.pid)
        for _ in range(2):
            self.attach(process.pid)
            self.assertEqual([self.ask(process, line) for line in ["digest", "fork", "digest"]], ["True", "0", "True"])
            self.detach(process.pid)
        self.assert_plain(process, had)

    def test_it_is_attached_to_again(self):
        process = self.holder()
        had = resident(process.pid)
        of = lambda name: json.loads(self.run_plain(FARPAGE, "stat", process.pid, "--json").stdout)[name]
        ask = ["digest", "fork", "grow 100", "digest", "fork", "digest"]
        file = f"file:{self.dir}"
        for ram, *options in [("24M",), ("32M", "--swap", file, "--verify"), ("4G",), ("28M",), ("20M",)]:
            self.attach(process.pid, ram, *options)
            self.assertEqual([self.ask(process, line) for line in ask], ["True", "0", "grown", "True", "0", "True"])
            limit = int(ram[:-1]) * (1024 if ram[-1] == "G" else 1) * MIB
            self.assertEqual(of("budget_bytes"), limit)
            # Beside three busy loops one look in four finds it up to a tenth above, for some time.
            self.wait_until("it is within its budget", lambda: resident(process.pid) < limit)
            self.assertEqual(of("verified") > 0, "--verify" in options)
            # What earlier engines have left is not the program's.
            self.assertNotIn("spread thin", self.run_plain(FARPAGE, "stat", process.pid).stdout)
            self.assertGreater(int(self.ask(process, "run grep -c farpage_preload /proc/self/maps")), 0)
            self.assertIn("already", self.run_plain(FARPAGE, "attach", process.pid, "--ram", ram).stderr)
            self.detach(process.pid)
        self.assert_plain(process, had, rounds=5)

    def test_one_that_ends_meanwhile(self):
        program = "import os, time; kept = os.urandom(96 << 20); print('ready', flush=True); input(); time.sleep(WAIT)"
        for wait in ("0.05", "0.1", "0.15", "0.2"):
            process = self.begin(PYTHON, "-c", program.replace("WAIT", wait))
            self.attach(process.pid)
            process.stdin.write("\n")
            done = self.run_plain(FARPAGE, "detach", process.pid)
            if done.returncode != 0:
                self.assertRegex(done.stderr, "it has ended|no such process|cannot find the tree")
            self.assertEqual(process.wait(HANG), 0)

    def test_a_forked_child_is_attached_to_again(self):
        process = self.holder()
        self.attach(process.pid)
        self.assertEqual(self.ask(process, "stay"), "staying")
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        for _ in range(2):
            self.detach(child)
            self.attach(child)
            self.assertLess(resident(child), 24 * MIB)
        self.assertEqual((self.ask(process, "digest"), self.ask(process, "stayed")), ("True", "0"))

    def test_what_the_program_looks_at_is_not_managed_the_next_time_either(self):
        process = self.holder()
        had = resident(process.pid)
        self.attach(process.pid)
        self.assertEqual(self.ask(process, "look"), "looks")
        self.detach(process.pid)
        again = self.run_plain(FARPAGE, "attach", process.pid, "--ram", "24M")
        self.assertIn("does not become smaller", again.stderr)
        self.assertGreater(resident(process.pid), had - 4 * MIB)

    def test_filters_are_judged_anew(self):
        process = self.holder()
        self.attach(process.pid)
        self.assertEqual(self.ask(process, "filter"), "0")
        self.detach(process.pid)
        self.attach(process.pid)
        self.assertEqual((self.ask(process, "digest"), resident(process.pid) < 24 * MIB), ("True", True))

    def test_a_tree(self):
        shell = self.begin("sh", "-c", '"$0" -c "$1"; true', PYTHON, HOLDER)
        child = int(Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text())
        for _ in range(2):
            self.attach(shell.pid, "24M", "--tree")
            self.assertEqual(self.ask(shell, "stay"), "staying")
            forked = int(Path(f"/proc/{child}/task/{child}/children").read_text())
            all_of_it = {shell.pid, child, forked}
            self.assertEqual(self.members() & all_of_it, all_of_it)
            done = self.run_plain(FARPAGE, "detach", "--tree", shell.pid)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            named = ", ".join(rf"process {pid} \([^)]*\)" for pid in [shell.pid, child, forked])
            self.assertRegex(done.stderr, rf"\Afarpage: {named} go on without farpage; [^\n]*\n\Z")
            self.assertEqual(self.members() & all_of_it, set())
            self.wait_until("threads are gone", lambda: all(self.ours(pid) == (set(), []) for pid in all_of_it))
            self.assertEqual([self.ask(shell, line) for line in ["digest", "stayed"]], ["True", "0"])
        self.assert_refused(self.run_plain(FARPAGE, "detach", "--tree", shell.pid), "does not run under")

    def test_a_tree_of_which_one_was_started_under_it(self):
        shell = self.begin("sh", "-c", 'echo ready; read line; "$0" -c "$1"; true', PYTHON, HOLDER)
        self.attach(shell.pid, "64M", "--tree")
        self.assertEqual(self.ask(shell, ""), "ready")
        child = int(Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text())
        done = self.run_plain(FARPAGE, "detach", "--tree", shell.pid)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, rf"cannot detach from process {child} .*: it was started under farpage")
        self.assertRegex(done.stderr, rf"process {shell.pid} \(sh\) goes on without farpage")
        self.assertRegex(done.stderr, rf"within the budget there are still process {child} ")
        self.assertEqual((self.ask(shell, "digest"), self.members() & {shell.pid, child}), ("True", {child}))

    @unless_root
    @unless_there("unshare")
    def test_one_in_a_container(self):
        """It is known in its tree by the number that it has there."""
        process = self.begin("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", PYTHON, "-c", HOLDER)
        inner = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        had = resident(inner)
        self.attach(inner)
        self.detach(inner)
        self.assertLess(abs(resident(inner) - had), 8 * MIB)
        self.assertEqual([self.ask(process, line) for line in ["digest", "fork"]], ["True", "0"])

    def test_one_that_manages_nothing(self):
        process = self.holder()
        had = resident(process.pid)
        self.attach(process.pid, ram="4G")
        self.assertEqual(self.ask(process, "stay"), "staying")
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        self.assertIn(str(child), self.detach(process.pid))
        # It is still in the tree, and small: it has no engine.
        self.detach(child)
        self.assertEqual((self.members() & {child}, self.ask(process, "stayed")), (set(), "0"))
        self.assert_plain(process, had)

    def test_threads_that_allocate_and_fork(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        for how in [["4", "fork"], ["4"], ["1", "fork"]] * int(os.environ.get("ROUNDS", "1")):
            process = self.begin(build("attached.c"), *how, stderr=subprocess.PIPE)
            for _ in range(3):
                self.attach(process.pid)
                time.sleep(chance.uniform(0, 0.5))
                self.detach(process.pid)
                time.sleep(chance.uniform(0, 0.3))
            out, err = process.communicate("end\n", timeout=HANG)
            self.assertEqual((process.returncode, out, err), (0, "0 bad\n", ""), f"seed {seed} {how}")

    def test_what_does_not_come_in_changes_nothing(self):
        process = self.holder()
        self.attach(process.pid)
        pager = next(tid for tid, name in threads(process.pid).items() if name == "farpage-pager")
        libc = ctypes.CDLL(None, use_errno=True)
        for request in [SEIZE, INTERRUPT]:
            self.assertEqual(libc.ptrace(request, pager, None, None), 0)
        os.waitpid(pager, 0x40000000)  # __WALL
        self.refused(process.pid, "does not come in")
        self.assertEqual(libc.ptrace(LET_GO, pager, None, None), 0)
        self.assertEqual([self.ask(process, line) for line in ["digest", "grow 3000", "digest"]],
                         ["True", "grown", "True"])
        self.wait_until("it is within its budget", lambda: resident(process.pid) < 24 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.detach(process.pid)
        self.assertEqual(self.ask(process, "digest"), "True")

    @unless_root
    def test_one_for_which_there_is_no_room(self):
        group = self.cgroup("memory", memory_limit_in_bytes=150 * MIB)
        process = self.holder(preexec_fn=self.enter(group))
        self.attach(process.pid, ram="64M")
        self.assertEqual(self.ask(process, "grow 12000"), "grown")
        self.refused(process.pid, rf"swapped out, and its memory cgroup \({group}\) has .* left")
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertIn(process.pid, self.members())

    def test_who_is_refused(self):
        process = self.holder()
        self.refused(process.pid, "does not run under")
        self.refused(2**22 - 1, "no such process")
        self.attach(process.pid)
        process.send_signal(signal.SIGSTOP)
        self.refused(process.pid, "it is stopped")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(self.ask(process, "digest"), "True")
        started = self.begin(FARPAGE, "run", "--ram", "64M", "--", PYTHON, "-c", HOLDER)
        self.refused(started.pid, "it was started under farpage")
