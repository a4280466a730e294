-- Questions about the recording beside this file, for `weir sql`.
create or replace view writes as select comm, bytes, latency from IO where op = 'w';

select count(*) as writes, sum(bytes) as volume, max(latency) as slowest from writes;

select comm, count(*) as writes from writes
group by comm order by 2 desc limit 3;

drop view writes;
