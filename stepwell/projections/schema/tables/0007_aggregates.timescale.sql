-- Sums that TimescaleDB keeps: the hours are summed from the minutes, the days from the hours. What is not in them yet is
-- added when they are asked (materialized_only = false). How often they are refreshed, and what goes when, is not said
-- here but by `stepwell db tune`. Written WITH NO DATA, since a migration is one transaction.
SELECT create_hypertable('verdict_changes'::regclass, by_range('at', INTERVAL '30 days'), create_default_indexes => false);

CREATE MATERIALIZED VIEW outcome_minutes WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 minute', at) AS bucket,
       policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
       sum(sign)::bigint AS episodes, sum(sign * n_steps)::bigint AS steps, max(logged_at) AS logged_at
FROM verdict_changes
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 WITH NO DATA;
COMMENT ON VIEW outcome_minutes IS 'Episodes by the minute in which they were asked for and what came of them: the sums of verdict_changes.';
COMMENT ON COLUMN outcome_minutes.bucket IS 'Start of the minute (UTC).';
COMMENT ON COLUMN outcome_minutes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN outcome_minutes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN outcome_minutes.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN outcome_minutes.task IS 'Simulator and task.';
COMMENT ON COLUMN outcome_minutes.scene IS 'Name of the scene.';
COMMENT ON COLUMN outcome_minutes.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN outcome_minutes.purpose IS 'What the episodes were run for: evaluation, or regression.';
COMMENT ON COLUMN outcome_minutes.outcome IS 'success, failure, error or aborted.';
COMMENT ON COLUMN outcome_minutes.failure_type IS 'What went wrong; null for a success.';
COMMENT ON COLUMN outcome_minutes.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN outcome_minutes.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_minutes.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW outcome_hours WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 hour', bucket) AS bucket,
       policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
       sum(episodes)::bigint AS episodes, sum(steps)::bigint AS steps, max(logged_at) AS logged_at
FROM outcome_minutes
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 WITH NO DATA;
COMMENT ON VIEW outcome_hours IS 'Episodes by the hour in which they were asked for and what came of them: the sums of verdict_changes.';
COMMENT ON COLUMN outcome_hours.bucket IS 'Start of the hour (UTC).';
COMMENT ON COLUMN outcome_hours.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN outcome_hours.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN outcome_hours.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN outcome_hours.task IS 'Simulator and task.';
COMMENT ON COLUMN outcome_hours.scene IS 'Name of the scene.';
COMMENT ON COLUMN outcome_hours.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN outcome_hours.purpose IS 'What the episodes were run for: evaluation, or regression.';
COMMENT ON COLUMN outcome_hours.outcome IS 'success, failure, error or aborted.';
COMMENT ON COLUMN outcome_hours.failure_type IS 'What went wrong; null for a success.';
COMMENT ON COLUMN outcome_hours.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN outcome_hours.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_hours.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW outcome_days WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 day', bucket) AS bucket,
       policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
       sum(episodes)::bigint AS episodes, sum(steps)::bigint AS steps, max(logged_at) AS logged_at
FROM outcome_hours
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 WITH NO DATA;
COMMENT ON VIEW outcome_days IS 'Episodes by the day in which they were asked for and what came of them: the sums of verdict_changes.';
COMMENT ON COLUMN outcome_days.bucket IS 'Start of the day (UTC).';
COMMENT ON COLUMN outcome_days.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN outcome_days.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN outcome_days.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN outcome_days.task IS 'Simulator and task.';
COMMENT ON COLUMN outcome_days.scene IS 'Name of the scene.';
COMMENT ON COLUMN outcome_days.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN outcome_days.purpose IS 'What the episodes were run for: evaluation, or regression.';
COMMENT ON COLUMN outcome_days.outcome IS 'success, failure, error or aborted.';
COMMENT ON COLUMN outcome_days.failure_type IS 'What went wrong; null for a success.';
COMMENT ON COLUMN outcome_days.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN outcome_days.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_days.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW step_minutes WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 minute', s.occurred_at) AS bucket,
       e.policy, e.policy_version, e.task, e.scene, e.perturbation, a.host,
       stepwell.wall_bucket(stepwell.wall_us(s.step_wall_s)) AS wall_bucket,
       count(*) AS steps, coalesce(sum(stepwell.wall_us(s.step_wall_s)), 0)::bigint AS wall_us,
       max(s.logged_at) AS logged_at
FROM steps s
LEFT JOIN episodes e ON e.episode_id = s.episode_id
LEFT JOIN episode_attempts a ON a.episode_id = s.episode_id AND a.attempt = s.attempt
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 WITH NO DATA;
COMMENT ON VIEW step_minutes IS 'Steps by the minute in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_minutes.bucket IS 'Start of the minute (UTC).';
COMMENT ON COLUMN step_minutes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_minutes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_minutes.task IS 'Simulator and task.';
COMMENT ON COLUMN step_minutes.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_minutes.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_minutes.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_minutes.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_minutes.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_minutes.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW step_hours WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 hour', bucket) AS bucket,
       policy, policy_version, task, scene, perturbation, host, wall_bucket,
       sum(steps)::bigint AS steps, sum(wall_us)::bigint AS wall_us, max(logged_at) AS logged_at
FROM step_minutes
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 WITH NO DATA;
COMMENT ON VIEW step_hours IS 'Steps by the hour in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_hours.bucket IS 'Start of the hour (UTC).';
COMMENT ON COLUMN step_hours.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_hours.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_hours.task IS 'Simulator and task.';
COMMENT ON COLUMN step_hours.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_hours.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_hours.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_hours.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_hours.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_hours.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW step_days WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 day', bucket) AS bucket,
       policy, policy_version, task, scene, perturbation, host, wall_bucket,
       sum(steps)::bigint AS steps, sum(wall_us)::bigint AS wall_us, max(logged_at) AS logged_at
FROM step_hours
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 WITH NO DATA;
COMMENT ON VIEW step_days IS 'Steps by the day in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_days.bucket IS 'Start of the day (UTC).';
COMMENT ON COLUMN step_days.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_days.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_days.task IS 'Simulator and task.';
COMMENT ON COLUMN step_days.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_days.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_days.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_days.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_days.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_days.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW telemetry_minutes WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 minute', sampled_at) AS bucket,
       series_id,
       count(*) AS points, sum(measurements)::bigint AS measurements,
       sum(value) FILTER (WHERE measurements IS NOT NULL) AS value_sum,
       min(stepwell.measured(value, measurements, distribution, 'min')) AS value_min,
       max(stepwell.measured(value, measurements, distribution, 'max')) AS value_max, max(logged_at) AS logged_at
FROM telemetry_points
WHERE stepwell.summed(value)
GROUP BY 1, 2 WITH NO DATA;
COMMENT ON VIEW telemetry_minutes IS 'What was measured, by minute and series.';
COMMENT ON COLUMN telemetry_minutes.bucket IS 'Start of the minute (UTC).';
COMMENT ON COLUMN telemetry_minutes.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_minutes.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_minutes.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_minutes.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_minutes.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_minutes.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW telemetry_hours WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 hour', bucket) AS bucket,
       series_id,
       sum(points)::bigint AS points, sum(measurements)::bigint AS measurements, sum(value_sum) AS value_sum,
       min(value_min) AS value_min, max(value_max) AS value_max, max(logged_at) AS logged_at
FROM telemetry_minutes
GROUP BY 1, 2 WITH NO DATA;
COMMENT ON VIEW telemetry_hours IS 'What was measured, by hour and series.';
COMMENT ON COLUMN telemetry_hours.bucket IS 'Start of the hour (UTC).';
COMMENT ON COLUMN telemetry_hours.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_hours.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_hours.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_hours.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_hours.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_hours.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE MATERIALIZED VIEW telemetry_days WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT time_bucket('1 day', bucket) AS bucket,
       series_id,
       sum(points)::bigint AS points, sum(measurements)::bigint AS measurements, sum(value_sum) AS value_sum,
       min(value_min) AS value_min, max(value_max) AS value_max, max(logged_at) AS logged_at
FROM telemetry_hours
GROUP BY 1, 2 WITH NO DATA;
COMMENT ON VIEW telemetry_days IS 'What was measured, by day and series.';
COMMENT ON COLUMN telemetry_days.bucket IS 'Start of the day (UTC).';
COMMENT ON COLUMN telemetry_days.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_days.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_days.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_days.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_days.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_days.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';
