"""A small Redis client, and what it does to a server: fill, read back, change while it saves, check what it saved."""

import os
import random
import socket
import subprocess
import threading
import time
import zlib


class Connection:
    """One connection that speaks RESP2, with pipelining."""

    def __init__(self, port, seconds=60):
        end = time.monotonic() + seconds
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=240)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.file = self.socket.makefile("rb", buffering=1 << 16)

    def send(self, commands):
        out = []
        for command in commands:
            out.append(b"*%d\r\n" % len(command))
            for word in command:
                word = word if isinstance(word, bytes) else str(word).encode()
                out.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(out))

    def answer(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if rest == b"-1":
            return None
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        return [self.answer() for _ in range(int(rest))]

    def all(self, commands):
        self.send(commands)
        return [self.answer() for _ in commands]

    def one(self, *command):
        return self.all([command])[0]


NOISE = random.Random(5).randbytes(1 << 20)


def value(i, version):
    """200 to 2400 bytes; every third value does not compress."""
    h = zlib.crc32(b"%d:%d" % (i, version))
    length = 200 + h % 2200
    if i % 3 == 0:
        at = h % (len(NOISE) - 2400)
        return b"%d %d " % (i, version) + NOISE[at : at + length]
    return (b"%08x value of key %d, version %d; " % (h, i, version)) * (length // 50)


BATCH = 200


def write(c, keys, version):
    keys = list(keys)
    for at in range(0, len(keys), BATCH):
        c.all([("SET", f"key:{i}", value(i, version)) for i in keys[at : at + BATCH]])


def compare(c, keys, version, what):
    keys = list(keys)
    for at in range(0, len(keys), BATCH):
        part = keys[at : at + BATCH]
        for i, got in zip(part, c.all([("GET", f"key:{i}") for i in part])):
            if got != value(i, version(i)):
                raise AssertionError(f"{what}: key:{i} is {got[:60] if got else got!r}...")


def info(c, field):
    for l in c.one("INFO", "persistence").decode().splitlines():
        if l.startswith(field + ":"):
            return l.split(":", 1)[1]
    return ""


def scenario(c, keys, say):
    """Talks to the server that is under test."""
    write(c, range(keys), 1)
    for at in range(0, keys, 50):
        c.one("RPUSH", "list", *range(at, at + 50))
        c.one("ZADD", "scores", *[w for i in range(at, at + 50) for w in (i * 7919 % keys, f"m{i}")])
    say(f"filled {c.one('DBSIZE')} keys")
    compare(c, range(keys), lambda i: 1, "after filling")
    write(c, range(0, keys, 4), 2)

    def version(i):
        return 2 if i % 4 == 0 else 1

    compare(c, ((i * 7919) % keys for i in range(0, keys, 2)), version, "in random order")
    say("read back in random order")
    # The child saves what was there when it was forked; the parent's changes meanwhile must not show in the file.
    c.one("BGSAVE")
    write(c, range(1, keys, 8), 3)
    while info(c, "rdb_bgsave_in_progress") == "1":
        write(c, range(2, keys, 80), 3)
        time.sleep(0.02)
    write(c, range(2, keys, 80), 3)
    if info(c, "rdb_last_bgsave_status") != "ok":
        raise AssertionError("BGSAVE failed: see the server's log")
    say("saved in the background")
    compare(c, range(1, keys, 8), lambda i: 3, "what was written during BGSAVE")
    compare(c, range(0, keys, 4), lambda i: 2, "what was not")
    items = c.one("LRANGE", "list", 0, -1)
    if [int(x) for x in items] != list(range(keys)):
        raise AssertionError("the list is wrong")
    say(f"scores {zlib.crc32(b','.join(c.one('ZRANGE', 'scores', 0, -1)))}")
    return version


def check_file(server, work, keys, version, say):
    """Loads the saved file in a server of its own, outside farpage, and compares all keys."""
    rdb = os.path.join(work, "dump.rdb")
    checker = "redis-check-rdb"
    subprocess.run([checker, rdb], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith("FARPAGE_")}
    second = subprocess.Popen(
        [server, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", work, "--logfile", "log2"],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        c = Connection(port)
        while True:
            try:
                size = c.one("DBSIZE")
                break
            except RuntimeError:  # LOADING
                time.sleep(0.05)
        compare(c, range(keys), version, "in the saved file")
        say(f"saved file holds {size} keys")
    finally:
        second.kill()
        second.wait()


class Driver:
    """The client in a thread of its own; `finish` says what went wrong."""

    def __init__(self, server, port, work, keys):
        self.trouble = "did not finish"
        self.lines = []
        self.args = server, port, work, keys
        self.version = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        server, port, work, keys = self.args
        try:
            c = Connection(port)
            self.version = scenario(c, keys, self.lines.append)
            self.trouble = None
        except Exception as e:  # whatever it is, the harness reports it
            self.trouble = f"{type(e).__name__}: {e}"
        try:
            c.send([("SHUTDOWN", "NOSAVE")])
        except Exception:
            pass

    def failed(self):
        return self.trouble and not self.thread.is_alive()

    def finish(self):
        """Called when the server has ended."""
        self.thread.join(30)
        server, port, work, keys = self.args
        if not self.trouble:
            try:
                check_file(server, work, keys, self.version, self.lines.append)
            except Exception as e:
                self.trouble = f"{type(e).__name__}: {e}"
        with open(os.path.join(work, "client"), "w") as f:
            f.write("\n".join(self.lines) + "\n")
        return self.trouble
