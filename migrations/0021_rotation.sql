-- A box may have a time to live. It is replaced before that is over, while nothing is in
-- the middle of anything.
alter table session add column environment json;
alter table sandbox add column rotates_at timestamptz;
