-- Queries of stepwell/projections/sums/rollups.py. One "-- name:" line opens each entry.

-- name: known_verdicts
-- Times in whole microseconds since 1970, as records have them.
SELECT episode_id, attempt, revision, run_id, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       outcome, failure_type, fault, n_steps, (extract(epoch FROM issued_at) * 1000000)::bigint,
       (extract(epoch FROM requested_at) * 1000000)::bigint, (extract(epoch FROM started_at) * 1000000)::bigint,
       (extract(epoch FROM ended_at) * 1000000)::bigint, (extract(epoch FROM logged_at) * 1000000)::bigint,
       verdict_partition, verdict_offset
FROM verdicts WHERE episode_id = ANY (%(episodes)s)
ORDER BY episode_id, verdict_partition, verdict_offset

-- name: new_steps
-- Follows a statement that names the rows which really went in "new".
SELECT (extract(epoch FROM date_trunc('minute', occurred_at, 'UTC')) * 1000000)::bigint, episode_id, attempt,
       stepwell.wall_bucket(stepwell.wall_us(step_wall_s)), source_partition, count(*),
       coalesce(sum(stepwell.wall_us(step_wall_s)), 0)::bigint, (extract(epoch FROM max(logged_at)) * 1000000)::bigint
FROM new GROUP BY 1, 2, 3, 4, 5

-- name: new_verdict_changes
SELECT episode_id, change FROM new

-- name: new_telemetry_points
SELECT (extract(epoch FROM date_trunc('minute', sampled_at, 'UTC')) * 1000000)::bigint, series_id, source_partition,
       count(*), sum(measurements)::bigint, sum(value) FILTER (WHERE measurements IS NOT NULL),
       min(stepwell.measured(value, measurements, distribution, 'min')),
       max(stepwell.measured(value, measurements, distribution, 'max')),
       (extract(epoch FROM max(logged_at)) * 1000000)::bigint
FROM new WHERE stepwell.summed(value) GROUP BY 1, 2, 3

-- name: told_step
SELECT timestamptz 'epoch' + d.minute * interval '1 microsecond' AS at, e.policy, e.policy_version, e.task, e.scene,
       e.perturbation, a.host, d.wall_bucket, d.source_partition, d.steps, d.wall_us,
       timestamptz 'epoch' + d.logged * interval '1 microsecond' AS logged_at
FROM unnest(%(minute)s::bigint[], %(episode_id)s::text[], %(attempt)s::integer[], %(wall_bucket)s::integer[],
            %(source_partition)s::integer[], %(steps)s::bigint[], %(wall_us)s::bigint[], %(logged)s::bigint[])
     AS d (minute, episode_id, attempt, wall_bucket, source_partition, steps, wall_us, logged)
LEFT JOIN episodes e ON e.episode_id = d.episode_id
LEFT JOIN episode_attempts a ON a.episode_id = d.episode_id AND a.attempt = d.attempt

-- name: told_outcome
SELECT c.at, c.policy, c.policy_version, c.checkpoint, c.task, c.scene, c.perturbation, c.purpose, c.outcome,
       c.failure_type, c.fault, c.source_partition, c.sign::bigint AS episodes, (c.sign * c.n_steps)::bigint AS steps,
       c.logged_at
FROM unnest(%(episode_id)s::text[], %(change)s::integer[]) AS d (episode_id, change)
JOIN verdict_changes c ON c.episode_id = d.episode_id AND c.change = d.change

-- name: told_telemetry
SELECT timestamptz 'epoch' + d.minute * interval '1 microsecond' AS at, d.series_id, d.source_partition, d.points,
       d.measurements, d.value_sum, d.value_min, d.value_max,
       timestamptz 'epoch' + d.logged * interval '1 microsecond' AS logged_at
FROM unnest(%(minute)s::bigint[], %(series_id)s::bigint[], %(source_partition)s::integer[], %(points)s::bigint[],
            %(measurements)s::bigint[], %(value_sum)s::double precision[], %(value_min)s::double precision[], %(value_max)s::double precision[],
            %(logged)s::bigint[])
     AS d (minute, series_id, source_partition, points, measurements, value_sum, value_min, value_max, logged)

-- name: every_step
SELECT date_trunc('minute', s.occurred_at, 'UTC') AS at, e.policy, e.policy_version, e.task, e.scene, e.perturbation,
       a.host, stepwell.wall_bucket(stepwell.wall_us(s.step_wall_s)) AS wall_bucket, s.source_partition,
       count(*) AS steps, coalesce(sum(stepwell.wall_us(s.step_wall_s)), 0)::bigint AS wall_us,
       max(s.logged_at) AS logged_at
FROM steps s
LEFT JOIN episodes e ON e.episode_id = s.episode_id
LEFT JOIN episode_attempts a ON a.episode_id = s.episode_id AND a.attempt = s.attempt
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9

-- name: every_outcome
SELECT at, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
       source_partition, sign::bigint AS episodes, (sign * n_steps)::bigint AS steps, logged_at
FROM verdict_changes

-- name: every_telemetry
SELECT date_trunc('minute', sampled_at, 'UTC') AS at, series_id, source_partition, count(*) AS points,
       sum(measurements)::bigint AS measurements, sum(value) FILTER (WHERE measurements IS NOT NULL) AS value_sum,
       min(stepwell.measured(value, measurements, distribution, 'min')) AS value_min,
       max(stepwell.measured(value, measurements, distribution, 'max')) AS value_max, max(logged_at) AS logged_at
FROM telemetry_points WHERE stepwell.summed(value) GROUP BY 1, 2, 3

-- name: note_gaps
INSERT INTO step_gaps AS g (episode_id, attempt, first_at, last_at)
SELECT d.episode_id, d.attempt, min(timestamptz 'epoch' + d.minute * interval '1 microsecond'),
       max(timestamptz 'epoch' + (d.minute + 60000000) * interval '1 microsecond')
FROM unnest(%(minute)s::bigint[], %(episode_id)s::text[], %(attempt)s::integer[]) AS d (minute, episode_id, attempt)
LEFT JOIN episodes e ON e.episode_id = d.episode_id
LEFT JOIN episode_attempts a ON a.episode_id = d.episode_id AND a.attempt = d.attempt
WHERE e.episode_id IS NULL OR a.host IS NULL
GROUP BY d.episode_id, d.attempt
ON CONFLICT (episode_id, attempt) DO UPDATE
SET first_at = least(g.first_at, EXCLUDED.first_at), last_at = greatest(g.last_at, EXCLUDED.last_at)

-- name: gaps
SELECT episode_id, attempt, first_at, last_at FROM step_gaps WHERE episode_id = ANY (%(episodes)s)
ORDER BY episode_id, attempt

-- name: steps_of_gap
WITH new AS (
    SELECT * FROM steps WHERE episode_id = %(episode_id)s AND attempt = %(attempt)s
    AND occurred_at >= %(first_at)s AND occurred_at < %(last_at)s
)

-- name: decompress_all
-- To the end of the transaction. Steps that were compressed before their episode was told are decompressed by touch_gap,
-- and TimescaleDB refuses a transaction with more than 100,000 of them, however often it is done again.
SELECT set_config('timescaledb.max_tuples_decompressed_per_dml_transaction', '0', true)

-- name: touch_gap
-- Changes nothing, and tells the continuous aggregates that there is something to refresh.
UPDATE steps SET logged_at = logged_at
WHERE episode_id = %(episode_id)s AND attempt = %(attempt)s AND occurred_at >= %(first_at)s AND occurred_at < %(last_at)s

-- name: close_gaps
DELETE FROM step_gaps g USING episodes e, episode_attempts a
WHERE g.episode_id = ANY (%(episodes)s) AND e.episode_id = g.episode_id
  AND a.episode_id = g.episode_id AND a.attempt = g.attempt AND a.host IS NOT NULL

-- name: wrong_change
-- By the rule of the view episode_results; whether the last attempt has ended is nothing to a verdict that is there.
WITH latest AS (
    SELECT DISTINCT ON (episode_id, attempt) episode_id, attempt, revision, outcome IN ('success', 'failure') AS scored
    FROM verdicts ORDER BY episode_id, attempt, revision DESC
), counts AS (
    SELECT DISTINCT ON (episode_id) episode_id, attempt, revision, 1 AS sign
    FROM latest ORDER BY episode_id, scored DESC, CASE WHEN scored THEN attempt ELSE -attempt END
), told AS (
    SELECT episode_id, attempt, revision, sum(sign) AS sign FROM verdict_changes
    GROUP BY episode_id, attempt, revision HAVING sum(sign) <> 0
)
SELECT episode_id, attempt, revision, coalesce(t.sign, 0), coalesce(c.sign, 0)
FROM told t FULL JOIN counts c USING (episode_id, attempt, revision)
WHERE t.sign IS DISTINCT FROM c.sign ORDER BY 1, 2, 3 LIMIT 1

-- name: retired
-- The times of which one of some tables has lost rows.
SELECT coalesce(range_agg(tstzrange(r.range_start, r.range_end)), '{}')::text
FROM stepwell.retirements r JOIN stepwell.homes h ON h.relation = r.relation AND h.schema = r.schema
WHERE r.relation = ANY(%(relations)s)

-- name: unsummed
-- The times for which some continuous aggregates have yet to be refreshed, by the database's own notes: what each has to do,
-- and what changed in its source before it took note of that. Ends that no timestamp holds are open.
SELECT coalesce(range_agg(tstzrange(CASE WHEN low > -9e15 THEN to_timestamp(low / 1e6) END,
                                    CASE WHEN high < 9e15 THEN to_timestamp(high / 1e6) END, '[]')), '{}')::text
FROM (
    SELECT materialization_id AS aggregate, NULL::integer AS source, lowest_modified_value AS low, greatest_modified_value AS high
    FROM _timescaledb_catalog.continuous_aggs_materialization_invalidation_log
    UNION ALL
    SELECT NULL, hypertable_id, lowest_modified_value, greatest_modified_value
    FROM _timescaledb_catalog.continuous_aggs_hypertable_invalidation_log
) AS l
JOIN _timescaledb_catalog.continuous_agg a ON a.mat_hypertable_id = l.aggregate OR a.raw_hypertable_id = l.source
JOIN stepwell.homes h ON h.relation = a.user_view_name AND h.schema = a.user_view_schema
WHERE h.relation = ANY(%(relations)s)
