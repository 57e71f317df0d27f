-- How far behind the workers are, and what they wait for. Where Grafana asks Prometheus over time, these give the page
-- what the database knows. One "-- name:" line opens each entry.

-- name: now
SELECT f.state AS tables, f.age_s, lag.behind_events, lag.behind_s, lag.silent,
       (SELECT count(*) FROM stepwell.dead_letters WHERE coalesce(logged_at, recorded_at) BETWEEN $__timeFrom() AND $__timeTo()) AS dead_letters
FROM stepwell.projection_freshness f,
     (SELECT sum(behind_events)::bigint AS behind_events, max(behind_s) AS behind_s,
             count(*) FILTER (WHERE state = 'silent') AS silent FROM stepwell.pipeline_lag) AS lag

-- name: lag
SELECT consumer, topic, partition, state, behind_events, behind_s, events_per_s, catch_up_s, progressed_at, waits_for,
       last_error, seen_at
FROM stepwell.pipeline_lag
ORDER BY array_position(ARRAY['silent', 'stalled', 'waiting', 'behind', 'caught up'], state), behind_s DESC NULLS FIRST,
         behind_events DESC, consumer, topic, partition LIMIT 100

-- name: lag_s
SELECT consumer, topic, max(behind_s) AS behind_s, sum(behind_events)::bigint AS behind_events,
       sum(events_per_s) AS events_per_s
FROM stepwell.pipeline_lag GROUP BY 1, 2 ORDER BY behind_s DESC NULLS FIRST, consumer, topic

-- name: workers
SELECT worker_id, kind, host, state, heard_s_ago, extract(epoch FROM as_of - least(last_progress_at, as_of))::double precision AS progress_s,
       waits_for, last_error, last_error_at, version
FROM stepwell.workers
ORDER BY array_position(ARRAY['failed', 'silent', 'waiting', 'starting', 'stopping', 'running', 'stopped'], state),
         worker_id LIMIT 100

-- name: progress
SELECT worker_id, kind, state, extract(epoch FROM as_of - least(last_progress_at, as_of))::double precision AS progress_s, waits_for
FROM stepwell.workers WHERE state <> 'stopped'
ORDER BY progress_s DESC NULLS FIRST, worker_id LIMIT 100

-- name: rates
SELECT topic, sum(events_per_s) AS events_per_s, count(DISTINCT consumer) AS consumers
FROM stepwell.pipeline_lag GROUP BY 1 ORDER BY events_per_s DESC NULLS LAST, topic

-- name: dead_letters
SELECT date_bin('$__interval', coalesce(logged_at, recorded_at), 'epoch') AS time, kind AS metric,
       count(*)::double precision AS value
FROM stepwell.dead_letters WHERE coalesce(logged_at, recorded_at) BETWEEN $__timeFrom() AND $__timeTo()
GROUP BY 1, 2 ORDER BY 1, 2

-- name: points
SELECT date_bin(greatest(interval '$__interval', interval '1 ${resolution:raw}'), bucket, 'epoch') AS time,
       'points stored' AS metric,
       sum(points)::double precision / extract(epoch FROM greatest(interval '$__interval', interval '1 ${resolution:raw}'))::double precision AS value
FROM stepwell.telemetry_by_${resolution:raw}
WHERE bucket BETWEEN date_trunc('${resolution:raw}', $__timeFrom()::timestamptz, 'UTC') AND $__timeTo()::timestamptz
GROUP BY 1 ORDER BY 1
