#!/usr/bin/env python3
"""Zero pages take no slot and no I/O: a program that fills more memory than its budget with zeros, and one with random
bytes.

    zeros.py FARPAGE

The only device is a file, so every page that is stored anywhere is written to it and counted there."""

import json
import subprocess
import sys
import tempfile

# dd has the whole block in memory; what else it has may be stored.
BLOCK, OWN = 96, 500


def run(farpage, source):
    """The counters of dd with a block of BLOCK MiB from `source`, filled three times."""
    with tempfile.NamedTemporaryFile() as stats:
        command = [farpage, "run", "--ram", "24M", "--swap", "file:/var/tmp", "--stats-json", stats.name, "--"]
        dd = ["dd", f"if={source}", "of=/dev/null", f"bs={BLOCK}M", "count=3", "iflag=fullblock", "status=none"]
        subprocess.run(command + dd, check=True, timeout=120)
        return json.load(open(stats.name))


def main():
    pages = BLOCK * 256
    zeros, random = (run(sys.argv[1], source) for source in ("/dev/zero", "/dev/urandom"))
    print({name: (zeros[name], random[name]) for name in ("swpout_zero", "pswpout", "pswpin", "swapped_bytes", "file_bytes")})
    # A quarter fits; the rest goes out each time.
    assert zeros["swpout_zero"] > pages, "zero pages were not seen as such"
    assert zeros["pswpout"] < OWN and zeros["pswpin"] < OWN, "zero pages were written"
    assert zeros["file_bytes"] < OWN * 4096, "zero pages have slots"
    assert random["pswpout"] > pages, "the test is no test"


main()
