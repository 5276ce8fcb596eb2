"""Worker processes of Python: they read what they have inherited, and make lists of their own."""

import array
import multiprocessing

WORDS, PARTS = 12 << 20, 8  # 96 MiB

shared = array.array("Q", bytes(8 * WORDS))


def work(part):
    own = [(part * 7919 + i) % 1_000_003 for i in range(900_000)]
    total = sum(own[::17])
    own.sort()
    total += sum(own[::13]) + sum(own[index * 7919 % len(own)] for index in range(0, len(own), 5))
    start = part * WORDS // PARTS
    return part, total, sum(shared[start : start + WORDS // PARTS : 64])


if __name__ == "__main__":
    for at in range(0, WORDS, 1 << 16):
        shared[at : at + (1 << 16)] = array.array("Q", range(at, at + (1 << 16)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for line in pool.imap(work, range(PARTS), chunksize=1):
            print(*line)
    print(sum(shared[::128]))
