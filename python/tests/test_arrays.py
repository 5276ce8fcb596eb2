"""Arrays of a pager: what numpy's own can do, at several times the budget, with right bytes."""

import copy
import io
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import farpage

MIB = 1 << 20


def numbers(pager, mib, seed=1):
    """An array of so many MiB that compresses little, and its copy outside."""
    copy = np.random.default_rng(seed).integers(0, 1 << 60, (mib, MIB // 8), dtype=np.int64)
    return pager.array(copy), copy


class Making(unittest.TestCase):
    def setUp(self):
        self.pager = farpage.Pager("16M")

    def test_shapes_types_and_orders_are_numpys(self):
        kinds = ["f8", "i2", "?", "c16", "S5", "U3", "M8[s]", np.dtype([("a", "i4"), ("b", "f8", (2,))])]
        for kind in kinds:
            for shape in [7, (3, 5), (2, 0, 3), (), [4, 1]]:
                for order in "CF":
                    got, want = self.pager.zeros(shape, kind, order), np.zeros(shape, kind, order)
                    self.assertIs(type(got), np.ndarray)
                    self.assertEqual((got.shape, got.dtype, got.strides), (want.shape, want.dtype, want.strides))
                    self.assertEqual(got.tobytes(), want.tobytes())
                    self.assertTrue(got.flags.writeable and got.flags.aligned)

    def test_full_and_array_take_the_type_of_what_they_are_given(self):
        for value in [3, 2.5, True, 1j, "text"]:
            got, want = self.pager.full((3, 4), value), np.full((3, 4), value)
            self.assertEqual(got.dtype, want.dtype)
            np.testing.assert_array_equal(got, want)
        self.assertEqual(self.pager.full(3, 2.7, int).tolist(), [2, 2, 2])
        source = np.asfortranarray(np.arange(12).reshape(3, 4))
        self.assertTrue(self.pager.array(source).flags.f_contiguous)
        self.assertTrue(self.pager.array(source, order="C").flags.c_contiguous)
        self.assertEqual(self.pager.array([[1, 2], [3, 4]], "f4").tolist(), [[1, 2], [3, 4]])
        self.assertEqual(self.pager.array(source[::2, ::-1]).tolist(), source[::2, ::-1].tolist())

    def test_values_become_what_numpy_makes_of_them(self):
        record = np.dtype([("a", "i4"), ("b", "f8")])
        for values, kind in [(["abc"], "S"), (["abc"], str), ([(1, 2.0)], record), ([2**63 + 1, 3], "u8"),
                             ("2020", "M8"), (np.array(["abc", "d"]), "S"), (np.array(["2020-01"]), "M8")]:
            got, want = self.pager.array(values, kind), np.array(values, kind)
            self.assertEqual((got.dtype, got.shape, got.tolist()), (want.dtype, want.shape, want.tolist()))
        for wrong in [lambda: self.pager.array([300], "u1"), lambda: self.pager.array([float("nan")], "i4"),
                      lambda: self.pager.empty("12"), lambda: self.pager.empty(3.7)]:
            with self.assertRaises((OverflowError, ValueError, TypeError)):
                wrong()
        self.assertEqual(self.pager.zeros(3, "S").tolist(), np.zeros(3, "S").tolist())
        self.assertEqual(self.pager.empty(np.array([2, 3])).shape, (2, 3))
        for refused in [copy.copy, copy.deepcopy, pickle.dumps]:
            with self.assertRaises(TypeError):
                refused(self.pager)

    def test_what_cannot_be_is_refused(self):
        part = self.pager.full((64, 1024), 7.0)
        with self.assertRaisesRegex(farpage.InvalidError, "not contiguous"):
            self.pager.advise(part[:, 0], "dontneed")
        self.assertEqual(part.min(), 7)
        for wrong in [lambda: farpage.Pager("16M", []), lambda: farpage.Pager(1 << 65),
                      lambda: farpage.Pager("16M", readahead=-1), lambda: self.pager.empty(3, object),
                      lambda: self.pager.empty(-1), lambda: farpage.Pager("1M"),
                      lambda: farpage.Pager("wide"), lambda: farpage.Pager("16M", "tape:/dev/null"),
                      lambda: self.pager.prefetch(np.ones(3)), lambda: self.pager.advise(self.pager.empty(3), "soon"),
                      lambda: setattr(self.pager, "ram", 1)]:
            with self.assertRaises(farpage.InvalidError) as refusal:
                wrong()
            self.assertIsInstance(refusal.exception, ValueError)

    def test_more_than_the_devices_hold_is_refused_in_words(self):
        small = farpage.Pager("16M", ["zram,size=32M"])
        kept = small.empty(20 * MIB, "u1")
        with self.assertRaisesRegex(farpage.RoomError, "20.0 MiB of arrays already.*zram,size=32M hold 48.0 MiB.*swap"):
            small.empty(30 * MIB, "u1")
        with self.assertRaises(MemoryError):
            self.pager.empty(1 << 60)
        with self.assertRaises(farpage.RoomError):
            farpage.Pager("16M", overcommit=True).empty(1 << 61)
        del kept
        self.assertEqual(small.empty(40 * MIB, "u1").nbytes, 40 * MIB)
        generous = farpage.Pager("16M", ["zram,size=32M"], overcommit=True)
        self.assertEqual(generous.zeros(100 * MIB, "u1")[:: 4096].sum(), 0)

    def test_sizes_are_read_as_on_the_command_line(self):
        sizes = [("4M", 4 * MIB), ("5.5m", 5.5 * MIB), ("6MiB", 6 * MIB), ("8MB", 8_000_000), (7 * MIB, 7 * MIB)]
        for text, size in sizes:
            self.pager.ram = text
            self.assertEqual(self.pager.ram, size)


class Large(unittest.TestCase):
    """An array of four times the budget."""

    def setUp(self):
        self.pager = farpage.Pager("8M")
        self.array, self.copy = numbers(self.pager, 32)

    def right(self, array=None, copy=None):
        np.testing.assert_array_equal(self.array if array is None else array, self.copy if copy is None else copy)


class Holding(Large):
    def test_the_budget_holds_and_the_bytes_come_back(self):
        self.right()
        stats = self.pager.stats()
        self.assertLessEqual(stats.used_bytes, 9 * MIB)
        self.assertGreater(stats.pswpout, 5_000)
        self.array += 1
        self.array[::3] *= 2
        self.copy += 1
        self.copy[::3] *= 2
        self.right()
        self.assertIn("MiB of 8.0 MiB", str(self.pager.stats()))
        self.assertIn("<table>", self.pager.stats()._repr_html_())

    def test_memory_goes_with_the_last_view(self):
        view = self.array[5:7]
        del self.array
        np.testing.assert_array_equal(view, self.copy[5:7])
        self.assertGreater(self.pager.stats().resident_bytes, 0)
        del view
        stats = self.pager.stats()
        self.assertEqual((stats.resident_bytes, stats.file_bytes, stats.pool_orig_bytes), (0, 0, 0))

    def test_arrays_outlive_their_pager(self):
        del self.pager
        self.right()

    def test_pickle(self):
        self.right(pickle.loads(pickle.dumps(self.array, 5)))
        outside = []
        data = pickle.dumps(self.array, 5, buffer_callback=outside.append)
        self.assertLess(len(data), 1000)
        self.right(pickle.loads(data, buffers=outside))

    def test_forked_children_have_a_copy(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            sums = pool.map(np.sum, [self.array[:16], self.array[16:]])
        self.assertEqual(sums, [self.copy[:16].sum(), self.copy[16:].sum()])
        pid = os.fork()
        if pid == 0:
            self.array[:] = 0
            os._exit(0 if not self.array.any() else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.right()

    def test_threads(self):
        parts = np.array_split(np.arange(32), 4)

        def work(rows):
            for row in rows:
                self.array[row] *= 3

        threads = [threading.Thread(target=work, args=[rows]) for rows in parts]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.copy *= 3
        self.right()

    def test_advice_pins_and_a_new_budget(self):
        self.pager.advise(self.array[3:], "sequential")
        self.pager.prefetch(self.array[:4])
        with self.pager.pin(self.array[10:12]) as rows:
            self.assertGreaterEqual(self.pager.stats().pinned_bytes, rows.nbytes)
        self.assertEqual(self.pager.stats().pinned_bytes, 0)
        self.pager.ram = "64M"
        self.right()
        self.pager.advise(self.array[0], "dontneed")
        self.assertFalse(self.array[0].any())

    def test_a_part_is_found_through_views(self):
        for part in [self.array.T, self.array[3:5], self.array.view("u1"), np.frombuffer(memoryview(self.array[3]))]:
            self.pager.prefetch(part)


class SystemCalls(Large):
    """The kernel reads and writes arrays that are swapped out, without privilege."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")

    def file(self):
        return np.fromfile(self.path, np.int64).reshape(self.copy.shape)

    def test_files(self):
        self.array.tofile(self.path)
        self.right(self.file())
        with open(self.path, "wb") as file:
            file.write(self.array)
        self.right(self.file())
        fd = os.open(self.path, os.O_RDWR | os.O_TRUNC)
        try:
            self.assertEqual(os.writev(fd, [self.array[:16], self.array[16:]]), self.copy.nbytes)
            self.right(self.file())
            self.assertEqual(os.pwritev(fd, [self.array[16:], self.array[:16]], 0), self.copy.nbytes)
            self.right(self.file(), np.concatenate([self.copy[16:], self.copy[:16]]))
            self.assertEqual(os.preadv(fd, [self.array], 0), self.copy.nbytes)
        finally:
            os.close(fd)
        self.right(None, np.concatenate([self.copy[16:], self.copy[:16]]))
        with open(self.path, "rb", buffering=0) as file:
            self.array[:] = 0
            self.assertEqual(file.readinto(memoryview(self.array).cast("B")), self.copy.nbytes)
        self.right(None, np.concatenate([self.copy[16:], self.copy[:16]]))

    def test_numpys_files(self):
        np.save(self.path + ".npy", self.array)
        self.right(np.load(self.path + ".npy"))
        np.savez(self.path + ".npz", a=self.array)
        with np.load(self.path + ".npz") as saved:
            self.right(saved["a"])

    def test_sockets_and_pipes(self):
        here, there = socket.socketpair()
        sender = threading.Thread(target=here.sendall, args=[memoryview(self.array).cast("B")])
        sender.start()
        got = self.pager.empty(self.copy.nbytes, "u1")
        rest = memoryview(got)
        while rest:
            rest = rest[there.recv_into(rest) :]
        sender.join()
        here.close()
        there.close()
        self.right(got.view(np.int64).reshape(self.copy.shape))
        done = subprocess.run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"],
                              input=memoryview(self.array).cast("B"), stdout=subprocess.PIPE, check=True)
        self.right(np.frombuffer(done.stdout, np.int64).reshape(self.copy.shape))


class Files(unittest.TestCase):
    def setUp(self):
        self.pager = farpage.Pager("16M")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.copy = np.random.default_rng(2).random((300, 10_000))

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_save_and_load(self):
        named = np.dtype([("値", "f4"), ("ä", "i8")])
        others = [self.copy, np.asfortranarray(self.copy), self.copy[::2, ::3], np.float32(3), np.zeros((0, 4)),
                  np.zeros(100, named)]
        for i, array in enumerate(others):
            farpage.save(self.path(f"{i}"), self.pager.array(array))
            got = self.pager.load(self.path(f"{i}.npy"), progress=False)
            turned = got.flags.f_contiguous  # compared in the order of memory
            np.testing.assert_array_equal(got.T if turned else got, np.transpose(array) if turned else array)
            numpys = np.load(self.path(f"{i}.npy"))
            self.assertEqual((got.dtype, got.flags.f_contiguous), (array.dtype, numpys.flags.f_contiguous))
        for save in (np.savez, np.savez_compressed):
            save(self.path("all.npz"), a=self.copy, b=self.copy[:5])
            got = self.pager.load(self.path("all.npz"))
            self.assertEqual(list(got), ["a", "b"])
            np.testing.assert_array_equal(got["a"], self.copy)

    def test_a_file_of_plain_values(self):
        self.copy.tofile(self.path("raw"))
        got = self.pager.from_file(self.path("raw"), "f8", self.copy.shape)
        np.testing.assert_array_equal(got, self.copy)
        got += 1
        np.testing.assert_array_equal(np.fromfile(self.path("raw")), self.copy.ravel())
        np.testing.assert_array_equal(self.pager.from_file(self.path("raw"), "f8", offset=80), self.copy.ravel()[10:])
        with self.assertRaisesRegex(farpage.InvalidError, "no multiple of 8"):
            self.pager.from_file(self.path("raw"), "f8", offset=3)
        with self.assertRaises(farpage.InvalidError):
            self.pager.from_file(self.path("raw"), "S")
        with self.assertRaisesRegex(farpage.InvalidError, "has 24000000 bytes from 0 on, the array needs 24000080"):
            self.pager.from_file(self.path("raw"), "f8", 3_000_010)

    def test_what_is_no_array_is_refused(self):
        for content in [b"", b"text, not an array", b"\x93NUMPY\x09\x00xxxxxxxxxxxxxxxxx"]:
            with open(self.path("x.npy"), "wb") as file:
                file.write(content)
            with self.assertRaises(farpage.InvalidError):
                self.pager.load(self.path("x.npy"))
        np.savez(self.path("all.npz"), a=self.copy)
        os.truncate(self.path("all.npz"), 100_000)
        with self.assertRaises(farpage.InvalidError):
            self.pager.load(self.path("all.npz"))
        np.savez(self.path("none.npz"))
        self.assertEqual(self.pager.load(self.path("none.npz")), {})
        np.save(self.path("objects.npy"), np.array([None, 1], object))
        with self.assertRaises(farpage.InvalidError):
            self.pager.load(self.path("objects.npy"))
        farpage.save(self.path("short.npy"), self.copy)
        os.truncate(self.path("short.npy"), 100_000)
        with self.assertRaisesRegex(farpage.InvalidError, "ends after"):
            self.pager.load(self.path("short.npy"))

    def test_progress_is_shown_where_it_is_wanted(self):
        try:
            import tqdm
        except ImportError:
            self.skipTest("no tqdm")
        del tqdm
        shown = io.StringIO()
        before, sys.stderr = sys.stderr, shown
        try:
            farpage.save(self.path("a"), self.copy, progress=True)
            got = self.pager.load(self.path("a.npy"), progress=True)
        finally:
            sys.stderr = before
        np.testing.assert_array_equal(got, self.copy)
        self.assertIn("writing a.npy: 100%", shown.getvalue())
        self.assertIn("reading a.npy: 100%", shown.getvalue())


class Default(unittest.TestCase):
    def test_a_child_that_is_forked_while_another_thread_makes_the_default_pager_makes_its_own(self):
        code = """if True:
            import farpage, farpage._pager as p, os, signal, threading
            with p._DEFAULT_LOCK:
                pid = os.fork()
                if not pid:
                    signal.alarm(120)
                    os._exit(int(farpage.zeros(10).any()))
            assert os.waitpid(pid, 0)[1] == 0
        """
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_functions_use_a_pager_made_when_it_is_needed(self):
        machine = farpage.default_pager()
        self.assertGreater(machine.ram, 64 * MIB)
        small = farpage.Pager("16M")
        farpage.set_default_pager(small)
        self.addCleanup(farpage.set_default_pager, machine)
        array = farpage.full((32, MIB), 7, "u1")
        self.assertEqual(int(array.sum()), 7 * 32 * MIB)
        self.assertGreater(small.stats().pswpout, 1000)
        self.assertFalse(farpage.zeros(5).any() or farpage.empty(5).any())
        self.assertEqual(farpage.array([1, 2]).tolist(), [1, 2])


if __name__ == "__main__":
    unittest.main()
