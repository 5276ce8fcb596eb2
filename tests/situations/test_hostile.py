"""A member of a tree that means harm writes anything into what the tree's processes share: others may be slow, and have
more or less memory than they should, but no byte is wrong, none hangs, and none crashes."""

import unittest

from situation import Situation, build

SEED = 1

# Takes all places that are left, as many processes would; then forks a child, which forks one, and starts a program.
# Each waits for its engine.
FULL = """
import mmap, os, struct, subprocess, sys, time
fd = int(os.environ["FARPAGE_TREE_FD"].split(":")[0])
tree = mmap.mmap(fd, os.fstat(fd).st_size)
struct.pack_into("I", tree, 24, 4096)
for at in range(4096, 4096 + 4096 * 256, 256):
    if struct.unpack_from("I", tree, at) == (0,):
        struct.pack_into("IIQ", tree, at + 24, os.getpid(), 6, 0)
        struct.pack_into("Q", tree, at + 40, os.stat("/proc/self/ns/pid").st_ino)
        struct.pack_into("I", tree, at, os.getpid())
tree.close()
def has_engine():
    return any("farpage" in open(f"/proc/self/task/{tid}/comm").read() for tid in os.listdir("/proc/self/task"))
def waited(pid):
    assert os.waitpid(pid, 0)[1] == 0
assert not has_engine()
if (child := os.fork()) == 0:
    data = bytes(range(256)) * 80000
    while not has_engine():
        time.sleep(0.01)
    if (grandchild := os.fork()) == 0:
        assert has_engine() and data == bytes(range(256)) * 80000
        os._exit(0)
    waited(grandchild)
    os._exit(data != bytes(range(256)) * 80000)
waited(child)
subprocess.run(sys.argv[1:], check=True)
"""


class Hostile(Situation):
    def test_who_lies_in_the_segment_harms_nobody(self):
        program = build("liar.c")
        for where in ("all", "header", "members", "zeros", "ones"):
            with self.subTest(where=where):
                done = self.run_farpage(program, where, SEED, 2, 16, 2, ram="24M", options=("--verify",))
                self.assertEqual((done.returncode, done.stdout), (0, "0 wrong\n"), done.stderr)

    def test_processes_without_a_place_have_little(self):
        done = self.run_farpage("python3", "-c", FULL, build("grow.c"), "large", 20, "engine", ram="400M")
        self.assertEqual((done.returncode, done.stdout), (0, "ok\n"), done.stderr)
        self.assertRegex(done.stderr, r"^farpage: more than 4096 processes run: .* budget of \d+\.\d KiB .*\n$")


if __name__ == "__main__":
    unittest.main()
