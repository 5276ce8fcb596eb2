"""pandas: merge, groupby, pivot, sort."""

import numpy as np
import pandas as pd

ROWS, KEYS = 700_000, 100_000

rng = np.random.default_rng(2)
left = pd.DataFrame(
    {
        "key": rng.integers(0, KEYS, ROWS),
        "kind": rng.integers(0, 40, ROWS),
        "value": rng.integers(0, 1_000_000, ROWS),
        "more": rng.integers(0, 1000, ROWS),
    }
)
right = pd.DataFrame({"key": rng.permutation(KEYS), "weight": rng.integers(1, 9, KEYS)})
right["name"] = "name-" + right["key"].astype(str)
both = left.merge(right, on="key", how="inner")
both["product"] = both["value"] * both["weight"]
print(len(both), int(both["product"].sum()))
groups = both.groupby("key")["product"].agg(["sum", "count", "max"])
print(int((groups["sum"] * groups["count"] % 1_000_003).sum()), int(groups["max"].max()))
pivot = both.pivot_table(index="key", columns="kind", values="value", aggfunc="sum", fill_value=0)
print(pivot.shape, int(pivot.to_numpy().sum()))
order = both.sort_values(["name", "value", "more"], kind="stable")["value"].to_numpy()
print(int((order * (np.arange(len(order)) % 97)).sum()))
