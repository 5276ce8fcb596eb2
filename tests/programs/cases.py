"""The cases: which programs run, on which input, and what counts as their output."""

import os
import random
import shutil
import socket
import subprocess

import redis_client

QUARTER, HALF = 0.25, 0.5


class Case:
    """One program. `share` of the plain peak becomes the budget."""

    share = QUARTER
    files = ()  # output files, compared besides standard output
    normalize = None  # bytes -> bytes: takes out what may differ between runs
    stdin = None
    tree = False  # the work is done in child processes: the main process may stay small
    drive = None  # work directory -> something with finish(): a client, while the program runs

    def __init__(self, name, **attributes):
        self.name = name
        self.__dict__.update(attributes)

    def prepare(self, directory):
        """Makes the input, once for both runs."""
        os.makedirs(directory)

    def finish(self, work):
        """After a run that ended well, before the output is compared."""

    def command(self, directory, swapped=False):
        raise NotImplementedError


class Script(Case):
    """A source file of src/ run by an interpreter."""

    def command(self, directory, swapped=False):
        return list(self.argv)


class Sort(Case):
    def prepare(self, directory):
        os.makedirs(directory)
        rng = random.Random(7)
        with open(os.path.join(directory, "lines"), "w") as f:
            for _ in range(self.mb):
                # A MiB of lines of 20 to 62 characters.
                text, at, lines = rng.randbytes(1 << 19).hex(), 0, []
                for width in rng.choices((19, 33, 47, 61), k=26000):
                    lines.append(text[at : at + width])
                    at += width
                f.write("\n".join(lines) + "\n")

    def command(self, directory, swapped=False):
        return ["sort", "-S", "8G", "--parallel=2", os.path.join(directory, "lines")]


class Sqlite(Case):
    """An in-memory database: filled, indexed, updated, asked."""

    def prepare(self, directory):
        os.makedirs(directory)
        self.stdin = os.path.join(directory, "script.sql")
        rows = self.rows
        with open(self.stdin, "w") as f:
            f.write(
                f"""
CREATE TABLE item(id INTEGER PRIMARY KEY, grp INTEGER, name TEXT, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO item SELECT i, i * 7919 % 1000, printf('name-%08d', i * 48271 % {rows}),
  printf('%x-%s-%x', i * 2654435761, substr('the quick brown fox jumps over the lazy dog, again and again and again',
  i % 20 + 1, 30 + i % 20), i * i * 40503) FROM n;
CREATE INDEX by_name ON item(name);
CREATE INDEX by_group ON item(grp, id);
SELECT count(*), sum(id), sum(length(body)) FROM item;
SELECT grp, count(*), min(name), max(body) FROM item GROUP BY grp ORDER BY grp;
UPDATE item SET body = upper(body) || grp WHERE grp % 5 = 0;
DELETE FROM item WHERE id % 11 = 0;
SELECT a.grp, count(*), sum(length(a.body) * 1000 + b.grp) FROM item a JOIN item b ON b.id = a.id * 31 % {rows}
  GROUP BY a.grp ORDER BY a.grp;
SELECT name, body FROM item WHERE name BETWEEN 'name-00001000' AND 'name-00003000' ORDER BY name, id;
PRAGMA integrity_check;
SELECT count(*), sum(id), sum(length(body)) FROM item;
"""
            )

    def command(self, directory, swapped=False):
        return ["sqlite3", "-batch", ":memory:"]


class Compiler(Case):
    """The C compiler proper on a large generated file; what it wrote, assembled, is the output."""

    files = ("out.o",)

    def prepare(self, directory):
        os.makedirs(directory)
        rng = random.Random(11)
        with open(os.path.join(directory, "big.c"), "w") as f:
            f.write("int printf(const char *, ...);\nint strcmp(const char *, const char *);\n")
            f.write("struct node { struct node *next; int key; double weight; char name[24]; };\n")
            for i in range(self.functions):
                a, b, c = rng.randrange(1000), rng.randrange(1, 99), rng.randrange(7)
                f.write(
                    f"static const int table{i}[] = {{"
                    + ",".join(str(rng.randrange(100000)) for _ in range(120))
                    + "};\n"
                    f"int function{i}(struct node *list, const char *text, int n)\n{{\n"
                    f"  int sum = {a}, i;\n  double w = 0;\n"
                    f"  for (i = 0; i < n % 120; i++) sum += table{i}[i] * {b} + text[i % {b}];\n"
                    "  for (struct node *p = list; p; p = p->next) {\n"
                    f"    switch (p->key % {c + 5}) {{\n"
                    + "".join(
                        f"    case {k}: sum ^= p->key << {k + 1}; w += p->weight * {k}.5; "
                        f"if (strcmp(p->name, \"n{i}_{k}\") == 0) return sum; break;\n"
                        for k in range(c + 4)
                    )
                    + f"    default: sum -= {a}; }}\n  }}\n"
                    f"  printf(\"{i}: %d %f\\n\", sum, w);\n"
                    f"  return sum {'+ function%d(list, text, n - 1)' % (i - 1) if i else ''};\n}}\n"
                )

    def command(self, directory, swapped=False):
        cc1 = subprocess.run(
            ["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True
        ).stdout.strip()
        return [cc1, "-quiet", "-O1", os.path.join(directory, "big.c"), "-o", "out.s"]

    def finish(self, work):
        subprocess.run(["as", "out.s", "-o", "out.o"], cwd=work, check=True)


class Java(Case):
    share = HALF

    def prepare(self, directory):
        os.makedirs(directory)
        subprocess.run(["javac", "-d", directory, self.source], check=True)

    def command(self, directory, swapped=False):
        return ["java", f"-Xmx{self.heap}m", "-XX:-UsePerfData", "-cp", directory, "Heap", str(self.mb)]


class Redis(Case):
    """redis-server, with a client of ours that fills it, reads it back, and checks what BGSAVE wrote."""

    files = ("client",)

    def prepare(self, directory):
        os.makedirs(directory)
        self.server = shutil.which("redis-server")
        if not self.server:
            # The same binary, which goes by its name.
            self.server = os.path.join(directory, "redis-server")
            os.symlink(shutil.which("redis-check-rdb"), self.server)

    def command(self, directory, swapped=False):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        return [
            self.server, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no",
            "--logfile", "log", "--dbfilename", "dump.rdb", "--stop-writes-on-bgsave-error", "no",
        ]  # fmt: skip

    def drive(self, work):
        return redis_client.Driver(self.server, self.port, work, self.keys)


class StressNg(Case):
    tree = True

    def normalize(self, data):
        return b""  # Only times and process numbers; --verify makes it exit with a status when memory is wrong.

    def command(self, directory, swapped=False):
        return ["stress-ng", "--vm", "2", "--vm-method", "all", "--verify", "--vm-bytes", f"{self.mb}M",
                "--vm-ops", str(self.ops), "--temp-path", directory, "--seed", "3"]  # fmt: skip


class Stress(Case):
    def normalize(self, data):
        return data[:2]  # "ok": the numbers depend on the threads' timing.

    def command(self, directory, swapped=False):
        return [self.program, "--mb", str(self.mb), "--ops", str(self.ops), *self.options]


class Storm(Case):
    def command(self, directory, swapped=False):
        return [self.program, self.way, str(self.threads), str(self.mb)]


class Syscalls(Case):
    def normalize(self, data):
        lines = data.decode().splitlines()
        return "\n".join(l[:30] for l in lines if l[:4] in ("PASS", "FAIL", "SKIP")).encode()

    def command(self, directory, swapped=False):
        return [self.program, str(self.mb), "20" if swapped else "0"]


def all_cases(size, here, root):
    """Every case in the given size: quick, normal or full."""

    def n(quick, normal, full):
        return {"quick": quick, "normal": normal, "full": full}[size]

    src = os.path.join(here, "src")
    bin_ = os.path.join(root, "target", "tests")

    def python(name, *sizes, **more):
        argv = ["/usr/bin/python3", os.path.join(src, f"np_{name}.py"), str(n(*sizes))]
        return Script("python_" + name, argv=argv, **more)

    def stress(name, seed, *more, ops=(2500, 10000, 40000)):
        return Stress(
            name, program=os.path.join(bin_, "stress"), mb=n(160, 384, 1024), ops=n(*ops),
            options=("--seed", str(seed), *more),
        )  # fmt: skip

    return [
        Sort("sort", mb=n(64, 160, 640)),
        python("gather", 192, 512, 2048),
        python("update", 192, 512, 2048),
        python("file", 96, 256, 1024),
        python("subprocess", 160, 512, 2048),
        python("fork", 160, 384, 1024),
        python("mp", 160, 384, 1024),
        Sqlite("sqlite_memory", rows=n(800_000, 2_000_000, 8_000_000)),
        Compiler("cc", functions=n(900, 2500, 6000)),
        Script("node", share=HALF, argv=["node", os.path.join(src, "heap.js"), str(n(160, 400, 1200))]),
        Java("java", source=os.path.join(src, "Heap.java"), mb=n(160, 400, 1200), heap=n(320, 800, 2400)),
        Redis("redis", keys=n(140_000, 300_000, 1_000_000)),
        StressNg("stress_ng", mb=n(256, 512, 1024), ops=n(10_000, 20_000, 50_000)),
        stress("stress_1", 1),
        stress("stress_2", 2, "--threads", "8", ops=(1000, 4000, 20000)),
        stress("stress_nofork", 3, "--no-fork"),
        *(
            Storm("storm_" + way, way=way, program=os.path.join(bin_, "storm"), threads=8, mb=n(256, 512, 1024))
            for way in ("mmap", "malloc")
        ),
        Syscalls("syscalls", program=os.path.join(bin_, "probe_syscalls"), mb=n(128, 256, 512)),
    ]
