#!/usr/bin/env python3
"""A swapped-out page whose bytes were changed by a third party: `--verify` ends the program instead of giving it wrong
ones.

    verify.py FARPAGE

The device is plain memory, so the copies of pages are found by what the program wrote into them."""

import errno
import os
import re
import signal
import struct
import subprocess
import sys

MB = 64
MAGIC = 0x6661727061676500
PROGRAM = f"""
import ctypes, mmap, struct, sys
page, n = 4096, {MB} << 8
m = mmap.mmap(-1, n * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(n):
    m[i * page:i * page + page] = struct.pack("<QQ", {MAGIC}, i) * (page // 16)
print(hex(ctypes.addressof(ctypes.c_char.from_buffer(m))), flush=True)
sys.stdin.readline()
wrong = sum(m[i * page:i * page + page] != struct.pack("<QQ", {MAGIC}, i) * (page // 16) for i in range(n))
print(wrong)
"""
# What was written last may still be in the swap cache, where it has no copy yet.
STORED = (MB << 8) * 3 // 4


def change(pid, start, end):
    """Changes a byte of every copy of a page; which pages. The program's own memory is not looked at: that would bring
    them back."""
    pages = set()
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in open(f"/proc/{pid}/maps"):
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if not re.match(r"\S+ rw.p 00000000 00:00 0 ", line) or high > start and low < end:
                continue
            for base in range(low, high, 1 << 30):
                words = os.pread(pagemap.fileno(), min(high - base, 1 << 30) // 512, base // 512)
                there = (base + i * 4096 for i, word in enumerate(memoryview(words).cast("Q")) if word >> 63)
                for at in there:
                    try:
                        magic, page = struct.unpack("<QQ", os.pread(memory.fileno(), 16, at))
                    except OSError as e:
                        if e.errno != errno.EIO:
                            raise
                        continue  # memory of the program's, not a copy: it went out since its word was read
                    if magic == MAGIC and page < STORED:
                        os.pwrite(memory.fileno(), b"\xff", at + 1000)
                        pages.add(page)
    return pages


def run(*options):
    """Runs the program, and changes its pages while they are out. Exit status, output, messages, the addresses of these
    pages."""
    command = [sys.argv[1], "run", "--ram", "40M", "--swap", "ram", "--swap", "file:/var/tmp", *options, "--", sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    address = int(child.stdout.readline(), 16)
    changed = change(child.pid, address, address + (MB << 20))
    out, err = child.communicate("go on\n", timeout=300)
    print(len(changed), "pages changed:", child.returncode, out.strip(), err.strip())
    return child.returncode, out, err, [hex(address + page * 4096) for page in changed]


status, out, _, changed = run()
assert status == 0 and 0 < int(out) <= len(changed), "the test is no test"
status, out, err, changed = run("--verify")
said = re.search(r"verify: the page at (0x[0-9a-f]+) came back wrong from slot 0x[0-9a-f]+: hash", err)
assert status == -signal.SIGABRT and not out and said[1] in changed
