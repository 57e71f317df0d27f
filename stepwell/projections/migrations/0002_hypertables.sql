-- Makes hypertables of the three large tables where TimescaleDB is present; elsewhere they stay as they are.
-- `stepwell db migrate` calls it every time, so that an extension installed later is taken up then.
-- Why one day a chunk: docs/decisions/0021-hypertables.md.
CREATE FUNCTION stepwell.ensure_hypertables() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    extension_schema text;
    entry record;
BEGIN
    SELECT n.nspname INTO extension_schema
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'timescaledb';
    IF extension_schema IS NULL THEN
        RETURN 'plain';
    END IF;
    FOR entry IN SELECT * FROM (VALUES ('steps', 'occurred_at'), ('actions', 'occurred_at'), ('telemetry', 'sampled_at'))
                 AS t (table_name, time_column) LOOP
        EXECUTE format(
            'SELECT %1$I.create_hypertable(%2$L::regclass, %1$I.by_range(%3$L, INTERVAL ''1 day''), '
            'create_default_indexes => false, if_not_exists => true, migrate_data => true)',
            extension_schema, 'stepwell.' || entry.table_name, entry.time_column);
    END LOOP;
    RETURN 'hypertables';
END
$$;
COMMENT ON FUNCTION stepwell.ensure_hypertables() IS 'Makes hypertables of steps, actions and telemetry where TimescaleDB is present; says hypertables or plain.';
