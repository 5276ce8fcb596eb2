"""numpy's own arrays in a pager."""

import contextvars
import multiprocessing
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.random  # before threads: one that imports it holds its lock while another forks

import farpage

MIB = 1 << 20
START = threading.Thread.start


def work(seed):
    """Makes arrays and lets them go; whether they were right."""
    rng = np.random.default_rng(seed)
    total = 0.0
    for _ in range(6):
        a = rng.random(MIB // 4)
        b = np.concatenate([a, a + 1])
        total += b.sum() - 2 * a.sum() - len(a)
    return abs(total) < 1e-3


def held(pager):
    """Bytes of pages that a pager has anywhere. (A page that was read ahead may be in two places.)"""
    stats = pager.stats()
    return stats.resident_bytes + stats.pool_orig_bytes + stats.file_bytes


class Arrays(unittest.TestCase):
    def test_what_functions_return_is_in_the_pager(self):
        with farpage.arrays("8M") as pager:
            a = np.arange(2 * MIB, dtype=np.int64)
            b = np.concatenate([a, a])[::-1].copy()
            c = np.sort(b, kind="stable").reshape(-1, 4).sum(axis=1)
            self.assertLessEqual(pager.stats().used_bytes, 9 * MIB)
            self.assertGreater(pager.stats().pswpout, 10_000)
        # They stay, and can be used and freed, afterwards.
        self.assertEqual((int(a[-1]), int(b[0]), int(c[-1])), (2 * MIB - 1, 2 * MIB - 1, 4 * (2 * MIB) - 6))
        self.assertEqual(int(b.sum()), 2 * int(a.sum()))
        before = held(pager)
        later = np.ones(4 * MIB)
        self.assertLess(held(pager), before + MIB)
        del a, b, c, later
        self.assertEqual(held(pager), 0)

    def test_small_arrays_are_not(self):
        with farpage.arrays("16M") as pager:
            kept = [np.ones(1000) for _ in range(1000)]
            self.assertEqual(pager.stats().resident_bytes, 0)
            large = np.ones(MIB // 8)
            self.assertEqual(pager.stats().resident_bytes, MIB)
        with pager.arrays(min_bytes=8000):
            small = np.ones(1000)
            self.assertEqual(pager.stats().resident_bytes, MIB + 8192)
        self.assertEqual(sum(x.sum() for x in kept) + large.sum() + small.sum(), 1_001_000 + MIB // 8)

    def test_an_array_may_grow_and_shrink_across_the_border(self):
        with farpage.arrays("16M"):
            a = np.arange(1000)
            for size in [MIB, 3 * MIB, 2 * MIB, 500, 4 * MIB]:
                there = min(len(a), size, 500)
                a.resize(size, refcheck=False)
                np.testing.assert_array_equal(a[:there], np.arange(there))
                self.assertFalse(a[1000:].any())
            z = np.zeros((4, MIB))
            self.assertFalse(z.any())

    def test_threads_started_inside_have_it_too(self):
        found = []

        def look(pager):
            before = pager.stats().resident_bytes
            kept = np.ones(MIB // 4)
            found.append(pager.stats().resident_bytes - before == kept.nbytes)

        start = threading.Thread.start
        with farpage.arrays("16M") as pager:
            thread = threading.Thread(target=look, args=[pager])
            thread.start()
            thread.join()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(look, pager).result()
        self.assertIs(threading.Thread.start, start)
        thread = threading.Thread(target=look, args=[pager])
        thread.start()
        thread.join()
        contextvars.Context().run(look, pager)
        self.assertEqual(found, [True, True, False, False])

    def test_threads_get_the_handler_and_nothing_else(self):
        prec = contextvars.ContextVar("prec", default=1)
        seen = []
        with farpage.arrays("16M"):
            prec.set(2)
            thread = threading.Thread(target=lambda: seen.append(prec.get()))
            thread.start()
            thread.join()
            self.assertNotIn("run", thread.__dict__)
            others = threading.Thread.start

            def own(thread):
                others(thread)

            threading.Thread.start = own
        self.assertIs(threading.Thread.start, own)
        thread = threading.Thread(target=lambda: seen.append(3))
        thread.start()
        thread.join()
        threading.Thread.start = START
        self.assertEqual(seen, [1, 3])

    def test_many_threads_and_a_fork(self):
        with farpage.arrays("16M"):
            with ThreadPoolExecutor(4) as pool:
                results = pool.map(work, range(8))
                with multiprocessing.get_context("fork").Pool(1) as children:
                    self.assertEqual(children.map(work, [1]), [True])
                self.assertEqual(list(results), [True] * 8)

    def test_blocks_may_be_nested(self):
        with farpage.arrays("16M") as outer:
            with farpage.arrays("16M") as inner:
                a = np.ones(MIB)
            b = np.ones(MIB // 2)
            self.assertEqual(inner.stats().resident_bytes, 8 * MIB)
            self.assertEqual(outer.stats().resident_bytes, 4 * MIB)
        self.assertEqual(a.sum() + b.sum(), 1.5 * MIB)

    def test_an_exception_ends_it(self):
        with self.assertRaises(KeyError), farpage.arrays("16M") as pager:
            raise KeyError
        kept = np.ones(MIB)
        self.assertEqual(pager.stats().resident_bytes, 0)
        del kept


if __name__ == "__main__":
    unittest.main()
