# Joins, groups, sorts and windows over tables that fill some hundred megabytes, by two threads; whole numbers, so that no order
# of threads shows in the answers.
import duckdb

db = duckdb.connect(":memory:", config={"threads": 2})
db.execute("create table t as select i, (i * 7919) % 100003 as k, (i * 104729) % 1000003 as v, 'name' || (i % 5000) as s from range(2400000) r(i)")
db.execute("create table u as select i as k, (i * 31) % 977 as g from range(100003) r(i)")
for query in (
    "select g, count(*), sum(v), max(s) from t join u using (k) group by g order by g",
    "select k, sum(v) as w from t group by k order by w desc, k limit 1000",
    "select s, count(distinct v) from t group by s order by s",
    "select sum(h) from (select hash(i) % 1000 as h from (select i from t order by v, i))",
    "select sum(r) from (select row_number() over (partition by k order by v, i) as r from t)",
):
    for row in db.execute(query).fetchall():
        print(*row)
