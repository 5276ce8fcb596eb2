"""A program that gives privileges up leaves none to the engine's threads: right after each call that changes what a
thread may do, all threads of the process have the main thread's user, groups, capabilities, no_new_privs, kind of
seccomp, root directory and namespaces; and so have a forked child's. Memory stays right, and who may look into the
process is as in the plain run."""

import contextlib
import itertools
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from situation import FARPAGE, HANG, Situation, build, unless_root, without_waiting

STATUS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
NAMESPACES = ("mnt", "net", "uts", "ipc", "cgroup", "user", "pid")
# The kernel's own workers for io_uring: no program's code ever runs on them, and each request has its maker's
# credentials.
WORKER = "iou-wrk-"

# One program each, with a fork at its end.
CHAINS = (
    ("initgroups", "seteuid", "back", "bounding", "securebits", "chroot", "ambient", "no new privileges", "setuid"),
    ("unshare net", "setns", "unshare", "keepcaps"),
    ("filter", "capset call"),
    ("filter of nobody",),
    ("filter for all", "chroot call", "call"),
    ("setreuid",),
    ("thread",),
    ("setresuid", "no new privileges", "killing filter"),
    # After what a fork needs has been reserved, before the copy.
    ("in a handler",),
    # Before the program has come near to its budget; with another stop at the end.
    ("early", "setuid", "no new privileges"),
    ("early", "killing filter"),
    ("early", "killing filter for all"),
)


def name_of(pid, tid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text(encoding="utf-8").strip()


def held(pid, tid):
    """What a thread holds; `None`: it has ended, or is a worker of the kernel's."""
    task = f"/proc/{pid}/task/{tid}"
    try:
        with open(f"{task}/status", encoding="utf-8", errors="replace") as status:
            fields = dict(line.rstrip("\n").split(":", 1) for line in status)
        if fields["Name"].strip().startswith(WORKER):
            return None
        root = os.stat(f"{task}/root")
        places = {"root": (root.st_dev, root.st_ino)} | {n: os.stat(f"{task}/ns/{n}").st_ino for n in NAMESPACES}
    except FileNotFoundError:
        return None
    return {name: fields[name].split() for name in STATUS} | places


def differences(pid):
    """Threads that hold something else than the main thread, and what."""
    main, found = held(pid, pid), {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        other = held(pid, tid)
        if other is not None and other != main:
            name = name_of(pid, tid)
            found[name] = {key: (value, other[key]) for key, value in main.items() if value != other[key]}
    return found


def unnamed_files(pid):
    """Files without a name that threads have open, and in which modes."""
    modes = {}
    for fd in Path(f"/proc/{pid}/task").glob("*/fd/*"):
        with contextlib.suppress(FileNotFoundError):
            path = os.readlink(fd)
            if path.startswith("/var/tmp/#") and path.endswith(" (deleted)"):
                info = (fd.parent.parent / "fdinfo" / fd.name).read_text(encoding="utf-8")
                flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                modes.setdefault(path, set()).add(int(flags.split()[1], 8) & os.O_ACCMODE)
    return modes


@unless_root
class Privileges(Situation):
    def setUp(self):
        super().setUp()
        self.program = build("privileges.c")

    @contextlib.contextmanager
    def started(self, *how, under=(FARPAGE, "run", "--ram", "20M", "--")):
        argv = [str(a) for a in (*under, self.program, self.dir, *how)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(argv, text=True, process_group=0, **pipes) as process:
            alarm = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
            signal.alarm(HANG)
            try:
                yield process
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, alarm)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def stops(self, process):
        """Each process that waits to be looked at; it goes on afterwards."""
        while (words := process.stdout.readline().split()) and words[0] in ("changed", "child"):
            yield int(words[1])
            process.stdin.write("\n")
            process.stdin.flush()
        self.said = words

    def test_all_threads_hold_what_the_main_thread_holds(self):
        for chain in CHAINS:
            with self.subTest(chain=chain), self.started(*chain) as process:
                names = set()
                for at, pid in itertools.zip_longest(chain, self.stops(process), fillvalue="child"):
                    self.assertNotEqual(pid, "child", f"not reached: {at}")
                    names |= {name_of(pid, tid) for tid in os.listdir(f"/proc/{pid}/task")}
                    self.assertEqual(differences(pid), {}, at)
                out, err = process.communicate()
                self.assertEqual((process.returncode, out, without_waiting(err)), (0, "", ""))
                self.assertLess({"farpage-pager", "farpage-writer"}, names)

    def test_an_instruction_of_the_program_is_found(self):
        with self.started("instruction") as process:
            for pid in self.stops(process):
                while differences(pid):
                    time.sleep(0.05)
            self.assertEqual((process.wait(), self.said), (0, ["dumpable", "1"]))

    def test_where_no_engine_can_be_started_the_program_goes_on_without(self):
        with self.started("early", "another thread", "killing filter for all") as process:
            for _ in self.stops(process):
                pass
            out, err = process.communicate()
            self.assertEqual((process.returncode, out), (0, ""))
            self.assertEqual(err.count("goes on without a budget"), 1, err)

    def test_who_may_look_is_as_plain(self):
        said = []
        for under in ({"under": ()}, {}):
            with self.started("capset", "setuid", **under) as process:
                for _ in self.stops(process):
                    pass
                said.append((process.wait(), self.said))
        self.assertEqual(said[0], said[1])

    def test_a_child_cannot_write_to_its_parents_swap_file(self):
        """Nor can one whose parent has become another user since the file was made."""
        for how in ("seteuid", "setuid"):
            with self.subTest(how=how), self.started(how) as process:
                parent, child = (unnamed_files(pid) for pid in self.stops(process))
                self.assertEqual(process.wait(), 0)
                self.assertEqual(list(parent.values()), [{os.O_RDWR}])
                self.assertEqual({path: child[path] for path in parent}, dict.fromkeys(parent, {os.O_RDONLY}))

    def test_no_descriptor_of_an_engine_leads_out(self):
        """Of a root directory that was changed; with setuid, of what the user may open."""
        program, root = build("way_out.c"), self.dir / "root"
        inner, outside = self.dir / "closed" / "open", self.dir / "closed" / "outside"
        root.mkdir()
        inner.mkdir(parents=True)
        inner.chmod(0o1777)
        outside.write_text("outside")
        # Only root gets here by a path.
        outside.parent.chmod(0o700)
        self.dir.chmod(0o755)
        for how in ("chroot", "call", "unshare", "setuid", "instruction"):
            # By the swap directory; by /proc, which leads to what everybody may read.
            files = (str(outside)[1:], *(["etc/passwd"] if how != "setuid" else []))
            with self.subTest(how=how):
                done = self.run_farpage(program, how, root, *files, ram="24M",
                                        options=("--swap", "zram", "--swap", f"file:{inner}"))
                self.assertEqual((done.returncode, done.stdout), (0, "0 ways out\n0 ways out of a child, right\n"))


if __name__ == "__main__":
    unittest.main()
