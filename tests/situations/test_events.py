"""What an engine did last can be looked at from outside, while the program runs or hangs."""

import json
import subprocess
import sys
import unittest

from situation import FARPAGE, Situation

FILL = "kept = [bytes([i % 255 + 1]) * 4096 for i in range(8192)]; print('filled', flush=True); input()"


class Events(Situation):
    def test_faults_and_what_left_are_told_in_their_order(self):
        command = [FARPAGE, "run", "--ram", "16M", "--", sys.executable, "-c", FILL]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            try:
                program.stdout.readline()
                out = self.run_plain(FARPAGE, "stat", "--json", "--events", program.pid).stdout
                sheet = self.run_plain(FARPAGE, "stat", "--events", program.pid).stdout
            finally:
                program.stdin.close()
        events = json.loads(out)["events"]
        self.assertGreater(len(events), 100)
        self.assertLessEqual({"fault", "evict", "store"}, {event["event"] for event in events})
        times = [event["monotonic_us"] for event in events]
        # Several threads note them; each looks at the clock before it takes its place.
        self.assertLess(sum(b < a - 1000 for a, b in zip(times, times[1:])), len(times) // 100)
        self.assertTrue(all(event["pages"] >= 1 for event in events if event["event"] == "evict"))
        self.assertIn("s before last", sheet.splitlines()[0])
        self.assertGreater(len(sheet.splitlines()), 100)


if __name__ == "__main__":
    unittest.main()
