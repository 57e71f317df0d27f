-- Queries of stepwell/projections/upkeep/tune.py and retention.py. One "-- name:" line opens each entry.

-- name: generations
SELECT name, storage, state FROM stepwell.generations WHERE state <> 'retired' ORDER BY made_at, name

-- name: relations
-- Tables, and continuous aggregates, that a generation has: a rebuild of one table may leave it without others.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s::text AND c.relkind IN ('r', 'p', 'v')

-- name: chunk_intervals
SELECT coalesce(a.view_name, d.hypertable_name), d.time_interval FROM timescaledb_information.dimensions d
LEFT JOIN timescaledb_information.continuous_aggregates a
       ON a.materialization_hypertable_schema = d.hypertable_schema AND a.materialization_hypertable_name = d.hypertable_name
WHERE coalesce(a.view_schema, d.hypertable_schema) = %(schema)s::text AND d.time_interval IS NOT NULL

-- name: columnstore
SELECT coalesce(a.view_name, c.relname), s.segmentby, s.orderby,
       jsonb_path_query_array(s.index::jsonb, '$[*] ? (@.source == "config").column')
FROM timescaledb_information.hypertable_columnstore_settings s
JOIN pg_class c ON c.oid = s.hypertable
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN timescaledb_information.continuous_aggregates a
       ON a.materialization_hypertable_schema = n.nspname AND a.materialization_hypertable_name = c.relname
WHERE coalesce(a.view_schema, n.nspname) = %(schema)s::text AND (s.segmentby IS NOT NULL OR s.orderby IS NOT NULL)

-- name: real_time
SELECT view_name, materialized_only FROM timescaledb_information.continuous_aggregates WHERE view_schema = %(schema)s::text

-- name: policies
SELECT job_id, proc_name, coalesce(j.config ->> 'relation', a.view_name, j.hypertable_name), j.schedule_interval, j.config,
       j.scheduled
FROM timescaledb_information.jobs j
LEFT JOIN timescaledb_information.continuous_aggregates a
       ON a.materialization_hypertable_schema = j.hypertable_schema AND a.materialization_hypertable_name = j.hypertable_name
WHERE coalesce(j.config ->> 'schema', a.view_schema, j.hypertable_schema) = %(schema)s::text
  AND j.proc_name IN ('policy_compression', 'policy_refresh_continuous_aggregate', 'retire_chunks', 'refresh_history')
ORDER BY job_id

-- name: interval
SELECT %(text)s::interval

-- name: set_chunk
SELECT set_chunk_time_interval(%(relation)s::regclass, %(length)s::interval)

-- name: add_compression
SELECT add_compression_policy(%(relation)s::regclass, %(after)s::interval)

-- name: remove_compression
SELECT remove_compression_policy(%(relation)s::regclass, true)

-- name: add_refresh
SELECT add_continuous_aggregate_policy(%(relation)s::regclass, %(start)s::interval, %(until)s::interval, %(every)s::interval)

-- name: set_refresh_batch
-- In the job's configuration: older versions have no such parameter, and pass over the key.
SELECT alter_job(job_id, config => config || jsonb_build_object('buckets_per_batch', %(batch)s::integer))
FROM timescaledb_information.jobs WHERE job_id = %(job_id)s

-- name: remove_refresh
SELECT remove_continuous_aggregate_policy(%(relation)s::regclass, true)

-- name: add_job
SELECT add_job(%(procedure)s::regproc, %(every)s::interval, %(config)s::jsonb)

-- name: delete_job
SELECT delete_job(%(job_id)s)

-- name: run_job
CALL run_job(%(job_id)s)

-- name: note_upkeep
INSERT INTO stepwell.upkeep_runs (storage, ended_at) VALUES (%(storage)s, clock_timestamp())
ON CONFLICT (storage) DO UPDATE SET ended_at = EXCLUDED.ended_at

-- name: retired_chunks
SELECT count(*) FROM stepwell.retirements
WHERE schema = %(schema)s::text AND relation = %(relation)s::text AND retired_at >= %(since)s

-- name: retire_rows
-- A bounded piece at a time: locks are short, and a run that is cut off has done what it has done. The days (UTC) that
-- rows went from are noted.
WITH gone AS (
    DELETE FROM {relation}
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM {relation} WHERE {ingested} < %(cut)s LIMIT %(limit)s))
    RETURNING date_trunc('day', {time}, 'UTC') AS day
), noted AS (
    INSERT INTO stepwell.retirements AS r (schema, relation, range_start, range_end, logged_before)
    SELECT DISTINCT h.schema, h.relation, gone.day, gone.day + interval '1 day', %(cut)s::timestamptz
    FROM gone JOIN stepwell.homes h ON h.relation = %(relation)s::text
    ON CONFLICT (schema, relation, range_start, range_end)
    DO UPDATE SET logged_before = greatest(r.logged_before, EXCLUDED.logged_before), retired_at = now()
)
SELECT count(*) FROM gone
