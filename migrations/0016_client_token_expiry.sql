-- no-transaction
-- Expired tokens, the oldest first.
create index concurrently client_token_expiry on client_token (expires_at);
