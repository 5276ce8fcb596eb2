"""Memory that the kernel or a device has in its hands while it is swapped out: pipes, sockets, reads on their way."""

import json
import unittest

from situation import Situation, build

# The program's memory is 64 MiB.
RAM = "24M"


class GivenAway(Situation):
    def run_given_away(self, how):
        program, stats = build("given_away.c"), self.dir / "stats"
        plain = self.run_plain(program, how, "/var/tmp")
        if plain.returncode == 77:
            self.skipTest(plain.stderr.strip())
        self.assertEqual(plain.returncode, 0, plain.stdout + plain.stderr)
        options = ("--verify", "--stats-json", stats)
        done = self.run_farpage(program, how, "/var/tmp", ram=RAM, options=options)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, plain.stdout, ""))
        counted = json.loads(stats.read_text())
        self.assertGreater(counted["pswpout"], 0)
        return counted

    # A reference is no pin: the page leaves, and stays as it was where it was given to.

    def test_pages_in_a_pipe(self):
        self.run_given_away("pipe")

    def test_pages_in_a_socket(self):
        self.run_given_away("socket")

    # What is pinned stays.

    def test_direct_reads_of_another_thread(self):
        self.run_given_away("thread")

    def test_direct_reads_on_their_way(self):
        self.run_given_away("aio")

    def test_registered_buffers(self):
        counted = self.run_given_away("uring")
        self.assertGreater(counted["move_skipped"], 0)


if __name__ == "__main__":
    unittest.main()
