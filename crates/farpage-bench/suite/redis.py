"""A Redis server, filled and then asked at random by this client, over a socket in this directory."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib

KEYS, GETS, BATCH = 180_000, 180_000, 50
NOISE = random.Random(5).randbytes(1 << 20)


def value(i):
    """1000 bytes, half of which compress."""
    at = i * 7919 % (len(NOISE) - 500)
    return (b"%08d value of a key, " % i * 20)[:500] + NOISE[at : at + 500]


def talk(stream, commands):
    """Sends commands and gives the answers: RESP2, as far as it is needed."""
    out = []
    for words in commands:
        out.append(b"*%d\r\n" % len(words))
        out += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    stream.write(b"".join(out))
    stream.flush()
    for _ in commands:
        line = stream.readline()
        if line[:1] == b"$":
            yield stream.read(int(line[1:]) + 2)[:-2]
        elif line[:1] in b"+:" and line:
            yield line[1:-2]
        else:
            sys.exit(f"the server said {line!r}")


def connect():
    end = time.monotonic() + 60
    while True:
        try:
            client = socket.socket(socket.AF_UNIX)
            client.connect("socket")
            return client.makefile("rwb", buffering=1 << 18)
        except OSError:
            client.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
# The same binary is the server, where it is called so.
binary = shutil.which("redis-check-rdb")
server = subprocess.Popen(
    ["redis-server", "--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "no",
     "--logfile", os.devnull],
    executable=binary, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
)  # fmt: skip
try:
    stream = connect()
    for at in range(0, KEYS, BATCH):
        for _ in talk(stream, [(b"SET", b"key:%d" % i, value(i)) for i in range(at, at + BATCH)]):
            pass
    rng, crc = random.Random(9), 0
    for _ in range(0, GETS, BATCH):
        keys = [rng.randrange(KEYS) for _ in range(BATCH)]
        for i, got in zip(keys, talk(stream, [(b"GET", b"key:%d" % i) for i in keys])):
            if got != value(i):
                sys.exit(f"key:{i} is {got[:40]!r}...")
            crc = zlib.crc32(got, crc)
    print(*talk(stream, [(b"DBSIZE",)]), f"{crc:08x}")
finally:
    server.kill()
    server.wait()
