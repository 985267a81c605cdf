#!/bin/bash
# Run once by the Postgres image, when its volume is empty: the database of the
# service and the role that owns it, which is no superuser.
set -euo pipefail

psql --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --quiet \
    --set ON_ERROR_STOP=1 --set password="$SOJOURN_DATABASE_PASSWORD" <<'SQL'
create role sojourn
  login nosuperuser nobypassrls nocreaterole nocreatedb noreplication
  password :'password';
create database sojourn owner sojourn;
revoke all on database sojourn from public;
SQL
