#!/usr/bin/python3
"""attach.py FARPAGE STRESS FIRST COUNT: the stress program, attached to at a random moment, COUNT seeds from FIRST on.

The program checks itself. It fails when it does, when it does not end well, or when the attach fails while it runs."""

import random
import subprocess
import sys
import time

LONGEST = 1.5


def one(farpage, stress, seed):
    chance = random.Random(seed)
    argv = [stress, "--threads", str(chance.choice([1, 2, 4])), "--mb", "64", "--seconds", "3", "--seed", str(seed)]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        time.sleep(chance.uniform(0.01, LONGEST))
        attach = [farpage, "attach", str(program.pid), "--ram", "24M", "--verify"]
        done = subprocess.run(attach, capture_output=True, text=True, timeout=120)
        out, _ = program.communicate(timeout=300)
    finally:
        program.kill()
        program.wait()
    if done.returncode or program.returncode:
        print(f"seed {seed}: attach {done.returncode} {done.stderr}, program {program.returncode}\n{out}")
        return False
    return True


def main():
    farpage, stress, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    failed = [seed for seed in range(first, first + count) if not one(farpage, stress, seed)]
    print(f"{count} seeds from {first} on attached, {len(failed)} failed" + (f": {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
