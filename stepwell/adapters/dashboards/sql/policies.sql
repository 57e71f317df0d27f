-- Policies side by side. Evaluations alone: a regression run tests what failed before. One "-- name:" line opens each entry.

-- name: rates
SELECT policy || ' ' || policy_version || coalesce(' @ ' || checkpoint, '') AS policy,
       sum(succeeded)::double precision / sum(scored) AS success_rate,
       stepwell.wilson_low(sum(succeeded)::bigint, sum(scored)::bigint) AS success_rate_low,
       stepwell.wilson_high(sum(succeeded)::bigint, sum(scored)::bigint) AS success_rate_high,
       sum(scored)::bigint AS scored, sum(errored)::bigint AS errored
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1 HAVING sum(scored) > 0 ORDER BY success_rate DESC, policy

-- name: rates_over_time
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       policy || ' ' || policy_version AS metric,
       sum(succeeded)::double precision / sum(scored) AS value
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(scored) > 0 ORDER BY 1, 2

-- name: by_scene
SELECT policy, task || ' ' || scene AS scene, sum(succeeded)::double precision / sum(scored) AS success_rate
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(scored) > 0 ORDER BY 1, 2

-- name: by_perturbation
SELECT policy, perturbation, sum(succeeded)::double precision / sum(scored) AS success_rate
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(scored) > 0 ORDER BY 1, 2

-- name: weakest
SELECT policy, task, scene, perturbation, sum(scored)::bigint AS scored,
       sum(succeeded)::double precision / sum(scored) AS success_rate,
       stepwell.wilson_low(sum(succeeded)::bigint, sum(scored)::bigint) AS success_rate_low,
       stepwell.wilson_high(sum(succeeded)::bigint, sum(scored)::bigint) AS success_rate_high
FROM stepwell.success_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2, 3, 4 HAVING sum(scored) > 0
-- By what the rate may be at most, so that two failures of two do not outrank fifty of sixty.
ORDER BY success_rate_high, scored DESC, policy, task, scene, perturbation LIMIT 25

-- name: failure_types
SELECT policy, coalesce(failure_type, outcome) AS failure_type, sum(episodes)::double precision AS episodes
FROM stepwell.failures_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND purpose = 'evaluation' AND outcome <> 'success'
  AND ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
  AND ('*' IN (${task:sqlstring}) OR task IN (${task:sqlstring}))
GROUP BY 1, 2 HAVING sum(episodes) > 0 ORDER BY 1, 2

-- name: requests
SELECT opened_at, policy, failure_type, rule, status, evidence_episodes, trainer, new_checkpoint, trigger_id
FROM stepwell.retrain_status
WHERE ('*' IN (${policy:sqlstring}) OR policy IN (${policy:sqlstring}))
ORDER BY opened_at DESC LIMIT 20
