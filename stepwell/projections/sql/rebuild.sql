-- Queries of stepwell/projections/rebuild/. One "-- name:" line opens each entry.

-- name: try_runner_lock
-- The number is arbitrary and ours: who works on a rebuild holds it for as long as its connection lives.
SELECT pg_try_advisory_lock(5783366174), pg_backend_pid()

-- name: runner_unlock
SELECT pg_advisory_unlock(5783366174)

-- name: unfinished
SELECT r.generation, g.storage, g.state, g.relations, g.made_from, g.made_by, r.step, r.keep_old, r.runner,
       r.backend_pid, extract(epoch FROM clock_timestamp() - r.seen_at)::double precision AS seen_s_ago
FROM stepwell.rebuilds r JOIN stepwell.generations g ON g.name = r.generation
WHERE r.ended_at IS NULL

-- name: begin
INSERT INTO stepwell.rebuilds (generation, step, keep_old, runner, backend_pid)
VALUES (%(generation)s, 'filling', %(keep_old)s, %(runner)s, pg_backend_pid())

-- name: take_over
UPDATE stepwell.rebuilds SET runner = %(runner)s, backend_pid = pg_backend_pid(), seen_at = clock_timestamp(),
    cancel_asked = false
WHERE generation = %(generation)s

-- name: beat
UPDATE stepwell.rebuilds SET seen_at = clock_timestamp() WHERE generation = %(generation)s
RETURNING cancel_asked

-- name: step
UPDATE stepwell.rebuilds SET step = %(step)s, seen_at = clock_timestamp() WHERE generation = %(generation)s

-- name: keep_old
UPDATE stepwell.rebuilds SET keep_old = %(keep_old)s WHERE generation = %(generation)s

-- name: carried
UPDATE stepwell.rebuilds SET carried = carried || %(carried)s WHERE generation = %(generation)s

-- name: compared
UPDATE stepwell.rebuilds SET compared = %(compared)s, differences = %(differences)s WHERE generation = %(generation)s

-- name: handed_over
UPDATE stepwell.rebuilds SET step = 'dropping', handed_over_at = clock_timestamp(), seen_at = clock_timestamp()
WHERE generation = %(generation)s

-- name: end
UPDATE stepwell.rebuilds SET step = %(step)s, ended_at = clock_timestamp() WHERE generation = %(generation)s

-- name: retire
UPDATE stepwell.generations SET state = 'retired', retired_at = clock_timestamp() WHERE name = %(generation)s

-- name: ask_to_cancel
UPDATE stepwell.rebuilds SET cancel_asked = true WHERE generation = %(generation)s

-- name: last
SELECT r.generation, g.relations, g.made_from, r.step, r.runner,
       extract(epoch FROM clock_timestamp() - r.seen_at)::double precision, r.cancel_asked, r.keep_old, r.carried,
       r.compared, r.differences, r.started_at, r.handed_over_at, r.ended_at
FROM stepwell.rebuilds r JOIN stepwell.generations g ON g.name = r.generation
ORDER BY r.started_at DESC LIMIT 1

-- name: retired
-- Generations that are looked at no more and whose schema is still there.
SELECT g.name FROM stepwell.generations g JOIN pg_namespace n ON n.nspname = g.name
WHERE g.state = 'retired' ORDER BY g.made_at, g.name

-- name: relations_of
SELECT c.relname, c.relkind = 'v' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v') ORDER BY c.relkind = 'v' DESC, c.oid DESC

-- name: low_limits
SELECT set_config('lock_timeout', '900ms', true), set_config('statement_timeout', '0', true)

-- name: brief_limits
SELECT set_config('lock_timeout', '100ms', true), set_config('statement_timeout', '700ms', true)

-- name: lock_views
-- All views before anything is changed. A reader that waits for one looks for deadlocks after a second: until then we have
-- either all of them, and wait for nothing that a reader holds, or have let go. (LOCK TABLE would lock every chunk, too;
-- this changes nothing, and locks the view alone.)
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'stepwell' AND c.relkind = 'v' ORDER BY c.oid LOOP
        EXECUTE 'ALTER VIEW ' || name || ' RESET (check_option)';
    END LOOP;
END
$$

-- name: lock_writers_out
-- For longer than a transaction: until unlock, or the end of the connection.
SELECT pg_advisory_lock(5783366172)

-- name: let_writers_in
SELECT pg_advisory_unlock(5783366172)

-- name: lock_migrators_out
SELECT pg_advisory_xact_lock(5783366171)

-- name: blockers
-- Who stands in the way of the views' change, or of the writers' lock.
SELECT DISTINCT a.pid, a.application_name, extract(epoch FROM now() - a.xact_start)::double precision
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.granted AND a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.xact_start < now() - interval '500 ms'
  AND (n.nspname = 'stepwell' AND c.relkind = 'v' OR l.locktype = 'advisory' AND l.objid = 5783366172 & 4294967295)
ORDER BY 3 DESC LIMIT 3

-- name: forget_other_homes
-- A generation of another storage may lack tables that the old one had.
DELETE FROM stepwell.homes WHERE schema <> %(schema)s::text

-- name: views_anew
DELETE FROM stepwell.made_views

-- name: forget_retirements
DELETE FROM stepwell.retirements WHERE schema = %(schema)s::text

-- name: columns
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(relation)s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: key
SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute a ON a.attnum = k.attnum
WHERE i.indrelid = to_regclass(%(relation)s) AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY k.place

-- name: aggregates
-- Continuous aggregates of a schema, those that others are made of first; only where TimescaleDB is.
SELECT view_name, materialization_hypertable_schema, materialization_hypertable_name
FROM timescaledb_information.continuous_aggregates WHERE view_schema = %(schema)s
ORDER BY substr(materialization_hypertable_name, length('_materialized_hypertable_') + 1)::integer

-- name: refresh_of
-- The statement that sums everything; a procedure that commits is called outside of transactions.
SELECT format('CALL %%I.refresh_continuous_aggregate(%%L::regclass, NULL, %%L::timestamptz)', n.nspname,
              %(aggregate)s::text, now() - %(until)s::interval)
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'timescaledb'

-- name: chunks
SELECT c.chunk_schema, c.chunk_name, c.range_end FROM timescaledb_information.chunks c
WHERE c.hypertable_schema = %(schema)s AND c.hypertable_name = %(table)s ORDER BY c.range_start

-- name: skip_to
UPDATE sink_offsets SET next_offset = %(low)s, read_to = %(low)s
WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND next_offset < %(low)s

-- name: carried_days
-- Days (UTC) of rows that were copied and not counted, but those from which retention took something.
SELECT coalesce(array_agg(d.day), '{{}}') FROM (SELECT DISTINCT date_trunc('day', {time}, 'UTC') AS day FROM {table} WHERE {carried}) AS d
WHERE NOT EXISTS (SELECT FROM stepwell.retirements r WHERE r.schema = %(old)s::text AND r.relation = %(kind)s::text
                  AND d.day < r.range_end AND d.day + interval '1 day' > r.range_start)

-- name: empty_days
DELETE FROM {table} WHERE date_trunc('day', bucket, 'UTC') = ANY(%(days)s)

-- name: keep_empty_sums
-- What was moved elsewhere left a row that adds up to nothing. Counting does not find it.
INSERT INTO {new} ({keys}, {measures}) SELECT {keys}, {measures} FROM {old}
WHERE {counter} = 0 AND date_trunc('day', bucket, 'UTC') = ANY(%(days)s) ON CONFLICT ({keys}) DO NOTHING

-- name: note_carried_gaps
INSERT INTO step_gaps AS g (episode_id, attempt, first_at, last_at)
SELECT s.episode_id, s.attempt, date_trunc('minute', min(s.occurred_at), 'UTC'),
       date_trunc('minute', max(s.occurred_at), 'UTC') + interval '1 minute'
FROM steps s
LEFT JOIN episodes e ON e.episode_id = s.episode_id
LEFT JOIN episode_attempts a ON a.episode_id = s.episode_id AND a.attempt = s.attempt
WHERE date_trunc('day', s.occurred_at, 'UTC') = ANY(%(days)s) AND (e.episode_id IS NULL OR a.host IS NULL)
GROUP BY s.episode_id, s.attempt
ON CONFLICT (episode_id, attempt) DO UPDATE
SET first_at = least(g.first_at, EXCLUDED.first_at), last_at = greatest(g.last_at, EXCLUDED.last_at)

-- name: raise_sums
-- Only of days from which retention took something: of all others the rows are there, and were counted.
INSERT INTO {new} AS n ({keys}, {measures})
SELECT {keys}, {measures} FROM {old}
WHERE (%(after)s::timestamptz IS NULL OR logged_at >= %(after)s)
  AND (%(before)s::timestamptz IS NULL OR logged_at < %(before)s)
  AND EXISTS (SELECT FROM stepwell.retirements r WHERE r.schema = %(schema)s::text AND r.relation = %(kind)s::text
              AND date_trunc('day', bucket, 'UTC') < r.range_end
              AND date_trunc('day', bucket, 'UTC') + interval '1 day' > r.range_start)
ON CONFLICT ({keys}) DO UPDATE SET {taken} WHERE n.{counter} < EXCLUDED.{counter}

-- name: read_until
-- Everything logged before is in the tables; null while that is not known of each partition.
SELECT CASE WHEN count(*) = count(complete_until) THEN min(complete_until) END FROM sink_offsets
WHERE sink = %(sink)s AND topic = ANY(%(topics)s)

-- name: retirements
-- Infinities as text: no datetime holds them.
SELECT relation, range_start::text, range_end::text, logged_before FROM stepwell.retirements WHERE schema = %(schema)s::text
ORDER BY relation, range_start

-- name: copy_retirements
INSERT INTO stepwell.retirements AS r (schema, relation, range_start, range_end, logged_before, retired_at)
SELECT %(new)s, relation, range_start, range_end, logged_before, retired_at FROM stepwell.retirements
WHERE schema = %(old)s::text AND relation = ANY(%(relations)s)
ON CONFLICT (schema, relation, range_start, range_end) DO UPDATE SET logged_before = greatest(r.logged_before, EXCLUDED.logged_before)

-- name: logged_later
SELECT EXISTS (SELECT FROM {table} WHERE {time} >= %(start)s::timestamptz AND {time} < %(end)s::timestamptz
               AND logged_at >= %(before)s)

-- name: drop_chunks
SELECT drop_chunks(%(relation)s::regclass, older_than => %(end)s::timestamptz, newer_than => %(start)s::timestamptz)

-- name: delete_retired
DELETE FROM {new} WHERE {time} >= %(start)s::timestamptz AND {time} < %(end)s::timestamptz AND logged_at < %(before)s

-- name: delete_retired_letters
DELETE FROM {new} AS n
WHERE {time} >= %(start)s::timestamptz AND {time} < %(end)s::timestamptz AND logged_at < %(before)s
  AND NOT EXISTS (SELECT FROM {old} AS o WHERE (o.source_topic, o.source_partition, o.source_offset, o.kind, o.reason)
                                             = (n.source_topic, n.source_partition, n.source_offset, n.kind, n.reason))

-- name: drop_lesser_sums
DELETE FROM {new} AS n USING {old} AS o, unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS gone (start, until)
WHERE o.bucket >= gone.start AND o.bucket < gone.until AND {same} AND n.{counter} < o.{counter}

-- name: copy_sums
INSERT INTO {new} ({columns})
SELECT {columns} FROM {old} AS o
WHERE EXISTS (SELECT FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS gone (start, until)
              WHERE o.bucket >= gone.start AND o.bucket < gone.until)
  AND NOT EXISTS (SELECT FROM {new} AS n WHERE {same})

-- name: keep_recorded
-- When a letter was first written here.
UPDATE {new} AS n SET recorded_at = o.recorded_at FROM {old} AS o
WHERE (o.source_topic, o.source_partition, o.source_offset, o.kind, o.reason, o.logged_at)
    = (n.source_topic, n.source_partition, n.source_offset, n.kind, n.reason, n.logged_at)
  AND o.recorded_at < n.recorded_at

-- name: switch_job
SELECT alter_job(%(job_id)s, scheduled => %(on)s)

-- name: lost_totals
WITH o AS ({old}), n AS ({new}), lost AS (
    SELECT bucket, o.total AS was, coalesce(n.total, 0) AS is_now FROM o LEFT JOIN n USING (bucket)
    WHERE o.total > coalesce(n.total, 0)
)
SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM n), (SELECT count(*) FROM lost), l.bucket, l.was, l.is_now
FROM (VALUES (1)) AS one LEFT JOIN LATERAL (SELECT * FROM lost ORDER BY bucket LIMIT 1) AS l ON true

-- name: sums_apart
-- By a billionth of the sizes that were added: those of either sign may cancel each other out.
SELECT o.bucket, o.series_id, o.source_partition, o.value_sum, n.value_sum, count(*) OVER ()
FROM {old} AS o JOIN {new} AS n USING (bucket, series_id, source_partition)
WHERE o.value_sum IS DISTINCT FROM n.value_sum
  AND coalesce(abs(o.value_sum - n.value_sum)
               > 1e-9 * greatest(abs(o.value_sum), abs(n.value_sum),
                                 o.measurements * abs(o.value_min), o.measurements * abs(o.value_max)), true)
ORDER BY 1, 2, 3 LIMIT 1
