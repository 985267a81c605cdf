#!/bin/bash
# Run once by the Postgres image, when its volume is empty: the database of the
# service and its three roles, none of which is a superuser. `sojourn_owner` owns
# the schema, `sojourn_app` serves requests one organization at a time,
# `sojourn_system` does the service's own work.
set -euo pipefail

psql --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --quiet \
    --set ON_ERROR_STOP=1 --set password="$SOJOURN_DATABASE_PASSWORD" <<'SQL'
create role sojourn_owner
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'password';
create role sojourn_app
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'password';
create role sojourn_system
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'password';
create database sojourn owner sojourn_owner;
revoke all on database sojourn from public;
grant connect on database sojourn to sojourn_app, sojourn_system;
SQL
