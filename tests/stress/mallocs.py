#!/usr/bin/env python3
"""What an allocator maps by itself is managed before its caller fills it: nearly every page that the program fills is served by the
engine. Without the functions in front of the allocator many come from the kernel, and the budget is left. The kernel's news of
mappings, which come nearly as soon on a quiet machine, are switched off.

    mallocs.py FARPAGE PROGRAM"""

import json
import os
import subprocess
import sys

farpage, program = sys.argv[1:]
library = os.path.join(os.path.dirname(os.path.abspath(farpage)), "libfarpage_preload.so")
env = {**os.environ, "FARPAGE_CONF": f"ram:{32 << 20};swap:zram;verify;deaf", "LD_PRELOAD": library}
with subprocess.Popen([program, "48", "6", "20"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
    filled = int(run.stdout.readline())
    stat = subprocess.run([farpage, "stat", str(run.pid), "--json"], check=True, timeout=60, stdout=subprocess.PIPE)
    run.communicate(timeout=60)
assert run.returncode == 0
served = json.loads(stat.stdout)["swpin_zero"]
print(f"{filled} pages filled, {served} of them served")
# A mapping may be late where the machine is busy: its owner waits for 20 ms at most.
assert served > filled * 0.9, "memory was filled before it was managed"
