"""Children whose loader cannot load the library (linked against musl, for 32 bits) run as they do without farpage."""

import os
import subprocess
import unittest

from situation import PRELOAD, Situation, build, unless_there

WAYS = ["execl", "execlp", "execle", "execv", "execvp", "execvpe", "execve", "fexecve", "execveat", "syscall",
        "posix_spawn", "posix_spawnp", "system"]
# Says what it was given: its arguments, and whether it is to preload anything.
MUSL = """
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    const char *preload = getenv("LD_PRELOAD"), *more = getenv("MORE_499");
    for (int i = 1; i < argc; i++) printf("%s ", argv[i]);
    printf("preload %s, more %s\\n", preload ? preload : "nothing", more ? more : "no");
    return 7;
}
"""


@unless_there("musl-gcc")
class Loaders(Situation):
    def setUp(self):
        super().setUp()
        (self.dir / "musl.c").write_text(MUSL)
        self.musl = self.dir / "prog-musl"
        subprocess.run(["musl-gcc", "-o", self.musl, self.dir / "musl.c"], check=True)
        self.starts = build("starts.c")
        self.env = os.environ | {"PATH": f"{self.dir}:{os.environ['PATH']}"}

    def test_programs_of_musl_start_whoever_starts_them(self):
        for way in WAYS + ["more execve", "more execlp"]:
            with self.subTest(way=way):
                done = self.assert_same(self.starts, way, self.musl, env=self.env)
                self.assertEqual((done.returncode, done.stderr), (7, ""))
                self.assertIn("preload nothing", done.stdout)
                self.assertIn("more yes" if way.startswith("more ") else "more no", done.stdout)

    def test_scripts_for_them_too(self):
        script = self.dir / "script"
        script.write_text(f"#!{self.musl} -x\n")
        script.chmod(0o755)
        for way in ["execve", "execvp", "posix_spawnp"]:
            self.assertEqual(self.assert_same(self.starts, way, script, env=self.env).returncode, 7)

    def test_what_else_is_preloaded_stays(self):
        # musl's loader leaves out what is not there.
        a, b = f"{self.dir}/a.so", f"{self.dir}/b.so"
        for other, left in [(f"{a}:{PRELOAD}:{b}", f"{a}:{b}"), (f"{PRELOAD} {a}", a), (f"{a}:{b}", f"{a}:{b}")]:
            done = self.run_farpage("sh", "-c", f"LD_PRELOAD='{other}' exec {self.musl}", env=self.env)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (7, f"preload {left}, more no\n", ""))

    def test_programs_of_glibc_have_their_budget(self):
        shows = self.dir / "shows"
        shows.write_text('#!/bin/sh\nprintf %s "$LD_PRELOAD"\n')
        shows.chmod(0o755)
        for way in WAYS:
            done = self.run_farpage(self.starts, way, shows, env=self.env)
            self.assertEqual((done.returncode, done.stdout), (0, str(PRELOAD)), way)


if __name__ == "__main__":
    unittest.main()
