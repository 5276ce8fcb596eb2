"""Options that come from the environment and from files: which one counts, and what is said of a wrong one."""

import os
import unittest

from situation import FARPAGE, NOBODY, Situation, unless_root, unless_there

CONF = 'echo "$FARPAGE_CONF"'
ZRAM = "swap:zram,alg=lz4"


class Defaults(Situation):
    def setUp(self):
        super().setUp()
        self.file = self.dir / "farpage.conf"
        self.environment = os.environ | {"XDG_CONFIG_HOME": str(self.dir)}

    def run_here(self, *argv, **variables):
        return self.run_plain(*argv, env=self.environment | variables)

    def conf(self, *options, **variables):
        """What the engine is told."""
        done = self.run_here(FARPAGE, "run", *options, "--", "sh", "-c", CONF, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_the_command_line_then_the_environment_then_the_file(self):
        self.file.write_text('ram = "32M"\nswap = ["zram,size=64M", "file:/var/tmp"]\nverify = true\n')
        devices = "swap:zram,alg=lz4,size=67108864;swap:file:/var/tmp"
        self.assertEqual(self.conf(), f"ram:{32 << 20};{devices};verify")
        self.assertEqual(self.conf(FARPAGE_RAM="33M"), f"ram:{33 << 20};{devices};verify")
        other = {"FARPAGE_RAM": "33M", "FARPAGE_SWAP": "file:/tmp;zram"}
        self.assertEqual(self.conf(**other), f"ram:{33 << 20};swap:file:/tmp;{ZRAM};verify")
        self.assertEqual(self.conf("--ram", "34M", "--swap", "zram", **other),
                         f"ram:{34 << 20};{ZRAM};verify")

    def test_an_option_replaces_what_it_excludes(self):
        self.file.write_text("quiet = true\n")
        done = self.run_here(FARPAGE, "run", "--ram", "32M", "--verbose", "--", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("budget 32.0 MiB", done.stderr)

    @unless_root
    @unless_there("unshare")
    def test_the_users_file_then_the_machines(self):
        self.file.write_text('swap = "zram"\nstats = false\n')
        script = """mount -t tmpfs none /etc
            printf 'ram = "35M"\\nswap = "file:/tmp"\\nstats = true\\n' > /etc/farpage.conf
            exec "$@" """
        done = self.run_here("unshare", "--mount", "sh", "-ec", script, "sh", FARPAGE, "run", "--", "sh", "-c", CONF)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"ram:{35 << 20};{ZRAM}\n", ""))

    def test_a_run_below_another_takes_only_what_is_for_each(self):
        report = self.dir / "report.html"
        self.file.write_text(f'ram = "32M"\nreport = "{report}"\nstats = true\nverify = true\n')
        inner = f'{FARPAGE} run --ram 20M -- sh -c \'echo "$FARPAGE_CONF ${{FARPAGE_RAM-none}}"\''
        done = self.run_here(FARPAGE, "run", "--", "sh", "-c", inner, FARPAGE_RAM="40M")
        told = f"ram:{20 << 20};{ZRAM};swap:file:/var/tmp;verify none\n"
        self.assertEqual((done.returncode, done.stdout), (0, told), done.stderr)
        self.assertEqual(done.stderr.count("\n  budget  "), 1, done.stderr)
        self.assertTrue(report.exists())

    def test_no_file_counts_where_none_is_to(self):
        self.file.write_text('ramm = "1G"\n')
        seen = 'echo "$FARPAGE_CONF ${FARPAGE_DEFAULTS-none}"'
        done = self.run_here(FARPAGE, "run", "--ram", "34M", "--swap", "zram", "--", "sh", "-c", seen,
                             FARPAGE_DEFAULTS="0")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"ram:{34 << 20};{ZRAM} none\n", ""))

    def test_what_is_wrong_is_named(self):
        self.file.write_text('# of this user\nramm = "1G"\n')
        for command, status in ((["run", "--", "true"], 125), (["attach", "1", "--ram", "1G"], 1)):
            done = self.run_here(FARPAGE, *command)
            self.assertEqual((done.returncode, done.stdout), (status, ""))
            self.assertIn(f"farpage: {self.file}, line 2: ramm: no such key", done.stderr)
        self.file.write_text('swap = "file:/nowhere/at/all"\n')
        done = self.run_here(FARPAGE, "run", "--", "true")
        self.assertEqual(done.returncode, 125)
        self.assertIn(f"--swap is from {self.file}, line 1", done.stderr)
        done = self.run_here(FARPAGE, "run", "--", "true", FARPAGE_RAM="1M")
        self.assertIn("farpage: FARPAGE_RAM: budget of 1.0 MiB", done.stderr)
        self.file.unlink()
        self.file.mkdir()
        done = self.run_here(FARPAGE, "run", "--", "true")
        self.assertIn(f"farpage: cannot read {self.file}: is a directory", done.stderr)
        self.file.rmdir()
        for make, why in [(os.mkfifo, "not a regular file"),
                          (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
                          (lambda path: path.write_bytes(bytes(2 << 20)), "file too large")]:
            make(self.file)
            done = self.run_here(FARPAGE, "run", "--", "true")
            self.assertIn(f"farpage: cannot read {self.file}: {why}", done.stderr)
            self.file.unlink()

    def test_a_variable_that_does_not_count_is_not_checked(self):
        self.assertEqual(self.conf("--ram", "34M", FARPAGE_RAM="auto", FARPAGE_SWAP="zram; "), f"ram:{34 << 20};{ZRAM}")
        self.assertEqual(self.conf("--ram", "34M", "--swap", "zram", FARPAGE_SWAP="zramm"), f"ram:{34 << 20};{ZRAM}")
        done = self.run_here(FARPAGE, "attach", str(2**22 - 1), "--ram", "1G", FARPAGE_RAM="auto")
        self.assertIn("no such process", done.stderr)

    @unless_root
    def test_another_users_directory_is_not_looked_into(self):
        self.file.write_text('ramm = "1G"\n')
        self.dir.chmod(0o700)
        done = self.run_plain(FARPAGE, "doctor", env=self.environment, user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertNotIn("ramm", done.stdout + done.stderr)
        self.assertIn(f"none in {self.file} or /etc/farpage.conf", done.stdout)

    @unless_root
    def test_another_users_file_is_not_taken(self):
        self.file.write_text('ramm = "1G"\n')
        os.chown(self.file, NOBODY, NOBODY)
        self.assertIn("ram:", self.conf("--ram", "32M"))

    def test_doctor_says_what_comes_from_where(self):
        self.file.write_text('swap = "zram"\nstats = true\n')
        told = self.run_here(FARPAGE, "doctor", FARPAGE_RAM="36M").stdout
        for line in ("--ram by default +36M \\(FARPAGE_RAM\\)", f"--swap by default +zram \\({self.file}, line 1\\)",
                     f"--stats by default +on \\({self.file}, line 2\\)", "budget without --ram +36.0 MiB"):
            self.assertRegex(told, line)


if __name__ == "__main__":
    unittest.main()
