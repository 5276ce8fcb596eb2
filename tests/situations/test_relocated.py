"""Relocated tables of libraries (RELRO): private file pages that the loader has written. In each process of postgres
with JIT, rustc and clang that is some MiB, which stayed in memory."""

import json
import subprocess
import unittest
from pathlib import Path

from situation import BUILT, FARPAGE, Situation, build, unless_there

RAM = "16M"
TABLES = 512


class Relocated(Situation):
    def setUp(self):
        super().setUp()
        self.library = build("relocated_tables.c", "-shared", "-fPIC", "-Wl,-z,relro,-z,now", output="librelocated.so")
        linked = ("-Wl,--no-as-needed", self.library, f"-Wl,-rpath,{BUILT}")
        self.program = build("relocated.c", "-fPIC", *linked, output="relocated-linked")
        self.alone = build("relocated.c", "-ldl", output="relocated-alone")

    def use(self, *argv):
        """A run in which the tables are taken over, without a word."""
        stats = Path(self.dir, "stats")
        run = self.run_farpage(*argv, ram=RAM, options=["--verify", "--stats-json", stats])
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "right\n", ""))
        numbers = json.loads(stats.read_text())
        self.assertGreater(numbers["relocated_pages"], TABLES * 3 // 4)

    def test_read_forked_and_written(self):
        self.use(self.program, "linked")

    def test_unloaded_and_loaded_again(self):
        self.use(self.alone, self.library)

    @unless_there("gdb")
    def test_a_debugger_finds_libraries_and_tables(self):
        argv = [FARPAGE, "run", "--ram", RAM, "--", self.program, "sleep"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "ready\n")
            commands = ["info sharedlibrary", "thread apply all backtrace 8", "print table[51200] == &places[100]"]
            gdb = self.run_plain("gdb", "-batch", "-p", process.pid, *(f"--eval-command={c}" for c in commands))
            out, _ = process.communicate("\n")
        self.assertIn("librelocated.so", gdb.stdout)
        self.assertRegex(gdb.stdout, r"#\d+ .*main \(")
        self.assertIn("$1 = 1", gdb.stdout + gdb.stderr)
        self.assertEqual((process.returncode, out), (0, "right\n"))


if __name__ == "__main__":
    unittest.main()
