-- Sums over time, by minute, hour and day: the same columns whether TimescaleDB or the projector keeps them.

CREATE OR REPLACE VIEW stepwell.success_by_minute AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       scored, succeeded, failed, errored, aborted,
       succeeded::double precision / nullif(scored, 0) AS success_rate,
       stepwell.wilson_low(succeeded, scored) AS success_rate_low,
       stepwell.wilson_high(succeeded, scored) AS success_rate_high
FROM (
    SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
           coalesce(sum(episodes) FILTER (WHERE outcome IN ('success', 'failure')), 0)::bigint AS scored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'success'), 0)::bigint AS succeeded,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'failure'), 0)::bigint AS failed,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'error'), 0)::bigint AS errored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'aborted'), 0)::bigint AS aborted
    FROM stepwell.outcome_minutes
    GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose
) AS counted
WHERE scored + errored + aborted > 0;
COMMENT ON VIEW stepwell.success_by_minute IS 'Episodes by the minute in which they were asked for: how many were scored, and the share that succeeded with its 95 % interval. Add counts up over what you do not ask for, and divide then.';

CREATE OR REPLACE VIEW stepwell.failures_by_minute AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       outcome, failure_type, fault, sum(episodes)::bigint AS episodes
FROM stepwell.outcome_minutes WHERE outcome <> 'success'
GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault
HAVING sum(episodes) > 0;
COMMENT ON VIEW stepwell.failures_by_minute IS 'Episodes that did not succeed, by the minute in which they were asked for, their failure type and whose fault it was.';

CREATE OR REPLACE VIEW stepwell.success_by_hour AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       scored, succeeded, failed, errored, aborted,
       succeeded::double precision / nullif(scored, 0) AS success_rate,
       stepwell.wilson_low(succeeded, scored) AS success_rate_low,
       stepwell.wilson_high(succeeded, scored) AS success_rate_high
FROM (
    SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
           coalesce(sum(episodes) FILTER (WHERE outcome IN ('success', 'failure')), 0)::bigint AS scored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'success'), 0)::bigint AS succeeded,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'failure'), 0)::bigint AS failed,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'error'), 0)::bigint AS errored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'aborted'), 0)::bigint AS aborted
    FROM stepwell.outcome_hours
    GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose
) AS counted
WHERE scored + errored + aborted > 0;
COMMENT ON VIEW stepwell.success_by_hour IS 'Episodes by the hour in which they were asked for: how many were scored, and the share that succeeded with its 95 % interval. Add counts up over what you do not ask for, and divide then.';

CREATE OR REPLACE VIEW stepwell.failures_by_hour AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       outcome, failure_type, fault, sum(episodes)::bigint AS episodes
FROM stepwell.outcome_hours WHERE outcome <> 'success'
GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault
HAVING sum(episodes) > 0;
COMMENT ON VIEW stepwell.failures_by_hour IS 'Episodes that did not succeed, by the hour in which they were asked for, their failure type and whose fault it was.';

CREATE OR REPLACE VIEW stepwell.success_by_day AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       scored, succeeded, failed, errored, aborted,
       succeeded::double precision / nullif(scored, 0) AS success_rate,
       stepwell.wilson_low(succeeded, scored) AS success_rate_low,
       stepwell.wilson_high(succeeded, scored) AS success_rate_high
FROM (
    SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
           coalesce(sum(episodes) FILTER (WHERE outcome IN ('success', 'failure')), 0)::bigint AS scored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'success'), 0)::bigint AS succeeded,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'failure'), 0)::bigint AS failed,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'error'), 0)::bigint AS errored,
           coalesce(sum(episodes) FILTER (WHERE outcome = 'aborted'), 0)::bigint AS aborted
    FROM stepwell.outcome_days
    GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose
) AS counted
WHERE scored + errored + aborted > 0;
COMMENT ON VIEW stepwell.success_by_day IS 'Episodes by the day in which they were asked for: how many were scored, and the share that succeeded with its 95 % interval. Add counts up over what you do not ask for, and divide then.';

CREATE OR REPLACE VIEW stepwell.failures_by_day AS
SELECT bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose,
       outcome, failure_type, fault, sum(episodes)::bigint AS episodes
FROM stepwell.outcome_days WHERE outcome <> 'success'
GROUP BY bucket, policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault
HAVING sum(episodes) > 0;
COMMENT ON VIEW stepwell.failures_by_day IS 'Episodes that did not succeed, by the day in which they were asked for, their failure type and whose fault it was.';

CREATE OR REPLACE VIEW stepwell.step_latency_by_minute AS
SELECT bucket, policy, policy_version, task, scene, perturbation, host, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6 / nullif(max(timed), 0))::double precision AS mean_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.5 * timed)) AS p50_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.9 * timed)) AS p90_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.99 * timed)) AS p99_s
FROM (
    SELECT *, sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host ORDER BY wall_bucket) AS so_far,
           sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host) AS timed
    FROM (
        SELECT bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket,
               sum(steps)::bigint AS steps, sum(wall_us)::bigint AS wall_us
        FROM stepwell.step_minutes GROUP BY bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket
        HAVING sum(steps) > 0
    ) AS counted
) AS added
GROUP BY bucket, policy, policy_version, task, scene, perturbation, host;
COMMENT ON VIEW stepwell.step_latency_by_minute IS 'Wall time of a simulator step (s) by the minute in which it was done: exact mean, percentiles within 4.8 %. Percentiles cannot be added up: over other dimensions take stepwell.wall_percentile over stepwell.step_facts or stepwell.step_minutes.';

CREATE OR REPLACE VIEW stepwell.simulator_rate_by_minute AS
SELECT bucket, host, task, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6)::double precision AS wall_s,
       (sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) * 1e6 / nullif(sum(wall_us), 0))::double precision AS steps_per_s,
       (sum(wall_us) / 1e6 / extract(epoch FROM interval '1 minute'))::double precision AS busy
FROM stepwell.step_minutes
GROUP BY bucket, host, task
HAVING sum(steps) > 0;
COMMENT ON VIEW stepwell.simulator_rate_by_minute IS 'Steps by the minute, host and task: the wall time that simulators spent in them (s), steps per second of that time, and that time as a share of the minute (busy; more than 1 where several simulators run).';

CREATE OR REPLACE VIEW stepwell.step_latency_by_hour AS
SELECT bucket, policy, policy_version, task, scene, perturbation, host, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6 / nullif(max(timed), 0))::double precision AS mean_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.5 * timed)) AS p50_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.9 * timed)) AS p90_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.99 * timed)) AS p99_s
FROM (
    SELECT *, sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host ORDER BY wall_bucket) AS so_far,
           sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host) AS timed
    FROM (
        SELECT bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket,
               sum(steps)::bigint AS steps, sum(wall_us)::bigint AS wall_us
        FROM stepwell.step_hours GROUP BY bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket
        HAVING sum(steps) > 0
    ) AS counted
) AS added
GROUP BY bucket, policy, policy_version, task, scene, perturbation, host;
COMMENT ON VIEW stepwell.step_latency_by_hour IS 'Wall time of a simulator step (s) by the hour in which it was done: exact mean, percentiles within 4.8 %. Percentiles cannot be added up: over other dimensions take stepwell.wall_percentile over stepwell.step_facts or stepwell.step_hours.';

CREATE OR REPLACE VIEW stepwell.simulator_rate_by_hour AS
SELECT bucket, host, task, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6)::double precision AS wall_s,
       (sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) * 1e6 / nullif(sum(wall_us), 0))::double precision AS steps_per_s,
       (sum(wall_us) / 1e6 / extract(epoch FROM interval '1 hour'))::double precision AS busy
FROM stepwell.step_hours
GROUP BY bucket, host, task
HAVING sum(steps) > 0;
COMMENT ON VIEW stepwell.simulator_rate_by_hour IS 'Steps by the hour, host and task: the wall time that simulators spent in them (s), steps per second of that time, and that time as a share of the hour (busy; more than 1 where several simulators run).';

CREATE OR REPLACE VIEW stepwell.step_latency_by_day AS
SELECT bucket, policy, policy_version, task, scene, perturbation, host, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6 / nullif(max(timed), 0))::double precision AS mean_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.5 * timed)) AS p50_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.9 * timed)) AS p90_s,
       stepwell.wall_bucket_s(min(wall_bucket) FILTER (WHERE so_far >= 0.99 * timed)) AS p99_s
FROM (
    SELECT *, sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host ORDER BY wall_bucket) AS so_far,
           sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) OVER (PARTITION BY bucket, policy, policy_version, task, scene, perturbation, host) AS timed
    FROM (
        SELECT bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket,
               sum(steps)::bigint AS steps, sum(wall_us)::bigint AS wall_us
        FROM stepwell.step_days GROUP BY bucket, policy, policy_version, task, scene, perturbation, host, wall_bucket
        HAVING sum(steps) > 0
    ) AS counted
) AS added
GROUP BY bucket, policy, policy_version, task, scene, perturbation, host;
COMMENT ON VIEW stepwell.step_latency_by_day IS 'Wall time of a simulator step (s) by the day in which it was done: exact mean, percentiles within 4.8 %. Percentiles cannot be added up: over other dimensions take stepwell.wall_percentile over stepwell.step_facts or stepwell.step_days.';

CREATE OR REPLACE VIEW stepwell.simulator_rate_by_day AS
SELECT bucket, host, task, sum(steps)::bigint AS steps,
       (sum(wall_us) / 1e6)::double precision AS wall_s,
       (sum(steps) FILTER (WHERE wall_bucket IS NOT NULL) * 1e6 / nullif(sum(wall_us), 0))::double precision AS steps_per_s,
       (sum(wall_us) / 1e6 / extract(epoch FROM interval '1 day'))::double precision AS busy
FROM stepwell.step_days
GROUP BY bucket, host, task
HAVING sum(steps) > 0;
COMMENT ON VIEW stepwell.simulator_rate_by_day IS 'Steps by the day, host and task: the wall time that simulators spent in them (s), steps per second of that time, and that time as a share of the day (busy; more than 1 where several simulators run).';

CREATE OR REPLACE VIEW stepwell.episode_facts AS
SELECT date_trunc('day', c.at, 'UTC') AS day, c.task, c.policy, c.policy_version, c.checkpoint, c.scene, c.perturbation,
       a.host AS worker, c.purpose, c.run_id, c.outcome, c.failure_type, c.fault,
       c.sign::bigint AS episodes, (c.sign * c.n_steps)::bigint AS steps
FROM stepwell.verdict_changes c
LEFT JOIN stepwell.episode_attempts a ON a.episode_id = c.episode_id AND a.attempt = c.attempt;
COMMENT ON VIEW stepwell.episode_facts IS 'Ended episodes to sum over any dimensions: SELECT task, worker, sum(episodes) FROM stepwell.episode_facts GROUP BY task, worker. A revision counts the old verdict down and the new one up, so always sum.';

CREATE OR REPLACE VIEW stepwell.step_facts AS
SELECT bucket AS day, task, policy, policy_version, scene, perturbation, host AS worker, wall_bucket,
       steps, wall_us
FROM stepwell.step_days;
COMMENT ON VIEW stepwell.step_facts IS 'Steps to sum over any dimensions, by day: SELECT worker, sum(steps), sum(wall_us) / 1e6, stepwell.wall_percentile(0.99, array_agg(wall_bucket), array_agg(steps)) FROM stepwell.step_facts GROUP BY worker.';

CREATE OR REPLACE VIEW stepwell.telemetry_by_minute AS
SELECT t.bucket, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes, t.series_id,
       sum(t.points)::bigint AS points, sum(t.measurements)::bigint AS measurements, sum(t.value_sum) AS sum,
       sum(t.value_sum) / nullif(sum(t.measurements), 0)::double precision AS mean,
       min(t.value_min) AS min, max(t.value_max) AS max
FROM stepwell.telemetry_minutes t JOIN stepwell.telemetry_series s USING (series_id)
-- The dictionary's row follows from its id.
GROUP BY t.bucket, t.series_id, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes;
COMMENT ON VIEW stepwell.telemetry_by_minute IS 'What was measured, by the minute and series: points, the measurements in them (a histogram has many in a point), their sum, mean, least and most (unit of the column unit). Cumulative counters and histograms tell all since they began, which cannot be added up: measurements, sum and mean are null; min and max are readings of counters, and null of histograms.';

CREATE OR REPLACE VIEW stepwell.gpu_by_minute AS
SELECT bucket, host, gpu,
       sum(value_sum) FILTER (WHERE metric = 'hw.gpu.utilization') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.gpu.utilization'), 0)::double precision AS utilization,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.usage') AS memory_used,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.limit') AS memory_limit,
       max(value_max) FILTER (WHERE metric = 'hw.temperature') AS temperature,
       sum(value_sum) FILTER (WHERE metric = 'hw.power') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.power'), 0)::double precision AS power
FROM (
    SELECT t.bucket, s.host, coalesce(s.attributes ->> 'hw.index', s.attributes ->> 'hw.id') AS gpu, s.metric,
           t.measurements, t.value_sum, t.value_max
    FROM stepwell.telemetry_minutes t JOIN stepwell.telemetry_series s USING (series_id)
    WHERE s.metric IN ('hw.gpu.utilization', 'hw.gpu.memory.usage', 'hw.gpu.memory.limit', 'hw.temperature', 'hw.power')
) AS measured
-- Temperature and power may also be of something else than a GPU.
WHERE gpu IS NOT NULL
GROUP BY bucket, host, gpu;
COMMENT ON VIEW stepwell.gpu_by_minute IS 'GPUs by the minute: mean utilization (0 to 1), most memory in use and its limit (By), highest temperature (Cel), mean power (W).';

CREATE OR REPLACE VIEW stepwell.telemetry_by_hour AS
SELECT t.bucket, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes, t.series_id,
       sum(t.points)::bigint AS points, sum(t.measurements)::bigint AS measurements, sum(t.value_sum) AS sum,
       sum(t.value_sum) / nullif(sum(t.measurements), 0)::double precision AS mean,
       min(t.value_min) AS min, max(t.value_max) AS max
FROM stepwell.telemetry_hours t JOIN stepwell.telemetry_series s USING (series_id)
-- The dictionary's row follows from its id.
GROUP BY t.bucket, t.series_id, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes;
COMMENT ON VIEW stepwell.telemetry_by_hour IS 'What was measured, by the hour and series: points, the measurements in them (a histogram has many in a point), their sum, mean, least and most (unit of the column unit). Cumulative counters and histograms tell all since they began, which cannot be added up: measurements, sum and mean are null; min and max are readings of counters, and null of histograms.';

CREATE OR REPLACE VIEW stepwell.gpu_by_hour AS
SELECT bucket, host, gpu,
       sum(value_sum) FILTER (WHERE metric = 'hw.gpu.utilization') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.gpu.utilization'), 0)::double precision AS utilization,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.usage') AS memory_used,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.limit') AS memory_limit,
       max(value_max) FILTER (WHERE metric = 'hw.temperature') AS temperature,
       sum(value_sum) FILTER (WHERE metric = 'hw.power') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.power'), 0)::double precision AS power
FROM (
    SELECT t.bucket, s.host, coalesce(s.attributes ->> 'hw.index', s.attributes ->> 'hw.id') AS gpu, s.metric,
           t.measurements, t.value_sum, t.value_max
    FROM stepwell.telemetry_hours t JOIN stepwell.telemetry_series s USING (series_id)
    WHERE s.metric IN ('hw.gpu.utilization', 'hw.gpu.memory.usage', 'hw.gpu.memory.limit', 'hw.temperature', 'hw.power')
) AS measured
-- Temperature and power may also be of something else than a GPU.
WHERE gpu IS NOT NULL
GROUP BY bucket, host, gpu;
COMMENT ON VIEW stepwell.gpu_by_hour IS 'GPUs by the hour: mean utilization (0 to 1), most memory in use and its limit (By), highest temperature (Cel), mean power (W).';

CREATE OR REPLACE VIEW stepwell.telemetry_by_day AS
SELECT t.bucket, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes, t.series_id,
       sum(t.points)::bigint AS points, sum(t.measurements)::bigint AS measurements, sum(t.value_sum) AS sum,
       sum(t.value_sum) / nullif(sum(t.measurements), 0)::double precision AS mean,
       min(t.value_min) AS min, max(t.value_max) AS max
FROM stepwell.telemetry_days t JOIN stepwell.telemetry_series s USING (series_id)
-- The dictionary's row follows from its id.
GROUP BY t.bucket, t.series_id, s.metric, s.unit, s.kind, s.temporality, s.worker_id, s.host, s.attributes;
COMMENT ON VIEW stepwell.telemetry_by_day IS 'What was measured, by the day and series: points, the measurements in them (a histogram has many in a point), their sum, mean, least and most (unit of the column unit). Cumulative counters and histograms tell all since they began, which cannot be added up: measurements, sum and mean are null; min and max are readings of counters, and null of histograms.';

CREATE OR REPLACE VIEW stepwell.gpu_by_day AS
SELECT bucket, host, gpu,
       sum(value_sum) FILTER (WHERE metric = 'hw.gpu.utilization') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.gpu.utilization'), 0)::double precision AS utilization,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.usage') AS memory_used,
       max(value_max) FILTER (WHERE metric = 'hw.gpu.memory.limit') AS memory_limit,
       max(value_max) FILTER (WHERE metric = 'hw.temperature') AS temperature,
       sum(value_sum) FILTER (WHERE metric = 'hw.power') / nullif(sum(measurements) FILTER (WHERE metric = 'hw.power'), 0)::double precision AS power
FROM (
    SELECT t.bucket, s.host, coalesce(s.attributes ->> 'hw.index', s.attributes ->> 'hw.id') AS gpu, s.metric,
           t.measurements, t.value_sum, t.value_max
    FROM stepwell.telemetry_days t JOIN stepwell.telemetry_series s USING (series_id)
    WHERE s.metric IN ('hw.gpu.utilization', 'hw.gpu.memory.usage', 'hw.gpu.memory.limit', 'hw.temperature', 'hw.power')
) AS measured
-- Temperature and power may also be of something else than a GPU.
WHERE gpu IS NOT NULL
GROUP BY bucket, host, gpu;
COMMENT ON VIEW stepwell.gpu_by_day IS 'GPUs by the day: mean utilization (0 to 1), most memory in use and its limit (By), highest temperature (Cel), mean power (W).';
