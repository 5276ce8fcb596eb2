"""Files that farpage makes: nobody else reads a program's memory in them, also later; no planted name is followed."""

import json
import os
import signal
import stat
import subprocess
import sys
import unittest

from situation import BENCH, FARPAGE, Situation, unless_root

# More than its budget of what does not compress; then it waits.
FILL = """
import os, sys
secret = b"a secret that is swapped out, "
kept = [secret + os.urandom(4066) for _ in range(12288)]
print("ready", flush=True)
sys.stdin.read()
sys.exit(any(not page.startswith(secret) for page in kept))
"""


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


class Files(Situation):
    def start(self, *options):
        """The program, swapped out to a good part, waiting for its input to end."""
        argv = [FARPAGE, "run", "--ram", "24M", *options, "--", sys.executable, "-c", FILL]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process

    def wait_for_files(self, process):
        """Until much of it is on files."""
        stat = lambda: json.loads(self.run_plain(FARPAGE, "stat", "--json", process.pid).stdout)
        self.wait_until("it is on files", lambda: stat()["file_bytes"] > 8 << 20)

    def test_a_named_swap_file_has_nothing_in_it(self):
        # As `touch` makes it, readable by all; and left by an earlier version of farpage.
        old = b"FARPAGE-SWAP 1\n\0" + b"pages of an earlier program" * 1000
        for before, end in [(b"", signal.SIGKILL), (old, None)]:
            swap = self.dir / "swap"
            swap.write_bytes(before)
            swap.chmod(0o644)
            process = self.start("--swap", f"file:{swap}")
            self.wait_for_files(process)
            self.assertEqual(swap.read_bytes(), b"")
            if end:
                process.send_signal(end)
            process.stdin.close()
            self.assertEqual(process.wait(), -end if end else 0)
            self.assertEqual(swap.read_bytes(), b"")
            self.assertEqual(os.listdir(self.dir), ["swap"])

    def test_a_swap_file_that_does_not_exist_is_made_and_has_nothing_in_it(self):
        swap = self.dir / "swap"
        process = self.start("--swap", f"file:{swap}")
        self.wait_for_files(process)
        process.stdin.close()
        self.assertEqual(process.wait(), 0)
        self.assertEqual((swap.read_bytes(), mode(swap)), (b"", 0o600))
        self.assertEqual(os.listdir(self.dir), ["swap"])

    def test_a_named_swap_file_of_somebody_else_or_of_another_kind_stays_as_it_is(self):
        data = self.dir / "data"
        data.write_bytes(b"not farpage's")
        (self.dir / "link").symlink_to(data)
        os.link(data, self.dir / "hard")
        os.mkfifo(self.dir / "pipe")
        for name in ["data", "link", "hard", "pipe"]:
            done = self.run_farpage("true", options=["--swap", f"file:{self.dir / name}"])
            self.assertEqual((done.returncode, done.stdout), (125, ""), name)
        self.assertEqual(data.read_bytes(), b"not farpage's")

    def test_new_files_are_private(self):
        # Also where the mask would let all read them.
        trace, stats = self.dir / "trace", self.dir / "stats.json"
        options = ["--trace", trace, "--stats-json", stats]
        done = self.run_farpage(sys.executable, "-c", FILL, options=options, preexec_fn=lambda: os.umask(0))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((mode(trace), mode(stats)), (0o600, 0o600))
        self.assertGreater(trace.stat().st_size, 8)
        # What is there keeps the permissions that its owner gave it.
        stats.chmod(0o640)
        self.run_farpage("true", options=["--stats-json", stats])
        self.assertEqual(mode(stats), 0o640)
        self.assertGreater(json.loads(stats.read_text())["wall_ns"], 0)
        self.assertEqual(sorted(os.listdir(self.dir)), ["stats.json", "trace"])

    @unless_root
    def test_no_planted_name_is_followed(self):
        victim, place = self.dir / "victim", self.dir / "place"
        victim.write_text("precious")
        place.mkdir()
        # The names that the number of the process would give; the shell becomes the bench.
        report = self.dir / "report"
        plant = (f"umask 0; for name in .farpage-bench-$$ .farpage-bench-swap-$$; do ln -s {victim} {place}/$name; done"
                 '; exec "$@"')
        bench = [BENCH, "compare", "--no-kernel", "--ram", "16M", "--data", "24M", "--rounds", "1",
                 "--workload", "fill", "--swap", f"file:{place}"]
        done = self.run_plain("sh", "-c", plant, "sh", *bench, "--dir", place, "--json", report)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(victim.read_text(), "precious")
        self.assertEqual(mode(report), 0o600)


if __name__ == "__main__":
    unittest.main()
