-- A shard of `usage_day` is one of eight for an hour of its day (hour * 8 + 0..7), so that
-- the trailing day of a cap ends with an hour and not at midnight. Rows of before lie in
-- the first hour. What is spread and old is added up later: it is found by this.
create index usage_day_spread on usage_day (day) where shard % 8 <> 0;
