"""A WSGI application with much data, made before its server forks. Each request reads a part of it, and fills some
memory of its own."""

from urllib.parse import parse_qsl

DATA = [f"{number:07} " * 4 for number in range(120_000)]
PARTS = 8


def application(environment, start):
    """`n`: which part."""
    n = int(dict(parse_qsl(environment.get("QUERY_STRING", ""))).get("n", 0))
    part = [text for text in DATA[n % PARTS::PARTS] if text]
    own = [f"{n} {number}" for number in range(20_000)]
    total = sum(int(text[:7]) for text in part) + sum(map(len, own))
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{n} {total}\n".encode()]
