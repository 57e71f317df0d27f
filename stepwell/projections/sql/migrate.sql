-- Queries of stepwell/projections/migrate.py. One "-- name:" line opens each entry.

-- name: lock
-- The number is arbitrary and ours: every migrator of one database waits for the same lock.
SELECT pg_advisory_lock(5783366171)

-- name: unlock
SELECT pg_advisory_unlock(5783366171)

-- name: take_up_timescale
-- Where the extension is installed on the server but not yet in this database, and we may, take it.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'timescaledb')
       AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'timescaledb') THEN
        CREATE EXTENSION timescaledb;
    END IF;
EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
    RAISE NOTICE 'TimescaleDB is on the server, but this user may not create the extension: the tables stay plain';
END
$$

-- name: bootstrap_schema
CREATE SCHEMA IF NOT EXISTS stepwell

-- name: bootstrap_table
CREATE TABLE IF NOT EXISTS stepwell.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    applied_by text NOT NULL
)

-- name: bootstrap_comments
DO $$
BEGIN
    COMMENT ON SCHEMA stepwell IS 'What Stepwell''s projector makes of the log.';
    COMMENT ON TABLE stepwell.schema_migrations IS 'Which migrations this database has.';
    COMMENT ON COLUMN stepwell.schema_migrations.version IS 'Number of the migration (count from 1).';
    COMMENT ON COLUMN stepwell.schema_migrations.name IS 'Its file.';
    COMMENT ON COLUMN stepwell.schema_migrations.sha256 IS 'Digest of the file as it was applied (hex).';
    COMMENT ON COLUMN stepwell.schema_migrations.applied_at IS 'When it was applied (UTC, database''s clock).';
    COMMENT ON COLUMN stepwell.schema_migrations.applied_by IS 'Version of Stepwell that applied it.';
END
$$

-- name: exists
SELECT to_regclass('stepwell.schema_migrations') IS NOT NULL

-- name: applied
SELECT version, name, sha256, applied_at, applied_by FROM stepwell.schema_migrations ORDER BY version

-- name: record
INSERT INTO stepwell.schema_migrations (version, name, sha256, applied_by) VALUES (%s, %s, %s, %s)

-- name: ensure_hypertables
SELECT stepwell.ensure_hypertables()
