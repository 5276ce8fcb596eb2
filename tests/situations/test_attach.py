"""A budget for a program that runs already: its output is right, what it starts is in, who is refused goes on."""

import ctypes
import json
import os
import pwd
import random
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from holder import HOLDER, MIB, PYTHON, Holding, resident
from situation import FARPAGE, HANG, NOBODY, build, unless_root, unless_there
from test_containers import DOCKER

COUNT_LIBRARY = "grep -c farpage_preload /proc/self/maps"


@unless_there(PYTHON)
class Attach(Holding):
    def attach(self, pid, *options, ram="32M"):
        return self.run_plain(FARPAGE, "attach", pid, "--ram", ram, *options)

    def holder(self, **options):
        return self.begin(PYTHON, "-c", HOLDER, **options)

    def assert_attached(self, done):
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def assert_attached_for_another(self, done):
        """The same, of a process whose user may have no userfaultfd."""
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Afarpage: programs that process \d+ [^\n]* may not open /dev/userfaultfd\n  help: setfacl")

    def test_it_is_within_its_budget_and_right(self):
        process = self.holder()
        before = resident(process.pid)
        self.assertGreater(before, 48 * MIB)
        self.assert_attached(self.attach(process.pid))
        self.assertLess(resident(process.pid), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertEqual(self.ask(process, "fork"), "0")
        self.assertEqual(self.ask(process, "grow 3000"), "grown")
        self.assertLess(resident(process.pid), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        # Another budget, as for what farpage run has started.
        self.assertEqual(self.run_plain(FARPAGE, "set", process.pid, "--ram", "24M").returncode, 0)
        self.assertLess(resident(process.pid), 24 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        counters = json.loads(self.run_plain(FARPAGE, "stat", process.pid, "--json").stdout)
        self.assertGreater(counters["pswpout"], 0)
        self.assert_shown_budget(process.pid, 24 * MIB)
        # None, and one again.
        self.assertEqual(self.run_plain(FARPAGE, "set", process.pid, "--ram", "max").returncode, 0)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.wait_until("it has what it uses", lambda: resident(process.pid) > 48 * MIB)
        self.assertEqual(self.run_plain(FARPAGE, "set", process.pid, "--ram", "24M").returncode, 0)
        self.assertLess(resident(process.pid), 24 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        process.stdin.close()
        self.assertEqual((process.wait(HANG), process.stdout.read()), (0, ""))

    def assert_shown_budget(self, pid, budget):
        """That `stat` shows this budget, at the latest after the monitor's next look."""
        shown = lambda: json.loads(self.run_plain(FARPAGE, "stat", pid, "--json").stdout)["budget_bytes"]
        self.wait_until(f"a budget of {budget} is shown", lambda: shown() == budget)

    def test_what_it_starts_is_in_its_tree(self):
        process = self.holder()
        self.assertEqual(self.ask(process, f"pipe {COUNT_LIBRARY}"), "0")
        self.assert_attached(self.attach(process.pid, ram="64M"))
        # As it is, with an environment that was copied before, by a shell whose command comes from libc.
        count = ["run grep -c farpage_preload /proc/self/maps", "copied grep -c farpage_preload /proc/self/maps",
                 f"pipe {COUNT_LIBRARY}", f"shell {COUNT_LIBRARY}"]
        for line in count:
            self.assertGreater(int(self.ask(process, line)), 0, line)
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        joined = [tree["joined"] for tree in trees if tree["pid"] == process.pid]
        self.assertGreater(joined[0], len(count))
        # Its own environment is as it was.
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        self.assertNotIn("FARPAGE", environment)

    def test_what_it_has_started_before(self):
        for is_member in [True, False]:
            with self.subTest(is_member=is_member):
                shell = self.begin("sh", "-c", '"$0" -c "$1"; true', PYTHON, HOLDER)
                child = int(Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text())
                if is_member:
                    done = self.attach(shell.pid)
                    self.assertEqual((done.returncode, done.stdout), (0, ""))
                    self.assertRegex(done.stderr, rf"outside of the budget: process {child} .*\n.*attach --tree {shell.pid}")
                    self.assertGreater(resident(child), 48 * MIB)
                self.assert_attached(self.attach(shell.pid, "--tree"))
                self.assertLess(resident(shell.pid) + resident(child), 33 * MIB)
                self.assertEqual(self.ask(shell, "digest"), "True")
                trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
                members = [{m["pid"] for m in tree["members"]} for tree in trees]
                self.assertIn({shell.pid, child}, members)
                self.end(shell)

    def assert_attached_as_one(self, processes, *whose):
        done = self.run_plain(FARPAGE, "attach", *whose, "--ram", "40M")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertLess(sum(resident(process.pid) for process in processes), 40 * MIB)
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        self.assertIn({process.pid for process in processes}, [{m["pid"] for m in tree["members"]} for tree in trees])
        self.assertEqual([self.ask(process, "digest") for process in processes], ["True"] * len(processes))

    @unless_root
    def test_a_cgroup_and_a_unit(self):
        group = self.cgroup("memory")
        unit = group / "farpage-test.service"
        unit.mkdir()
        self.addCleanup(self._remove_cgroup, unit)
        processes = [self.holder(preexec_fn=self.enter(place)) for place in (group, unit)]
        self.assert_attached_as_one(processes[1:], "--unit", "farpage-test")
        # It has a tree already: that takes the others in.
        self.assert_attached_as_one(processes, "--cgroup", group)
        self.assert_attached_as_one(processes, "--cgroup", f"/{group.name}")
        self.assertIn("no process is in it", self.run_plain(FARPAGE, "attach", "--unit", "x", "--ram", "40M").stderr)
        for top in ["/", ".", group.parent]:
            done = self.run_plain(FARPAGE, "attach", "--cgroup", top, "--ram", "40M", cwd="/")
            self.assertIn("every process is in it", done.stderr)

    @unless_root
    def test_trees_in_a_cgroup_keep_their_budgets(self):
        group = self.cgroup("memory")
        shell = ["sh", "-c", '"$0" -c "$1"; true', PYTHON, HOLDER]
        # Begun outside, with one process inside.
        other = self.begin(FARPAGE, "run", "--ram", "300M", "--", *shell)
        inside = int(Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text())
        (group / "cgroup.procs").write_text(str(inside))
        alone = self.holder(preexec_fn=self.enter(group))
        done = self.run_plain(FARPAGE, "attach", "--cgroup", group, "--ram", "200M")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertRegex(done.stderr, rf"\Afarpage: cannot attach to process {inside} [^\n]*: it runs under farpage "
                         rf"already\n  help: farpage set {inside} --ram SIZE\n  help: it counts in this budget, and "
                         r"keeps its own\n\Z")
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        trees = {tree["budget_bytes"]: {m["pid"] for m in tree["members"]} for tree in trees}
        self.assertEqual((trees[200 * MIB], trees[300 * MIB]), ({alone.pid, inside}, {other.pid, inside}))

    def test_a_static_child_counts(self):
        (self.dir / "static.c").write_text("int main(void) { return getchar(); }")
        static = self.dir / "static"
        made = subprocess.run(["cc", "-w", "-include", "stdio.h", "-static", "-o", static, self.dir / "static.c"],
                              capture_output=True, check=False)
        if made.returncode:
            self.skipTest("no static libc")
        shell = self.begin("sh", "-c", 'echo ready; "$0"; true', static)
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
        self.wait_until("it has started it", lambda: "static" in "".join(
            Path(f"/proc/{pid}/comm").read_text() for pid in children.read_text().split()))
        done = self.attach(shell.pid, "--tree")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, "it is statically linked(.|\n)*it counts in the budget")

    def test_threads_in_the_middle_of_malloc(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        another = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        for how, become in [(["4"], {}), (["4", "fork"], {}), (["4", "fork"], another), (["1"], {})]:
            process = self.begin(build("attached.c"), *how, stderr=subprocess.PIPE, **become)
            time.sleep(chance.uniform(0, 0.5))
            done = self.attach(process.pid, ram="24M")
            self.assertEqual(done.returncode, 0, f"seed {seed}: {done.stderr}")
            if how[-1] != "fork":  # else a child may be there, which is said
                self.assertEqual(done.stderr, "", f"seed {seed}")
            time.sleep(0.5)
            out, err = process.communicate("end\n", timeout=HANG)
            self.assertEqual((process.returncode, out, err), (0, "0 bad\n", ""), f"seed {seed} {how}")

    def test_signals_meanwhile(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        for what in [signal.SIGINT, signal.SIGTERM, signal.SIGSTOP] * int(os.environ.get("ROUNDS", "2")):
            process = self.holder()
            attaching = subprocess.Popen([FARPAGE, "attach", str(process.pid), "--ram", "32M", "-v"], text=True,
                                         stderr=subprocess.PIPE)
            # "thread 1 of process 1 loads the library"
            self.assertIn("loads", attaching.stderr.readline())
            time.sleep(chance.uniform(0, 0.01))
            if what == signal.SIGSTOP:
                process.send_signal(what)
                attaching.communicate(timeout=HANG)
                # Once it has had a CPU to stop on.
                state = lambda: Path(f"/proc/{process.pid}/status").read_text()
                self.wait_until(f"it is stopped, seed {seed}", lambda: "State:\tT" in state())
                process.send_signal(signal.SIGCONT)
            else:
                attaching.send_signal(what)
                attaching.communicate(timeout=HANG)
            self.assertEqual(self.ask(process, "digest"), "True", f"seed {seed} {what}")
            self.end(process)

    def test_threads_and_addresses_that_are_left_alone(self):
        for how, flags in [("filtered", []), ("address", ["-no-pie", "-fno-pie"])]:
            process = self.begin(build("attach_threads.c", *flags, output=f"attach_threads_{how}"), how)
            self.assert_attached(self.attach(process.pid))
            self.assertEqual(self.ask(process, "go"), "right")
            self.assertEqual(process.wait(HANG), 0)

    def test_a_shell_that_waits(self):
        # For a program that waits for its input.
        shell = self.begin("bash", "-c", "echo ready; cat; grep -c farpage_preload /proc/self/maps")
        self.assert_attached(self.attach(shell.pid))
        shell.stdin.close()
        self.assertGreater(int(shell.stdout.read()), 0)

    def test_many_mappings(self):
        mapped = "import mmap\nmany = [mmap.mmap(-1, 4096) for _ in range(20_000)]\n"
        process = self.begin(PYTHON, "-c", mapped + HOLDER)
        self.assert_attached(self.attach(process.pid))
        self.assertLess(resident(process.pid), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")

    def test_the_command_alone(self):
        # As cargo install has it: the library is in it. A build without that has none.
        command = shutil.copy(FARPAGE, self.dir / "farpage")
        environment = {name: value for name, value in os.environ.items() if name != "FARPAGE_PRELOAD"}
        environment["XDG_CACHE_HOME"] = str(self.dir)
        # Where root's goes.
        kept = Path("/var/cache/farpage")
        before = set(kept.glob("*"))
        self.addCleanup(lambda: [shutil.rmtree(place) for place in set(kept.glob("*")) - before])
        process = self.holder()
        done = self.run_plain(command, "attach", process.pid, "--ram", "32M", env=environment)
        if "cannot find the preload library" in done.stderr:
            self.skipTest("this command carries no library")
        self.assert_attached(done)
        self.assertEqual(self.ask(process, "digest"), "True")

    def test_again_and_again_nothing_stays_behind(self):
        # Other programs have files there, too.
        ours = lambda: {name for place in ("/var/tmp", "/dev/shm") for name in os.listdir(place) if "farpage" in name}
        before = ours()
        for _ in range(int(os.environ.get("ATTACHES", "12"))):
            process = self.holder()
            self.assert_attached(self.attach(process.pid))
            self.end(process)
        self.assertEqual(ours() - before, set())

    def refused(self, pid, why, ram="32M"):
        self.assert_refused(self.attach(pid, ram=ram), why)

    def test_who_is_refused_and_goes_on(self):
        holder = self.holder()
        self.assert_attached(self.attach(holder.pid))
        self.refused(holder.pid, "it runs under farpage already")
        self.assertEqual(self.ask(holder, "digest"), "True")
        self.refused(2**22 - 1, "no such process")
        stopped = self.holder()
        stopped.send_signal(signal.SIGSTOP)
        self.refused(stopped.pid, "it is stopped")
        stopped.send_signal(signal.SIGCONT)
        self.assertEqual(self.ask(stopped, "digest"), "True")
        managed = self.begin(FARPAGE, "run", "--ram", "64M", "--", PYTHON, "-c", HOLDER)
        self.refused(managed.pid, "it runs under farpage already")
        self.refused(self.begin(build("static_holder.c", "-static"), 1).pid, "statically linked")
        script = self.dir / "sleeper.c"
        main = 'int main(void) { puts("ready"); fflush(stdout); pause(); }\n'
        script.write_text(f"#include <stdio.h>\n#include <unistd.h>\n{main}")
        sanitized = self.dir / "sanitized"
        if subprocess.run([os.environ.get("CC", "cc"), "-fsanitize=address", "-o", sanitized, script]).returncode == 0:
            self.refused(self.begin(sanitized).pid, "sanitizer")
        filtered = self.begin(build("refuse.c"), "1:16", "--", PYTHON, "-c", HOLDER)
        self.refused(filtered.pid, "seccomp filter")
        self.assertEqual(self.ask(filtered, "digest"), "True")
        if os.geteuid() == 0:
            if Path("/proc/2/comm").read_text() == "kthreadd\n":  # not in a pid namespace
                self.refused(2, "a thread of the kernel's")
            holder = self.holder()
            libc = ctypes.CDLL(None, use_errno=True)
            self.assertEqual(libc.ptrace(0x4206, holder.pid, None, None), 0)  # PTRACE_SEIZE
            self.refused(holder.pid, "a debugger traces it")
        for ram in ["1M", "nonsense"]:
            done = self.attach(holder.pid, ram=ram)
            self.assertNotEqual(done.returncode, 0)

    @unless_root
    def test_another_users_process(self):
        # Who may open the device by himself needs nothing from root.
        nobody = pwd.getpwnam("nobody")
        become = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
        process = self.holder(**become)
        self.assert_attached_for_another(self.attach(process.pid))
        self.assertLess(resident(process.pid), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertEqual(self.ask(process, "fork"), "0")
        # A program that it starts may have none: what it has counts, and the rest makes room.
        process.stdin.write(f"run {PYTHON} -c b=b'x'*(48<<20);print(input(),end='')\n")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        self.wait_until("it has filled its memory", lambda: [p for p in children.read_text().split()
                                                             if resident(int(p)) > 48 * MIB])
        child = children.read_text().split()[0]
        self.wait_until("it is said", lambda: "goes on without a budget" in self.run_plain(FARPAGE, "stat", child).stdout)
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        members = [m for tree in trees if tree["pid"] == process.pid for m in tree["members"]]
        self.assertEqual({str(process.pid), child}, {str(m["pid"]) for m in members})
        os.kill(int(child), signal.SIGTERM)
        self.assertEqual(process.stdout.readline(), "\n")
        self.assertEqual(self.ask(process, "digest"), "True")
        status = Path(f"/proc/{process.pid}/status").read_text()
        self.assertRegex(status, rf"Uid:\s+{nobody.pw_uid}\s+{nobody.pw_uid}\s+{nobody.pw_uid}\s+{nobody.pw_uid}\n")

    @unless_root
    def test_another_users_process_gets_no_device(self):
        for filters in [[], DOCKER]:
            with self.subTest(filters=filters):
                seeks = self.begin(*([build("refuse.c"), *filters, "--"] if filters else []), build("seeks_device.c"), 48,
                                   user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
                self.assertEqual(self.ask(seeks, "watch"), "0")
                self.assert_attached_for_another(self.attach(seeks.pid, ram="24M"))
                self.assertLess(resident(seeks.pid), 24 * MIB)
                self.assertEqual(self.ask(seeks, "seek"), "0")
                # Children, and theirs, are managed as well.
                self.assertEqual(self.ask(seeks, "fork 3"), "0")
                self.assertEqual(self.ask(seeks, "more"), "0")
                self.assertEqual(self.ask(seeks, "right"), "1")
                self.assertLess(resident(seeks.pid), 24 * MIB)
                self.assertEqual(self.ask(seeks, "seek"), "0")
                # It is as it was for its user: may be traced, and has no other process.
                status = Path(f"/proc/{seeks.pid}/status")
                self.assertEqual(status.stat().st_uid, NOBODY)
                self.assertEqual(Path(f"/proc/{seeks.pid}/task/{seeks.pid}/children").read_text(), "")

    @unless_root
    def test_children_of_another_users_small_process(self):
        # Nothing is managed yet, so its forks are not told: children have no engine.
        seeks = self.begin(build("seeks_device.c"), 8, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
        self.assert_attached_for_another(self.attach(seeks.pid, ram="64M"))
        for line, answer in [("fork 2", "0"), ("more", "0"), ("seek", "0"), ("right", "1")]:
            self.assertEqual(self.ask(seeks, line), answer, line)
        # It is managed when its budget is smaller, and its children are from then on.
        self.assertEqual(self.run_plain(FARPAGE, "set", seeks.pid, "--ram", "16M").returncode, 0)
        for line, answer in [("more", "0"), ("fork 2", "0"), ("right", "1"), ("seek", "0")]:
            self.assertEqual(self.ask(seeks, line), answer, line)

    @unless_root
    def test_a_containers_filter(self):
        process = self.begin(build("refuse.c"), *DOCKER, "--", PYTHON, "-c", HOLDER)
        self.assert_attached(self.attach(process.pid))
        self.assertLess(resident(process.pid), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertEqual(self.ask(process, "fork"), "0")

    @unless_root
    @unless_there("unshare")
    def test_another_root_and_other_namespaces(self):
        root = self.dir / "root"
        for name in ["proc", "usr", "lib", "lib64", "bin", "etc", "dev", "tmp"]:
            (root / name).mkdir(parents=True)
        binds = "".join(f"mount --rbind {d} {root}{d}\n" for d in ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev"])
        script = f"mount -t tmpfs none /opt 2>/dev/null\n{binds}mount -t proc proc {root}/proc\n" \
                 f"exec chroot {root} {PYTHON} -c \"$HOLDER\""
        process = self.begin("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-ec", script,
                             env=dict(os.environ, HOLDER=HOLDER))
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        inner = int(Path(children).read_text().split()[0])
        self.assert_attached(self.attach(inner, "--swap", "file:/tmp"))
        self.assertLess(resident(inner), 32 * MIB)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertEqual(self.ask(process, "fork"), "0")
        # The library has no name there that others could load it by.
        self.assertEqual(self.ask(process, "run true"), "")

    def test_it_ends_or_becomes_another_program_meanwhile(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        for number in range(16):
            process = self.holder()
            attaching = subprocess.Popen([FARPAGE, "attach", str(process.pid), "--ram", "32M"], stderr=subprocess.PIPE,
                                         text=True)
            time.sleep(chance.uniform(0, 0.05))
            process.kill() if number % 2 else process.stdin.close()
            _, err = attaching.communicate(timeout=HANG)
            self.assertIn(attaching.returncode, [0, 1], f"seed {seed}: {err}")
            self.assertRegex(err, r"\A(farpage: [^\n]+\n(  help: [^\n]*\n)?)?\Z", f"seed {seed}")
        becoming = "import os, sys, time\nprint('ready', flush=True)\ntime.sleep(float(sys.argv[1]))\n" \
                   "os.execv('/bin/cat', ['cat'])"
        for _ in range(16):
            process = self.begin(PYTHON, "-c", becoming, f"{chance.uniform(0, 0.03):.4f}")
            done = self.attach(process.pid)
            self.assertIn(done.returncode, [0, 1], f"seed {seed}: {done.stderr}")
            out, _ = process.communicate("whole\n", timeout=HANG)
            self.assertEqual((process.returncode, out), (0, "whole\n"), f"seed {seed}: {done.stderr}")

    @unless_root
    def test_a_cgroup_that_kills_without_it(self):
        group = self.cgroup("memory", memory_limit_in_bytes=150 * MIB)
        if (group / "memory.memsw.limit_in_bytes").exists():
            (group / "memory.memsw.limit_in_bytes").write_text(str(150 * MIB))
        process = self.holder(preexec_fn=self.enter(group))
        self.assert_attached(self.attach(process.pid, ram="90M"))
        self.assertEqual(self.ask(process, "grow 20000"), "grown")
        self.assertEqual(self.ask(process, "digest"), "True")
        self.end(process)
        process = self.holder(preexec_fn=self.enter(group))
        self.assertEqual(self.ask(process, "grow 20000"), "")
        self.assertEqual(process.wait(HANG), -signal.SIGKILL)


@unless_there("redis-server", "redis-cli")
class Servers(Holding):
    def test_redis_keeps_its_data(self):
        socket = self.dir / "socket"
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir",
                                   str(self.dir)], stdout=subprocess.DEVNULL)
        self.addCleanup(self.end, server)

        def cli(*words):
            return self.run_plain("redis-cli", "-s", socket, *words).stdout.strip()

        while cli("ping") != "PONG":
            time.sleep(0.05)
        cli("debug", "populate", 100_000, "key", 500)
        before = cli("debug", "digest")
        done = self.run_plain(FARPAGE, "attach", server.pid, "--ram", "40M")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLess(resident(server.pid), 40 * MIB)
        self.assertEqual(cli("debug", "digest"), before)
        self.assertEqual(cli("save"), "OK")
        self.assertIn("started", cli("bgsave"))
        while "rdb_bgsave_in_progress:1" in cli("info", "persistence"):
            time.sleep(0.05)
        self.assertIn("rdb_last_bgsave_status:ok", cli("info", "persistence"))
        self.assertEqual(cli("debug", "digest"), before)


if __name__ == "__main__":
    unittest.main()
