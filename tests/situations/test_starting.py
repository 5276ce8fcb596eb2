"""What `farpage run` is given to start, and where: files that no kernel starts, a machine that does not say what it
has."""

import json
import os
import shutil
import unittest

from situation import FARPAGE, PRELOAD, Situation, build, unless_root


class Starting(Situation):
    def program(self, content):
        path = self.dir / "program"
        path.write_bytes(content)
        path.chmod(0o755)
        return path

    def test_elf_files_that_cannot_be_started_are_named_and_not_taken_for_scripts(self):
        with open("/bin/true", "rb") as file:
            good = file.read()
        for content, words in [(good[:40], "a truncated ELF file"), (good[:100], "a truncated ELF file"),
                               (good[:16] + b"\x09" + good[17:], "a damaged ELF file"),
                               (good[:16] + b"\x01" + good[17:], "an object file"),
                               (good[:16] + b"\x04" + good[17:], "a core dump")]:
            program = self.program(content)
            done = self.run_farpage(program)
            self.assertEqual((done.returncode, done.stdout), (126, ""), words)
            self.assertIn(f"cannot run {program}: it is {words}", done.stderr)
            self.assertNotIn("failed to fill", done.stderr)
            forced = self.run_farpage(program, options=["--force", "-q"])
            self.assertEqual((forced.returncode, forced.stdout), (126, ""), words)
            line = f"farpage: cannot run {program}: it is an ELF file that this kernel does not start"
            self.assertTrue(forced.stderr.startswith(line) and forced.stderr.count("\n") == 1, forced.stderr)
        # As ever: what the kernel does not know is for the shell.
        self.assertEqual(self.run_farpage(self.program(b"echo hello\n")).stdout, "hello\n")

    @unless_root
    def test_a_size_needs_no_proc_meminfo(self):
        hidden = "mount --bind /dev/null /proc/meminfo && exec \"$@\""
        within = ["unshare", "--mount", "sh", "-c", hidden, "sh", FARPAGE]
        done = self.run_plain(*within, "run", "--ram", "64M", "--", "echo", "hello")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "hello\n", ""))
        for share in [["--ram", "50%"], []]:
            done = self.run_plain(*within, "run", *share, "--", "echo", "hello")
            self.assertEqual((done.returncode, done.stdout), (125, ""))
            self.assertIn("cannot read MemTotal from /proc/meminfo\n  help: name the budget", done.stderr)
        self.assertIn("userfaultfd", self.run_plain(*within, "doctor", "-v").stdout)


class Installations(Situation):
    """One process has one engine, also where two installations of farpage meet."""

    def test_one_inside_of_another(self):
        for file in (FARPAGE, PRELOAD):
            shutil.copy(file, self.dir)
        inner = [self.dir / "farpage", "run", "--ram", "16M", "--swap", "file:/var/tmp", "--"]
        done = self.run_farpage(*inner, build("loop.c"), "20", "2")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))

    def test_a_library_of_another_name(self):
        other, stats = self.dir / "other.so", self.dir / "stats"
        shutil.copy(PRELOAD, other)
        options = ("--stats-json", stats)
        env = os.environ | {"LD_PRELOAD": str(other)}
        done = self.run_farpage(build("loop.c"), "40", "2", options=options, env=env)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))
        self.assertTrue(json.loads(stats.read_text())["engine_started"])


if __name__ == "__main__":
    unittest.main()
