-- What runs now, and what the fleet has done lately. One "-- name:" line opens each entry.

-- name: now
SELECT (SELECT count(*) FROM stepwell.running_now) AS running,
       (SELECT count(*) FROM stepwell.stuck_episodes) AS stuck,
       (SELECT count(*) FROM stepwell.episode_attempts
        WHERE phase IN ('REQUESTED', 'INIT') AND claimed_at IS NULL AND NOT sealed) AS waiting,
       sum(scored + errored + aborted)::bigint AS ended,
       sum(succeeded)::double precision / nullif(sum(scored), 0) AS success_rate,
       (SELECT state FROM stepwell.projection_freshness) AS tables
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz

-- name: running
SELECT episode_id, policy, task, scene, phase || CASE WHEN paused THEN ' (paused)' ELSE '' END AS phase, owes,
       steps_done, max_steps, running_s, idle_s, host
FROM stepwell.running_now
WHERE ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
  AND ('*' IN (${run:sqlstring}) OR run_id IN (${run:sqlstring}))
ORDER BY idle_s DESC NULLS LAST, episode_id LIMIT 100

-- name: stuck
SELECT episode_id, stuck_on, stuck_since, stuck_s, phase, policy, task, steps_done, host
FROM stepwell.stuck_episodes
WHERE ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
  AND ('*' IN (${run:sqlstring}) OR run_id IN (${run:sqlstring}))
ORDER BY stuck_s DESC, episode_id LIMIT 100

-- name: outcomes
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       counted.metric, sum(counted.episodes)::double precision AS value
FROM stepwell.success_by_${resolution:raw},
     LATERAL (VALUES ('success', succeeded), ('failure', failed), ('error', errored), ('aborted', aborted))
         AS counted (metric, episodes)
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(counted.episodes) > 0 ORDER BY 1, 2

-- name: rate
-- Steps of each bucket over its whole length: what the fleet got done, idle time included.
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       coalesce(nullif(host, ''), 'unknown host') AS metric,
       sum(steps)::double precision / extract(epoch FROM greatest(interval '$__interval', interval '1 ${resolution:raw}'))::double precision AS value
FROM stepwell.simulator_rate_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: runs
SELECT s.run_id, s.first_requested_at, s.planned, s.running, s.pending, s.scored, s.errored, s.success_rate,
       s.success_rate_low, s.success_rate_high, s.last_ended_at
FROM (SELECT run_id FROM stepwell.runs
      WHERE '*' IN (${run:sqlstring}) OR run_id IN (${run:sqlstring})
      ORDER BY first_requested_at DESC LIMIT 20) AS newest,
     -- OFFSET 0 keeps the planner from adding up every run there is before it takes these.
     LATERAL (SELECT * FROM stepwell.run_summary r WHERE r.run_id = newest.run_id OFFSET 0) AS s
ORDER BY s.first_requested_at DESC
