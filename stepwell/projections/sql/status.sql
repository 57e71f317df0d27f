-- Queries of `stepwell status`. One "-- name:" line opens each entry.

-- name: running
SELECT run_id, episode_id, attempt, policy, task, scene, phase, paused, owes, steps_done, max_steps, host, running_s, idle_s, as_of
FROM stepwell.running_now ORDER BY running_s DESC NULLS LAST, episode_id

-- name: stuck
SELECT run_id, episode_id, attempt, policy, phase, stuck_on, stuck_since, stuck_s, steps_done, host, as_of
FROM stepwell.stuck_episodes ORDER BY stuck_s DESC, episode_id

-- name: lag
SELECT consumer, topic, partition, behind_events, behind_s, state, seen_at
FROM stepwell.pipeline_lag ORDER BY consumer, topic, partition

-- name: freshness
SELECT as_of, age_s, seen_at, state, extract(epoch FROM now() - seen_at)::double precision AS seen_s_ago
FROM stepwell.projection_freshness

-- name: dead_letters
SELECT count(*) AS count, max(coalesce(logged_at, recorded_at)) AS newest_at,
       extract(epoch FROM now() - max(coalesce(logged_at, recorded_at)))::double precision AS newest_s_ago
FROM stepwell.dead_letters

-- name: requests
SELECT status, count(*) AS count FROM stepwell.retrain_status
WHERE status IN ('open', 'acknowledged', 'accepted', 'muted') GROUP BY status
ORDER BY array_position(ARRAY['open', 'acknowledged', 'accepted', 'muted'], status)

-- name: parked_rules
-- Activating rules ends what was parked before.
SELECT rule, count(*) AS count FROM stepwell.rule_failures
WHERE coalesce(logged_at >= (SELECT max(logged_at) FROM stepwell.rule_sets), true) GROUP BY rule ORDER BY rule

-- name: workers
-- Who has reported in the last hour. As of the moment up to which telemetry is in the tables: where the projector is
-- down, that says nothing about the others.
SELECT w.worker_id, w.host, w.heard_at, w.heard_at < k.as_of - make_interval(secs => k.patience) AS silent,
       extract(epoch FROM now() - w.heard_at)::double precision AS heard_s_ago
FROM (SELECT worker_id, host, max(sampled_at) AS heard_at FROM stepwell.telemetry
      WHERE metric = 'system.cpu.utilization' AND sampled_at > now() - interval '1 h' GROUP BY worker_id, host) AS w,
     (SELECT least(coalesce(min(as_of), now()), now()) AS as_of,
             (SELECT value FROM stepwell.settings WHERE name = 'silent_after_s') AS patience
      FROM stepwell.partition_freshness WHERE topic = 'stepwell.telemetry') AS k
ORDER BY w.worker_id, w.host

-- name: threshold
SELECT value FROM stepwell.settings WHERE name = 'stuck_after_s'
