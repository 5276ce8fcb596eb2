#!/usr/bin/env python3
"""All situations, or those with some word in their names: those with servers, which mostly wait, beside the others.

Usage: run.py [WORD...]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVERS = ["test_redis", "test_remote"]
# Since Python 3.12: none was found.
NONE = 5


def begin(modules, **options):
    words = [option for word in sys.argv[1:] for option in ("-k", word)]
    return subprocess.Popen([sys.executable, "-B", "-m", "unittest", *words, *modules], cwd=HERE, **options)


def main():
    others = [file.stem for file in sorted(HERE.glob("test_*.py")) if file.stem not in SERVERS]
    with tempfile.TemporaryFile("w+") as said:
        servers = begin(SERVERS, stdout=said, stderr=said)
        found = [begin(others).wait(), servers.wait()]
        said.seek(0)
        print(said.read(), file=sys.stderr)
    if all(status == NONE for status in found):
        sys.exit(f"no situation is called so: {' '.join(sys.argv[1:])}")
    sys.exit(any(status not in (0, NONE) for status in found))


if __name__ == "__main__":
    main()
