"""Dictionaries in a list: made, sorted by two keys, grouped, changed."""

import random

COUNT = 220_000

rng = random.Random(3)
people = [
    {"id": i, "name": f"name-{rng.randrange(COUNT // 8)}", "score": rng.randrange(1000), "tags": [i % 7, i % 11],
     "note": f"{i} is {rng.random()}, " * (i % 8)}
    for i in range(COUNT)
]  # fmt: skip
people.sort(key=lambda one: (one["score"], one["name"], one["id"]))
groups = {}
for one in people:
    groups.setdefault(one["name"], []).append(one)
total = 0
for name in sorted(groups):
    for one in groups[name]:
        one["score"] += len(groups[name])
        total = (total * 31 + one["id"] + one["score"]) % (1 << 61)
print(len(groups), total)
