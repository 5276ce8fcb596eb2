"""The package's text: examples in its documentation, types, the structures of C."""

import ctypes
import doctest
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import farpage
from farpage import _library, _pager, _stats
from farpage._library import command

TYPED = """
from typing import Any
import farpage
import numpy as np
from numpy.typing import NDArray

with farpage.Pager("64M", fault="signal") as pager:
    a: NDArray[np.float32] = pager.empty((3, 4), np.float32, "F")
    b: NDArray[np.float64] = farpage.ones(3)
    c: NDArray[np.int8] = pager.full_like(farpage.arange(3, dtype=np.int8), 2)
    pager.from_file("path", np.float32, mode="r+").flush()
    pager.advise(a, "sequential")
    d: NDArray[Any] = pager.zeros(3, "S5")
    e, f = pager.empty(3, np.float32), farpage.asarray(a)
    g: NDArray[np.float64] = e  # wrong
    h: NDArray[np.int8] = f  # wrong
    pager.advise(a, "sequental")  # wrong
    pager.empty(3, order="Q")  # wrong
    pager.from_file("path", mode="w")  # wrong
    pager.from_file("path").flush()  # wrong
farpage.Pager("64M", fault="threads")  # wrong
"""

PYTHON = pathlib.Path(__file__).resolve().parent.parent


class Source(unittest.TestCase):
    def test_examples_in_the_documentation(self):
        for module in [farpage, _pager]:
            result = doctest.testmod(module)
            self.assertGreater(result.attempted, 2)
            self.assertEqual(result.failed, 0)

    def test_structures_are_those_of_the_header(self):
        header = (PYTHON.parent / "crates/farpage-c/include/farpage.h").read_text()
        for name, structure in [("fp_stats", _library.CStats), ("fp_config", _library.Config)]:
            body = re.search(rf"typedef struct {name} \{{(.*?)\n\}} {name};", header, re.S).group(1)
            members = re.findall(r"^  (.+?)([a-z_]+);$", body, re.M)
            kinds = {"uint64_t ": ctypes.c_uint64, "uint32_t ": ctypes.c_uint32, "size_t ": ctypes.c_size_t,
                     "const char *": ctypes.c_char_p}
            self.assertEqual([(name, kinds[kind]) for kind, name in members], structure._fields_)
        self.assertEqual(list(_stats.NAMES), _library.STATISTICS)

    def test_public_names_have_documentation(self):
        for name in farpage.__all__:
            self.assertTrue(getattr(farpage, name).__doc__, name)

    def test_types(self):
        done = subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("no mypy")
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "-p", "farpage"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_type_checkers_know_what_arrays_are_of_and_which_words_there_are(self):
        done = subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("no mypy")
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program.py")
            program.write_text(TYPED)
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", str(program)],
                                  capture_output=True, text=True, check=False)
        wrong = [n for n, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")]
        self.assertEqual([int(n) for n in re.findall(r":(\d+): error:", done.stdout)], wrong, done.stdout)

    def test_the_command_is_that_of_the_package(self):
        self.assertTrue(pathlib.Path(command()).is_relative_to(sys.prefix), command())
        self.assertTrue(_library.preload_library().startswith(sys.prefix))
        done = subprocess.run([command(), "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["farpage", farpage.__version__])


if __name__ == "__main__":
    unittest.main()
