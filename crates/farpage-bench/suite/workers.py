"""Worker processes of Python: they read what they have inherited, and make lists of their own."""

import multiprocessing

import array

WORDS, PARTS = 12 << 20, 8  # 96 MiB

shared = array.array("Q", bytes(8 * WORDS))


def work(part):
    own = [(part * 7919 + i) % 1_000_003 for i in range(900_000)]
    total = 0
    for turn in range(3):
        own.sort(key=lambda value: value * 2654435761 + turn & 0xFFFFF)
        total = (total * 31 + sum(own[:: 17 + turn])) % (1 << 61)
    start = part * WORDS // PARTS
    return part, total, sum(shared[start : start + WORDS // PARTS : 64])


if __name__ == "__main__":
    for at in range(0, WORDS, 1 << 16):
        shared[at : at + (1 << 16)] = array.array("Q", range(at, at + (1 << 16)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for line in pool.imap(work, range(PARTS), chunksize=1):
            print(*line)
    print(sum(shared[::128]))
