"""A join with pandas whose columns, and whose result's, live in a pager."""

import numpy as np
import pandas as pd

import farpage

ROWS = 2 << 20
rng = np.random.default_rng(1)

with farpage.arrays("32M") as pager:                    # arrays of 1 MiB and more, made by whatever function
    orders = pd.DataFrame(
        {
            "customer": rng.integers(0, 50_000, ROWS),
            "amount": rng.integers(1, 1000, ROWS),
            "discount": rng.random(ROWS),
        }
    )
    customers = pd.DataFrame({"customer": np.arange(50_000), "country": np.arange(50_000) % 30})
    joined = orders.merge(customers, on="customer")
    result = joined.groupby("country")["amount"].sum()

stats = pager.stats()
expected = np.bincount(orders["customer"] % 30, weights=orders["amount"], minlength=30)
assert len(joined) == ROWS and np.array_equal(result.to_numpy(), expected)
assert stats.pswpout > 0
print(f"joined {joined.memory_usage().sum() >> 20} MiB with {pager.ram >> 20} MiB for arrays")
print(result.head())
