CREATE TABLE item(id INTEGER PRIMARY KEY, part INTEGER, name TEXT, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
INSERT INTO item SELECT i, i * 7919 % 1000, printf('name-%08d', i * 48271 % 500000),
  printf('%x-%s-%x', i * 2654435761, substr('the quick brown fox jumps over the lazy dog, again and again and again',
  i % 20 + 1, 30 + i % 20), i * i * 40503) FROM n;
CREATE INDEX by_name ON item(name);
CREATE INDEX by_part ON item(part, id);
SELECT count(*), sum(id), sum(length(body)) FROM item;
SELECT part, count(*), min(name), max(body) FROM item GROUP BY part ORDER BY part;
UPDATE item SET body = upper(body) || part WHERE part % 5 = 0;
DELETE FROM item WHERE id % 11 = 0;
SELECT a.part, count(*), sum(length(a.body) * 1000 + b.part) FROM item a JOIN item b ON b.id = a.id * 31 % 500000
  GROUP BY a.part ORDER BY a.part;
SELECT name, body FROM item WHERE name BETWEEN 'name-00001000' AND 'name-00003000' ORDER BY name, id;
SELECT count(*), sum(id), sum(length(body)) FROM item;
