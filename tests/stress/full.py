#!/usr/bin/env python3
"""Swap that is only just large enough: slots that hold copies of pages which are in memory, too, are given up for it.

    full.py FARPAGE PATTERNS

Counters only: the memory of the program is more than the swap, and less than the swap and the budget together."""

import json
import subprocess
import sys
import tempfile

RAM, SWAP, MB, PASSES = "32M", "64M", 88, 3


def main():
    farpage, patterns = sys.argv[1:]
    for pattern in ("up", "random"):
        with tempfile.NamedTemporaryFile() as stats:
            command = [farpage, "run", "--ram", RAM, "--swap", f"file:/var/tmp,size={SWAP}", "--verify"]
            command += ["--stats-json", stats.name, "--", patterns, pattern, str(MB), str(PASSES)]
            subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
            counters = json.load(open(stats.name))
        print(pattern, {name: counters[name] for name in ("pswpin", "pswpout", "swap_full", "rss_anon_peak_bytes")})
        assert counters["swap_full"] == 0, "there was room"
        assert counters["rss_anon_peak_bytes"] < 1.05 * counters["budget_bytes"], "the budget was not kept"
        assert counters["pswpin"] > MB * 256, "the test is no test"


main()
