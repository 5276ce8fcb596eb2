"""DuckDB in memory: tables, a join, groups, a sort."""

import duckdb

db = duckdb.connect(":memory:")
# What it would find out by itself: half of the machine, or of a cgroup's limit.
db.execute("SET memory_limit = '4GB'")
db.execute("SET temp_directory = ''")
db.execute("SET threads = 2")
db.execute(
    "CREATE TABLE sale AS SELECT i AS id, (i * 7919) % 200000 AS item, (i * 48271) % 1000 AS amount,"
    " md5(i::VARCHAR) AS code FROM range(1500000) t(i)"
)
db.execute("CREATE TABLE item AS SELECT i AS id, 'item-' || i AS name, i % 97 AS kind FROM range(200000) t(i)")
for query in (
    "SELECT count(*), sum(amount)::BIGINT, min(code), max(code) FROM sale",
    "SELECT kind, count(*), sum(amount)::BIGINT, max(code) FROM sale JOIN item ON item.id = sale.item"
    " GROUP BY kind ORDER BY kind",
    "SELECT sum(n)::BIGINT, count(*) FROM (SELECT code[:5] AS head, count(*) AS n FROM sale GROUP BY head) t",
    "SELECT id, code FROM sale ORDER BY code DESC LIMIT 1000 OFFSET 700000",
):
    for row in db.execute(query).fetchall():
        print(*row)
