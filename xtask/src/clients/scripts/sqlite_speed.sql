-- After the manner of SQLite's speed test: inserts, indexes, ranges, joins, updates, deletes, text and large blobs, in memory.
-- The caller sets `:rows` and `:blobs`, after `pragma temp_store`, which forgets them; without them the first insert fails.
pragma cache_size = -65536;
create table sizes(rows integer not null, blobs integer not null);
insert into sizes values (:rows, :blobs);
create table t1(a integer primary key, b integer, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < :rows)
  insert into t1 select i, (i * 7919) % 100003, printf('%08d and %x', (i * 104729) % 1000003, i) from n;
create index t1b on t1(b);
create index t1c on t1(c);
select count(*), sum(b), min(c), max(c) from t1 where b between 1000 and 50000;
select count(*), avg(length(x.c)) from t1 x join t1 y on y.a = x.b;
update t1 set c = c || ' more' where b % 3 = 0;
delete from t1 where a % 5 = 0;
select sum(a), sum(length(c)) from t1;
select b % 97 as g, count(*), max(c) from t1 group by g order by g;
select length(group_concat(c, ',')) from (select c from t1 order by c desc);
create table t2(k integer primary key, v blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < :blobs)
  insert into t2 select i, zeroblob(400000 + i * 9973) from n;
update t2 set v = v || x'00ff' where k % 2 = 0;
select sum(length(v)), sum(length(hex(v))) from t2;
