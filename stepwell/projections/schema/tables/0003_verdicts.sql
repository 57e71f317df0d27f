-- What it came to: verdicts, those that are awaited, and the records that could not be used.

CREATE TABLE verdicts (
    episode_id text NOT NULL,
    attempt integer NOT NULL,
    revision integer NOT NULL,
    event_id uuid NOT NULL,
    run_id text NOT NULL,
    trace_id text NOT NULL,
    issued_at timestamptz NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    seed bigint NOT NULL,
    repetition integer NOT NULL,
    cell text NOT NULL,
    purpose text NOT NULL,
    requested_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,
    failure_type text,
    fault text,
    message text NOT NULL,
    labels text[] NOT NULL,
    label_steps integer[] NOT NULL,
    autonomous boolean NOT NULL,
    n_steps integer NOT NULL,
    total_reward double precision NOT NULL,
    success_at_end boolean,
    success_once boolean,
    metrics jsonb NOT NULL,
    completeness text NOT NULL,
    completeness_notes text[] NOT NULL,
    lost jsonb NOT NULL,
    late jsonb NOT NULL,
    lost_count bigint NOT NULL,
    late_count bigint NOT NULL,
    duplicate_count bigint NOT NULL,
    violation_count bigint NOT NULL,
    nonfinite_count bigint NOT NULL,
    source_partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    fold_hash text NOT NULL,
    rule_set text NOT NULL,
    schema_fingerprints text[] NOT NULL,
    simulator text NOT NULL,
    simulator_version text NOT NULL,
    adapter_version text NOT NULL,
    environment_digest text NOT NULL,
    reported_seed bigint,
    reported_checkpoint text,
    logged_at timestamptz NOT NULL,
    verdict_partition integer NOT NULL,
    verdict_offset bigint NOT NULL,
    PRIMARY KEY (episode_id, attempt, revision)
);
CREATE INDEX verdicts_run_id ON verdicts (run_id);
CREATE INDEX verdicts_policy ON verdicts (policy, ended_at DESC);
COMMENT ON TABLE verdicts IS 'Every revision of every attempt''s verdict; the view episode_results has the last ones.';
COMMENT ON COLUMN verdicts.episode_id IS 'The episode.';
COMMENT ON COLUMN verdicts.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN verdicts.revision IS 'Number of the revision; a higher one replaces a lower one, numbers may skip.';
COMMENT ON COLUMN verdicts.event_id IS 'Identifies the verdict (UUID).';
COMMENT ON COLUMN verdicts.run_id IS 'The run.';
COMMENT ON COLUMN verdicts.trace_id IS 'W3C trace id (32 hex digits).';
COMMENT ON COLUMN verdicts.issued_at IS 'When the deciding event was logged (UTC, log''s clock).';
COMMENT ON COLUMN verdicts.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN verdicts.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN verdicts.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN verdicts.task IS 'Simulator and task.';
COMMENT ON COLUMN verdicts.scene IS 'Name of the scene.';
COMMENT ON COLUMN verdicts.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN verdicts.seed IS 'Seed asked for (integer).';
COMMENT ON COLUMN verdicts.repetition IS 'Number of the repetition (count from 0).';
COMMENT ON COLUMN verdicts.cell IS 'Canonical text of the matrix cell.';
COMMENT ON COLUMN verdicts.requested_at IS 'When the attempt was asked for (UTC, producer''s clock); null where unknown.';
COMMENT ON COLUMN verdicts.started_at IS 'When the simulator was ready (UTC, producer''s clock); null where it never was.';
COMMENT ON COLUMN verdicts.ended_at IS 'When the attempt ended (UTC, producer''s clock).';
COMMENT ON COLUMN verdicts.outcome IS 'success, failure, error or aborted; only the first two say something about the policy.';
COMMENT ON COLUMN verdicts.failure_type IS 'What went wrong, e.g. task_not_completed; null for a success.';
COMMENT ON COLUMN verdicts.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN verdicts.message IS 'The first cause, in the words of the component that reported it.';
COMMENT ON COLUMN verdicts.labels IS 'What the step rules found, sorted (names).';
COMMENT ON COLUMN verdicts.autonomous IS 'Whether no person put a hand in (true or false).';
COMMENT ON COLUMN verdicts.n_steps IS 'Steps done (steps).';
COMMENT ON COLUMN verdicts.total_reward IS 'Sum of the rewards in the order of the steps (task''s own unit).';
COMMENT ON COLUMN verdicts.success_at_end IS 'Whether the task stood achieved after the last step (true or false); null where not told.';
COMMENT ON COLUMN verdicts.success_once IS 'Whether it stood achieved after any step (true or false); null where not told.';
COMMENT ON COLUMN verdicts.metrics IS 'Named numbers of the attempt, units in the names (JSON object).';
COMMENT ON COLUMN verdicts.completeness IS 'complete or incomplete: whether all evidence is in.';
COMMENT ON COLUMN verdicts.completeness_notes IS 'Why it is incomplete, e.g. tail unknown (texts).';
COMMENT ON COLUMN verdicts.lost IS 'Sequences that never came (JSON array of producer, first, last; at most 64).';
COMMENT ON COLUMN verdicts.late IS 'Sequences that came after they had been given up; not in the numbers (JSON array of producer, first, last; at most 64).';
COMMENT ON COLUMN verdicts.lost_count IS 'Events that never came (count).';
COMMENT ON COLUMN verdicts.late_count IS 'Events that came too late (count).';
COMMENT ON COLUMN verdicts.duplicate_count IS 'Events that came again (count).';
COMMENT ON COLUMN verdicts.violation_count IS 'Events that broke the protocol (count).';
COMMENT ON COLUMN verdicts.nonfinite_count IS 'Events with NaN or infinite actions, observations or rewards (count).';
COMMENT ON COLUMN verdicts.source_partition IS 'Partition of stepwell.episode-events that was folded (number).';
COMMENT ON COLUMN verdicts.first_offset IS 'First folded event (log offset).';
COMMENT ON COLUMN verdicts.last_offset IS 'Last folded event (log offset).';
COMMENT ON COLUMN verdicts.fold_hash IS 'Version of the state machine and its configuration (hex digest).';
COMMENT ON COLUMN verdicts.rule_set IS 'Name and version of the step rules.';
COMMENT ON COLUMN verdicts.schema_fingerprints IS 'Schemas of the folded events, sorted (hex digests).';
COMMENT ON COLUMN verdicts.simulator IS 'Name of the simulator, as it reported; empty where it never did.';
COMMENT ON COLUMN verdicts.simulator_version IS 'Its version; empty where it never reported.';
COMMENT ON COLUMN verdicts.adapter_version IS 'Version of the adapter; empty where it never reported.';
COMMENT ON COLUMN verdicts.environment_digest IS 'Digest of the lock file of the simulator''s environment; empty where it never reported.';
COMMENT ON COLUMN verdicts.reported_seed IS 'Seed that the simulator reported (integer); null where it never did.';
COMMENT ON COLUMN verdicts.reported_checkpoint IS 'Checkpoint that the agent reported; null where it never did.';
COMMENT ON COLUMN verdicts.logged_at IS 'When the log took the verdict (UTC, log''s clock).';
COMMENT ON COLUMN verdicts.verdict_partition IS 'Where the verdict itself stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN verdicts.verdict_offset IS 'Where it stands in that partition (log offset).';
COMMENT ON COLUMN verdicts.label_steps IS 'For each of labels the step at which it was first found (count from 0); -1 where it is of no one step; empty where not told.';
COMMENT ON COLUMN verdicts.purpose IS 'What the episode was run for: evaluation, or regression (to judge a retrained checkpoint). Detection rules count evaluation alone.';

CREATE TABLE expected_verdicts (
    episode_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    run_id text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    purpose text NOT NULL,
    requested_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX expected_verdicts_policy ON expected_verdicts (policy);
COMMENT ON TABLE expected_verdicts IS 'Episodes in the order in which the engine learnt that they were asked for: the order of requests that some rules go by.';
COMMENT ON COLUMN expected_verdicts.episode_id IS 'The episode.';
COMMENT ON COLUMN expected_verdicts.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN expected_verdicts.run_id IS 'The run it belongs to.';
COMMENT ON COLUMN expected_verdicts.policy IS 'Name of the policy.';
COMMENT ON COLUMN expected_verdicts.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN expected_verdicts.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN expected_verdicts.task IS 'Simulator and task.';
COMMENT ON COLUMN expected_verdicts.scene IS 'Name of the scene.';
COMMENT ON COLUMN expected_verdicts.perturbation IS 'Name of the perturbation applied; none for the plain cell.';
COMMENT ON COLUMN expected_verdicts.purpose IS 'What the episode is run for: evaluation, or regression (to judge a retrained checkpoint).';
COMMENT ON COLUMN expected_verdicts.requested_at IS 'When it was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN expected_verdicts.logged_at IS 'When the log took the expectation (UTC, log''s clock).';
COMMENT ON COLUMN expected_verdicts.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN expected_verdicts.source_offset IS 'Where it stands in that partition (log offset): the place in the order.';

CREATE TABLE dead_letters (
    source_topic text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    logged_at timestamptz NOT NULL,
    source_key bytea,
    source_value bytea,
    source_headers jsonb NOT NULL,
    episode_id text,
    attempt integer,
    event_type text,
    reported_by text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_topic, source_partition, source_offset, kind, reason, logged_at)
);
CREATE INDEX dead_letters_episode ON dead_letters (episode_id, attempt);
COMMENT ON TABLE dead_letters IS 'Records that could not be used, kept whole, with their position and the reason.';
COMMENT ON COLUMN dead_letters.source_topic IS 'Topic of the record.';
COMMENT ON COLUMN dead_letters.source_partition IS 'Its partition (number).';
COMMENT ON COLUMN dead_letters.source_offset IS 'Its position there (log offset).';
COMMENT ON COLUMN dead_letters.kind IS 'unreadable, after_seal, violation, rule_failed (a detection rule raised on it), or refused (by this database).';
COMMENT ON COLUMN dead_letters.reason IS 'Short stable code, e.g. trailing-bytes; of rule_failed the rule that failed.';
COMMENT ON COLUMN dead_letters.detail IS 'The reason in words.';
COMMENT ON COLUMN dead_letters.logged_at IS 'When the log took the record (UTC, log''s clock); the start of 2000 where that is not between 2000 and 2100.';
COMMENT ON COLUMN dead_letters.source_key IS 'Its key (raw bytes).';
COMMENT ON COLUMN dead_letters.source_value IS 'Its value (raw bytes).';
COMMENT ON COLUMN dead_letters.source_headers IS 'Its headers in order (JSON array of name and value, the value in base64).';
COMMENT ON COLUMN dead_letters.episode_id IS 'The episode it speaks of, where that could be read.';
COMMENT ON COLUMN dead_letters.attempt IS 'Number of the attempt (count from 1), where that could be read.';
COMMENT ON COLUMN dead_letters.event_type IS 'Type of the event, where that could be read.';
COMMENT ON COLUMN dead_letters.reported_by IS 'The worker that set it aside.';
COMMENT ON COLUMN dead_letters.recorded_at IS 'When this row was written (UTC, database''s clock).';
