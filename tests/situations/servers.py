"""A server under load for the tests: started plain or under farpage, asked by several clients at once, reloaded
meanwhile.

What it says, its status, every answer and the memory of its processes are kept, to be compared with the plain run's.
All sockets are files of the test's directory."""

import contextlib
import http.client
import os
import queue
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from situation import FARPAGE, HANG, TARGET, without_waiting

# Where scripts/setup.sh unpacks what would start a service if it were installed.
UNPACKED = TARGET / "servers"
CLIENTS = 6


def find(command):
    """The path of a server's program; `None`: there is none."""
    here = [*UNPACKED.glob("usr/lib/postgresql/*/bin"), UNPACKED / "usr/sbin", UNPACKED / "usr/bin"]
    path = os.pathsep.join([*map(str, Path("/usr/lib/postgresql").glob("*/bin")), os.environ["PATH"], "/usr/sbin",
                            *map(str, here)])
    return shutil.which(command, path=path)


def environment():
    """With the libraries of what is unpacked."""
    libraries = UNPACKED / "usr/lib/x86_64-linux-gnu"
    return os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries.exists() else {})


class _Local(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=HANG)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(HANG)
        self.sock.connect(self.path)


def ask_http(path, uri):
    """One request over a connection of its own: status and body."""
    connection = _Local(path)
    try:
        connection.request("GET", uri, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ask_fastcgi(path, uri, script):
    """The same, in FastCGI's records, of a script."""
    query = uri.partition("?")[2]
    values = {"REQUEST_METHOD": "GET", "SCRIPT_FILENAME": str(script), "QUERY_STRING": query, "REQUEST_URI": uri}
    pairs = b"".join(bytes([len(k), len(v)]) + k.encode() + v.encode() for k, v in values.items())
    record = lambda kind, content: struct.pack(">BBHHBx", 1, kind, 1, len(content), 0) + content
    begin, parameters, stdin, stdout, end = 1, 4, 5, 6, 3
    request = (begin, struct.pack(">HB5x", 1, 0)), (parameters, pairs), (parameters, b""), (stdin, b"")
    sent = b"".join(record(kind, content) for kind, content in request)
    body, done = b"", False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANG)
        connection.connect(str(path))
        connection.sendall(sent)
        with connection.makefile("rb") as file:
            while not done:
                head = file.read(8)
                if len(head) < 8:
                    raise ConnectionError("the answer is cut off")
                _, kind, _, length, padding = struct.unpack(">BBHHBx", head)
                content = file.read(length + padding)[:length]
                body += content if kind == stdout else b""
                done = kind == end
    head, _, body = body.decode().partition("\r\n\r\n")
    status = next((line for line in head.splitlines() if line.startswith("Status:")), "Status: 200")
    return int(status.split()[1]), body


def processes_of(leaders):
    """The processes of these sessions, and what they have started."""
    parents, sessions = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], sessions[int(entry.name)] = int(fields[1]), int(fields[3])
    found = {pid for pid, session in sessions.items() if session in leaders}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def anonymous_bytes(pids):
    """What processes have of anonymous memory together; what several have counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss_Anon:"))
    return total


class Run:
    """A server that runs; `answers` are by request."""

    def __init__(self, test, argv, ready, ram=None, user=None, **options):
        """`ready(run)`: whether it can be asked. `ram`: its budget under farpage; without, it runs plain. `user`: a
        number."""
        self.test, self.ram = test, ram
        self.answers, self.samples = {}, [0]
        self.log = test.dir / ("log.farpage" if ram else "log.plain")
        under = [FARPAGE, "run", "--ram", ram, *(["--user", f"{user}:{user}"] if user else []), "--"] if ram else []
        if user and not ram:
            options |= {"user": user, "group": user, "extra_groups": []}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([str(a) for a in (*under, *argv)], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True, **{"env": environment()} | options)
        test.addCleanup(self.kill)
        self.sessions = {self.process.pid}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        self.wait_until("the server answers", lambda: ready(self))

    @property
    def pid(self):
        return self.process.pid

    def processes(self):
        return processes_of(self.sessions)

    def wait_until(self, what, true):
        def checked():
            if self.process.poll() not in (None, 0):
                self.test.fail(f"ended with {self.process.returncode}: {what}\n{self.said()}")
            return true()
        self.test.wait_until(what, checked)

    def _look(self):
        while not self._over.wait(0.1):
            self.samples.append(self.has())

    def load(self, ask, requests, *steps):
        """Asks all of it by several clients. `steps` are done meanwhile, one after each equal part."""
        waiting, lock, asked = queue.SimpleQueue(), threading.Lock(), [0]
        for request in requests:
            waiting.put(request)

        def client():
            with contextlib.suppress(queue.Empty):
                while True:
                    request = waiting.get_nowait()
                    try:
                        answer = ask(request)
                    except (OSError, http.client.HTTPException) as error:
                        answer = repr(error)
                    with lock:
                        asked[0] += 1
                        self.answers.setdefault(request, []).append(answer)

        clients = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
        for thread in clients:
            thread.start()
        for number, step in enumerate(steps, 1):
            self.wait_until("requests are answered", lambda: asked[0] >= len(requests) * number // (len(steps) + 1))
            step()
        for thread in clients:
            thread.join()

    def settle(self):
        """Waits until all of its processes have no more than the budget."""
        self.wait_until(f"the budget of {self.ram} is kept", lambda: self.has() <= self.budget() * 1.05)

    def end(self, *signals, pid=None):
        """Ends it, waits for all of its processes, and returns the status."""
        for number in signals:
            os.kill(pid or self.pid, number)
        self.process.wait(HANG)
        self.test.wait_until("all processes have ended", lambda: not self.processes())
        self._end_watch()
        return self.process.returncode

    def _end_watch(self):
        self._over.set()
        self._watch.join()

    def kill(self):
        self._end_watch()
        # Some start others meanwhile.
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait()

    def said(self):
        """In its output, and in a file of its own."""
        files = [self.log, self.test.dir / "error"]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def messages(self):
        """What farpage has said."""
        said = without_waiting(self.said())
        return [line for line in said.splitlines() if line.startswith("farpage: ")]

    def budget(self):
        """In bytes."""
        return int(self.ram[:-1]) << 20

    def has(self):
        """What all of its processes have now."""
        return anonymous_bytes(self.processes())

    def most(self):
        """The most that it had at most looks."""
        return sorted(self.samples)[len(self.samples) * 9 // 10]
