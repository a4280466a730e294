-- Queries whose results weir and DuckDB agree on, over random recordings. A comment is the claim of
-- the query below it. Windows are left out for DuckDB, and where that is not enough its query
-- follows `-- duckdb`.

-- an aggregate over no rows has one row
select count(*) as c0, count(vm) as c1, max(pid) as c2, avg(pid) as c3, string_agg(vm, ',') as c4 from IO [range unbounded] where false;

-- groups over no rows have none
select vm as c0, count(*) as c1 from IO [range unbounded] where 1 = 2 group by vm;

-- NULL is a group
select vm as c0, count(*) as c1, count(comm) as c2 from IO [range unbounded] group by vm;

-- HAVING without GROUP BY selects the one row
select count(*) as c0 from IO [range unbounded] having count(*) > 1000000;

-- HAVING uses aggregates that are not selected
select vm as c0 from IO [range unbounded] group by vm having max(pid) > 2 and count(distinct comm) >= 1;

-- an alias is a key of groups
select coalesce(vm, 'none') as c0, count(*) as c1 from IO [range unbounded] group by c0;

-- a position is a key of groups
select length(comm) as c0, count(*) as c1 from IO [range unbounded] group by 1;

-- NOT IN with a NULL in the list is never true
select count(*) as c0 from IO [range unbounded] where vm not in ('vm1', NULL);

-- NOT IN a subquery with a NULL is never true
select count(*) as c0 from IO [range unbounded] where pid not in (select error from IO [range unbounded]);

-- NOT IN an empty subquery is true, for NULL as well
select count(*) as c0 from IO [range unbounded] where pid not in (select pid from IO [range unbounded] where false);

-- NOT EXISTS does not depend on NULLs
select x.req_id as c0 from IO [range unbounded] as x where not exists (select 1 from IO [range unbounded] as y where y.error = x.pid);

-- EXISTS of an aggregate without groups is true
select count(*) as c0 from IO [range unbounded] where exists (select max(pid) from IO [range unbounded] where false);

-- a correlated IN
select x.req_id as c0 from IO [range unbounded] as x where x.pid in (select y.pid from IO [range unbounded] as y where y.vm = x.vm and y.op = 'w');

-- a correlated NOT IN with NULLs
select x.req_id as c0 from IO [range unbounded] as x where x.pid not in (select y.pid from IO [range unbounded] as y where y.vm = x.vm and y.op = 'w');

-- a scalar subquery of no rows is NULL, its count is 0
select x.req_id as c0, (select max(y.pid) from IO [range unbounded] as y where y.vm = x.comm) as c1,
       (select count(*) from IO [range unbounded] as y where y.vm = x.comm) as c2
from IO [range unbounded] as x;

-- a scalar subquery in a comparison
select req_id as c0 from IO [range unbounded] where latency > (select avg(latency) from IO [range unbounded]);

-- a scalar subquery in HAVING
select vm as c0, count(*) as c1 from IO [range unbounded] group by vm having count(*) >= (select count(*) / 4 from IO [range unbounded]);
-- duckdb
select vm as c0, count(*) as c1 from IO group by vm having count(*) >= (select count(*) // 4 from IO);

-- a subquery below OR
select req_id as c0 from IO [range unbounded] where op = 'f' or vm in (select vm from IO [range unbounded] group by vm having count(*) > 5);

-- nested subqueries
select op as c0, count(*) as c1 from IO [range unbounded] where vm in (select vm from IO [range unbounded] where pid in (select max(pid) from IO [range unbounded])) group by op;

-- NULL does not join NULL
select count(*) as c0 from IO [range unbounded] as x join IO [range unbounded] as y on x.vm = y.vm;

-- a condition in ON of an outer join keeps the row
select x.req_id as c0, y.req_id as c1 from IO [range unbounded] as x left join IO [range unbounded] as y on x.pid = y.error and y.op = 'w';

-- the same condition in WHERE removes it
select x.req_id as c0, y.req_id as c1 from IO [range unbounded] as x left join IO [range unbounded] as y on x.pid = y.error where y.op = 'w';

-- an anti join by IS NULL
select x.req_id as c0 from IO [range unbounded] as x left join IO [range unbounded] as y on x.req_id = y.pid where y.req_id is null;

-- a full join whose sides have no partner
select x.req_id as c0, y.req_id as c1 from IO [range unbounded] as x full join IO [range unbounded] as y on x.req_id = y.req_id + 1000;

-- a full join of groups
select coalesce(a.vm, b.vm) as c0, a.n as c1, b.n as c2
from (select vm, count(*) as n from IO [range unbounded] where op = 'r' group by vm) as a
full join (select vm, count(*) as n from IO [range unbounded] where op = 'w' group by vm) as b on a.vm = b.vm;

-- three tables, two of them outer
select x.req_id as c0, y.req_id as c1, z.req_id as c2 from IO [range unbounded] as x left join IO [range unbounded] as y on x.pid = y.cpu left join IO [range unbounded] as z on y.req_id = z.pid;

-- a join without an equality
select count(*) as c0 from IO [range unbounded] as x join IO [range unbounded] as y on x.req_id < y.req_id and x.vm <> y.vm;

-- USING
select x.req_id as c0, y.req_id as c1 from IO [range unbounded] as x join IOstream [range unbounded] as y using (vm, comm);

-- UNION removes duplicates, NULLs too
select vm as c0 from IO [range unbounded] union select comm as c0 from IO [range unbounded];

-- EXCEPT ALL counts copies
select op as c0 from IO [range unbounded] except all select op as c0 from IO [range unbounded] where pid > 1;

-- INTERSECT ALL takes the smaller number of copies
select vm as c0, op as c1 from IO [range unbounded] intersect all select vm as c0, op as c1 from IOstream [range unbounded] where cpu = 1;

-- set operations of three blocks
select vm as c0 from IO [range unbounded] union all select comm as c0 from IO [range unbounded] except select vm as c0 from IO [range unbounded] where op = 'w';

-- INTERSECT binds tighter than UNION
select op as c0 from IO [range unbounded] union all select op as c0 from IO [range unbounded] where pid = 1 intersect select op as c0 from IO [range unbounded] where pid = 2;

-- integers and floats have a common type
select pid as c0 from IO [range unbounded] union all select cast(pid as float) / 2 as c0 from IO [range unbounded];
-- duckdb
select pid as c0 from IO union all select pid::double / 2 as c0 from IO;

-- LIMIT 0
select req_id as c0 from IO [range unbounded] order by req_id limit 0;

-- an offset beyond the rows
select req_id as c0 from IO [range unbounded] order by req_id limit 5 offset 100;

-- ORDER BY an expression, with ties broken
select pid as c0, req_id as c1 from IO [range unbounded] order by abs(coalesce(pid, 3) - 3), req_id limit 7;

-- ORDER BY an aggregate
select comm as c0, count(*) as c1 from IO [range unbounded] group by comm order by count(*) desc, c0 nulls last limit 3;

-- a CASE without ELSE is NULL
select req_id as c0, case when pid > 2 then 'large' when pid < 0 then 'negative' end as c1 from IO [range unbounded];

-- a simple CASE does not match NULL
select req_id as c0, case pid when 1 then 'one' when 2 then 'two' else 'other' end as c1 from IO [range unbounded];

-- a CASE does not divide by zero where it does not have to
select req_id as c0, case when pid <> 0 then 100 % pid else -1 end as c1 from IO [range unbounded];

-- three-valued logic
select count(*) filter (where vm = 'vm1' or pid > 1) as c0, count(*) filter (where not (vm = 'vm1' or pid > 1)) as c1,
       count(*) filter (where (vm = 'vm1') is unknown) as c2, count(*) filter (where vm = 'vm1' and null) as c3 from IO [range unbounded];

-- BETWEEN with exchanged limits is empty
select count(*) as c0 from IO [range unbounded] where pid between 7 and 1;

-- negative numbers
select -7 % 3 as c0, 7 % -3 as c1, abs(-7) as c2, sign(-7) as c3, round(-2.5) as c4, floor(-2.5) as c5, ceil(-2.5) as c6 from IO [range unbounded] limit 1;
-- duckdb
select -7 % 3, 7 % -3, abs(-7), sign(-7)::bigint, round(-2.5e0), floor(-2.5e0), ceil(-2.5e0) from IO limit 1;

-- quotients are truncated
select -7 / 2 as c0, 7 / -2 as c1, 1 / 2 as c2, 5 / 0 as c3, 5 % 0 as c4 from IO [range unbounded] limit 1;
-- duckdb
select -7 // 2, 7 // -2, 1 // 2, 5 // 0, 5 % 0 from IO limit 1;

-- precedence of operators
select 2 + 3 * 4 - 10 % 4 as c0, not true or true as c1, 1 < 2 and 2 < 3 as c2, -2 * -3 as c3, 6 & 3 + 1 as c4, 'a' || 'b' = 'ab' as c5 from IO [range unbounded] limit 1;

-- patterns with the characters of regular expressions
select count(*) filter (where comm like '%/0:%') as c0, count(*) filter (where comm like 'a_b%') as c1, count(*) filter (where comm not like '%.%') as c2 from IO [range unbounded];

-- texts are compared by their bytes
select min(comm) as c0, max(comm) as c1, count(*) filter (where comm > 'a') as c2, count(*) filter (where 'Fio' < 'fio') as c3 from IO [range unbounded];

-- characters, not bytes
select comm as c0, length(comm) as c1, upper(comm) as c2, lower(comm) as c3, left(comm, 1) as c4, right(comm, -1) as c5, substr(comm, 2, 2) as c6, position('n' in comm) as c7 from IO [range unbounded] where comm is not null;

-- parts of texts
select split_part(pdisk, '/', 3) as c0, split_part(pdisk, '/', -1) as c1, split_part(pdisk, '/', 9) as c2, replace(pdisk, 'd', 'dd') as c3, ltrim(pdisk, '/dev') as c4, lpad(vm, 5, '.') as c5 from IO [range unbounded];

-- parts of a timestamp
select extract(year from ts) as c0, extract(doy from ts) as c1, extract(dow from ts) as c2, extract(week from ts) as c3, extract(minute from ts) as c4, extract(second from ts) as c5, date_trunc('hour', ts) as c6, date_trunc('week', ts) as c7 from IO [range unbounded];

-- leap years and the weeks of ISO 8601
select extract(doy from timestamp '2024-12-31') as c0, extract(week from timestamp '2021-01-03') as c1, extract(week from timestamp '2020-12-31') as c2, extract(month from timestamp '2024-02-29') as c3, date_trunc('quarter', timestamp '2024-05-05') as c4, extract(year from timestamp '1969-12-31 23:59:59') as c5 from IO [range unbounded] limit 1;

-- exact aggregates
select median(pid) as c0, percentile_cont(0.25) within group (order by pid) as c1, percentile_disc(0.25) within group (order by pid) as c2, stddev(pid) as c3, stddev_pop(pid) as c4, var_pop(pid) as c5 from IO [range unbounded];

-- covariance and regression, with NULL in either argument
select covar_pop(bytes, pid) as c0, covar_samp(bytes, pid) as c1, regr_count(bytes, case when op = 'r' then pid end) as c2, regr_avgx(bytes, pid) as c3, regr_avgy(case when op = 'r' then bytes end, pid) as c4, corr(bytes, pid) as c5 from IO [range unbounded];
select regr_sxx(bytes, pid) as c0, regr_syy(bytes, pid) as c1, regr_sxy(bytes, pid) as c2, regr_slope(bytes, pid) as c3, regr_intercept(bytes, pid) as c4, regr_r2(bytes, pid) as c5 from IO [range unbounded];

-- DISTINCT in aggregates
select count(distinct vm) as c0, avg(distinct pid) as c1, count(distinct pid) filter (where op = 'r') as c2, min(distinct comm) as c3 from IO [range unbounded];

-- the sum of NULLs is NULL
select vm as c0, max(error) filter (where error < 0) as c1 from IO [range unbounded] group by vm;

-- ROLLUP distinguishes NULL from a subtotal
select vm as c0, op as c1, count(*) as c2, grouping(vm) as c3, grouping(vm, op) as c4 from IO [range unbounded] group by rollup (vm, op);

-- CUBE of three keys
select vm as c0, op as c1, cpu as c2, count(*) as c3, grouping(vm, op, cpu) as c4 from IO [range unbounded] group by cube (vm, op, cpu);

-- keys beside a ROLLUP and a CUBE are crossed
select vm as c0, op as c1, cpu as c2, count(*) as c3, grouping(vm, op, cpu) as c4 from IO [range unbounded] group by vm, rollup (op), cube (cpu);

-- a set that occurs twice gives its groups twice
select vm as c0, count(*) as c1 from IO [range unbounded] group by grouping sets ((vm), (vm), ());

-- GROUPING SETS of no rows: the total has a row
select vm as c0, count(*) as c1 from IO [range unbounded] where false group by grouping sets ((vm), ());

-- HAVING selects subtotals
select vm as c0, op as c1, count(*) as c2 from IO [range unbounded] group by rollup (vm, op) having grouping(op) = 1;

-- DISTINCT after a group-by
select distinct count(*) as c0 from IO [range unbounded] group by vm, op;

-- the last per group
select req_id as c0, vm as c1 from (select req_id, vm, row_number() over (partition by vm order by req_id desc) as place from IO [range unbounded]) as t where place = 1;

-- a running total, and the share of the whole
select req_id as c0, count(pid) over (order by req_id) as c1, 100.0 * count(*) over (partition by vm) / count(*) over () as c2 from IO [range unbounded];

-- ranks with ties and NULLs
select req_id as c0, rank() over (order by pid desc nulls last) as c1, dense_rank() over (order by pid nulls first) as c2 from IO [range unbounded];

-- lag and lead beyond the partition
select req_id as c0, lag(req_id, 2, -1) over (partition by op order by req_id) as c1, lead(vm) over (partition by op order by req_id) as c2 from IO [range unbounded];

-- a frame that is empty for some rows
select req_id as c0, max(pid) over (order by req_id rows between 3 preceding and 2 preceding) as c1, count(*) over (order by req_id rows between 2 following and 3 following) as c2, first_value(vm) over (order by req_id rows between 1 following and 1 following) as c3 from IO [range unbounded];

-- a frame by the values of the sort key
select req_id as c0, count(*) over (order by pid range between 1 preceding and 1 following) as c1, count(*) over (order by pid desc range between current row and 4 following) as c2 from IO [range unbounded];

-- the default frame ends with the last row of equal sort keys
select req_id as c0, count(*) over (order by cpu nulls last) as c1, last_value(cpu) over (order by cpu nulls last) as c2 from IO [range unbounded];

-- shares of a partition
select req_id as c0, ntile(3) over (order by req_id) as c1, percent_rank() over (order by pid nulls last) as c2, cume_dist() over (order by pid nulls last) as c3 from IO [range unbounded];

-- a frame of groups of equal keys, and the second value of a frame
select req_id as c0, count(*) over (order by pid nulls last groups between 1 preceding and 2 following) as c1, nth_value(req_id, 2) over (order by req_id rows between 1 preceding and 1 following) as c2 from IO [range unbounded];

-- named windows
select req_id as c0, rank() over w as c1, max(req_id) over (p order by req_id) as c2 from IO [range unbounded] window p as (partition by op), w as (p order by pid nulls last);

-- window functions over groups
select vm as c0, count(*) as c1, rank() over (order by count(*) desc) as c2, max(count(*)) over () as c3 from IO [range unbounded] group by vm;

-- a query in WITH is read twice
with v as (select vm, count(*) as n from IO [range unbounded] group by vm)
select a.vm as c0, a.n as c1, (select max(n) from v) as c2 from v as a where a.n < (select max(n) from v);

-- a query in WITH reads another one
with v as (select vm, pid from IO [range unbounded] where pid > 0), w as (select vm, max(pid) as p from v group by vm) select v.vm as c0, v.pid as c1 from v join w on v.vm = w.vm and v.pid = w.p;

-- a query in WITH with the names of its columns
with t (a, b) as (select vm, count(*) from IO [range unbounded] group by vm) select t.a as c0, t.b as c1 from t;

-- requests and responses of one stream
select q.req_id as c0, r.req_id as c1 from IOstream [range unbounded] as q, IOstream [range unbounded] as r where q.type = 'Q' and r.type = 'R' and q.vm = r.vm and q.pid = r.pid;

-- units
select sum(bytes) / 1 KiB as c0, count(*) filter (where latency >= 1 ms) as c1, count(*) filter (where sectors >= 4 KiB) as c2, max(latency) / 1 us as c3 from IO [range unbounded];
-- duckdb
select sum(bytes)::bigint // 1024, count(*) filter (where latency >= 1000000), count(*) filter (where sectors * 512 >= 4096), max(latency) // 1000 from IO;

-- greatest and least ignore NULL
select req_id as c0, greatest(pid, error) as c1, least(pid, error, 3) as c2, coalesce(error, pid, -1) as c3, nullif(pid, 1) as c4 from IO [range unbounded];

-- IS DISTINCT FROM
select req_id as c0, pid is distinct from error as c1, vm is not distinct from null as c2 from IO [range unbounded];

-- boolean values
select vm = 'vm1' as c0, count(*) as c1 from IO [range unbounded] group by vm = 'vm1';

-- casts to text
select cast(pid as text) as c0, pid::text || '!' as c1, (pid > 1)::text as c2 from IO [range unbounded];

-- a row of constants for each row
select 1 as c0, 'x' as c1, true as c2, null is null as c3 from IO [range unbounded];
