-- What fails, where and how. One "-- name:" line opens each entry.

-- name: counts
SELECT sum(failed)::bigint AS failed, sum(errored)::bigint AS errored, sum(aborted)::bigint AS aborted,
       sum(failed)::double precision / nullif(sum(scored), 0) AS failure_rate,
       (SELECT count(*) FROM stepwell.dead_letters WHERE coalesce(logged_at, recorded_at) BETWEEN $__timeFrom() AND $__timeTo()) AS dead_letters,
       (SELECT count(*) FROM stepwell.retrain_status WHERE status IN ('open', 'acknowledged', 'accepted')) AS open_requests
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))

-- name: types
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       coalesce(failure_type, outcome) AS metric, sum(episodes)::double precision AS value
FROM stepwell.failures_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND outcome <> 'success'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(episodes) > 0 ORDER BY 1, 2

-- name: faults
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       coalesce(fault, 'not told') AS metric, sum(episodes)::double precision AS value
FROM stepwell.failures_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND outcome <> 'success'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(episodes) > 0 ORDER BY 1, 2

-- name: by_scene
SELECT coalesce(failure_type, outcome) AS failure_type, task || ' ' || scene AS scene,
       sum(episodes)::double precision AS episodes
FROM stepwell.failures_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND outcome <> 'success'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(episodes) > 0 ORDER BY 1, 2

-- name: by_perturbation
SELECT coalesce(failure_type, outcome) AS failure_type, perturbation, sum(episodes)::double precision AS episodes
FROM stepwell.failures_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND outcome <> 'success'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(episodes) > 0 ORDER BY 1, 2

-- name: newest
-- From the verdicts, by their time: the view episode_results would look at every episode there is.
SELECT v.ended_at, v.episode_id, v.attempt, v.policy, v.task, v.scene, v.perturbation, v.outcome, v.failure_type, v.fault,
       v.message
FROM stepwell.verdicts v
WHERE $__timeFilter(v.ended_at) AND v.outcome <> 'success'
  AND NOT EXISTS (SELECT FROM stepwell.verdicts later
                  WHERE later.episode_id = v.episode_id AND later.attempt = v.attempt AND later.revision > v.revision)
  AND ('*' IN (${policy:sqlstring}) OR v.policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR v.task IN (${task:sqlstring}))
ORDER BY v.ended_at DESC, v.episode_id LIMIT 50

-- name: patterns
SELECT detected_at, policy, failure_type, rule, jsonb_array_length(evidence) AS evidence_episodes, detail, trigger_id
FROM stepwell.failure_patterns
WHERE $__timeFilter(detected_at) AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
ORDER BY detected_at DESC LIMIT 50

-- name: dead_letters
SELECT kind, reason, count(*) AS records, max(coalesce(logged_at, recorded_at)) AS newest_at,
       (array_agg(detail ORDER BY coalesce(logged_at, recorded_at) DESC))[1] AS detail
FROM stepwell.dead_letters WHERE coalesce(logged_at, recorded_at) BETWEEN $__timeFrom() AND $__timeTo()
GROUP BY 1, 2 ORDER BY records DESC, kind, reason LIMIT 50
