"""Processes under a budget: this one by `limit`, others by `run`, and the notebook's magic."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

import farpage
from farpage._library import command

DOCTOR = json.loads(subprocess.run([command(), "doctor", "--json"], capture_output=True, text=True, check=False).stdout)
MAY = DOCTOR["works"]

LIMIT = """
import farpage, os, sys, time
import numpy as np
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) >> 10
def settled(most):
    end = time.monotonic() + 60
    while anonymous() > most and time.monotonic() < end:
        time.sleep(0.05)
    return anonymous() <= most
early = np.arange(12 << 20)                    # 96 MiB before there is a budget
texts = [str(i) for i in range(100_000)]
with farpage.limit("64M") as limit:
    assert repr(limit) == "<farpage.limit: 64.0 MiB>"
    assert settled(64), anonymous()
    late = early + 1
    assert settled(64), anonymous()
    assert int(late.sum()) == int(early.sum()) + len(early)
    pid = os.fork()
    if not pid:
        os._exit(0 if int(early[::4096].sum()) == sum(range(0, 12 << 20, 4096)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
late += 1                                      # without a limit again
assert int(late.sum()) == int(early.sum()) + 2 * len(early)
assert anonymous() > 150, anonymous()
with farpage.limit("80M"):
    assert settled(80), anonymous()
    try:
        farpage.limit("1G", swap="zram")
    except farpage.InvalidError:
        pass
    else:
        raise AssertionError
assert texts == [str(i) for i in range(100_000)]
"""


def python(code):
    """Runs it. On a busy machine any program may be told that it waited for most of its time."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    waited = r"^farpage: for \d+% of the .* at least one thread waited for memory.*\n"
    done.stderr = re.sub(waited, "", done.stderr, flags=re.M)
    return done


class Limit(unittest.TestCase):
    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_memory_from_before_and_after_is_within_the_budget(self):
        done = python(LIMIT)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    @unittest.skipIf(MAY, "is for users without userfaultfd")
    def test_who_may_not_is_told_why(self):
        done = python("import farpage\ntry: farpage.limit('64M')\nexcept farpage.UnavailableError as e: print(e)")
        self.assertIn("cannot be put under a budget: cannot create a userfaultfd", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_what_is_none_is_refused_and_can_be_tried_again(self):
        for ram, swap in [("much", None), ("1M", None), ("64M", "tape:/x"), ("64M", "file:/no/such"), ("64M", [])]:
            with self.assertRaises(farpage.InvalidError):
                farpage.limit(ram, swap)

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_what_the_engine_refuses_can_be_tried_again(self):
        done = python("""if True:
            import farpage
            try:
                farpage.limit("64M", "zram,alg=none")
            except farpage.UnavailableError:
                print(farpage.limit("64M"))
        """)
        self.assertEqual((done.stdout, done.stderr), ("<farpage.limit: 64.0 MiB>\n", ""))

    def test_a_pager_can_be_made_after_a_refused_limit(self):
        done = python("""if True:
            import farpage
            try:
                print(farpage.limit("64M", "zram,alg=none"))
            except farpage.UnavailableError:
                print(farpage.Pager("16M").zeros(3))
        """)
        self.assertEqual((done.stdout, done.stderr), ("[0. 0. 0.]\n", ""))

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_a_pager_is_refused_where_an_engine_waits_to_be_needed(self):
        code = "import farpage\ntry: farpage.Pager('16M')\nexcept farpage.UnavailableError as why: print(why)"
        done = farpage.run([sys.executable, "-c", code], ram="4G", capture_output=True, text=True)
        self.assertIn("under farpage run or farpage.limit", done.stdout)

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_a_pager_can_be_made_after_detach(self):
        done = python("""if True:
            import ctypes, farpage, os, subprocess
            import numpy as np
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: its children may
            early = np.arange(12 << 20)
            farpage.limit("64M")
            subprocess.run([farpage._library.command(), "detach", str(os.getpid())], check=True, capture_output=True)
            pager = farpage.Pager("16M")
            array = pager.arange(8 << 20)
            pid = os.fork()
            if not pid:
                farpage.Pager("16M")
                os._exit(0 if (array == early[: len(array)]).all() else 1)
            print(os.waitpid(pid, 0)[1], (array == early[: len(array)]).all(), pager.stats().pswpout > 4096)
        """)
        self.assertEqual((done.stdout, done.stderr), ("0 True True\n", ""))

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_an_engine_whose_library_has_no_path_is_found(self):
        done = python("""if True:
            import farpage, os
            library = os.memfd_create("libfarpage_preload.so")
            with open(farpage._library.preload_library(), "rb") as file:
                os.write(library, file.read())
            farpage._process.preload_library = lambda: f"/proc/self/fd/{library}"
            farpage.limit("64M")
            os.close(library)
            try: farpage.Pager("16M")
            except farpage.UnavailableError as why: print(why)
        """)
        self.assertRegex(done.stdout, "under farpage run or farpage.limit")
        self.assertEqual(done.stderr, "")

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_leaving_restores_the_budget_of_the_run(self):
        # The engine hears of it by and by.
        code = ("import farpage, time\nwith farpage.limit('32M'): pass\n"
                "while farpage._process._budget() != 64 << 20: time.sleep(0.05)\nprint(64)")
        done = farpage.run([sys.executable, "-c", code], ram="64M", capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("64\n", ""))

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_pagers_and_a_limit_are_not_together(self):
        for first, second in [("limit('64M')", "Pager('16M')"), ("Pager('16M')", "limit('64M')")]:
            done = python(f"import farpage\nx = farpage.{first}\ntry: farpage.{second}\n"
                          "except farpage.UnavailableError as why: print(why)")
            self.assertRegex(done.stdout, "under farpage run or farpage.limit|there are pagers.*hold them: x. ")
            self.assertEqual(done.stderr, "")


class Faults(unittest.TestCase):
    CODE = """if True:
        import farpage, os, tempfile
        import numpy as np
        pager = farpage.Pager("8M", fault="thread")
        copy = np.random.default_rng(1).integers(0, 1 << 60, 4 << 20)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "raw")
            copy.tofile(path)
            array = pager.from_file(path, "i8", mode="r+")
            array[::7] += 1
            copy[::7] += 1
            array.flush()
            assert (np.fromfile(path, "i8") == copy).all()
        with pager.arrays():
            twice = array * 2
        assert (array == copy).all() and (twice == copy * 2).all()
        assert pager.stats().pswpout > 5000 and pager.stats().used_bytes < 9 << 20
        pager.close()
        assert (array == copy).all()
    """

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_threads_of_the_pager_serve_them(self):
        done = python(self.CODE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        with self.assertRaises(farpage.Error):
            farpage.Pager("8M", fault="thread", inherit=True)

    @unittest.skipIf(MAY, "is for users without userfaultfd")
    def test_who_may_not_is_told(self):
        with self.assertRaises(farpage.UnavailableError):
            farpage.Pager("8M", fault="thread")


class Run(unittest.TestCase):
    def test_what_is_no_program_is_refused(self):
        with self.assertRaises(farpage.InvalidError):
            farpage.run("ls", shell=True)

    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_a_program_and_what_it_cost(self):
        code = "x = bytearray(80 << 20); x[::4096] = b'1' * len(x[::4096]); exit(x.count(b'1') != 20480)"
        done = farpage.run([sys.executable, "-c", code], ram="32M", swap=["zram"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(done.farpage["budget_bytes"], 32 << 20)
        self.assertGreater(done.farpage["pswpout"], 10_000)
        self.assertEqual(farpage.run("true", ram="32M").returncode, 0)
        with self.assertRaises(subprocess.CalledProcessError):
            farpage.run(["false"], ram="32M", check=True)


    @unittest.skipUnless(MAY, "needs full userfaultfd")
    def test_a_program_that_is_out_of_time_is_killed(self):
        with tempfile.TemporaryFile() as file:
            with self.assertRaises(subprocess.TimeoutExpired):
                farpage.run(["sh", "-c", "echo $$; exec sleep 300"], ram="32M", timeout=5, stdout=file)
            file.seek(0)
            pid = int(file.read())
        for _ in range(600):
            if not os.path.exists(f"/proc/{pid}"):
                break
            time.sleep(0.1)
        self.assertFalse(os.path.exists(f"/proc/{pid}"))


def ipython():
    """IPython's shell, if it is installed."""
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        return None
    return InteractiveShell


class Magic(unittest.TestCase):
    def test_percent_farpage(self):
        InteractiveShell = ipython() or self.skipTest("no IPython")
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "farpage")
        farpage.set_default_pager(farpage.Pager("16M"))
        self.assertIn("of 16.0 MiB", str(shell.run_line_magic("farpage", "stat")))
        with farpage.Pager("17M"):
            both = shell.run_line_magic("farpage", "stat")
            self.assertRegex(repr(both), r"(?s)pager 1\n.*of 16.0 MiB.*pager 2\n.*of 17.0 MiB")
            self.assertEqual(both._repr_html_().count("<table>"), len(both))
        self.assertNotIn("17.0 MiB", repr(shell.run_line_magic("farpage", "stat")))

    def test_what_holds_pagers_is_named(self):
        done = python("""if True:
            import farpage
            from IPython.core.interactiveshell import InteractiveShell
            shell = InteractiveShell.instance()
            for cell in ["import farpage", "p = farpage.Pager('16M')", "p", "a = p.ones(3)", "a", "del p, a"]:
                shell.run_cell(cell, store_history=True)
            try: farpage.limit("64M")
            except farpage.UnavailableError as why: print(why)
            shell.run_line_magic("xdel", "_5")
            shell.run_line_magic("xdel", "_3")
            print(farpage._memory.is_used())
        """) if ipython() else self.skipTest("no IPython")
        self.assertRegex(done.stdout, r"(?s)These hold them: Out\[3\], Out\[5\]. .*%xdel _3 lets Out.*\nFalse\n$")


if __name__ == "__main__":
    unittest.main()
