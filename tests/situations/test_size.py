"""`farpage size`: the shape of what it says, and that it says what was measured beside what was predicted. `farpage
bench program` with several budgets, of the same program."""

import json
import unittest

from holder import PYTHON
from situation import FARPAGE, Situation, unless_there

# 40 MiB, half of which compresses, filled and gone through a few times, in an order in which nothing is read ahead. So
# no pass needs less than what there was no room for, nor more than each page once. Nothing is freed at the end, which
# would need it all once more, and what it has is there for long enough to be seen.
PASSES = """
import ctypes, random, time
rng = random.Random(1)
kept = [bytearray(rng.randbytes(2048) + bytes(2048)) for _ in range(10240)]
rng.shuffle(kept)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
total = 0
for turn in range(3):
    for page in kept:
        page[0] = page[0] + 1 & 255
        total += page[0]
print(total)
time.sleep(0.2)
"""
PAGES, TURNS = 10240, 3
SEVERAL = """
import os, sys
if os.fork() == 0:
    sys.argv = ["x"]
    exec(os.environ["PASSES"])
    os._exit(0)
exec(os.environ["PASSES"])
os.wait()
"""
MIB = 1 << 20
BEFORE = r"\Afarpage size: as it is, it takes [\d.]+ s; all runs together take [\d.]+ \w+ to [\d.]+ \w+; --quick takes "


@unless_there(PYTHON)
class Size(Situation):
    def size(self, *argv, options=()):
        return self.run_plain(FARPAGE, "size", *options, "--", *argv)

    def test_the_curve_is_checked_by_real_runs(self):
        path = self.dir / "size.json"
        done = self.size(PYTHON, "-c", PASSES, options=["--json", path])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, BEFORE + r"[\d.]+ \w+\n\Z")
        lines = done.stdout.splitlines()
        self.assertTrue(all(len(line) <= 80 for line in lines if not line.startswith(PYTHON)), done.stdout)
        answer = r"needs (\d+ MiB to run at most 1.5 times as long as with )?all of its \d+ MiB"
        self.assertRegex(done.stdout, answer)
        self.assertRegex(done.stdout, r"checked +at +\d+ MiB: predicted [\d.]+ s, measured [\d.]+ s \([+-]\d+ %[):]")

        found = json.loads(path.read_text())
        rows = found["rows"]
        self.assertEqual(rows[0]["ram_bytes"], found["peak_bytes"])
        self.assertEqual(rows[0]["seconds"], found["plain_seconds"])
        self.assertGreater(found["peak_bytes"], 40 * MIB)
        self.assertGreaterEqual(rows[-1]["ram_bytes"], 16 * MIB)
        for more, less in zip(rows, rows[1:]):
            self.assertGreater(more["ram_bytes"], less["ram_bytes"])
            # Times are what a busy machine makes of them, so a little less memory may seem cheaper.
            self.assertGreaterEqual(less["seconds"], found["plain_seconds"], rows)
            # What a pass has no room for must come in, whoever manages the memory.
            self.assertGreaterEqual(less["pages_in"], TURNS * (PAGES - less["ram_bytes"] / 4096), rows)
        # Three passes: each page comes in three times, or not much more often.
        self.assertLess(rows[-1]["pages_in"], (TURNS + 1) * found["peak_bytes"] / 4096)

        runs = found["runs"]
        # What would be the answer is measured, up to three times more.
        self.assertIn(sum(run["for"] == "check" for run in runs), range(2, 6), runs)
        self.assertIn(sum(run["for"] == "calibration" for run in runs), (2, 3), runs)
        self.assertEqual(len({run["ram_bytes"] for run in runs}), len(runs), "each has another budget")
        for run in runs:
            self.assertGreater(run["measured_seconds"], 0)
            self.assertGreater(run["predicted_seconds"], 0)
        knees = {knee["times"]: knee["ram_bytes"] for knee in found["knees"]}
        # With the knee's budget, or more, it takes no longer; looked at in steps of 400 parts.
        for times, ram in knees.items():
            slowest = max(row["times"] for row in rows if row["ram_bytes"] >= ram)
            self.assertLess(slowest, times * 1.02, (times, rows))
        self.assert_measured(found)
        self.assertLessEqual(knees[1.5], knees[1.1])
        self.assertLessEqual(knees[1.1], found["peak_bytes"])

    def test_json_alone(self):
        done = self.size(PYTHON, "-c", PASSES, options=["--json", "-"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["program"][0], PYTHON)

    def assert_measured(self, found):
        """No answer and no row is a guess, and the curve does not fall with less memory."""
        ended = {run["ram_bytes"] for run in found["runs"] if not run["stopped"]} | {found["peak_bytes"]}
        self.assertLessEqual({knee["ram_bytes"] for knee in found["knees"]}, ended)
        self.assertEqual(found["least_measured_bytes"], min(ended))
        rows = found["rows"]
        self.assertEqual(rows[-1]["ram_bytes"], min(ended))
        self.assertEqual({row["ram_bytes"] for row in rows if row["measured"]}, ended)
        for name in "seconds", "major_faults", "pages_in", "pages_out":
            values = [row[name] for row in rows]
            self.assertEqual(values, sorted(values), name)

    def test_quick_is_two_runs(self):
        path = self.dir / "size.json"
        done = self.size(PYTHON, "-c", PASSES, options=["--quick", "--json", path])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"\Afarpage size: as it is, it takes [\d.]+ s; all runs together take [\d.]+ s\n")
        found = json.loads(path.read_text())
        (run,) = found["runs"]
        self.assertAlmostEqual(run["ram_bytes"], found["peak_bytes"] / 2, delta=MIB)
        self.assert_measured(found)
        self.assertRegex(done.stdout, r"measured +at +\d+ MiB: (measured|stopped after) [\d.]+ s\n")
        self.assertRegex(done.stdout, r"No less was measured: less may do\.|with each budget that was tried, from")

    def test_what_cannot_be_sized_is_said(self):
        for argv, options, status, said in [
            (["/bin/true"], [], 1, "the least budget, 16.0 MiB, will do"),
            (["/bin/false"], [], 1, "as it is, /bin/false ended with exit status: 1"),
            (["/nowhere"], [], 127, "cannot run /nowhere"),
            (["/bin/sleep", "60"], ["--limit", "1"], 1, "does not end within 1 s"),
            (["/bin/true"], ["--swap", "tape"], 2, "--swap"),
        ]:
            with self.subTest(argv=argv, options=options):
                done = self.size(*argv, options=options)
                self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
                self.assertIn(said, done.stderr)

    def test_several_processes_are_measured_together(self):
        path = self.dir / "size.json"
        argv = [FARPAGE, "size", "--json", path, "--", PYTHON, "-c", SEVERAL]
        done = self.run_plain("env", f"PASSES={PASSES}", *argv)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("it starts others that need memory: all were measured together", done.stdout)
        found = json.loads(path.read_text())
        self.assertGreater(found["peak_bytes"], 80 * MIB, "of both")
        self.assertTrue(all(row["measured"] for row in found["rows"]))
        self.assert_measured(found)
        self.assertGreater(found["rows"][-1]["pages_in"], 0)

    def test_a_measured_curve(self):
        path = self.dir / "curve.json"
        done = self.run_plain(FARPAGE, "bench", "program", "--no-kernel", "--rounds", "1", "--json", path,
                              "--ram", "64M,24M,64M", "--", PYTHON, "-c", PASSES)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(path.read_text())
        self.assertEqual([size["ram_bytes"] for size in found["sizes"]], [24 * MIB, 64 * MIB])
        # All of it fits into the larger one, and that is the only sure comparison: where both are too small, a larger
        # budget may have more faults, of which each brings in fewer pages ahead.
        faults = [size["rows"][-1]["major_faults"] for size in found["sizes"]]
        self.assertGreater(faults[0], 0)
        self.assertEqual(faults[1], 0)
        self.assertRegex(done.stdout, r"(?m)^ +24 +24 .*\n( {7}\S.*\n)*^ +64 +64 ")


if __name__ == "__main__":
    unittest.main()
