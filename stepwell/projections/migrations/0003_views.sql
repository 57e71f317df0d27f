-- The questions that people ask of the tables. docs/database.md shows each with an example.

-- --- rates ---

-- Wilson's score interval (E. B. Wilson, 1927), 95 %: it stays within 0 and 1 and holds for few episodes too.
CREATE FUNCTION stepwell.wilson_low(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN trials = 0 THEN NULL WHEN successes = 0 THEN 0 ELSE greatest(0, (p + z * z / (2 * n) - z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)) END
    FROM (SELECT 1.959963984540054::double precision AS z, nullif(trials, 0)::double precision AS n,
                 successes::double precision / nullif(trials, 0) AS p) AS given
$$;
COMMENT ON FUNCTION stepwell.wilson_low(bigint, bigint) IS 'Lower end of Wilson''s 95 % interval of a rate (0 to 1); null without trials.';

CREATE FUNCTION stepwell.wilson_high(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN trials = 0 THEN NULL WHEN successes = trials THEN 1 ELSE least(1, (p + z * z / (2 * n) + z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)) END
    FROM (SELECT 1.959963984540054::double precision AS z, nullif(trials, 0)::double precision AS n,
                 successes::double precision / nullif(trials, 0) AS p) AS given
$$;
COMMENT ON FUNCTION stepwell.wilson_high(bigint, bigint) IS 'Upper end of Wilson''s 95 % interval of a rate (0 to 1); null without trials.';

-- --- the three questions of operations ---

CREATE VIEW stepwell.running_now AS
SELECT a.run_id, a.episode_id, a.attempt, e.policy, e.task, e.scene, e.perturbation, a.host,
       a.phase, a.paused, a.since_at AS phase_since,
       coalesce(a.owes, 'sim') AS owes,
       greatest(a.next_step, steps.next_step) AS steps_done, e.max_steps,
       last.fact_at AS last_fact_at,
       extract(epoch FROM now() - last.fact_at)::double precision AS idle_s,
       extract(epoch FROM now() - coalesce(a.claimed_at, a.since_at))::double precision AS running_s
FROM stepwell.episode_attempts a
LEFT JOIN stepwell.episodes e USING (episode_id)
-- A snapshot may be a minute old; the facts themselves are not.
CROSS JOIN LATERAL (SELECT max(s.step) + 1 AS next_step, max(s.logged_at) AS logged_at FROM stepwell.steps s
                    WHERE s.episode_id = a.episode_id AND s.attempt = a.attempt) steps
CROSS JOIN LATERAL (SELECT max(c.logged_at) AS logged_at FROM stepwell.actions c
                    WHERE c.episode_id = a.episode_id AND c.attempt = a.attempt) actions
CROSS JOIN LATERAL (SELECT greatest(a.last_event_at, a.since_at, a.claimed_at, steps.logged_at, actions.logged_at) AS fact_at) last
WHERE a.phase NOT IN ('EPISODE_DONE', 'FAILED', 'ABORTED') AND NOT a.sealed
  AND (a.claimed_at IS NOT NULL OR a.phase NOT IN ('REQUESTED', 'INIT'))
  -- The verdict comes by another topic and can be here first.
  AND NOT EXISTS (SELECT FROM stepwell.verdicts v WHERE v.episode_id = a.episode_id AND v.attempt = a.attempt);
COMMENT ON VIEW stepwell.running_now IS 'What is running now: one row an attempt that a host has taken and that has not ended.';

CREATE VIEW stepwell.stuck_episodes AS
SELECT r.run_id, r.episode_id, r.attempt, r.policy, r.task, r.scene, r.host, r.phase, r.paused,
       r.owes AS stuck_on, r.last_fact_at AS stuck_since, r.idle_s AS stuck_s, r.steps_done, r.max_steps
FROM stepwell.running_now r
WHERE r.idle_s > (SELECT value FROM stepwell.settings WHERE name = 'stuck_after_s');
COMMENT ON VIEW stepwell.stuck_episodes IS 'What is stuck, on whom (sim, agent or host), since when and for how long (s).';

CREATE VIEW stepwell.pipeline_lag AS
SELECT consumer, topic, partition, next_offset, log_end, behind_events,
       CASE WHEN behind_events = 0 AND NOT silent THEN 0
            ELSE extract(epoch FROM now() - complete_until)::double precision END AS behind_s,
       CASE WHEN silent THEN 'silent' WHEN behind_events = 0 THEN 'caught up' ELSE 'behind' END AS state,
       complete_until, seen_at
FROM (
    SELECT *, greatest(log_end - read_to, 0) AS behind_events,
           now() - seen_at > make_interval(secs => (SELECT value FROM stepwell.settings WHERE name = 'silent_after_s')) AS silent
    FROM (
        SELECT sink AS consumer, topic, partition, next_offset, greatest(next_offset, read_to) AS read_to, log_end, complete_until, seen_at FROM stepwell.sink_offsets
        UNION ALL
        SELECT consumer, topic, partition, next_offset, next_offset AS read_to, log_end, complete_until, seen_at
        FROM stepwell.consumer_positions
    ) AS positions
) AS judged;
COMMENT ON VIEW stepwell.pipeline_lag IS 'How far behind each consumer is, in events (on Kafka an upper bound: markers count) and in seconds; silent: nobody reports, so it may be more.';

-- --- results ---

CREATE VIEW stepwell.latest_verdicts AS
SELECT DISTINCT ON (episode_id, attempt) * FROM stepwell.verdicts ORDER BY episode_id, attempt, revision DESC;
COMMENT ON VIEW stepwell.latest_verdicts IS 'The last revision of each attempt''s verdict.';

CREATE VIEW stepwell.episode_results AS
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

CREATE VIEW stepwell.run_summary AS
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
    GROUP BY r.run_id
) AS counts;
COMMENT ON VIEW stepwell.run_summary IS 'One row a run: planned, attempted, scored, errored episodes; success rates with errors left out and with errors as failures, each with its 95 % interval.';

CREATE VIEW stepwell.outcome_summary AS
SELECT run_id, policy, policy_version, task, scene, perturbation, outcome, failure_type, fault, count(*) AS episodes
FROM stepwell.episode_results WHERE state = 'ended'
GROUP BY run_id, policy, policy_version, task, scene, perturbation, outcome, failure_type, fault;
COMMENT ON VIEW stepwell.outcome_summary IS 'Ended episodes counted by run, policy, scene, outcome, failure type and fault.';

-- --- steps with the actions they applied ---

CREATE VIEW stepwell.step_log AS
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

-- --- what was set aside, and what was asked of training ---

CREATE VIEW stepwell.protocol_violations AS
SELECT episode_id, attempt, event_type, reason, detail, source_partition, source_offset, logged_at, source_key, source_value, reported_by
FROM stepwell.dead_letters WHERE kind = 'violation';
COMMENT ON VIEW stepwell.protocol_violations IS 'Facts that broke the protocol; the state machine left its state as it was.';

CREATE VIEW stepwell.retrain_status AS
SELECT r.trigger_id, r.policy, r.policy_version, r.checkpoint, r.failure_type, r.rule, r.rule_version,
       jsonb_array_length(r.evidence) AS evidence_episodes, r.requested_at,
       CASE WHEN r.withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE coalesce(a.status, 'open') END AS status,
       a.trainer, a.answered_at, a.new_checkpoint, a.detail, r.withdrawn_at, r.withdrawn_reason
FROM stepwell.retrain_requests r
-- The answer that counts is the first that closes the request, else the last 'accepted': as in the detector's ledger.
LEFT JOIN LATERAL (SELECT * FROM stepwell.retrain_answers t
                   WHERE t.trigger_id = r.trigger_id AND t.policy = r.policy
                     AND t.status IN ('accepted', 'done', 'failed', 'rejected')
                   ORDER BY t.status = 'accepted',
                            CASE WHEN t.status = 'accepted' THEN -t.source_offset ELSE t.source_offset END
                   LIMIT 1) a ON true;
COMMENT ON VIEW stepwell.retrain_status IS 'Each retrain request with the answer that counts, the first done, failed or rejected: open, withdrawn, accepted, done, failed or rejected.';
