-- One episode: the attempt that counts, or the last one while none has ended. One "-- name:" line opens each entry.

-- name: result
SELECT coalesce(outcome, state) AS outcome, attempt, failure_type, fault, n_steps, total_reward, completeness
FROM stepwell.episode_results WHERE episode_id IN (${episode:sqlstring})

-- name: asked
SELECT fact.name AS what, fact.value
FROM stepwell.episode_results r,
     LATERAL (VALUES (1, 'run', run_id), (2, 'task', task), (3, 'policy', policy || ' ' || policy_version),
                     (4, 'checkpoint', checkpoint), (5, 'scene', scene), (6, 'perturbation', perturbation),
                     (7, 'seed', seed::text), (8, 'asked for (UTC)', to_char(requested_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')),
                     (9, 'ended (UTC)', to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')),
                     (10, 'message', message)) AS fact (place, name, value)
WHERE r.episode_id IN (${episode:sqlstring}) AND fact.value <> '' ORDER BY fact.place

-- name: attempts
SELECT attempt, phase, outcome, host, claimed_at, next_step, last_event_at, revision, sealed, retry_reason
FROM stepwell.episode_attempts WHERE episode_id IN (${episode:sqlstring}) ORDER BY attempt

-- name: reward
SELECT s.step, s.reward
FROM stepwell.episode_results r JOIN stepwell.step_log s USING (episode_id, attempt)
WHERE r.episode_id IN (${episode:sqlstring}) ORDER BY s.step

-- name: speed
SELECT s.step, s.step_wall_s, s.inference_s
FROM stepwell.episode_results r JOIN stepwell.step_log s USING (episode_id, attempt)
WHERE r.episode_id IN (${episode:sqlstring}) ORDER BY s.step

-- name: labels
SELECT l.attempt, l.label, l.step
FROM stepwell.labelled_steps l WHERE l.episode_id IN (${episode:sqlstring}) ORDER BY l.attempt, l.step NULLS LAST, l.label

-- name: set_aside
SELECT attempt, kind, reason, detail, event_type, source_topic, source_partition, source_offset, logged_at
FROM stepwell.dead_letters WHERE episode_id IN (${episode:sqlstring})
ORDER BY logged_at, source_topic, source_partition, source_offset LIMIT 100

-- name: measured
-- A histogram's point stands for as many values as it counts. A cumulative one says again what it said before: its last
-- point for each start has it all. Readings of a cumulative counter have no mean.
SELECT metric, unit, worker_id, sum(counted)::bigint AS points,
       sum(value) FILTER (WHERE NOT (cumulative AND kind = 'counter')) / nullif(sum(counted), 0) AS mean,
       min(least) AS min, max(most) AS max
FROM (
    SELECT metric, unit, worker_id, kind, value, temporality IS NOT DISTINCT FROM 'cumulative' AS cumulative,
           coalesce((distribution ->> 'count')::double precision, 1) AS counted,
           coalesce(nullif((distribution ->> 'min')::double precision, 'NaN'), mean) AS least,
           coalesce(nullif((distribution ->> 'max')::double precision, 'NaN'), mean) AS most,
           row_number() OVER (PARTITION BY series_id, started_at ORDER BY sampled_at DESC) AS place
    FROM stepwell.telemetry WHERE episode_id IN (${episode:sqlstring})
) AS measured
WHERE place = 1 OR NOT (cumulative AND kind = 'histogram')
GROUP BY 1, 2, 3 ORDER BY 1, 3

-- name: spans
SELECT started_at, extract(epoch FROM ended_at - started_at)::double precision AS took_s, name, kind, status,
       status_message, worker_id
FROM stepwell.spans WHERE episode_id IN (${episode:sqlstring}) ORDER BY started_at, name LIMIT 200
