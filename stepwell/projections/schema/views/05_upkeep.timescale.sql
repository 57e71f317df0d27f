-- What TimescaleDB's own policies do not do. Jobs call it (`stepwell db tune --apply`), and `stepwell db upkeep`.

CREATE OR REPLACE PROCEDURE stepwell.retire_chunks(job_id integer, config jsonb)
LANGUAGE plpgsql AS $$
-- A chunk goes when all in it was logged longer ago than is kept: by the time of the log and not of the facts, so that an
-- imported recording stays as long as a new one. Chunk by chunk, so that nobody waits long and what is done is done.
DECLARE
    extension name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'timescaledb');
    relation text := format('%I.%I', config ->> 'schema', config ->> 'relation');
    cut timestamptz := now() - (config ->> 'keep')::interval;
    old text;
    chunks text[];
    starts timestamptz[];
    ends timestamptz[];
    gone boolean;
BEGIN
    IF to_regclass(relation) IS NULL THEN
        -- Its generation has been dropped.
        EXECUTE format('SELECT %I.delete_job(%s) WHERE %s > 0', extension, job_id, job_id);
        RETURN;
    END IF;
    SELECT array_agg(format('%I.%I', c.chunk_schema, c.chunk_name) ORDER BY c.range_start),
           array_agg(c.range_start ORDER BY c.range_start), array_agg(c.range_end ORDER BY c.range_start)
    INTO chunks, starts, ends
    FROM timescaledb_information.chunks c
    LEFT JOIN timescaledb_information.continuous_aggregates a
           ON a.materialization_hypertable_schema = c.hypertable_schema AND a.materialization_hypertable_name = c.hypertable_name
    WHERE coalesce(a.view_schema, c.hypertable_schema) = config ->> 'schema'
      AND coalesce(a.view_name, c.hypertable_name) = config ->> 'relation' AND c.range_end <= cut;
    FOR i IN 1 .. coalesce(cardinality(chunks), 0) LOOP
        -- Cheap for what is compressed, whose least and most are known: most of what stays is seen here.
        old := format('SELECT NOT EXISTS (SELECT FROM %s WHERE %I >= %L)', chunks[i], config ->> 'ingested', cut);
        EXECUTE old INTO gone;
        CONTINUE WHEN NOT gone;
        -- What is summed from it may not have been refreshed yet; but never again from what is left after a retirement.
        IF config ? 'feeds' AND NOT EXISTS (
            SELECT FROM stepwell.retirements r WHERE r.schema = config ->> 'schema' AND r.relation = config ->> 'relation'
            AND r.range_start < ends[i] AND r.range_end > starts[i]) THEN
            PERFORM set_config('search_path', quote_ident(extension), true);  -- until this transaction ends
            CALL refresh_continuous_aggregate(format('%I.%I', config ->> 'schema', config ->> 'feeds')::regclass, starts[i], ends[i]);
        END IF;
        BEGIN
            PERFORM set_config('lock_timeout', '2s', true);
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', chunks[i]);
            EXECUTE old INTO gone;  -- something may have come while the lock was waited for
            IF gone THEN
                INSERT INTO stepwell.retirements AS r (schema, relation, range_start, range_end, logged_before)
                VALUES (config ->> 'schema', config ->> 'relation', starts[i], ends[i], cut)
                ON CONFLICT ON CONSTRAINT retirements_pkey DO UPDATE SET logged_before = EXCLUDED.logged_before, retired_at = now();
                EXECUTE format('SELECT %I.drop_chunks(%L::regclass, older_than => %L::timestamptz, newer_than => %L::timestamptz)',
                               extension, relation, ends[i], starts[i]);
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RAISE NOTICE 'chunk % of % is in use, trying again next time', chunks[i], relation;
        END;
        COMMIT;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE stepwell.retire_chunks(integer, jsonb) IS 'Drops the chunks of a table in which everything was logged longer ago than is kept.';

CREATE OR REPLACE PROCEDURE stepwell.refresh_history(job_id integer, config jsonb)
LANGUAGE plpgsql AS $$
-- What came later than the refresh policy looks back: an import, a recording of last year. Only what has changed is summed
-- again. Where retention took chunks away it is not touched: summed from what is left there, history would be lost.
DECLARE
    extension name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'timescaledb');
    relation text := format('%I.%I', config ->> 'schema', config ->> 'relation');
    bucket interval := config ->> 'bucket';
    until timestamptz := now() - (config ->> 'before')::interval;
    starts timestamptz[];
    ends timestamptz[];
    reached timestamptz;
BEGIN
    IF to_regclass(relation) IS NULL THEN
        EXECUTE format('SELECT %I.delete_job(%s) WHERE %s > 0', extension, job_id, job_id);
        RETURN;
    END IF;
    SELECT array_agg(r.range_start ORDER BY r.range_start), array_agg(r.range_end ORDER BY r.range_start) INTO starts, ends
    FROM stepwell.retirements r
    WHERE r.schema = config ->> 'schema' AND r.relation = config ->> 'source' AND r.range_start < until;
    FOR i IN 1 .. coalesce(cardinality(starts), 0) LOOP
        IF reached IS NULL OR starts[i] - bucket > reached THEN
            PERFORM set_config('search_path', quote_ident(extension), true);  -- until this transaction ends
            CALL refresh_continuous_aggregate(relation::regclass, reached, starts[i]);
        END IF;
        reached := greatest(reached, ends[i]);
    END LOOP;
    IF reached IS NULL OR until - bucket > reached THEN
        PERFORM set_config('search_path', quote_ident(extension), true);
        CALL refresh_continuous_aggregate(relation::regclass, reached, until);
    END IF;
END
$$;
COMMENT ON PROCEDURE stepwell.refresh_history(integer, jsonb) IS 'Refreshes a continuous aggregate before the window of its policy, except where retention has taken the rows away.';
