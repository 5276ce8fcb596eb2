#!/usr/bin/env python3
"""What an allocator maps by itself is managed before its caller fills it: nearly every page that the program fills is
served by the engine. Without the functions in front of the allocator many come from the kernel, and the budget is left.

    mallocs.py FARPAGE PROGRAM"""

import json
import os
import subprocess
import sys

farpage, program = sys.argv[1:]
library = os.path.join(os.path.dirname(os.path.abspath(farpage)), "libfarpage_preload.so")
env = {**os.environ, "FARPAGE_CONF": f"ram:{32 << 20};swap:zram;verify", "LD_PRELOAD": library}


def served(pid):
    """Pages that the engine has served as zeros."""
    stat = subprocess.run([farpage, "stat", str(pid), "--json"], check=True, timeout=60, stdout=subprocess.PIPE)
    return json.loads(stat.stdout)["swpin_zero"]


for way in subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.split():
    command = [program, way, "48", "6", "40"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "ready\n"
        before = served(run.pid)
        run.stdin.write("\n")
        run.stdin.flush()
        filled = int(run.stdout.readline())
        by_us = served(run.pid) - before
        run.communicate(timeout=60)
    assert run.returncode == 0
    print(f"{way}: {filled} pages filled, {by_us} of them served")
    # A mapping may be late where the machine is busy: its owner waits for a second at most.
    assert by_us > filled * 0.95, "memory was filled before it was managed"
