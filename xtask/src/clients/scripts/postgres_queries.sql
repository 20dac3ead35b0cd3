-- Sorts, hash joins and aggregates that take tens of megabytes of working memory each, as reports do.
set work_mem = '128MB';
set max_parallel_workers_per_gather = 0;
set jit = off;
select count(*), sum(h) from (select row_number() over (order by filler, aid desc) % 1000 as h from pgbench_accounts) r;
select x.bid, count(*), sum(y.abalance + y.aid) from pgbench_accounts x join pgbench_accounts y on y.aid = x.aid * 2 group by x.bid order by x.bid;
select count(*), sum(c) from (select aid % 70001 as k, count(*) as c from pgbench_accounts group by k) g;
select count(distinct md5(aid::text)) from pgbench_accounts;
select length(string_agg(md5(aid::text), ',' order by aid)) from pgbench_accounts;
select sum(length(repeat(aid::text, 60000))) from pgbench_accounts where aid % 1000 = 0;
