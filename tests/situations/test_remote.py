"""Swap on NBD servers, and what they do: stop for a while, end and begin again with or without their data, have no
room, allow one connection, are reached through a bad network. Each with the real programs."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from situation import FARPAGE, HANG, REGIONS, ROOT, Situation, build, unless_root, unless_there, without_waiting

# Fills three times its budget, says so, waits for a line, and looks at all of it twice. What Python does at its end,
# going through all of it three times more, is left out.
FILL = """
import os, sys
kept = [i.to_bytes(4, "little") * 1000 for i in range(12288)]
print("full", flush=True)
sys.stdin.readline()
for _ in range(2):
    for i, page in enumerate(kept):
        assert page == i.to_bytes(4, "little") * 1000, i
print("right", flush=True)
os._exit(0)
"""
# The same in a child, which also changes what it has; the parent then looks at its own.
FORK = """
import os
kept = [bytearray(i.to_bytes(4, "little") * 1000) for i in range(9000)]
pid = os.fork()
for i, page in enumerate(kept):
    assert page == i.to_bytes(4, "little") * 1000, i
if pid == 0:
    for page in kept:
        page[:4] = b"mine"
    for i, page in enumerate(kept):
        assert page[:4] == b"mine" and page[4:8] == i.to_bytes(4, "little"), i
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
# Four programs at the same time.
TREE = """
import subprocess, sys
some = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(4)]
print([one.communicate()[0].split()[-1] for one in some], flush=True)
"""

# An array three times the budget, looked at by a child and by its parent.
REGION = """
import os, sys
import farpage, numpy
try:
    pager = farpage.Pager("16M", swap=[sys.argv[1]])
except farpage.Error as error:
    print(error)
    raise SystemExit
kept = pager.empty(6_000_000, dtype="u8")
kept[:] = numpy.arange(6_000_000)
pid = os.fork()
right = bool((kept == numpy.arange(6_000_000)).all())
if pid == 0:
    kept += 1
    os._exit(7 if right and (kept == numpy.arange(1, 6_000_001)).all() else 1)
print(right, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Server:
    """A server program, ended at the end of the test."""

    def __init__(self, test, *argv, socket=None, port=None):
        self.argv, self.socket, self.port, self.process = [str(a) for a in argv], socket, port, None
        test.addCleanup(self.kill)
        self.start()

    def start(self):
        if self.socket:
            self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, process_group=0)
        end = time.monotonic() + HANG
        while not self.answers():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"{self.argv}: does not start: {self.process.poll()}")
            time.sleep(0.01)

    def answers(self):
        unix = self.socket is not None
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
            client.connect(str(self.socket) if unix else ("127.0.0.1", self.port))
            return True
        return False

    def kill(self):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.killpg(self.process.pid, signal.SIGCONT)


class Program:
    """`FILL` under farpage."""

    def __init__(self, test, swap, *options, code=FILL, before=(), preexec_fn=None):
        argv = [*before, FARPAGE, "run", "--ram", "16M", "--swap", swap, *options, "--", sys.executable, "-c", code]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, process_group=0, preexec_fn=preexec_fn)
        self.test = test
        test.addCleanup(self.kill)
        self.first = self.process.stdout.readline()
        test.assertEqual(self.first, "full\n", self.first or self.process.stderr.read() if self.first == "" else "")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def go_on(self):
        # The interpreter may have come upon a lost page before; how the program has ended is looked at later.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def says(self, text):
        """Waits until it says that; its messages up to there."""
        lines, hangs = [], threading.Timer(HANG, self.process.kill)
        hangs.start()
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                break
        hangs.cancel()
        return "".join(lines)

    def end(self):
        """Status, output and messages."""
        out, err = self.process.communicate(timeout=HANG)
        return self.process.returncode, out, without_waiting(err)

    def ends(self, status, output):
        """Waits until it ends like this; its messages."""
        ended, out, err = self.end()
        self.test.assertEqual((ended, out), (status, output), err)
        return err


def run_regions(test, url):
    env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "FARPAGE_LIBRARY": str(REGIONS)}
    return test.run_plain("/usr/bin/python3", "-c", REGION, url, env=env)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@unless_there("nbdkit")
class Nbdkit(Situation):
    def server(self, *plugin, options=(), port=None):
        where = ["-p", port, "-i", "127.0.0.1"] if port else ["-U", self.dir / "socket"]
        self.url = f"nbd://127.0.0.1:{port}" if port else f"nbd+unix://{self.dir / 'socket'}"
        # Before 1.34 it aborts, now and then, when a client ends while several threads answer it.
        return Server(self, "nbdkit", "-f", "--threads", "1", *where, *options, *(plugin or ("memory", "256M")),
                      socket=None if port else self.dir / "socket", port=port)

    def test_a_program_has_its_pages_on_another_machines_memory(self):
        for port in (None, free_port()):
            server = self.server(port=port)
            program = Program(self, self.url, "--verify")
            program.go_on()
            self.assertEqual(program.end(), (0, "right\n", ""))
            server.kill()

    def test_a_name_is_looked_up_before_the_program_starts(self):
        port = free_port()
        self.server(port=port)
        program = Program(self, f"nbd://localhost:{port}")
        program.go_on()
        self.assertEqual(program.end(), (0, "right\n", ""))
        done = self.run_farpage("true", options=["--swap", "nbd://no-such-host.invalid"])
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("no-such-host.invalid", done.stderr)

    def test_a_server_that_stops_for_a_while_is_waited_for(self):
        server = self.server()
        program = Program(self, self.url)
        server.stop()
        program.go_on()
        before = program.says("is out of reach: no answer")
        self.assertIsNone(program.process.poll())
        server.go_on()
        err = program.ends(0, "right\n")
        # Once, but where the machine is so slow that it does not answer in time when it is there, too.
        said = (before + err).count("is out of reach"), err.count("is back")
        self.assertTrue(said[0] == said[1] > 0, before + err)

    def test_a_server_that_begins_again_with_its_data_goes_on(self):
        file = self.dir / "data"
        file.write_bytes(b"")
        os.truncate(file, 256 << 20)
        server = self.server("file", file)
        program = Program(self, self.url)
        server.kill()
        program.go_on()
        server.start()
        program.ends(0, "right\n")
        self.assertEqual(file.read_bytes().strip(b"\0"), b"", "nothing is left there")

    def test_a_mirror_has_what_a_server_has_lost(self):
        server = self.server()
        for again in (True, False):
            program = Program(self, self.url + f",timeout=2s,mirror=file:{self.dir}")
            server.kill()
            if again:
                server.start()
            program.go_on()
            err = program.ends(0, "right\n")
            # One that is away for less than a second is not worth a word.
            if again:
                self.assertIn("the server has not kept what it was given: its pages come from the mirror", err)
        done = self.run_farpage("true", options=["--swap", self.url + ",mirror=file:/no/such"])
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("cannot use mirror=file:/no/such: cannot open the directory", done.stderr)

    def test_a_server_that_begins_again_without_them_has_lost_the_pages(self):
        server = self.server()
        program = Program(self, self.url)
        server.kill()
        server.start()
        program.go_on()
        err = program.ends(-signal.SIGBUS, "")
        self.assertIn("the server has not kept what it was given: all pages on it are lost", err)

    def test_a_server_that_stays_away_is_given_up(self):
        server = self.server()
        program = Program(self, self.url + ",timeout=2s")
        server.kill()
        program.go_on()
        err = program.ends(-signal.SIGBUS, "")
        self.assertIn("is given up", err)

    def test_pages_of_a_full_server_go_to_the_next_device(self):
        self.server("memory", "8M")
        program = Program(self, self.url, "--swap", f"file:{self.dir}")
        program.go_on()
        self.assertEqual(program.end(), (0, "right\n", ""))

    def test_errors_of_a_server_are_got_over(self):
        bad = self.dir / "bad"
        self.server("--filter=error", "memory", "256M", "error-pread-rate=2%", f"error-pread-file={bad}")
        program = Program(self, self.url)
        bad.touch()
        program.go_on()
        program.ends(0, "right\n")

    def test_what_cannot_be_used_is_refused(self):
        self.server()
        for url, why in [(self.url + "x", "no such file"), (f"nbd://127.0.0.1:{free_port()}", "connection refused")]:
            done = self.run_farpage("true", options=["--swap", url])
            self.assertEqual((done.returncode, done.stdout), (125, ""))
            self.assertIn(why, done.stderr)
        program = Program(self, self.url)
        done = self.run_farpage("true", options=["--swap", self.url])
        self.assertEqual(done.returncode, 125)
        self.assertIn(f"process {program.process.pid} swaps to it", done.stderr)
        program.go_on()
        self.assertEqual(program.end(), (0, "right\n", ""))
        done = self.run_farpage("true", options=["--swap", self.url])
        self.assertEqual((done.returncode, done.stderr), (0, ""), "whoever had it has ended")

    def test_an_export_with_something_on_it_is_refused(self):
        file = self.dir / "data"
        file.write_bytes(b"\0" * 1024 + b"something" + b"\0" * (16 << 20))
        self.server("file", file)
        done = self.run_farpage("true", options=["--swap", self.url])
        self.assertEqual(done.returncode, 125)
        self.assertIn("it holds something that is not farpage's", done.stderr)
        self.assertIn(b"something", file.read_bytes()[:2048])

    def test_a_forked_child_reads_what_its_parent_has_stored(self):
        self.server()
        done = self.run_farpage(sys.executable, "-c", FORK, ram="16M", options=["--swap", self.url])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "7\n", ""))

    def test_regions_of_a_process_and_its_child(self):
        server = self.server()
        done = run_regions(self, self.url)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True 7\n", ""))
        done = run_regions(self, self.url)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True 7\n", ""), "nobody has it any more")
        self.assertIsNone(server.process.poll())

    def test_doctor_measures_a_server(self):
        self.server()
        for _ in range(2):
            done = self.run_plain(FARPAGE, "doctor", "--swap", self.url)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("allows several connections; takes space back", done.stdout)
            self.assertIn("one page read in", done.stdout)

    def test_a_tree_of_processes_shares_an_export(self):
        self.server()
        done = self.run_farpage(sys.executable, "-c", TREE, FILL, ram="48M", options=["--swap", self.url, "--stats-json",
                                                                                      self.dir / "stats"])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{[b'right'] * 4}\n", ""))

    def test_the_stress_program_finds_every_word(self):
        stress = self.stress_program()
        self.server()
        done = self.run_farpage(stress, "--threads", "4", "--mb", "64", "--seed", "12", "--seconds", "6", ram="24M",
                                options=["--swap", self.url, "--verify"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@unless_there("nbd-server")
class NbdServer(Situation):
    def test_an_export_of_a_name(self):
        file, port = self.dir / "data", free_port()
        file.write_bytes(b"")
        os.truncate(file, 128 << 20)
        (self.dir / "conf").write_text(f"[generic]\nport = {port}\nlistenaddr = 127.0.0.1\n[swap]\nexportname = {file}\n")
        pid = self.dir / "pid"
        # It goes on as a daemon; in the foreground it serves one connection.
        self.run_plain("nbd-server", "-C", self.dir / "conf", "-p", pid)
        end = time.monotonic() + HANG
        while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.01)
        self.addCleanup(os.kill, int(pid.read_text()), signal.SIGKILL)
        done = self.run_farpage("true", options=["--swap", f"nbd://127.0.0.1:{port}/other"])
        self.assertEqual(done.returncode, 125)
        self.assertIn("whether host, port and export are right", done.stderr)
        program = Program(self, f"nbd://127.0.0.1:{port}/swap")
        program.go_on()
        self.assertEqual(program.end(), (0, "right\n", ""))


@unless_there("qemu-nbd", "qemu-img")
class QemuNbd(Situation):
    def test_a_server_that_allows_one_connection(self):
        disk = self.dir / "disk"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "128M"], check=True)
        Server(self, "qemu-nbd", "-t", "-f", "qcow2", "-k", self.dir / "socket", disk, socket=self.dir / "socket")
        done = self.run_farpage("true", options=["--swap", f"nbd+unix://{self.dir / 'socket'}?other"])
        self.assertIn("the server has no export of this name", done.stderr)
        program = Program(self, f"nbd+unix://{self.dir / 'socket'}")
        program.go_on()
        program.ends(0, "right\n")
        done = run_regions(self, f"nbd+unix://{self.dir / 'socket'}")
        self.assertIn("the server allows one connection, and a pager needs two", done.stdout)


@unless_there("nbdkit")
class OtherDevices(Situation):
    """What is on another device comes while a server is slow, or says nothing."""

    def begin(self, *argv):
        self.server = Server(self, "nbdkit", "-f", "-U", self.dir / "socket", *argv, socket=self.dir / "socket")
        swaps = ["--swap", f"nbd+unix://{self.dir / 'socket'},size=24M", "--swap", "file:/var/tmp"]
        argv = [FARPAGE, "run", "--ram", "16M", *swaps, "--", build("two_places.c"), "24", "48"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen([str(a) for a in argv], **pipes, text=True, process_group=0)
        self.addCleanup(self.end)
        self.assertEqual(self.process.stdout.readline(), "full\n")

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends_well(self):
        out, err = self.process.communicate("\n", timeout=HANG)
        self.assertEqual((self.process.returncode, out), (0, "right\n"), err)

    def test_slow(self):
        self.begin("--filter=delay", "memory", "128M", "rdelay=200ms")
        self.go_on()
        # 12288 pages while the others wait for the server one by one.
        self.assertLess(int(self.process.stdout.readline()), 1000)
        self.ends_well()

    def test_silent(self):
        self.begin("memory", "128M")
        self.server.stop()
        self.go_on()
        self.assertLess(int(self.process.stdout.readline()), 1000)
        self.server.go_on()
        self.ends_well()


@unless_root
@unless_there("nbdkit")
class TightMemory(Situation):
    def test_a_cgroup_whose_memory_is_used_up_does_not_stop_the_swapping(self):
        """Somebody writes files there, so each allocation for a socket has to wait for the kernel's reclaim. Nothing
        that this reclaim needs waits for farpage."""
        Server(self, "nbdkit", "-f", "-U", self.dir / "socket", "memory", "256M", socket=self.dir / "socket")
        group = self.cgroup("memory", memory_limit_in_bytes=24 << 20)
        writer = subprocess.Popen(["sh", "-c", f"while head -c 64M /dev/zero > {self.dir / 'file'}; do :; done"],
                                  preexec_fn=self.enter(group))
        self.addCleanup(writer.wait)
        self.addCleanup(writer.kill)
        program = Program(self, f"nbd+unix://{self.dir / 'socket'}", preexec_fn=self.enter(group))
        program.go_on()
        program.ends(0, "right\n")
        self.assertGreater(int((group / "memory.failcnt").read_text()), 100, "it was never short of memory")


@unless_root
@unless_there("nbdkit", "redis-server", "ip")
class Network(Situation):
    """A server in a network namespace, behind a network that is slow, loses packets, and is gone for a while."""

    def setUp(self):
        super().setUp()
        self.names = [f"farpage{os.getpid() % 10000}{end}" for end in "ab"]
        for name in self.names:
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True, check=False)
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
                self.skipTest("no network namespaces here")

    def through(self, microseconds, permille, *server):
        (here, there), ends = [f"/run/netns/{name}" for name in self.names], ["10.213.7.1", "10.213.7.2"]
        link = [build("slow_link.c"), here, ends[0], there, ends[1], microseconds, permille]
        self.link = subprocess.Popen([str(a) for a in link], stdout=subprocess.PIPE)
        self.addCleanup(self.link.stdout.close)
        self.addCleanup(self.link.wait)
        self.addCleanup(self.link.kill)
        if self.link.stdout.readline() != b"ready\n":
            self.skipTest("no tunnels here")
        process = subprocess.Popen(["ip", "netns", "exec", self.names[1], *server], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        inside = ["ip", "netns", "exec", self.names[0]]
        look = "import socket, sys; socket.create_connection(('10.213.7.2', int(sys.argv[1])))"
        port = "6379" if server[0] == "redis-server" else "10809"
        asked = [*inside, sys.executable, "-c", look, port]
        self.wait_until("the server answers",
                        lambda: subprocess.run(asked, capture_output=True, check=False).returncode == 0)
        spec = "redis" if server[0] == "redis-server" else "nbd"
        return Program(self, f"{spec}://10.213.7.2,timeout=inf", before=inside)

    def nbd(self, microseconds, permille):
        return self.through(microseconds, permille, "nbdkit", "-f", "memory", "128M")

    def redis(self, microseconds, permille):
        return self.through(microseconds, permille, "redis-server", "--save", "", "--protected-mode", "no",
                            "--maxmemory", "256mb")

    def test_delay_and_loss(self):
        for server in (self.nbd, self.redis):
            with self.subTest(server=server.__name__):
                program = server(200, 2)
                program.go_on()
                program.ends(0, "right\n")
                self.doCleanups()
                self.setUp()

    def test_the_cable_is_pulled(self):
        for server in (self.nbd, self.redis):
            with self.subTest(server=server.__name__):
                program = server(100, 0)
                self.link.send_signal(signal.SIGUSR1)
                program.go_on()
                program.says("is out of reach")
                self.link.send_signal(signal.SIGUSR1)
                self.assertIn("is back", program.ends(0, "right\n"))
                self.doCleanups()
                self.setUp()


if __name__ == "__main__":
    unittest.main()
