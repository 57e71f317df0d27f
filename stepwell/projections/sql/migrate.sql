-- Queries of stepwell/projections/schema/migrate.py. One "-- name:" line opens each entry.

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
    scope text NOT NULL,
    version integer NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by text NOT NULL,
    PRIMARY KEY (scope, name)
)

-- name: has_scopes
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('stepwell.schema_migrations') AND attname = 'scope')

-- name: bootstrap_comments
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'stepwell.schema_migrations'::regclass AND attname = 'scope') THEN
        RETURN;
    END IF;
    COMMENT ON SCHEMA stepwell IS 'What Stepwell''s projector makes of the log: views to query. The tables stand in stepwell_g1, stepwell_g2 ...';
    COMMENT ON TABLE stepwell.schema_migrations IS 'Which migrations this database has.';
    COMMENT ON COLUMN stepwell.schema_migrations.scope IS 'The schema that it was applied to.';
    COMMENT ON COLUMN stepwell.schema_migrations.version IS 'Number of the migration (count from 1).';
    COMMENT ON COLUMN stepwell.schema_migrations.name IS 'Its file.';
    COMMENT ON COLUMN stepwell.schema_migrations.sha256 IS 'Digest of the file as it was applied (hex).';
    COMMENT ON COLUMN stepwell.schema_migrations.applied_at IS 'When it was applied (UTC, database''s clock).';
    COMMENT ON COLUMN stepwell.schema_migrations.applied_by IS 'Version of Stepwell that applied it.';
END
$$

-- name: exists
SELECT to_regclass('stepwell.schema_migrations') IS NOT NULL

-- name: has_generations
SELECT to_regclass('stepwell.generations') IS NOT NULL

-- name: has_generation
SELECT EXISTS (SELECT FROM stepwell.generations WHERE state = 'active')

-- name: generations
SELECT name, storage, state FROM stepwell.generations ORDER BY made_at, name

-- name: applied
SELECT scope, version, name, sha256, applied_at, applied_by FROM stepwell.schema_migrations
ORDER BY applied_at, scope, version, name

-- name: record
INSERT INTO stepwell.schema_migrations (scope, version, name, sha256, applied_by)
VALUES (%(scope)s, %(version)s, %(name)s, %(sha256)s, %(by)s)
