"""Near its limits a program has children that live, or forks that fail, as without farpage."""

import json
import os
import resource
import unittest

from situation import FARPAGE, Situation, build, build_with_regions, unless_root, unless_there

NOTHING_MANAGED = 1
MANAGED = 28


class Limits(Situation):
    def limits(self, *arguments, says, ram="16M", **rest):
        ran = self.run_farpage(build("limits.c"), *arguments, ram=ram, **rest)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn(ran.stdout, says, ran.stderr)
        return ran


class Data(Situation):
    def test_what_is_only_reserved_does_not_count(self):
        """With a limit on writable private memory, and so where the kernel never overcommits
        (vm.overcommit_memory=2)."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (128 << 20, 128 << 20))
        report = self.dir / "report"
        ran = self.run_farpage(build("grow.c"), "pieces", 64, ram="20M", options=["--stats-json", report], preexec_fn=limit)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ok\n", ""))
        self.assertGreater(json.loads(report.read_text())["pswpout"], 0)

    def test_regions(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
        ran = self.run_plain(build_with_regions("region_descriptors.c"), "thread", "zram", "none", 0, self.dir, preexec_fn=limit)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


class AddressSpace(Situation):
    """What the engine maps is as large as what is used, and the program's own need goes first."""

    def limited(self, *arguments, ram="48M", **rest):
        """A program that has what it needs, within the budget."""
        report = self.dir / "report"
        program = build("limited.c")
        plain = self.run_plain(program, *arguments, **rest)
        options = ["--verify", "--stats-json", report]
        ran = self.run_farpage(program, *arguments, ram=ram, options=options, **rest)
        self.assertEqual((plain.returncode, ran.returncode, ran.stdout, ran.stderr), (0, 0, plain.stdout, ""))
        counters = json.loads(report.read_text())
        self.assertGreater(counters["pswpout"], 0)
        self.assertLess(counters["rss_anon_peak_bytes"], 1.1 * int(ram[:-1]) * (1 << 20))

    def test_a_program_that_limits_itself(self):
        for how in ([], ["late"], ["data"], ["data", "late"], ["threads"], ["late", "fork"]):
            with self.subTest(how):
                self.limited(1000, 96, *how)

    def test_1_5_times_of_what_is_needed_is_enough(self):
        for how in ([], ["late"], ["data"], ["data", "late", "fork"]):
            with self.subTest(how):
                self.limited(96 * 3 // 2 + 48, 96, *how)

    def test_with_less_the_program_ends_as_it_does_without_memory(self):
        for limit in (64, 80, 100, 120):
            for how in ([], ["late"], ["data"], ["threads", "late"]):
                with self.subTest([limit, *how]):
                    ran = self.run_farpage(build("limited.c"), limit, 96, *how, ram="32M", options=["-q"])
                    self.assertIn(ran.returncode, (0, 3), ran.stdout + ran.stderr)

    def test_a_limit_that_is_there_before(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, ((96 * 3 // 2 + 48) << 20, resource.RLIM_INFINITY))
        self.limited(0, 96, preexec_fn=limit)

    def test_a_program_that_has_something_everywhere(self):
        self.limited(0, 96, "everywhere", "fork")

    def test_a_limit_below_what_a_start_needs_is_refused(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (8 << 20, resource.RLIM_INFINITY))
        ran = self.run_farpage("true", preexec_fn=limit)
        self.assertEqual((ran.returncode, ran.stdout), (125, ""))
        self.assertIn("the limit on private memory (ulimit -d) is 8.0 MiB; farpage needs ", ran.stderr)


class Threads(Limits):
    @unless_root
    def test_a_process_more_but_no_thread(self):
        group = self.cgroup("pids", pids_max=3)
        self.limits("children", 1, NOTHING_MANAGED, says=["all children, 0 bad\n"], preexec_fn=self.enter(group))

    @unless_root
    def test_children_until_the_cgroup_is_full(self):
        group = self.cgroup("pids", pids_max=18)  # io_uring's workers count, too
        says = ["some children, 0 bad\n"]
        self.limits("children", 12, MANAGED, says=says, preexec_fn=self.enter(group))

    @unless_root
    def test_no_child_where_its_engine_has_no_room(self):
        group = self.cgroup("pids", pids_max=7)
        self.limits("children", 2, MANAGED, says=["no child, 0 bad\n"], preexec_fn=self.enter(group))

    @unless_root
    def test_children_until_the_user_has_too_many(self):
        user = 60_000 + os.getpid() % 5000
        limit = lambda: resource.setrlimit(resource.RLIMIT_NPROC, (14, 14))
        program = build("limits.c", output="limits")
        os.chmod(program, 0o755)
        self.limits("children", 12, MANAGED, says=["some children, 0 bad\n", "no child, 0 bad\n"],
                    options=["--user", f"{user}:{user}"], preexec_fn=limit)

    @unless_root
    @unless_there("make", "cc")
    def test_make_in_a_small_cgroup(self):
        names = [f"part{i}" for i in range(30)]
        for i, name in enumerate(names):
            lines = [f"static int f{j}(int x) {{ return x * {j} + {i}; }}" for j in range(40)]
            calls = " + ".join(f"f{j}(x)" for j in range(40))
            (self.dir / f"{name}.c").write_text("\n".join([*lines, f"int {name}(int x) {{ return {calls}; }}", ""]))
        declared = "".join(f"int {name}(int);" for name in names)
        total = " + ".join(f"{name}(1)" for name in names)
        (self.dir / "main.c").write_text(f"{declared}\nint main(void) {{ return ({total}) != {30 * 780 + 40 * 435}; }}\n")
        objects = " ".join(f"{name}.o" for name in [*names, "main"])
        (self.dir / "Makefile").write_text(f"all: program\n\t./program\nprogram: {objects}\n\tcc -o $@ $^\n")
        # Each of eight compilers may have an engine, with io_uring's workers.
        group = self.cgroup("pids", pids_max=112)
        ran = self.run_farpage("make", "-j8", "-C", self.dir, ram="32M", preexec_fn=self.enter(group))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""), ran.stdout)


class Descriptors(Limits):
    def test_a_full_table_with_nothing_managed(self):
        self.limits("files", 64, 64, NOTHING_MANAGED, says=["child: ok\n"])

    def test_a_full_table_whose_limit_can_be_raised(self):
        self.limits("files", 64, 256, MANAGED, says=["child: ok\n"])
        self.limits("files", 10, 256, MANAGED, says=["child: ok\n"])

    def test_a_full_table_whose_limit_cannot_be_raised(self):
        # Root with all its capabilities may raise it.
        self.limits("files", 64, 64, MANAGED, says=["fork: Resource temporarily unavailable\n", "child: ok\n"])
        self.limits("files", 10, 10, MANAGED, says=["fork: Resource temporarily unavailable\n", "child: ok\n"])


class Sizes(Limits):
    def test_no_file_may_grow(self):
        for limit, mib in [(0, NOTHING_MANAGED), (0, MANAGED), (12288, MANAGED)]:
            self.limits("size", limit, mib, says=["child: ok\n"])

    def test_a_program_that_starts_so(self):
        start = f"ulimit -f 0; exec {FARPAGE} run --ram 16M"
        # The memory that a tree's processes share is a file to the kernel.
        ran = self.run_plain("sh", "-c", f"{start} -- true")
        self.assertEqual((ran.returncode, ran.stdout), (0, ""))
        self.assertIn("going on with that budget for each process", ran.stderr)
        ran = self.run_plain("sh", "-c", f"{start} --stats -- true")
        self.assertEqual(ran.returncode, 125)
        self.assertIn("farpage: cannot make the statistics page: file too large\n", ran.stderr)


if __name__ == "__main__":
    unittest.main()
