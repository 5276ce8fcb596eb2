"""polars: a frame, a join, groups, a sort, a window."""

import polars as pl

ROWS, KEYS = 1_500_000, 200_000

i = pl.int_range(ROWS, eager=True)
left = pl.DataFrame({"id": i, "key": i * 7919 % KEYS, "value": i * 48271 % 1_000_003, "kind": i % 37})
keys = pl.int_range(KEYS, eager=True)
right = pl.DataFrame({"key": keys, "weight": keys % 9 + 1}).with_columns(name="name-" + pl.col("key").cast(pl.String))
both = left.join(right, on="key").with_columns(product=pl.col("value") * pl.col("weight"))
print(both.height, both["product"].sum())
groups = both.group_by("name").agg(pl.col("product").sum(), pl.col("id").max(), pl.len()).sort("name")
print(groups.height, groups["product"].max(), (groups["id"] * pl.int_range(groups.height, eager=True) % 1009).sum())
order = both.sort(["value", "name", "id"])
print((order["id"] * (i % 97)).sum())
print(both.select((pl.col("value") - pl.col("value").mean().over("kind")).abs().floor().cast(pl.Int64).sum()).item())
