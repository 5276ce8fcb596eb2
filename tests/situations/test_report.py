"""The page that `farpage run --report` writes: what is in it, and what a browser makes of it."""

import json
import re
import subprocess
import unittest

from holder import PYTHON
from situation import FARPAGE, HANG, Situation, unless_there

# Fills 96 MiB twice as large as its budget, and reads it again.
PROGRAM = "kept = [bytes([i % 251]) * 1_000_000 + str(i).encode() for i in range(96)]; print(sum(map(hash, kept)) & 0)"

# The same, and 16 MiB of a file, privately; then it rests for several looks (one in a second at least, unless a look
# takes 20 ms), so that what there is gets looked at, and ends with it.
NAMED = """import mmap, os, sys, time
file = open(sys.argv[1], "r+b")
table = mmap.mmap(file.fileno(), 16 << 20, flags=mmap.MAP_PRIVATE)
for at in range(0, 16 << 20, 4096): table[at] = 1 + at % 251
""" + PROGRAM + """
for at in range(0, 16 << 20, 4096): assert table[at] == 1 + at % 251
sys.stdout.flush()
time.sleep(4)
os._exit(0)"""


@unless_there(PYTHON)
class Report(Situation):
    def report(self, name, *options):
        page = self.dir / f"{name}.html"
        done = self.run_farpage(PYTHON, "-c", PROGRAM, ram="48M", options=["--report", page, *options])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "0\n", ""))
        return page

    def runs(self, page):
        text = page.read_text(encoding="utf-8")
        return json.loads(re.search(r'<script id="runs" type="application/json">(.*?)</script>', text, re.S)[1])

    def test_what_is_in_it(self):
        (run,) = self.runs(self.report("one"))
        samples = run["samples"]
        self.assertEqual({len(column) for column in samples.values()}, {len(samples["t_s"])})
        self.assertEqual(samples["t_s"], sorted(samples["t_s"]))
        self.assertEqual(set(samples["budget_bytes"]), {48 << 20})
        self.assertGreater(max(samples["swapped_bytes"]), 16 << 20)
        self.assertEqual(samples["pswpout"][-1], run["pswpout"])
        self.assertEqual((run["program"][0], run["exit_status"]), (PYTHON, 0))
        self.assertIn("kernel", run["environment"])

    def test_all_of_a_tree_and_its_status(self):
        page = self.dir / "tree.html"
        both = f'{PYTHON} -c "{PROGRAM}" & {PYTHON} -c "{PROGRAM}"; wait; exit 7'
        done = self.run_farpage("sh", "-c", both, ram="64M", options=["--report", page])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "0\n0\n", ""))
        (run,) = self.runs(page)
        self.assertGreaterEqual(max(run["samples"]["processes"]), 2)
        # The shell itself has nothing to swap.
        self.assertGreater(run["samples"]["pswpout"][-1], 16 << 8)

    def named(self):
        """The page of a program with a mapping that has a name."""
        (self.dir / "table.bin").write_bytes(bytes(16 << 20))
        page = self.dir / "named.html"
        argv = [PYTHON, "-c", NAMED, self.dir / "table.bin"]
        done = self.run_farpage(*argv, ram="48M", options=["--report", page])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "0\n", ""))
        return page

    def test_mappings_have_names(self):
        (run,) = self.runs(self.named())
        (table,) = [one for one in run["mappings"] if one["name"] == "table.bin"]
        self.assertEqual(table["bytes"], 16 << 20)
        for size in ["resident_bytes", "resident_peak_bytes"]:
            self.assertIn(table[size], range(1, (16 << 20) + 1))
            self.assertIn(sum(one[size] for one in run["mappings"]), range(16 << 20, run["maxrss_bytes"] + (16 << 20)))
        # Whose faults are counted by mapping is managed, and has a name or is anonymous memory.
        faults = {one["start"]: one["name"] for one in run["mappings"] if one["pgmajfault"] > 0}
        self.assertTrue(faults)
        self.assertNotIn("", faults.values())

    def test_two_beside_each_other(self):
        pages, both = [self.report("one"), self.report("two", "--readahead", "none")], self.dir / "both.html"
        done = self.run_plain(FARPAGE, "report", *pages, "--output", both)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(self.runs(both), [run for page in pages for run in self.runs(page)])
        done = self.run_plain(FARPAGE, "report", "/etc/passwd", "--output", both)
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is no report", done.stderr)

    def test_what_cannot_be_written(self):
        done = self.run_farpage("true", options=["--report", "/no/such/directory/page.html"])
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("--report: cannot write /no/such/directory/page.html", done.stderr)

    def in_a_browser(self, page, *colours):
        argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.dir}/profile",
                *colours, "--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
        return subprocess.run(argv, capture_output=True, text=True, timeout=HANG, check=True)

    @unless_there("chromium")
    def test_a_browser_says_what_all_processes_waited_and_which_were_largest(self):
        page = self.dir / "tree.html"
        self.run_farpage("sh", "-c", '"$@"; true', "sh", PYTHON, "-c", PROGRAM, ram="48M", options=["--report", page])
        self.assertRegex(self.in_a_browser(page).stdout, r"for memory in total, at least one for \d+% of the "
                                                         r"time; [^<]*; largest processes: python\S* [\d.]+ MiB")

    @unless_there("chromium")
    def test_a_browser_draws_it(self):
        page = self.named()
        for colours in [[], ["--blink-settings=preferredColorScheme=0"]]:
            done = self.in_a_browser(page, *colours)
            drawn = re.search(r'<html[^>]*data-drawn="(\d+)"', done.stdout)
            self.assertIsNotNone(drawn, done.stderr[-2000:])
            self.assertGreaterEqual(int(drawn[1]), 5)
            shown = done.stdout.replace(' class=""', "")
            self.assertIn("<h2>Memory</h2>", shown)
            self.assertRegex(shown, r'<td>table\.bin at 0x[0-9a-f]+</td><td class="number">16\.0 MiB</td>')


if __name__ == "__main__":
    unittest.main()
