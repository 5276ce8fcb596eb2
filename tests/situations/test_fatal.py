"""The end with a message: at once and by SIGABRT, whatever handler the program has for it and whoever reads its
messages."""

import errno
import os
import re
import signal
import struct
import subprocess
import unittest
from pathlib import Path

from situation import FARPAGE, HANG, Situation, build, build_with_regions

MB = 40
MAGIC = 0x6661727061676500


def spoil(pid, start, end):
    """Changes a byte of every copy of a page of `start..end` that lies elsewhere in the process; how many."""
    count = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if not re.match(r"\S+ rw.p 00000000 00:00 0 ", line) or high > start and low < end:
                continue
            for base in range(low, high, 1 << 30):
                words = os.pread(pagemap.fileno(), min(high - base, 1 << 30) // 512, base // 512)
                for i, word in enumerate(memoryview(words).cast("Q")):
                    if not word >> 63:
                        continue
                    try:
                        found = os.pread(memory.fileno(), 16, base + i * 4096)
                    except OSError as e:
                        if e.errno != errno.EIO:
                            raise
                        continue  # memory of the program's that went out meanwhile
                    if struct.unpack("<QQ", found)[0] == MAGIC:
                        os.pwrite(memory.fileno(), b"\xff", base + i * 4096 + 1000)
                        count += 1
    return count


class Fatal(Situation):
    def ends(self, *argv, stderr):
        """Runs the program under --verify, and changes what is out."""
        command = [FARPAGE, "run", "--ram", "24M", "--verify", "--swap", "ram", "--swap", "file:/var/tmp", "--"]
        with subprocess.Popen([*command, build("abort_handler.c"), str(MB), *argv], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
            try:
                start = int(process.stdout.readline(), 16)
                self.assertGreater(spoil(process.pid, start, start + (MB << 20)), 0)
                out, _ = process.communicate("go on\n", timeout=HANG)
            finally:
                process.kill()
        self.assertEqual((process.returncode, out), (-signal.SIGABRT, ""))

    def test_a_handler_does_not_run_and_the_process_ends(self):
        with open(self.dir / "messages", "w+") as messages:
            self.ends(stderr=messages)
            messages.seek(0)
            said = messages.read()
            self.assertIn("came back wrong", said)
            self.assertRegex(said, "farpage: last events .* fault ")

    def test_nobody_reads_the_message(self):
        read, write = os.pipe()
        for end in (read, write):
            self.addCleanup(os.close, end)
        self.ends("full", stderr=write)

    def test_regions(self):
        ran = self.run_plain(build_with_regions("region_abort.c"))
        self.assertEqual((ran.returncode, ran.stdout), (-signal.SIGABRT, ""))
        self.assertIn("unmapped by the program", ran.stderr)


if __name__ == "__main__":
    unittest.main()
