"""os.fork with much memory: both sides check all bytes, write, and check again; also a grandchild and a daemon."""

import os
import sys

import numpy as np

from common import check, crc, make, size_words

n = size_words()
half = n // 2
a = make(n)


def report(fd, text):
    os.write(fd, text.encode())
    os.close(fd)


def child(fd):
    check(a, what="child")
    a[:half] += np.uint64(1)
    pid = os.fork()
    if pid == 0:
        a[:half] -= np.uint64(1)
        check(a, what="grandchild")
        os._exit(0)
    a[:half] -= np.uint64(1)
    check(a, what="child after its fork")
    _, status = os.waitpid(pid, 0)
    report(fd, f"child saw {crc(a)}, grandchild ended with {status}")
    os._exit(0)


def daemon(fd):
    """The process between ends at once; the orphan has only its own engine."""
    if os.fork():
        os._exit(0)
    check(a, what="daemon")
    a[half:] += np.uint64(7)
    a[half:] -= np.uint64(7)
    check(a, what="daemon after writing")
    report(fd, f"daemon saw {crc(a)}")
    os._exit(0)


for turn, body in enumerate((child, daemon, child)):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        try:
            body(w)
        finally:
            os._exit(3)
    os.close(w)
    check(a, what="parent")
    a[half:] += np.uint64(5)
    text = b""
    while part := os.read(r, 4096):
        text += part
    os.close(r)
    _, status = os.waitpid(pid, 0)
    print(turn, status, text.decode())
    if status or not text:
        sys.exit(f"turn {turn} failed")
    a[half:] -= np.uint64(5)
    check(a, what="parent after")
print("parent", crc(a))
