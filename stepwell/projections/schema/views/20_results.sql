-- What came of runs and episodes. docs/database.md shows each with an example.

CREATE OR REPLACE VIEW stepwell.latest_verdicts AS
SELECT DISTINCT ON (episode_id, attempt) * FROM stepwell.verdicts ORDER BY episode_id, attempt, revision DESC;
COMMENT ON VIEW stepwell.latest_verdicts IS 'The last revision of each attempt''s verdict.';

CREATE OR REPLACE VIEW stepwell.episode_results AS
SELECT e.run_id, e.episode_id, coalesce(v.attempt, a.attempt) AS attempt,
       e.policy, e.policy_version, e.checkpoint, e.task, e.scene, e.perturbation, e.seed, e.repetition,
       CASE WHEN v.attempt IS NOT NULL THEN 'ended' WHEN a.begun THEN 'running' ELSE 'pending' END AS state,
       EXISTS (SELECT FROM stepwell.episode_attempts t WHERE t.episode_id = e.episode_id
               AND (t.claimed_at IS NOT NULL OR t.phase NOT IN ('REQUESTED', 'INIT', 'EPISODE_DONE', 'FAILED', 'ABORTED')))
       OR EXISTS (SELECT FROM stepwell.verdicts t WHERE t.episode_id = e.episode_id AND t.started_at IS NOT NULL) AS attempted,
       v.outcome, v.failure_type, v.fault, v.message,
       v.revision, v.n_steps, v.total_reward, v.autonomous, v.completeness, e.requested_at, v.started_at, v.ended_at
FROM stepwell.episodes e
LEFT JOIN LATERAL (
    SELECT attempt, claimed_at IS NOT NULL OR phase NOT IN ('REQUESTED', 'INIT') AS begun
    FROM stepwell.episode_attempts t WHERE t.episode_id = e.episode_id ORDER BY attempt DESC LIMIT 1) a ON true
-- What infrastructure or an operator ended may be made good by a later attempt, a policy's failure never: the first
-- attempt that was scored stands, else the last one, once it has ended.
LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT DISTINCT ON (attempt) *, outcome IN ('success', 'failure') AS scored
        FROM stepwell.verdicts t WHERE t.episode_id = e.episode_id ORDER BY attempt, revision DESC) latest
    ORDER BY scored DESC, CASE WHEN scored THEN attempt ELSE -attempt END LIMIT 1
) v ON v.scored OR v.attempt >= coalesce(a.attempt, 0);
COMMENT ON VIEW stepwell.episode_results IS 'One row an episode: pending, running, or ended with the last verdict of the first scored attempt, else of the last attempt.';

CREATE OR REPLACE VIEW stepwell.run_summary AS
SELECT counts.*,
       succeeded::double precision / nullif(scored, 0) AS success_rate,
       stepwell.wilson_low(succeeded, scored) AS success_rate_low,
       stepwell.wilson_high(succeeded, scored) AS success_rate_high,
       succeeded::double precision / nullif(scored + errored, 0) AS success_rate_errors_as_failures,
       stepwell.wilson_low(succeeded, scored + errored) AS success_rate_errors_as_failures_low,
       stepwell.wilson_high(succeeded, scored + errored) AS success_rate_errors_as_failures_high
FROM (
    SELECT r.run_id, r.requested_by, r.first_requested_at,
           count(e.episode_id) AS planned,
           count(*) FILTER (WHERE e.attempted) AS attempted,
           count(*) FILTER (WHERE e.state = 'pending') AS pending,
           count(*) FILTER (WHERE e.state = 'running') AS running,
           count(*) FILTER (WHERE e.outcome IN ('success', 'failure')) AS scored,
           count(*) FILTER (WHERE e.outcome = 'success') AS succeeded,
           count(*) FILTER (WHERE e.outcome = 'failure') AS failed,
           count(*) FILTER (WHERE e.outcome = 'error') AS errored,
           count(*) FILTER (WHERE e.outcome = 'aborted') AS aborted,
           max(e.ended_at) AS last_ended_at
    FROM stepwell.runs r LEFT JOIN stepwell.episode_results e USING (run_id)
    GROUP BY r.run_id, r.requested_by, r.first_requested_at
) AS counts;
COMMENT ON VIEW stepwell.run_summary IS 'One row a run: planned, attempted, scored, errored episodes; success rates with errors left out and with errors as failures, each with its 95 % interval.';

CREATE OR REPLACE VIEW stepwell.outcome_summary AS
SELECT run_id, policy, policy_version, task, scene, perturbation, outcome, failure_type, fault, count(*) AS episodes
FROM stepwell.episode_results WHERE state = 'ended'
GROUP BY run_id, policy, policy_version, task, scene, perturbation, outcome, failure_type, fault;
COMMENT ON VIEW stepwell.outcome_summary IS 'Ended episodes counted by run, policy, scene, outcome, failure type and fault.';

CREATE OR REPLACE VIEW stepwell.step_log AS
SELECT s.episode_id, s.attempt, s.step, s.occurred_at, s.sim_time, s.reward, s.success, s.terminated, s.truncated,
       s.step_wall_s, s.metrics, s.state_digest, s.action_seq,
       a.action[(s.step - a.first_step) * a.width + 1 : (s.step - a.first_step + 1) * a.width] AS action,
       a.occurred_at AS action_sent_at, a.observed_step, a.inference_s, s.source_partition, s.source_offset
FROM stepwell.steps s
LEFT JOIN LATERAL (
    SELECT c.*, cardinality(c.action) / nullif(c.n_steps, 0) AS width
    FROM stepwell.actions c
    WHERE c.episode_id = s.episode_id AND c.attempt = s.attempt AND c.producer_seq = s.action_seq
      AND NOT EXISTS (SELECT FROM stepwell.dead_letters d
                      WHERE d.source_topic = 'stepwell.episode-events' AND d.source_partition = c.source_partition
                        AND d.source_offset = c.source_offset AND d.kind IN ('violation', 'after_seal'))
    ORDER BY c.source_offset LIMIT 1) a ON true
-- What the state machine refused, or got too late, is in no verdict and so not here.
WHERE NOT EXISTS (SELECT FROM stepwell.dead_letters d
                  WHERE d.source_topic = 'stepwell.episode-events' AND d.source_partition = s.source_partition
                    AND d.source_offset = s.source_offset AND d.kind IN ('violation', 'after_seal'))
  AND NOT EXISTS (SELECT FROM stepwell.latest_verdicts v, jsonb_to_recordset(v.late) AS range (producer text, first bigint, last bigint)
                  WHERE v.episode_id = s.episode_id AND v.attempt = s.attempt AND v.late_count > 0
                    AND range.producer = 'sim' AND s.producer_seq BETWEEN range.first AND range.last);
COMMENT ON VIEW stepwell.step_log IS 'Every step that the verdict counts, with the action it applied. Ask for one episode at a time.';

CREATE OR REPLACE VIEW stepwell.protocol_violations AS
SELECT episode_id, attempt, event_type, reason, detail, source_partition, source_offset, logged_at, source_key, source_value, reported_by
FROM stepwell.dead_letters WHERE kind = 'violation';
COMMENT ON VIEW stepwell.protocol_violations IS 'Facts that broke the protocol; the state machine left its state as it was.';

CREATE OR REPLACE VIEW stepwell.labelled_steps AS
SELECT v.episode_id, v.attempt, v.policy, v.policy_version, v.checkpoint, v.task, v.scene, v.perturbation, v.outcome,
       v.purpose, found.label, nullif(found.step, -1) AS step
FROM stepwell.latest_verdicts v, unnest(v.labels, v.label_steps) AS found (label, step);
COMMENT ON VIEW stepwell.labelled_steps IS 'What the step rules found: one row a label of an attempt''s last verdict, with the step at which it was first found; step is null where it is of no one step.';
