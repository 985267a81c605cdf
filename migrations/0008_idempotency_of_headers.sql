-- Only the answers to an `Idempotency-Key` are forgotten after a day. The key of a
-- session, or of a message, names it for good: forgetting it would let a late repeat
-- make a second one.
drop index idempotency_age;
create index idempotency_header_age on idempotency (created_at) where scope = 'header';
