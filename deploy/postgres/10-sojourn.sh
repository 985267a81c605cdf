#!/bin/bash
# The Postgres image runs this once, when its volume is empty. Creates the database and the
# three roles of the service, none of which is a superuser: `sojourn_owner` owns the schema,
# `sojourn_app` serves requests of one organization at a time, `sojourn_system` runs queue,
# log and outbox.
set -euo pipefail

psql --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --quiet \
    --set ON_ERROR_STOP=1 --set owner="$SOJOURN_OWNER_PASSWORD" --set app="$SOJOURN_APP_PASSWORD" \
    --set system="$SOJOURN_SYSTEM_PASSWORD" <<'SQL'
create role sojourn_owner
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'owner';
create role sojourn_app
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'app';
create role sojourn_system
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'system';
create database sojourn owner sojourn_owner;
revoke all on database sojourn from public;
grant connect on database sojourn to sojourn_app, sojourn_system;
SQL
