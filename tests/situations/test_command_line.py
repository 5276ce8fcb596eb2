"""What the command says to what its user may write, and the status it ends with."""

import os
import subprocess
import unittest
from pathlib import Path

from holder import MIB, PYTHON, Holding, resident
from situation import FARPAGE, PRELOAD, ROOT, Situation, unless_there

LIBM = "/lib/x86_64-linux-gnu/libm.so.6"
RANDOM = "import os; b = [os.urandom(1 << 20) for _ in range(64)]"
# Arguments, status, what is said, what is not.
CASES = [
    ("run --ram-per-process 4M -- true", 125, "at least --ram-per-process 16M", "--ram 4M"),
    ("run --ram 512 -- true", 125, "for 512 MiB write --ram 512M", "at least"),
    ("run --ram 3 -- true", 125, "give at least --ram 16M", "write --ram 3M"),
    ("run --swap /var/tmp -- true", 125, "write file:/var/tmp", "nbd"),
    ("run --budget 64M -- true", 125, "'--ram'", "quiet"),
    ("attach 1 --ram 1M", 1, "below the minimum", "\0"),
    ("doctor --swap nbd://127.0.0.1:1", 1, "cannot use nbd://127.0.0.1:1", "\0"),
    ("swapoff redis://127.0.0.1:1", 1, "farpage: cannot use redis://127.0.0.1:1", "--swap"),
    ("doctor --swap zram", 0, "works wherever farpage does", "nothing to be looked at"),
    ("guard --cgroup /nosuch", 1, "there is no such memory cgroup", "entity"),
    ("size -- true", 1, "the least budget, 16.0 MiB, will do", "0 B"),
]
# What is typed, and one of what is offered.
COMPLETIONS = [
    ("farpage run --ram 64M -- unam", "uname"),
    ("farpage run --ram 64M -- uname /usr/bi", "/usr/bin"),
    ("farpage run --swap zr", "zram"),
    ("farpage run --verif", "--verify"),
    (f"farpage park {os.getpid()}", str(os.getpid())),
]


class CommandLine(Situation):
    def said(self, *argv, **options):
        return self.run_plain(FARPAGE, *argv, stderr=subprocess.STDOUT, **options)

    def test_what_is_said_and_the_status(self):
        for line, status, says, says_not in CASES:
            with self.subTest(line):
                done = self.said(*line.split())
                self.assertEqual(done.returncode, status, done.stdout)
                self.assertIn(says, done.stdout)
                self.assertNotIn(says_not, done.stdout)

    def test_few_open_files(self):
        done = self.run_plain("sh", "-c", 'ulimit -n 6; exec "$0" run --ram 64M -- true', FARPAGE)
        self.assertEqual(done.returncode, 125)
        self.assertIn("the limit on open files (ulimit -n) is 6", done.stderr)

    def test_a_library_that_is_not_ours(self):
        whole = PRELOAD.read_bytes()
        version = whole.index(b"farpage\0", whole.index(b"\x20\0\0\0\x01\0\0\0farpage\0")) + 8
        for name, content, says in [("part", whole[: 1 << 20], "it is damaged"),
                                    ("older", whole[:version] + b"9" + whole[version + 1:], "and this command is"),
                                    ("text", b"library", "not a shared library"),
                                    ("other", Path(LIBM).read_bytes(), "it is not farpage's library")]:
            with self.subTest(name):
                library = self.dir / name
                library.write_bytes(content)
                done = self.said("run", "--ram", "16M", "--", "true", env=os.environ | {"FARPAGE_PRELOAD": str(library)})
                self.assertEqual(done.returncode, 125)
                self.assertIn(says, done.stdout)

    def test_disabled(self):
        for options, count in [(["--stats"], 2), ([], 1), (["-q"], 0)]:
            done = self.said("run", *options, "--ram", "64M", "--", "true", env=os.environ | {"FARPAGE_DISABLE": "1"})
            self.assertEqual((done.returncode, done.stdout.count("FARPAGE_DISABLE is set")), (0, count), done.stdout)

    @unless_there(PYTHON)
    def test_full_devices(self):
        done = self.said("run", "--ram", "32M", "--swap", "zram,size=8M", "--stats", "--", PYTHON, "-c", RANDOM)
        self.assertEqual(done.returncode, 0)
        self.assertIn("the swap devices were full: more --swap", done.stdout)
        self.assertNotIn("only more --ram", done.stdout)

    @unless_there("bash")
    def test_completions_of_bash(self):
        place = Path("/usr/share/bash-completion/bash_completion")
        if not place.exists():
            self.skipTest("no bash-completion")
        for line, complete in COMPLETIONS:
            script = f'. {place}; . "$0"; COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); ' \
                     '_farpage farpage "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}"'
            done = self.run_plain("bash", "--norc", "-c", script, ROOT / "crates/farpage-cli/pages/bash/farpage")
            self.assertIn(complete, [word.rstrip("/") for word in done.stdout.split()], f"{line}: {done.stderr}")

    @unless_there("fish")
    def test_completions_of_fish(self):
        for line, complete in COMPLETIONS:
            source = f"source {ROOT}/crates/farpage-cli/pages/fish/farpage.fish; complete -C '{line}'"
            done = self.run_plain("fish", "--no-config", "-c", source)
            self.assertIn(complete, [word.rstrip("/") for word in done.stdout.split()], f"{line}: {done.stderr}")


@unless_there(PYTHON)
class Lifted(Holding):
    def test_a_budget_can_be_lifted(self):
        fills = "b = []\nprint('ready', flush=True)\nfor line in __import__('sys').stdin: b.append(b'x' * (64 << 20)); print('filled', flush=True)"
        process = self.begin(FARPAGE, "run", "--ram", "32M", "--", PYTHON, "-c", fills)
        done = self.run_plain(FARPAGE, "set", process.pid, "--ram", "max")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.ask(process, "fill"), "filled")
        self.assertGreater(resident(process.pid), 64 * MIB)


if __name__ == "__main__":
    unittest.main()
