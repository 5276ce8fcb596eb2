"""Programs are in the budget whatever environment they are started with; those that cannot load the library are named,
whoever starts them."""

import os
import subprocess
import unittest

from holder import MIB, PYTHON
from situation import FARPAGE, PRELOAD, Situation, build, unless_root, unless_there

NAMED = "programs that cannot load farpage's library"
# Prints what it has after it has filled 64 MiB.
FILLS = "b = b'x' * (64 << 20); print(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])"
STATIC = """
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
/* Holds memory until its input ends. */
int main(void)
{
    char c, *volatile p = malloc(32 << 20);
    memset(p, 1, 32 << 20);
    return read(0, &c, 1) || p[4096] != 1;
}
"""
# Starts the static program, and waits for it.
FORKS = "import os, sys\np = os.fork()\np or os.execv(sys.argv[1], sys.argv[1:])\nsys.exit(os.waitpid(p, 0)[1])"
THREAD = f"""
import threading
def run():
    {FORKS.replace(chr(10), chr(10) + '    ')}
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


class Environments(Situation):
    def fills(self, *argv, **options):
        """What the program that fills memory has, started by `argv`."""
        done = self.run_farpage(*argv, ram="32M", **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return int(done.stdout) << 10

    def test_a_clean_environment(self):
        empty = f"import subprocess; subprocess.run({[PYTHON, '-c', FILLS]}, env={{}})"
        cleared = "import os, sys; os.environ.clear(); sys.exit(os.system(sys.argv[1]))"
        closed = (f"import os; os.closerange(3, 4096); "
                  f"os.execve({PYTHON!r}, ['python3', '-c', {FILLS!r}], {{'LD_PRELOAD': ''}})")
        for argv in [["env", "-i", PYTHON, "-c", FILLS],
                     ["env", "-u", "LD_PRELOAD", PYTHON, "-c", FILLS],
                     ["env", "-u", "FARPAGE_CONF", PYTHON, "-c", FILLS],
                     ["sh", "-c", f"unset LD_PRELOAD FARPAGE_TREE_FD; {PYTHON} -c \"$0\"", FILLS],
                     [PYTHON, "-c", empty], [PYTHON, "-c", closed],
                     [PYTHON, "-c", cleared, f'{PYTHON} -c "{FILLS}"']]:
            with self.subTest(argv[0:2]):
                self.assertLess(self.fills(*argv), 32 * MIB)

    def test_every_way(self):
        starts = build("starts.c")
        shows = self.dir / "shows"
        shows.write_text('#!/bin/sh\nexec printf "%s %s" "$LD_PRELOAD" "${FARPAGE_TREE_FD:+tree}"\n')
        shows.chmod(0o755)
        env = os.environ | {"PATH": f"{self.dir}:{os.environ['PATH']}"}
        ways = ["execl", "execlp", "execle", "execv", "execvp", "execvpe", "execve", "fexecve", "execveat", "syscall",
                "posix_spawn", "posix_spawnp", "system", "popen"]
        for way in ways + ["more execve", "more posix_spawn"]:
            with self.subTest(way):
                done = self.run_farpage(starts, f"clean {way}", shows, env=env)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{PRELOAD} tree", ""))

    def test_another_library_stays(self):
        other = build("counted.c", "-shared", "-fPIC", "-fno-builtin", output="counted.so")
        script = 'exec env -i LD_PRELOAD="$0" sh -c \'printf %s "$LD_PRELOAD"\''
        done = self.run_farpage("sh", "-c", script, other)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{PRELOAD}:{other}", ""))

    def test_a_program_can_be_left_out(self):
        self.assertGreater(self.fills("env", "FARPAGE_DISABLE=1", PYTHON, "-c", FILLS), 64 * MIB)
        self.assertGreater(self.fills("env", "-i", "FARPAGE_DISABLE=1", PYTHON, "-c", FILLS), 64 * MIB)

    @unless_root
    @unless_there("chroot")
    def test_another_root_without_the_library(self):
        # The loader would complain.
        for place in ["bin", "lib", "lib64", "usr"]:
            (self.dir / place).mkdir()
        mount = "for d in bin lib lib64 usr; do mount --bind /$d $0/$d; done; exec "
        for clean in ["", "env -i /usr/sbin/"]:
            command = ["unshare", "-m", "sh", "-c", f"{mount}{clean}chroot $0 /bin/echo here", self.dir]
            self.assert_same(*command)


class Named(Situation):
    """One line names static programs, while they run."""

    def setUp(self):
        super().setUp()
        (self.dir / "static.c").write_text(STATIC)
        self.static = self.dir / "static"
        made = subprocess.run(["cc", "-O1", "-static", "-o", self.static, self.dir / "static.c"],
                              capture_output=True, check=False)
        if made.returncode:
            self.skipTest("no static libc")

    def assert_named(self, *argv):
        command = [str(a) for a in (FARPAGE, "run", "--ram", "32M", "--", *argv)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                self.assertIn(NAMED, process.stderr.readline())
            finally:
                process.stdin.close()
                rest = process.stderr.read()
            self.assertEqual((process.wait(), rest), (0, ""))

    def test_whoever_starts_them(self):
        (self.dir / "Makefile").write_text(f"all:\n\t{self.static}\n\ttrue\n")
        for argv in [["sh", "-c", "$0; true", self.static],
                     ["bash", "-c", "$0; true", self.static],
                     ["bash", "-c", "($0; true); true", self.static],
                     ["sh", "-c", "exec 3<&0; $0 <&3 & wait", self.static],
                     ["make", "-s", "-C", self.dir],
                     [PYTHON, "-c", "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)", self.static],
                     [PYTHON, "-c", FORKS, self.static],
                     [PYTHON, "-c", THREAD, self.static],
                     [build("starts.c"), "instruction", self.static]]:
            with self.subTest([str(a) for a in argv][:3]):
                self.assert_named(*argv)


if __name__ == "__main__":
    unittest.main()
