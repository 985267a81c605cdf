-- OAuth clients of MCP servers: the service gets and refreshes the access token itself. The key of such a credential is
-- the access token, empty before the first one.
set local lock_timeout = '2s';

alter table credential
    -- What may be shown of the client: token_url, client_id, scope, resource. Null for a credential with a key of its own.
    add column oauth json,
    -- A JSON object with client_secret and refresh_token.
    add column sealed_oauth bytea,
    -- Raised with each access token: a failure counts only against the token that was tried.
    add column generation bigint not null default 0,
    add column token_expires_at timestamptz,
    -- Until this time one process refreshes the token.
    add column refreshing_until timestamptz,
    -- The token endpoint refused the client or its refresh token then; a caller must replace it.
    add column refused_at timestamptz,
    add constraint credential_oauth check ((oauth is null) = (sealed_oauth is null));
