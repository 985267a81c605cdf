-- Headers that a credential adds to calls of its provider. The values are sealed like the key, because a gateway may take
-- its own key in one; the names are shown.
set local lock_timeout = '2s';

alter table credential
    -- The header that has the key; null for that of the provider's API.
    add column key_header text,
    add column header_names text[] not null default '{}',
    -- A JSON object of names and values; null without headers.
    add column sealed_headers bytea,
    add constraint credential_headers check ((sealed_headers is null) = (header_names = '{}'));
