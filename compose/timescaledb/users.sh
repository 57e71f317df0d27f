#!/bin/sh
# Make the users who log in, once, when the data folder is new. What they may do is granted by `stepwell db roles`.
set -eu
SECRETS="${SECRETS:-/run/secrets}"
export SECRETS

# psql reads the files itself: a password on a command line would show in the list of processes.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'SQL'
\set writer `cat "$SECRETS/database_writer_password"`
\set reader `cat "$SECRETS/database_reader_password"`
CREATE ROLE projector LOGIN PASSWORD :'writer';
CREATE ROLE grafana LOGIN PASSWORD :'reader';
SQL
