"""Pages in the memory of a Redis server, with the real one: what is stored comes back, and what happens when the server
does not behave. No page is ever wrong: it is right, or lost with a message and SIGBUS."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import unittest
from pathlib import Path

from situation import FARPAGE, HANG, Situation, build, build_with_regions, unless_there, without_waiting

MIB = 48
PAGES = MIB * 256


class Keeper:
    """`src/keeper.c` under farpage, which is told what to do."""

    def __init__(self, test, *options, env=None, mib=MIB):
        argv = [FARPAGE, "run", "--ram", "16M", *options, "--", build("keeper.c"), mib]
        self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=env and os.environ | env)
        self.test, self.said = test, []
        self.timer = threading.Timer(HANG, self.process.kill)
        self.timer.start()
        self.reader = threading.Thread(target=lambda: self.said.extend(iter(self.process.stderr.readline, "")))
        self.reader.start()
        test.addCleanup(self.close)
        test.assertEqual(self.process.stdout.readline(), "filled\n", self.errors)

    @property
    def errors(self):
        return without_waiting("".join(self.said))

    @property
    def program(self):
        """Its process: farpage stays as the parent."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self):
        """Pages that are right, lost and wrong."""
        line = self.process.stdout.readline()
        return tuple(int(n) for n in re.findall(r"\d+", line)) or line

    def check(self):
        self.tell("check")
        return self.hear()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.reader.join()
        self.timer.cancel()


@unless_there("redis-server", "redis-cli")
class Redis(Situation):
    server = None

    def setUp(self):
        super().setUp()
        self.socket = self.dir / "socket"
        self.spec = f"redis+unix://{self.socket}"
        self.addCleanup(self.stop)

    def start(self, *options, maxmemory="256mb"):
        """A server with an empty memory, unless it finds what was saved."""
        options = [*options, "--maxmemory", maxmemory] if maxmemory else options
        self.server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "",
                                        "--dir", str(self.dir), *options], stdout=subprocess.DEVNULL)
        self.wait_until("the server answers", lambda: self.cli("ping") in ("PONG", "NOAUTH Authentication required."))

    def stop(self):
        if self.server:
            with contextlib.suppress(ProcessLookupError):
                self.server.send_signal(signal.SIGCONT)
            self.server.kill()
            self.server.wait()

    def cli(self, *words):
        return self.run_plain("redis-cli", "-s", self.socket, *words).stdout.strip()

    def pages(self):
        keys = int(self.cli("dbsize"))
        others = [key for key in ("farpage:server", "farpage:sessions") if self.cli("exists", key) == "1"]
        return keys - len(others) - len(self.alive())

    def alive(self):
        sessions = self.cli("hkeys", "farpage:sessions").split()
        return [id for id in sessions if self.cli("exists", f"farpage:alive:{id}") == "1"]

    def refused(self, *options, env=None):
        """What is said of a server that will not do."""
        done = self.run_plain(FARPAGE, "run", "--ram", "16M", *options, "--", "true",
                              env=os.environ | (env or {}))
        self.assertEqual((done.returncode, done.stdout), (125, ""), done.stderr)
        return done.stderr

    def test_what_is_stored_comes_back_in_children_too(self):
        self.start()
        keeper = Keeper(self, "--verify", "--swap", self.spec)
        self.assertGreater(self.pages(), PAGES // 2)
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        keeper.tell("fork")
        self.assertEqual(keeper.hear(), (PAGES, 0, 0))
        self.assertEqual(keeper.process.stdout.readline(), "forked\n")
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        keeper.tell("end")
        self.assertEqual((keeper.process.wait(HANG), keeper.errors), (0, ""))

    def test_compressed_pages_move_on_to_the_server(self):
        self.start()
        keeper = Keeper(self, "--swap", "zram", "--swap", self.spec)
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        self.assertGreater(self.pages(), 1000)

    def test_ten_processes_on_one_server(self):
        self.start("--maxclients", "100")
        ten = f"for i in 1 2 3 4 5 6 7 8 9 10; do {build('keeper.c')} 16 check fork check & done; wait"
        done = self.run_farpage("sh", "-c", ten, options=["--verify", "--swap", self.spec], ram="64M")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(re.findall(": 4096 right, 0 lost, 0 wrong", done.stdout)), 30, done.stdout)

    def test_a_server_that_stands_still_is_waited_for(self):
        self.start()
        keeper = Keeper(self, "--swap", self.spec)
        self.server.send_signal(signal.SIGSTOP)
        keeper.tell("check")
        self.wait_until("it is said", lambda: "is out of reach: " in keeper.errors)
        self.server.send_signal(signal.SIGCONT)
        self.assertEqual(keeper.hear(), (PAGES, 0, 0))
        self.wait_until("both are said", lambda: "is back" in keeper.errors)
        self.assertEqual(len(re.findall("is out of reach: ", keeper.errors)), 1, keeper.errors)

    def test_a_machine_that_stands_still_loses_nothing(self):
        """As a virtual machine that is paused: more time goes by than a server may be away, and none has seen it."""
        self.start()
        keeper = Keeper(self, "--swap", f"{self.spec},timeout=2s")
        keeper.tell("check")
        for pid in (self.server.pid, keeper.program, keeper.process.pid):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)
        for pid in (keeper.process.pid, keeper.program, self.server.pid):
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(keeper.hear(), (PAGES, 0, 0))
        self.assertEqual(keeper.errors, "")

    def test_a_server_that_is_restarted_with_its_data_goes_on(self):
        self.start()
        keeper = Keeper(self, "--swap", self.spec)
        self.run_plain("redis-cli", "-s", self.socket, "shutdown", "save")
        self.server.wait(HANG)
        self.start()
        self.assertEqual(keeper.check(), (PAGES, 0, 0))

    def test_a_server_that_is_restarted_without_its_data_has_lost_pages_and_has_no_zeros(self):
        self.start()
        keeper = Keeper(self, "--swap", self.spec)
        self.stop()
        self.start()
        right, lost, wrong = keeper.check()
        self.assertEqual((right + lost, wrong), (PAGES, 0))
        self.assertGreater(lost, PAGES // 2)
        self.wait_until("it is said", lambda: "without its data: all pages on it are lost" in keeper.errors)

    def test_a_server_that_does_not_come_back_is_given_up(self):
        self.start()
        keeper = Keeper(self, "--swap", f"{self.spec},timeout=2s")
        self.stop()
        right, lost, wrong = keeper.check()
        self.assertEqual((right + lost, wrong), (PAGES, 0))
        self.assertGreater(lost, PAGES // 2)
        self.wait_until("it is said", lambda: "is given up" in keeper.errors)
        # New pages go elsewhere, or stay: the program goes on.
        keeper.tell("end")
        self.assertEqual(keeper.process.wait(HANG), 0)

    def test_one_that_would_throw_pages_away_is_refused_and_noticed_later(self):
        self.start("--maxmemory-policy", "allkeys-lru")
        self.assertIn("its maxmemory-policy is allkeys-lru", self.refused("--swap", self.spec))
        self.assertIn("allkeys-lru", self.refused("--swap", f"{self.spec},trust"))
        self.cli("config", "set", "maxmemory-policy", "noeviction")
        keeper = Keeper(self, "--swap", self.spec, "--swap", f"file:{self.dir}")
        self.assertGreater(self.pages(), PAGES // 2)
        self.cli("config", "set", "maxmemory-policy", "allkeys-random")
        noticed = "maxmemory-policy is not noeviction any more"
        # Who rests says nothing.
        self.wait_until("it is noticed", lambda: keeper.check() == (PAGES, 0, 0) and noticed in keeper.errors)
        # What was there goes to the file, in the background. Some is asked for meanwhile, so that nobody rests.
        self.wait_until("nothing is needed from there", lambda: keeper.check() and not self.reads())
        self.cli("flushall")
        self.assertEqual(keeper.check(), (PAGES, 0, 0))

    def reads(self):
        """Whether the server has been asked for pages since the last call."""
        stats = self.cli("info", "stats")
        self.cli("config", "resetstat")
        return re.search(r"keyspace_hits:(\d+)", stats)[1] != "0"

    def test_one_without_a_limit_is_refused_unless_it_is_trusted(self):
        self.start(maxmemory=None)
        self.assertIn("its maxmemory is 0", self.refused("--swap", self.spec))
        keeper = Keeper(self, "--swap", f"{self.spec},trust")
        self.assertEqual(keeper.check(), (PAGES, 0, 0))

    def test_a_full_server_is_a_full_device(self):
        self.start(maxmemory="8mb")
        keeper = Keeper(self, "--swap", self.spec, "--swap", f"file:{self.dir}")
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        self.assertGreater(self.pages(), 500)
        self.assertLess(self.pages(), PAGES // 2)
        self.assertEqual(keeper.errors, "")

    def test_the_stress_program_finds_every_word(self):
        stress = self.stress_program()
        self.start()
        done = self.run_farpage(stress, "--threads", "4", "--mb", "64", "--seed", "13", "--seconds", "6", ram="24M",
                                options=["--verify", "--swap", self.spec])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_passwords(self):
        self.start("--requirepass", "se:cr,et")
        self.assertIn("it wants a password", self.refused("--swap", self.spec))
        wrong = {"FARPAGE_REDIS_PASSWORD": "other"}
        self.assertIn("does not take this user and password", self.refused("--swap", self.spec, env=wrong))
        secret = self.dir / "secret"
        secret.write_text("se:cr,et\n")
        for options, env in [((self.spec,), {"FARPAGE_REDIS_PASSWORD": "se:cr,et"}),
                             ((f"{self.spec},password-file={secret}",), {})]:
            keeper = Keeper(self, "--swap", *options, env=env, mib=24)
            self.assertEqual(keeper.check(), (24 * 256, 0, 0))
            process = f"/proc/{keeper.program}"
            environment = Path(f"{process}/environ").read_text().split("\0")
            configuration = next(v for v in environment if v.startswith("FARPAGE_CONF="))
            ours = Path(f"/proc/{keeper.process.pid}/cmdline").read_text()
            shown = Path(f"{process}/cmdline").read_text() + configuration + ours
            self.assertNotIn("cr,et", shown)
        by_descriptor = f'exec 9< {secret}; exec "$@"'
        done = self.run_plain("sh", "-c", by_descriptor, "sh", FARPAGE, "run", "--ram", "16M", "--swap",
                              f"{self.spec},password-fd=9", "--", build("keeper.c"), 24, "check")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "filled\nkeeper: 6144 right, 0 lost, 0 wrong\n")

    def test_a_mirror_has_what_a_server_has_lost(self):
        self.start()
        keeper = Keeper(self, "--verify", "--swap", f"{self.spec},timeout=2s,mirror=file:{self.dir}")
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        self.stop()
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        self.start()
        self.assertEqual(keeper.check(), (PAGES, 0, 0))
        keeper.tell("fork")
        self.assertEqual(keeper.hear(), (PAGES, 0, 0))

    def test_what_a_killed_program_leaves_can_be_removed(self):
        self.start()
        keeper = Keeper(self, "--swap", self.spec)
        stays = Keeper(self, "--swap", self.spec, mib=24)
        program = keeper.program
        keeper.process.kill()
        keeper.process.wait()
        os.kill(program, signal.SIGKILL)
        before = self.pages()
        done = self.run_plain(FARPAGE, "swapoff", self.spec)
        self.assertEqual((done.returncode, done.stdout.count("it runs")), (0, 2), done.stderr)
        self.assertGreaterEqual(self.pages(), before)
        # As if it had not been heard of for a minute.
        gone = next(id for id in self.alive() if f" {program}" in self.cli("hget", "farpage:sessions", id))
        self.cli("del", f"farpage:alive:{gone}")
        done = self.run_plain(FARPAGE, "swapoff", "-n", self.spec)
        self.assertIn("would remove", done.stdout)
        done = self.run_plain(FARPAGE, "swapoff", self.spec)
        self.assertEqual((done.returncode, done.stdout.count("it runs"), done.stdout.count("removed")), (0, 1, 1))
        self.assertLess(self.pages(), before - PAGES // 2)
        self.assertEqual(stays.check(), (24 * 256, 0, 0))

    def test_a_run_leaves_nothing(self):
        self.start()
        stays = Keeper(self, "--swap", self.spec, mib=24)
        before = len(self.alive())
        done = self.run_farpage(build("keeper.c"), 24, "check", "fork", ram="16M", options=["--swap", self.spec])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.alive()), before)
        self.assertLess(self.pages(), 24 * 256 + 1)
        self.assertEqual(stays.check(), (24 * 256, 0, 0))

    def test_regions_and_their_children_whatever_the_program_closes(self):
        self.start()
        program = build_with_regions("region_descriptors.c")
        for mode, close, inherit in [("signal", "none", 0), ("signal", "range", 0), ("thread", "none", 0),
                                     ("signal", "none", 1), ("signal", "range", 1)]:
            with self.subTest(mode=mode, close=close, inherit=inherit):
                ran = self.run_plain(program, mode, self.spec, close, inherit, self.dir)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "", ""))
                if not inherit:
                    self.assertEqual(self.pages(), 0)

    def test_the_doctor_looks_at_a_server(self):
        self.start()
        done = self.run_plain(FARPAGE, "doctor", "--swap", self.spec)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("maxmemory-policy noeviction", done.stdout)
        self.assertIn("one page read in", done.stdout)
        self.assertEqual(self.pages(), 0)
        self.stop()
        done = self.run_plain(FARPAGE, "doctor", "--swap", self.spec)
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
