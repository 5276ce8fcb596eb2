"""Real programs that are hard to have a budget for, with about half of the memory that they take: what they say, their
status and their files are the plain run's. A database whose queries are compiled, a solver that limits its own address
space, a program in valgrind, libraries whose threads block all signals.

How the faults showed: a budget exceeded in silence, no budget at all, "Bus error", and a program that ended by SIGSEGV
before its first line."""

import os
import random
import re
import signal
import subprocess
import unittest

from servers import Run, environment, find
from situation import NOBODY, Situation, build, unless_there
from test_servers import unless_found

PYTHON = "/usr/bin/python3"


def has_modules(*names):
    code = "; ".join(f"import {name}" for name in names)
    return subprocess.run([PYTHON, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0


class Postgres(Situation):
    """Of a database in a directory of its own, as an ordinary user."""

    def setUp(self):
        super().setUp()
        self.dir.chmod(0o777)
        self.user = NOBODY if os.geteuid() == 0 else None
        # It asks for its user's home directory.
        self.variables = environment() | {"HOME": str(self.dir), "PGHOST": str(self.dir), "PGUSER": "owner"}
        self.variables["LC_ALL"] = "C"
        for name in ("PGDATA", "PGPORT", "PGDATABASE"):
            self.variables.pop(name, None)

    def as_user(self, name, *argv):
        user = {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}
        return self.run_plain(find(name), *argv, env=self.variables, cwd=self.dir, **user)

    def tool(self, name, *argv):
        done = self.as_user(name, *argv)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def is_ready(self, _run):
        return self.as_user("pg_isready", "-q").returncode == 0

    def once(self, ram=None):
        """What queries say, and the run."""
        data = self.dir / f"data.{ram}"
        self.tool("initdb", "--no-sync", "--auth=trust", "--username=owner", "-D", data)
        settings = ["listen_addresses=", f"unix_socket_directories={self.dir}", "fsync=off", "shared_buffers=16MB",
                    "autovacuum=off", "max_parallel_workers_per_gather=0", "parallel_setup_cost=0",
                    "min_parallel_table_scan_size=0"]
        argv = [find("postgres"), "-D", data, *(part for setting in settings for part in ("-c", setting))]
        run = Run(self, argv, self.is_ready, ram, env=self.variables, cwd=self.dir, user=self.user)
        self.tool("pgbench", "-i", "-q", "-s", 2, "postgres")
        self.tool("pgbench", "-n", "-c", 2, "-t", 20, "--random-seed=7", "postgres")
        said = self.tool("psql", "-X", "-A", "-t", "-q", "-c", """
            set jit_above_cost = 0; set jit_inline_above_cost = 0; set jit_optimize_above_cost = 0;
            select sum(abalance), count(*) from pgbench_accounts;
            select count(*) from pgbench_history;
            select sum(a.aid % 7 * b.bid), max(length(a.filler))
                from pgbench_accounts a join pgbench_branches b using (bid);
            select md5(string_agg(x::text, ',' order by x % 1013, x)) from generate_series(1, 60000) x""", "postgres")
        status = run.end(signal.SIGINT)
        return run, status, said

    @unless_found("postgres", "initdb", "psql", "pgbench")
    def test_its_compiled_queries(self):
        plain, status, said = self.once()
        ours, our_status, our_said = self.once("28M")
        self.assertEqual((our_said, our_status, ours.messages()), (said, status, []), ours.said())
        self.assertLess(ours.most(), ours.budget() * 1.05)


class AtWork(Situation):
    @unless_there("minisat")
    def test_a_solver_that_limits_itself(self):
        chance, variables = random.Random(5), 60_000
        lines = [f"p cnf {variables} {3 * variables}\n"]
        for _ in range(3 * variables):
            three = chance.sample(range(1, variables + 1), 3)
            lines.append("".join(f"{chance.choice((1, -1)) * v} " for v in three) + "0\n")
        problem = self.dir / "problem"
        problem.write_text("".join(lines))

        solved = self.dir / "solution"

        def solution(run, *options, **rest):
            solved.unlink(missing_ok=True)
            done = run("minisat", "-verb=0", "-mem-lim=400", problem, solved, *options, **rest)
            return done.returncode, done.stdout, done.stderr, solved.read_text() if solved.exists() else None

        plain, stats = solution(self.run_plain), self.dir / "stats"
        self.assertEqual(plain[0], 10, plain[2])
        ours = solution(self.run_farpage, ram="24M", options=["--stats-json", stats])
        self.assertEqual(ours[:3], plain[:3])
        self.assertTrue(ours[3] == plain[3], "another solution")
        self.assert_within(stats, 24)

    def assert_within(self, stats, mib):
        peak = int(re.search(r'"rss_anon_peak_bytes":\s*(\d+)', stats.read_text()).group(1))
        self.assertLess(peak, mib * 1.05 * (1 << 20))

    @unless_there("valgrind")
    def test_valgrind(self):
        program = build("fill_twice.c")
        argv = ["valgrind", "--leak-check=no", program, 8]
        plain = self.run_plain(*argv)
        ours = self.run_farpage(*argv, ram="48M")
        ours_of_us = re.findall(r"^farpage: .*\n", ours.stderr, flags=re.M)
        numbers = lambda text: re.sub(r"^==\d+==", "==", re.sub(r"^farpage: .*\n", "", text, flags=re.M), flags=re.M)
        self.assertEqual((ours.returncode, ours.stdout), (plain.returncode, plain.stdout), ours.stderr)
        self.assertEqual(numbers(ours.stderr).splitlines()[:4], numbers(plain.stderr).splitlines()[:4])
        # Where it cannot be managed, that is said once.
        self.assertLessEqual(len(ours_of_us), 1, ours.stderr)

    @unittest.skipUnless(has_modules("numexpr", "pytest", "numpy"), "not installed: numexpr, pytest, numpy")
    def test_pytest_with_numexprs_threads(self):
        (self.dir / "test_sums.py").write_text("""
import faulthandler
import numexpr
import numpy
import pytest

numexpr.set_num_threads(2)


@pytest.mark.parametrize("factor", range(4))
def test_sum(factor):
    a = numpy.arange(1 << 20, dtype="f8") * factor
    b = numpy.ones(1 << 20)
    c = numexpr.evaluate("a * 2 + b")
    assert c.sum() == a.sum() * 2 + len(b)
    KEPT.append((factor, c))
    assert all((c[::4096] == numpy.arange(1 << 20, dtype="f8")[::4096] * factor * 2 + 1).all() for factor, c in KEPT)


KEPT = []
""")
        argv = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", self.dir / "test_sums.py"]
        rest = {"cwd": self.dir, "env": os.environ | {"NUMEXPR_MAX_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}}
        plain, stats = self.run_plain(*argv, **rest), self.dir / "stats"
        ours = self.run_farpage(*argv, ram="48M", options=["--stats-json", stats], **rest)
        timeless = lambda text: re.sub(r"in [\d.]+s", "in", text)
        said = [(run.returncode, timeless(run.stdout), run.stderr) for run in (plain, ours)]
        self.assertEqual(said[1], said[0])
        self.assertEqual(ours.returncode, 0)
        self.assert_within(stats, 48)


if __name__ == "__main__":
    unittest.main()
