"""Programs that must find themselves with one thread (sandboxes, Chromium's zygote): there is no engine before the
program has come to a part of its budget, and there is one by the time it could pass it, whatever way it takes."""

import json
import os
import pwd
import subprocess
import unittest

from situation import FARPAGE, Situation, build, unless_root, unless_there

BUDGET, MB = "20M", 40


class Alone(Situation):
    @unless_root
    def test_one_thread_here_and_in_children(self):
        ours = self.assert_same(build("alone.c"), ram="1G")
        self.assertIn("threads 1\n", ours.stdout)
        self.assertEqual(ours.stdout.count("allowed"), 3, ours.stdout)

    @unless_there("bwrap")
    def test_bubblewrap(self):
        ours = self.assert_same("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true", ram="1G")
        self.assertEqual((ours.returncode, ours.stderr), (0, ""))
        # It goes into a second user namespace, which only a process with one thread may.
        self.assert_same("bwrap", "--ro-bind", "/", "/", "--unshare-user", "--disable-userns", "true", ram="1G")

    @unless_root
    @unless_there("chromium")
    def test_chromium(self):
        page = self.dir / "page.html"
        page.write_text("<p id=p></p><script>p.textContent = [...Array(1000).keys()].reduce((a, b) => a + b)</script>")
        user = pwd.getpwnam("nobody")
        os.chown(self.dir, user.pw_uid, user.pw_gid)
        page.chmod(0o644)
        command = ["env", f"HOME={self.dir}", "chromium", "--headless", "--disable-gpu", "--dump-dom", f"file://{page}"]
        # Without its sandbox, and with little more than it takes: its zygote must have one thread all the same.
        for ram, options, switches in (("1G", ["--user", "nobody"], []), *[("400M", [], ["--no-sandbox"])] * 2):
            ours = self.run_farpage(*command, *switches, ram=ram, options=options, cwd=self.dir)
            self.assertIn(">499500</p>", ours.stdout, ours.stderr)
            self.assertEqual(ours.returncode, 0)
            self.assertNotIn("farpage", ours.stderr)

    def test_the_launcher_knows_a_program_without_an_engine(self):
        report = self.dir / "report"
        self.run_farpage("true", ram="1G", options=["--stats-json", report])
        report = json.loads(report.read_text())
        self.assertEqual((report["active"], report["budget_bytes"]), (0, 1 << 30))
        self.assertGreater(report["rss_anon_peak_bytes"], 0)

    def test_stat_lists_a_program_without_an_engine(self):
        with subprocess.Popen([FARPAGE, "run", "--ram", "1G", "--", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as program:  # fmt: skip
            try:
                program.stdout.readline()
                out = self.run_plain(FARPAGE, "stat", "--json", program.pid).stdout
                table = self.run_plain(FARPAGE, "stat").stdout
            finally:
                program.stdin.close()
        stat = json.loads(out)
        self.assertEqual((stat["active"], stat["budget_bytes"]), (0, 1 << 30))
        self.assertGreater(stat["rss_anon_bytes"], 0)
        self.assertIn(f"{program.pid} ", table)


class Grows(Situation):
    """Each way to get memory wakes the engine (the program waits for it), and no word of it is wrong."""

    def grow(self, way, program=None, prefix=(), ram=BUDGET):
        program = program or build("grow.c")
        ours = self.run_farpage(*prefix, program, way, MB, "engine", ram=ram)
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (0, "ok\n", ""), way)

    def test_mappings(self):
        for way in ("mmap", "pieces", "syscall", "mremap", "mprotect", "populate", "file"):
            with self.subTest(way):
                self.grow(way)

    def test_heap(self):
        for way in ("malloc", "large", "brk", "sbrk"):
            with self.subTest(way):
                self.grow(way)

    def test_stacks(self):
        self.grow("thread")
        # One that has no limit can grow beyond the budget without another word.
        self.grow("stack", prefix=["sh", "-c", 'ulimit -s unlimited && exec "$@"', "sh"])

    def test_own_system_calls(self):
        self.grow("unseen")
        program = build("nolibc.c", "-nostdlib", "-fno-stack-protector", "-pie", "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2")
        report = self.dir / "report"
        ours = self.run_farpage(program, ram=BUDGET, options=["--stats-json", report])
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (0, "ok\n", ""))
        self.assertGreater(json.loads(report.read_text())["pswpout"], 0)

    def test_children(self):
        for way in ("child", "unannounced"):
            with self.subTest(way):
                self.grow(way)

    def test_static_memory(self):
        self.grow("static", build("grow.c", f"-DSTATIC_MB={MB}", output="grow_static"))


class Late(Situation):
    """What is wrong by the time the engine is to start is said once, and the program goes on."""

    def test_a_swap_directory_that_has_gone(self):
        place = self.dir / "swap"
        place.mkdir()
        program = 'rmdir "$0" && exec "$@"'
        options = ["--swap", "zram", "--swap", f"file:{place}"]
        ours = self.run_farpage("sh", "-c", program, place, build("grow.c"), "large", MB, "engine", ram=BUDGET,
                                options=options)  # fmt: skip
        self.assertEqual((ours.returncode, ours.stdout), (0, "ok\n"))
        self.assertEqual(ours.stderr.count("farpage:"), 1, ours.stderr)
        self.assertIn("going on without it", ours.stderr)

    def test_no_device_at_all(self):
        place = self.dir / "swap"
        place.mkdir()
        ours = self.run_farpage("sh", "-c", 'rmdir "$0" && exec "$@"', place, build("grow.c"), "large", MB, ram=BUDGET,
                                options=["--swap", f"file:{place}"])  # fmt: skip
        self.assertEqual((ours.returncode, ours.stdout), (0, "ok\n"))
        self.assertEqual(ours.stderr.count("farpage:"), 1, ours.stderr)
        self.assertIn("this process goes on without a budget", ours.stderr)


if __name__ == "__main__":
    unittest.main()
