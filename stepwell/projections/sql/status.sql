-- Queries of `stepwell status`. One "-- name:" line opens each entry.

-- name: running
SELECT run_id, episode_id, attempt, policy, task, scene, phase, paused, owes, steps_done, max_steps, host, running_s, idle_s
FROM stepwell.running_now ORDER BY running_s DESC NULLS LAST, episode_id

-- name: stuck
SELECT run_id, episode_id, attempt, policy, phase, stuck_on, stuck_since, stuck_s, steps_done, host
FROM stepwell.stuck_episodes ORDER BY stuck_s DESC, episode_id

-- name: lag
SELECT consumer, topic, partition, behind_events, behind_s, state, seen_at
FROM stepwell.pipeline_lag ORDER BY consumer, topic, partition

-- name: threshold
SELECT value FROM stepwell.settings WHERE name = 'stuck_after_s'
