"""Arrays of a pager: what numpy's own can do, at several times the budget, with right bytes."""

import copy
import dataclasses
import inspect
import io
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
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
                      lambda: farpage.Pager("16M", fault="threads"), lambda: self.pager.from_file("/", mode="w"),
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

    def test_the_others_are_numpys_too(self):
        source = np.arange(24, dtype="i4").reshape(2, 3, 4)
        for made in [self.pager.ones, np.ones]:
            self.assertEqual(made((2, 3), "i2", "F").strides, (2, 4))
        np.testing.assert_array_equal(self.pager.ones((2, 3)), np.ones((2, 3)))
        for prototype in [source, source.T, source.transpose(1, 0, 2), source[::-1, ::2], np.float32(3), [1, 2]]:
            for order in "KACF":
                for shape in [None, (4, 3, 2), 5]:
                    got = self.pager.zeros_like(prototype, None, order, shape)
                    want = np.zeros_like(prototype, None, order, shape=shape)
                    self.assertEqual((got.shape, got.dtype, got.strides), (want.shape, want.dtype, want.strides))
                    self.assertEqual(got.tobytes(), want.tobytes())
            np.testing.assert_array_equal(self.pager.full_like(prototype, 2.7), np.full_like(prototype, 2.7))
        self.assertEqual(self.pager.empty_like(source, "f4").dtype, "f4")

    def test_arange(self):
        for numbers in [(10,), (0,), (2, 5), (5, 2), (0, 1, .1), (5, 0, -1), (10, 0, -.7), (np.float32(3),), (True,),
                        (2**63, 2**63 + 3), (0, 1e6, .37)]:
            for kind in [None, "f4", "f2", "i1", "u8", "c16"]:
                with np.errstate(all="ignore"):
                    try:
                        want = np.arange(*numbers, dtype=kind)
                    except (OverflowError, ValueError) as why:
                        with self.assertRaises(type(why)):
                            self.pager.arange(*numbers, dtype=kind)
                        continue
                    got = self.pager.arange(*numbers, dtype=kind)
                self.assertEqual((got.dtype, got.tobytes()), (want.dtype, want.tobytes()), (numbers, kind))
        days = self.pager.arange("2020-01", "2020-05", dtype="M8[D]")
        np.testing.assert_array_equal(days, np.arange("2020-01", "2020-05", dtype="M8[D]"))
        for wrong in [self.pager.arange, np.arange]:
            with self.assertRaises(ZeroDivisionError):
                wrong(1, 5, 0)

    def test_asarray_copies_what_is_not_there_yet(self):
        there = self.pager.ones((3, 4))
        self.assertIs(self.pager.asarray(there), there)
        self.assertTrue(np.shares_memory(self.pager.asarray(there[1:]), there))
        for other in [np.ones((3, 4)), farpage.Pager("16M").ones((3, 4)), [[1.0] * 4] * 3]:
            got = self.pager.asarray(other)
            self.pager.prefetch(got)
            np.testing.assert_array_equal(got, there)
            self.assertFalse(np.shares_memory(got, np.asarray(other)))
        self.assertEqual(self.pager.asarray(there, "f4").dtype, "f4")
        self.assertTrue(self.pager.asarray(there, order="F").flags.f_contiguous)

    def test_sizes_are_read_as_on_the_command_line(self):
        sizes = [("4M", 4 * MIB), ("5.5m", 5.5 * MIB), ("6MiB", 6 * MIB), ("8MB", 8_000_000), (7 * MIB, 7 * MIB)]
        for text, size in sizes:
            self.pager.ram = text
            self.assertEqual(self.pager.ram, size)


class Closing(unittest.TestCase):
    def test_the_end_of_a_block_closes_and_arrays_stay(self):
        with farpage.Pager("8M") as pager:
            array, copy = numbers(pager, 24)
        self.assertTrue(pager.closed)
        self.assertEqual(repr(pager), "<farpage.Pager: closed>")
        array += 1
        np.testing.assert_array_equal(array, copy + 1)
        pager.prefetch(array[:2])
        with pager.pin(array[:2]):
            pager.close()  # once more
        for refused in [lambda: pager.empty(3), lambda: pager.stats(), lambda: setattr(pager, "ram", "9M"),
                        lambda: pager.arrays().__enter__(), lambda: pager.__enter__(), lambda: pager.capacity()]:
            with self.assertRaisesRegex(farpage.InvalidError, "this pager is closed"):
                refused()

    def test_what_a_pager_has_goes_with_its_last_array(self):
        code = """if True:
            import farpage
            from farpage._memory import is_used
            assert not is_used()
            pager = farpage.Pager("16M")
            pager.close()
            assert not is_used()
            with farpage.Pager("16M") as pager:
                a = pager.ones(1 << 20)
            assert is_used() and a.sum() == 1 << 20
            del a
            assert not is_used()
            import numpy
            with farpage.arrays("16M"):
                a = numpy.ones(1 << 20)
            assert is_used() and a.sum() == 1 << 20
            del a, pager
            assert not is_used()
            farpage.default_pager().close()
            assert farpage.ones(3).sum() == 3
        """
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_a_pager_is_closed_while_threads_make_arrays(self):
        pager = farpage.Pager("16M")
        wrong = []

        def work():
            try:
                while True:
                    if pager.ones(10_000).sum() != 10_000 or pager.stats().budget_bytes != 16 * MIB:
                        wrong.append("a value")
            except farpage.InvalidError as why:
                if "closed" not in str(why):
                    wrong.append(why)

        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        while pager.stats().swpin_zero < 500:
            time.sleep(0.01)
        pager.close()
        [t.join() for t in threads]
        self.assertEqual(wrong, [])


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
        self.assertIn("MiB of 8.0 MiB\n", repr(self.pager.stats()))
        self.assertIn("<table>", self.pager.stats()._repr_html_())
        self.assertIn(" % used\n", repr(self.pager.stats()))
        self.assertNotIn(" % used", repr(dataclasses.replace(self.pager.stats(), swap_ra_hit=0)), "not counted")

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

    def test_changes_come_into_the_file(self):
        self.copy.tofile(self.path("raw"))
        got = self.pager.from_file(self.path("raw"), "f8", (299, 10_000), offset=80, mode="r+")
        want = np.fromfile(self.path("raw"))
        for part, value in [(np.s_[7], 1), (np.s_[3:9, ::7], 2)]:
            got[part] = want[10:-9_990].reshape(299, 10_000)[part] = value
            got[part].flush()
            np.testing.assert_array_equal(np.fromfile(self.path("raw")), want)
        self.assertEqual([type(got + 1), type(got.sum())], [np.ndarray, np.float64])
        pid = os.fork()
        if pid == 0:
            got[-1] = 3
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertTrue((got[-1] == 3).all())
        np.testing.assert_array_equal(np.fromfile(self.path("raw"))[10:-9_990], got.ravel())

    def test_changes_stay_however_the_program_ends(self):
        for end in ["pager.close()", "del a", "os.kill(os.getpid(), 9)", "os.closerange(3, 99); a.flush()"]:
            self.copy.tofile(self.path("raw"))
            code = f"""if True:
                import farpage, os
                pager = farpage.Pager("16M")
                a = pager.from_file({self.path("raw")!r}, "f8", mode="r+")
                a[::1000] = 5
                {end}
            """
            done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
            self.assertEqual((done.returncode, done.stderr), (-9 if "kill" in end else 0, b""))
            want = self.copy.ravel().copy()
            want[::1000] = 5
            np.testing.assert_array_equal(np.fromfile(self.path("raw")), want)

    def test_an_array_that_goes_while_it_is_written_is_written_whole(self):
        self.copy.tofile(self.path("raw"))
        code = f"""if True:
            import farpage, sys
            arrays = [farpage.Pager("16M").from_file({self.path("raw")!r}, "f8", mode="r+")]
            arrays[0][::1000] = 5

            def meanwhile(*_):  # between any two calls, as a thread may
                arrays.clear()
            flush = arrays[0].flush
            sys.setprofile(meanwhile)
            flush()
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.copy.ravel()[::1000] = 5
        np.testing.assert_array_equal(np.fromfile(self.path("raw")), self.copy.ravel())

    def test_a_file_itself_is_there_at_once(self):
        with open(self.path("raw"), "wb") as file:
            np.lib.format.write_array_header_2_0(
                file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 20, 1000)})
            begin = file.tell()
            file.truncate(1 << 40)  # nobody reads this in
        for mode in ["r", "r+"]:
            for got in [self.pager.from_file(self.path("raw"), "f8", (1 << 20, 1000), begin, mode=mode),
                        self.pager.load(self.path("raw"), mode=mode)]:
                self.assertEqual((got.shape, got.flags.writeable, got[5, 7]), ((1 << 20, 1000), mode == "r+", 0))
        self.assertEqual(self.pager.stats().resident_bytes, 0)
        got[5, 7] = 3
        self.assertEqual(self.pager.load(self.path("raw"), mode="r")[5, 7], 3)
        self.copy.tofile(self.path("raw"))
        got = self.pager.from_file(self.path("raw"), "f8", mode="r")
        for advice in ["sequential", "random", "normal", "willneed"]:
            self.pager.advise(got[5:], advice)
            np.testing.assert_array_equal(got, self.copy.ravel())
        for refused in [lambda: self.pager.advise(got, "dontneed"), lambda: self.pager.prefetch(got)]:
            with self.assertRaisesRegex(farpage.InvalidError, "is a file itself"):
                refused()
        for mode in ["r", "r+", "c"]:
            empty = self.pager.from_file(self.path("raw"), "f8", (3, 0), mode=mode)
            self.assertEqual((empty.shape, empty.flags.writeable), ((3, 0), mode != "r"))
            if mode == "r+":
                empty.flush()
            with self.assertRaisesRegex(farpage.InvalidError, "the array needs 24000080"):
                self.pager.from_file(self.path("raw"), "f8", 3_000_010, mode=mode)
            farpage.save(self.path("short.npy"), self.copy)
            os.truncate(self.path("short.npy"), 100_000)
            with self.assertRaisesRegex(farpage.InvalidError, "ends after"):
                self.pager.load(self.path("short.npy"), mode=mode)
            self.assertEqual(os.stat(self.path("short.npy")).st_size, 100_000)
        np.savez(self.path("all.npz"), a=self.copy)
        np.save(self.path("objects.npy"), np.array([None, 1], object))
        with farpage.Pager("16M") as closed:
            pass
        for refused in [lambda: self.pager.load(self.path("all.npz"), mode="r"),
                        lambda: self.pager.load(self.path("objects.npy"), mode="r"),
                        lambda: self.pager.from_file(self.path("raw"), object, mode="r"),
                        lambda: closed.from_file(self.path("raw"), mode="r"),
                        lambda: closed.from_file(self.path("raw"), "f8", 3, mode="w+"),
                        lambda: self.pager.from_file(self.path("raw"), "f8", mode="w+"),
                        lambda: self.pager.from_file(self.path("raw"), "f8", -1, mode="w+"),
                        lambda: self.pager.from_file(self.path("raw"), object, 3, mode="w+"),
                        lambda: self.pager.from_file(self.path("raw"), "f8", 3, -5, mode="w+"),
                        lambda: self.pager.from_file(self.path("raw"), "f8", 1 << 60, mode="w+"),
                        lambda: self.pager.load(self.path("raw"), mode="w+")]:
            with self.assertRaises(farpage.InvalidError):
                refused()
        with self.assertRaises(TypeError):
            self.pager.from_file(self.path("raw"), "f8", 3, 1.5, mode="w+")
        np.testing.assert_array_equal(np.fromfile(self.path("raw")), self.copy.ravel())
        new = self.pager.from_file(self.path("raw"), "f8", (30, 70), 4000, "F", mode="w+")
        new[:] = want = np.arange(2100).reshape(30, 70)
        np.testing.assert_array_equal(np.fromfile(self.path("raw")), [0] * 500 + want.ravel("F").tolist())

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
        for name in ["ones", "empty_like", "zeros_like", "full_like", "asarray", "arange", "from_file", "load"]:
            method, function = getattr(small, name), getattr(farpage, name)
            self.assertEqual(inspect.signature(function), inspect.signature(method))
            self.assertTrue(function.__doc__)
        self.assertEqual(farpage.arange(3).tolist(), [0, 1, 2])
        self.assertEqual(farpage.array([1, 2]).tolist(), [1, 2])


if __name__ == "__main__":
    unittest.main()
