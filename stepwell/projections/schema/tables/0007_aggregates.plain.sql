-- Sums that the projector keeps, in the transaction that writes the facts: stepwell/projections/sums/rollups.py.

-- What retention looks for. Rows come in the order of the log, so that a BRIN index costs next to nothing.
CREATE INDEX steps_logged_at ON steps USING brin (logged_at);
CREATE INDEX actions_logged_at ON actions USING brin (logged_at);
CREATE INDEX telemetry_points_logged_at ON telemetry_points USING brin (logged_at);
CREATE INDEX spans_logged_at ON spans USING brin (logged_at);

CREATE TABLE outcome_minutes (
    bucket timestamptz NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    purpose text NOT NULL,
    outcome text NOT NULL,
    failure_type text,
    fault text,
    source_partition integer NOT NULL,
    episodes bigint NOT NULL,
    steps bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX outcome_minutes_key ON outcome_minutes
    (bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
     source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE outcome_minutes IS 'Episodes by the minute in which they were asked for and what came of them: the sums of verdict_changes.';
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
COMMENT ON COLUMN outcome_minutes.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN outcome_minutes.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_minutes.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE outcome_hours (
    bucket timestamptz NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    purpose text NOT NULL,
    outcome text NOT NULL,
    failure_type text,
    fault text,
    source_partition integer NOT NULL,
    episodes bigint NOT NULL,
    steps bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX outcome_hours_key ON outcome_hours
    (bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
     source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE outcome_hours IS 'Episodes by the hour in which they were asked for and what came of them: the sums of verdict_changes.';
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
COMMENT ON COLUMN outcome_hours.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN outcome_hours.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_hours.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE outcome_days (
    bucket timestamptz NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    purpose text NOT NULL,
    outcome text NOT NULL,
    failure_type text,
    fault text,
    source_partition integer NOT NULL,
    episodes bigint NOT NULL,
    steps bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX outcome_days_key ON outcome_days
    (bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault,
     source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE outcome_days IS 'Episodes by the day in which they were asked for and what came of them: the sums of verdict_changes.';
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
COMMENT ON COLUMN outcome_days.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN outcome_days.episodes IS 'Episodes whose verdict that counts is this one (episodes); 0 where a revision took the last of them away.';
COMMENT ON COLUMN outcome_days.steps IS 'Steps done (steps).';
COMMENT ON COLUMN outcome_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE step_minutes (
    bucket timestamptz NOT NULL,
    policy text,
    policy_version text,
    task text,
    scene text,
    perturbation text,
    host text,
    wall_bucket integer,
    source_partition integer NOT NULL,
    steps bigint NOT NULL,
    wall_us bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX step_minutes_key ON step_minutes
    (bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE step_minutes IS 'Steps by the minute in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_minutes.bucket IS 'Start of the minute (UTC).';
COMMENT ON COLUMN step_minutes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_minutes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_minutes.task IS 'Simulator and task.';
COMMENT ON COLUMN step_minutes.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_minutes.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_minutes.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_minutes.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_minutes.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN step_minutes.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_minutes.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE step_hours (
    bucket timestamptz NOT NULL,
    policy text,
    policy_version text,
    task text,
    scene text,
    perturbation text,
    host text,
    wall_bucket integer,
    source_partition integer NOT NULL,
    steps bigint NOT NULL,
    wall_us bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX step_hours_key ON step_hours
    (bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE step_hours IS 'Steps by the hour in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_hours.bucket IS 'Start of the hour (UTC).';
COMMENT ON COLUMN step_hours.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_hours.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_hours.task IS 'Simulator and task.';
COMMENT ON COLUMN step_hours.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_hours.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_hours.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_hours.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_hours.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN step_hours.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_hours.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE step_days (
    bucket timestamptz NOT NULL,
    policy text,
    policy_version text,
    task text,
    scene text,
    perturbation text,
    host text,
    wall_bucket integer,
    source_partition integer NOT NULL,
    steps bigint NOT NULL,
    wall_us bigint NOT NULL,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX step_days_key ON step_days
    (bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE step_days IS 'Steps by the day in which they were done, with their wall time in buckets.';
COMMENT ON COLUMN step_days.bucket IS 'Start of the day (UTC).';
COMMENT ON COLUMN step_days.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN step_days.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN step_days.task IS 'Simulator and task.';
COMMENT ON COLUMN step_days.scene IS 'Name of the scene.';
COMMENT ON COLUMN step_days.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN step_days.host IS 'Host that ran the attempt; null where nobody has claimed it.';
COMMENT ON COLUMN step_days.wall_bucket IS 'Bucket of the wall time of one step (number; stepwell.wall_bucket_s gives s); null where not told.';
COMMENT ON COLUMN step_days.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN step_days.steps IS 'Steps done (steps).';
COMMENT ON COLUMN step_days.wall_us IS 'Wall time that the simulator took for all of them (us).';
COMMENT ON COLUMN step_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE telemetry_minutes (
    bucket timestamptz NOT NULL,
    series_id bigint NOT NULL,
    source_partition integer NOT NULL,
    points bigint NOT NULL,
    measurements bigint,
    value_sum double precision,
    value_min double precision,
    value_max double precision,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX telemetry_minutes_key ON telemetry_minutes
    (bucket, series_id, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE telemetry_minutes IS 'What was measured, by minute and series.';
COMMENT ON COLUMN telemetry_minutes.bucket IS 'Start of the minute (UTC).';
COMMENT ON COLUMN telemetry_minutes.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_minutes.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN telemetry_minutes.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_minutes.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_minutes.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_minutes.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_minutes.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_minutes.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE telemetry_hours (
    bucket timestamptz NOT NULL,
    series_id bigint NOT NULL,
    source_partition integer NOT NULL,
    points bigint NOT NULL,
    measurements bigint,
    value_sum double precision,
    value_min double precision,
    value_max double precision,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX telemetry_hours_key ON telemetry_hours
    (bucket, series_id, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE telemetry_hours IS 'What was measured, by hour and series.';
COMMENT ON COLUMN telemetry_hours.bucket IS 'Start of the hour (UTC).';
COMMENT ON COLUMN telemetry_hours.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_hours.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN telemetry_hours.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_hours.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_hours.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_hours.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_hours.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_hours.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';

CREATE TABLE telemetry_days (
    bucket timestamptz NOT NULL,
    series_id bigint NOT NULL,
    source_partition integer NOT NULL,
    points bigint NOT NULL,
    measurements bigint,
    value_sum double precision,
    value_min double precision,
    value_max double precision,
    logged_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX telemetry_days_key ON telemetry_days
    (bucket, series_id, source_partition)
    NULLS NOT DISTINCT;
COMMENT ON TABLE telemetry_days IS 'What was measured, by day and series.';
COMMENT ON COLUMN telemetry_days.bucket IS 'Start of the day (UTC).';
COMMENT ON COLUMN telemetry_days.series_id IS 'The series (number), as in telemetry_series.';
COMMENT ON COLUMN telemetry_days.source_partition IS 'Partition of the log whose facts are summed (number): projectors of two partitions never write one row.';
COMMENT ON COLUMN telemetry_days.points IS 'Points, but those with NaN, an infinity or a value beyond 1e300 (points).';
COMMENT ON COLUMN telemetry_days.measurements IS 'What their values are the sum of (number of measurements): a histogram has many in a point; null where values cannot be added up (cumulative counters and histograms).';
COMMENT ON COLUMN telemetry_days.value_sum IS 'Sum of the measurements (unit of the series); null where values cannot be added up.';
COMMENT ON COLUMN telemetry_days.value_min IS 'Least measurement (unit of the series), of a cumulative counter the least reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_days.value_max IS 'Most measurement (unit of the series), of a cumulative counter the most reading; null where histograms do not tell.';
COMMENT ON COLUMN telemetry_days.logged_at IS 'When the log took the newest fact in it (UTC, log''s clock).';
