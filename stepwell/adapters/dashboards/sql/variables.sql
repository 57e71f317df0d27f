-- What can be chosen on a dashboard, best first. One "-- name:" line opens each entry; each gives one column of text.

-- name: policies
SELECT DISTINCT policy FROM stepwell.episodes ORDER BY policy

-- name: tasks
SELECT DISTINCT task FROM stepwell.episodes ORDER BY task

-- name: runs
SELECT run_id FROM stepwell.runs ORDER BY first_requested_at DESC LIMIT 500

-- name: hosts
SELECT DISTINCT host FROM stepwell.telemetry_series WHERE host <> '' ORDER BY host

-- name: episodes
-- The newest failure first: that is what somebody opens the page for.
SELECT episode_id FROM (
    SELECT episode_id, max(ended_at) AS ended_at, bool_or(outcome <> 'success') AS failed FROM stepwell.verdicts
    WHERE $__timeFilter(ended_at) GROUP BY episode_id
) AS ended ORDER BY failed DESC, ended_at DESC LIMIT 200
