"""A program that holds memory, computes a digest of it and starts others, as it is told by lines on its input."""

import contextlib
import re
import subprocess
from pathlib import Path

from situation import Situation

MIB = 1 << 20
# One that everybody may run.
PYTHON = "/usr/bin/python3"

HOLDER = """
import ctypes, hashlib, os, struct, subprocess, sys
kept = {i: os.urandom(20).hex() * 25 for i in range(60_000)}
def digest():
    sums = hashlib.sha1()
    for text in kept.values():
        sums.update(text.encode())
    return sums.hexdigest()
first = digest()
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "digest":
        print(digest() == first, flush=True)
    elif words[0] == "run":
        print(subprocess.run(words[1:], stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)
    elif words[0] == "copied":
        done = subprocess.run(words[1:], stdout=subprocess.PIPE, text=True, env=dict(os.environ, OWN="1"))
        print(done.stdout.strip(), flush=True)
    elif words[0] == "shell":
        os.system(line.split(" ", 1)[1])
    elif words[0] == "pipe":
        print(os.popen(line.split(" ", 1)[1]).read().strip(), flush=True)
    elif words[0] == "fork":
        pid = os.fork()
        if pid == 0:
            os._exit(0 if digest() == first else 1)
        print(os.waitpid(pid, 0)[1], flush=True)
    elif words[0] == "stay":
        ends, end = os.pipe()
        stays = os.fork()
        if stays == 0:
            os.close(end)
            os.read(ends, 1)
            os._exit(0 if digest() == first else 1)
        print("staying", flush=True)
    elif words[0] == "stayed":
        os.close(end)
        print(os.waitpid(stays, 0)[1], flush=True)
    elif words[0] == "look":
        looks = open("/proc/self/pagemap", "rb")
        print("looks", flush=True)
    elif words[0] == "filter":
        allow = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
        program = ctypes.create_string_buffer(allow)
        libc, SECCOMP, NO_NEW_PRIVS = ctypes.CDLL(None), 22, 38
        libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        print(libc.prctl(SECCOMP, 2, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)), 0, 0), flush=True)
    elif words[0] == "grow":
        kept.update((len(kept) + i, "x" * 10_000) for i in range(int(words[1])))
        first = digest()
        print("grown", flush=True)
"""


def resident(pid):
    """Anonymous memory, bytes; 0: it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


class Holding(Situation):
    """Tests with such programs."""

    def begin(self, *argv, **options):
        """Starts a program, waits until it says that it is ready; it is killed at the end of the test."""
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1} | options
        process = subprocess.Popen([str(a) for a in argv], **options)
        self.addCleanup(self.end, process)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    @staticmethod
    def end(process):
        process.kill()
        with process:
            pass

    def assert_refused(self, done, why):
        """One sentence, with what to do."""
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, rf"\Afarpage: cannot [^\n]*{why}[^\n]*\n(  help: [^\n]*\n)?\Z")

    def ask(self, process, line):
        process.stdin.write(line + "\n")
        return process.stdout.readline().strip()
