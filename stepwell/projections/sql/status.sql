-- Queries of `stepwell status`. One "-- name:" line opens each entry.

-- name: running
SELECT run_id, episode_id, attempt, policy, task, scene, phase, paused, owes, steps_done, max_steps, host, running_s, idle_s, as_of
FROM stepwell.running_now ORDER BY running_s DESC NULLS LAST, episode_id

-- name: stuck
SELECT run_id, episode_id, attempt, policy, phase, stuck_on, stuck_since, stuck_s, steps_done, host, as_of
FROM stepwell.stuck_episodes ORDER BY stuck_s DESC, episode_id

-- name: lag
-- The worst first.
SELECT consumer, topic, partition, worker_id, next_offset, log_end, behind_events, behind_s, events_per_s, arrives_per_s,
       catch_up_s, state, waits_for, last_error, last_error_at, progressed_at, seen_at, looked_at
FROM stepwell.pipeline_lag
ORDER BY array_position(ARRAY['silent', 'stalled', 'waiting', 'behind', 'caught up'], state), behind_s DESC NULLS FIRST,
         behind_events DESC, consumer, topic, partition

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
-- The worst first; those that ended as they should are left out after a day.
SELECT worker_id, kind, host, pid, version, state, waits_for, last_error, last_error_at, last_progress_at, started_at,
       heard_at, heard_s_ago, as_of, extract(epoch FROM now() - last_error_at)::double precision AS last_error_s_ago,
       extract(epoch FROM now() - last_progress_at)::double precision AS progress_s_ago
FROM stepwell.workers WHERE state <> 'stopped' OR heard_s_ago < 86400
ORDER BY array_position(ARRAY['failed', 'silent', 'waiting', 'starting', 'stopping', 'running', 'stopped'], state), worker_id

-- name: threshold
SELECT value FROM stepwell.settings WHERE name = 'stuck_after_s'

-- name: upkeep
SELECT storage, ended_at, ended_s_ago FROM stepwell.upkeep
