-- Simulators, agents, GPUs and robots, as they measured themselves. One "-- name:" line opens each entry.

-- name: gpu_utilization
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host || ' GPU ' || gpu AS metric, avg(utilization) AS value
FROM stepwell.gpu_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND utilization IS NOT NULL AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: gpu_memory
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host || ' GPU ' || gpu AS metric, max(memory_used) AS value
FROM stepwell.gpu_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND memory_used IS NOT NULL AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: gpu_temperature
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host || ' GPU ' || gpu AS metric, max(temperature) AS value
FROM stepwell.gpu_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND temperature IS NOT NULL AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: gpu_power
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host || ' GPU ' || gpu AS metric, avg(power) AS value
FROM stepwell.gpu_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND power IS NOT NULL AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: pcie
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host || ' GPU ' || coalesce(attributes ->> 'hw.index', attributes ->> 'hw.id', '?')
           || CASE metric WHEN 'hw.gpu.pcie.rx' THEN ' received' ELSE ' sent' END AS metric,
       sum(sum) / nullif(sum(measurements), 0)::double precision AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric IN ('hw.gpu.pcie.rx', 'hw.gpu.pcie.tx') AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: simulator_rate
-- Steps over the wall time that simulators spent in them: how fast they are while they step.
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       coalesce(nullif(host, ''), 'unknown host') || ' ' || task AS metric,
       sum(steps_per_s * wall_s) / sum(wall_s) AS value
FROM stepwell.simulator_rate_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND wall_s > 0 AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: step_latency
-- From the counts themselves: percentiles of parts cannot be added up.
SELECT time, metric, stepwell.wall_percentile(0.99, array_agg(wall_bucket), array_agg(steps)) AS value
FROM (
    SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
           coalesce(nullif(host, ''), 'unknown host') || ' ' || task AS metric, wall_bucket, sum(steps)::bigint AS steps
    FROM stepwell.step_${resolution:raw}s
    WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
      AND wall_bucket IS NOT NULL AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
    GROUP BY 1, 2, 3
) AS counted
GROUP BY 1, 2 ORDER BY 1, 2

-- name: inference
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       worker_id AS metric, sum(sum) / sum(measurements)::double precision AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric = 'stepwell.agent.inference.duration' AND measurements > 0
  AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: queues
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       worker_id AS metric, max(max) AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric = 'stepwell.queue.depth' AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: cpu
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       host AS metric, sum(sum) / nullif(sum(measurements), 0)::double precision AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric = 'system.cpu.utilization' AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: torque
-- The strongest of either sign: a torque of -40 N.m strains a joint as 40 N.m does.
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       worker_id || coalesce(' ' || (attributes ->> 'joint'), '') AS metric,
       max(greatest(abs(min), abs(max))) AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric = 'stepwell.robot.joint.torque' AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2

-- name: current
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       worker_id || coalesce(' ' || coalesce(attributes ->> 'motor', attributes ->> 'joint'), '') AS metric,
       max(greatest(abs(min), abs(max))) AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
  AND metric = 'stepwell.robot.motor.current' AND ('*' IN (${host:sqlstring}) OR host IN (${host:sqlstring}))
GROUP BY 1, 2 ORDER BY 1, 2
