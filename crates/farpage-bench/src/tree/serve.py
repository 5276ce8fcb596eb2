"""A server under load: started in a directory of its own, asked by several clients at once, ended.

    serve.py gunicorn|postgres DIRECTORY-OF-ITS-PROGRAMS

What must be the same each time goes to standard output. Latencies go to the file requests.json in the directory where
this runs."""

import glob
import hashlib
import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

CLIENTS, REQUESTS = 4, 240
OBJECTS = 700_000
TRANSACTIONS = 6, 3000
# Seconds without an answer after which the server is given up.
PATIENCE = 300

POSTGRES_CONF = """
listen_addresses = ''
shared_buffers = 16MB
work_mem = 32MB
fsync = off
"""
TABLES = """
create table a as select i, i::bigint * 7919 % 1000003 as k, repeat('x', 40) as t from generate_series(1, 400000) i;
create table b as select i::bigint * 3 % 1000003 as k, i as v from generate_series(1, 400000) i;
analyze;
"""
JOIN = """
set max_parallel_workers_per_gather = 2;
set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
set jit_above_cost = 0; set jit_optimize_above_cost = 0; set jit_inline_above_cost = 0;
select count(*), sum(a.i + b.v) from a join b using (k);
"""
INDEXES = "set maintenance_work_mem = '48MB'; create index on a (k, i); create index on b (k);"
BALANCES = "select sum(abalance), (select count(*) from pgbench_history) from pgbench_accounts;"


def application_of_objects():
    """A WSGI application. The objects are made before the server forks; each request reads an eighth of them."""
    data = [f"{number:07} " * 4 for number in range(OBJECTS)]

    def application(environment, start):
        n = int(parse_qs(environment["QUERY_STRING"])["n"][0])
        own = [f"{n} {number}" for number in range(20_000)]
        total = sum(int(text[:7]) for text in data[n % 8 :: 8]) + sum(map(len, own))
        start("200 OK", [("Content-Type", "text/plain")])
        return [f"{n} {total}".encode()]

    return application


def no_answer(*_):
    sys.exit(f"serve.py: {sys.argv[1]} has not answered for {PATIENCE} seconds")


def answered():
    """The next answer has its time from now on."""
    signal.alarm(PATIENCE)


class Server:
    """Ends with the block, whatever happens in it."""

    def __init__(self, argv, log):
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        signal.alarm(0)
        if self.process.poll() is None:
            # Both servers end their processes at once.
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def wait_until(self, ready):
        while not ready():
            if self.process.poll() is not None:
                sys.exit(f"serve.py: {sys.argv[1]} ended with {self.process.returncode}\n{said(self.log)}")
            time.sleep(0.05)

    def end(self, number):
        """Its exit status, when it has been told to end."""
        self.process.send_signal(number)
        return self.process.wait()


def said(log):
    with open(log, errors="replace") as file:
        return "".join(file.readlines()[-20:])


class Local(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=2 * PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(path, n):
    """One request over a connection of its own: status and body."""
    connection = Local(path)
    try:
        connection.request("GET", f"/?n={n}", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def note(seconds, bad):
    """The latencies, sorted, for the bench; they differ each time."""
    seconds = sorted(seconds)
    of = lambda share: 1e3 * seconds[min(len(seconds) - 1, int(share * len(seconds)))]
    with open("requests.json", "w") as file:
        json.dump({"p50_ms": of(0.5), "p99_ms": of(0.99), "max_ms": of(1), "bad": bad}, file)


def gunicorn(programs, directory):
    path = directory + "/socket"
    argv = [programs + "/gunicorn", "--preload", "--workers", "4", "--bind", "unix:" + path]
    argv += ["--pythonpath", os.getcwd(), "--worker-tmp-dir", "/dev/shm"]
    argv += ["--timeout", str(PATIENCE), "--graceful-timeout", str(PATIENCE)]
    reloads = REQUESTS // 3, 2 * REQUESTS // 3
    with Server([*argv, "serve:application_of_objects()"], directory + "/log") as server:
        server.wait_until(lambda: ask(path, 0)[0] == 200)

        def client(n):
            if n in reloads:
                server.process.send_signal(signal.SIGHUP)
            start = time.monotonic()
            answer = ask(path, n)
            if answer[0]:
                answered()
            return time.monotonic() - start, answer

        seconds, answers = zip(*ThreadPoolExecutor(CLIENTS).map(client, range(REQUESTS)))
        bad = sum(status != 200 for status, _ in answers)
        note(seconds, bad)
        print(hashlib.md5(repr(answers).encode()).hexdigest(), bad, server.end(signal.SIGTERM))


def postgres(programs, directory):
    log, data = directory + "/log", directory + "/data"
    user = []
    if os.geteuid() == 0:
        # It refuses to run as root.
        names = {entry.pw_name for entry in pwd.getpwall()}
        owner = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(directory, owner.pw_uid, owner.pw_gid)
        user = ["setpriv", "--reuid", str(owner.pw_uid), "--regid", str(owner.pw_gid), "--clear-groups"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment |= {"LC_ALL": "C", "HOME": directory, "PGHOST": directory, "PGUSER": "owner", "PGDATABASE": "postgres"}
    os.environ.clear()
    os.environ.update(environment)

    def command(name, *arguments):
        return [*user, f"{programs}/{name}", *arguments]

    def tool(name, *arguments):
        done = subprocess.run(command(name, *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        answered()
        if done.returncode:
            sys.exit(f"serve.py: {name} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def is_ready():
        ready = subprocess.run(command("pg_isready", "-q"), stdin=subprocess.DEVNULL)
        return ready.returncode == 0

    tool("initdb", "-D", data, "--auth=trust", "--no-sync", "--username=owner")
    with open(data + "/postgresql.conf", "a") as file:
        file.write(f"{POSTGRES_CONF}unix_socket_directories = '{directory}'\n")
    with Server(command("postgres", "-D", data), log) as server:
        server.wait_until(is_ready)
        for text in (TABLES, JOIN, INDEXES):
            print(tool("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text), end="")
        tool("pgbench", "-i", "-s", "3", "-q")
        clients, each = TRANSACTIONS
        load = ["-c", str(clients), "-j", "2", "-t", str(each), "--no-vacuum", "--random-seed=7"]
        tool("pgbench", *load, "-l", "--log-prefix", directory + "/latencies")
        # The third word of a line: microseconds.
        lines = [line.split() for name in glob.glob(directory + "/latencies*") for line in open(name)]
        bad = clients * each - sum(words[2].isdigit() for words in lines)
        note([int(words[2]) / 1e6 for words in lines if words[2].isdigit()], bad)
        print(tool("psql", "-XAtq", "-c", BALANCES).strip(), bad, server.end(signal.SIGINT))


def main(kind, programs):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, no_answer)
    answered()
    directory = tempfile.mkdtemp(prefix="server-", dir=os.getcwd())
    try:
        {"gunicorn": gunicorn, "postgres": postgres}[kind](programs, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
