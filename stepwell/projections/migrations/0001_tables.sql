-- The tables that the projector fills from the log. Times are timestamptz (microseconds); every table and column says
-- in its comment what it holds and in which unit. No foreign keys: hypertables bear none, and the topics that feed the
-- tables arrive independently of each other. docs/database.md explains how they hang together.

-- --- what was planned ---

CREATE TABLE stepwell.runs (
    run_id text PRIMARY KEY,
    requested_by text NOT NULL,
    first_requested_at timestamptz NOT NULL
);
COMMENT ON TABLE stepwell.runs IS 'One row a run; the view run_summary counts what came of it.';
COMMENT ON COLUMN stepwell.runs.run_id IS 'Identifies the run (text).';
COMMENT ON COLUMN stepwell.runs.requested_by IS 'Who asked for the first of its episodes (name).';
COMMENT ON COLUMN stepwell.runs.first_requested_at IS 'When its first episode was asked for (UTC, producer''s clock).';

CREATE TABLE stepwell.episodes (
    episode_id text PRIMARY KEY,
    run_id text NOT NULL,
    task text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    scene text NOT NULL,
    perturbation text NOT NULL,
    seed bigint NOT NULL,
    repetition integer NOT NULL,
    cell text NOT NULL,
    max_steps integer NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL,
    trace_id text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX episodes_run_id ON stepwell.episodes (run_id);
COMMENT ON TABLE stepwell.episodes IS 'One row an episode that was asked for: one cell of a run''s matrix, one repetition.';
COMMENT ON COLUMN stepwell.episodes.episode_id IS 'Identifies the episode (text).';
COMMENT ON COLUMN stepwell.episodes.run_id IS 'The run it was planned in.';
COMMENT ON COLUMN stepwell.episodes.task IS 'Simulator and task, e.g. metaworld/reach-v3.';
COMMENT ON COLUMN stepwell.episodes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN stepwell.episodes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN stepwell.episodes.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN stepwell.episodes.scene IS 'Name of the scene.';
COMMENT ON COLUMN stepwell.episodes.perturbation IS 'Name of the perturbation applied; none for the plain cell.';
COMMENT ON COLUMN stepwell.episodes.seed IS 'Seed asked for (integer).';
COMMENT ON COLUMN stepwell.episodes.repetition IS 'Number of the repetition (count from 0).';
COMMENT ON COLUMN stepwell.episodes.cell IS 'Canonical text of the matrix cell.';
COMMENT ON COLUMN stepwell.episodes.max_steps IS 'The step budget (steps).';
COMMENT ON COLUMN stepwell.episodes.requested_by IS 'Who asked for it (name).';
COMMENT ON COLUMN stepwell.episodes.requested_at IS 'When it was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN stepwell.episodes.trace_id IS 'W3C trace id (32 hex digits).';
COMMENT ON COLUMN stepwell.episodes.source_partition IS 'Partition of stepwell.episode-events that holds all its facts (number).';
COMMENT ON COLUMN stepwell.episodes.source_offset IS 'Offset of its request there (log offset).';

CREATE TABLE stepwell.episode_attempts (
    episode_id text NOT NULL,
    attempt integer NOT NULL,
    run_id text NOT NULL,
    requested_at timestamptz,
    retry_reason text,
    from_checkpoint text,
    claimed_at timestamptz,
    host text,
    host_pid integer,
    phase text NOT NULL DEFAULT 'REQUESTED',
    paused boolean NOT NULL DEFAULT false,
    since_at timestamptz,
    owes text,
    owes_seq bigint,
    next_step integer NOT NULL DEFAULT 0,
    last_event_at timestamptz,
    outcome text,
    revision integer NOT NULL DEFAULT 0,
    sealed boolean NOT NULL DEFAULT false,
    first_offset bigint,
    last_offset bigint,
    fold_hash text,
    PRIMARY KEY (episode_id, attempt)
);
CREATE INDEX episode_attempts_run_id ON stepwell.episode_attempts (run_id);
CREATE INDEX episode_attempts_live ON stepwell.episode_attempts (phase)
    WHERE phase NOT IN ('EPISODE_DONE', 'FAILED', 'ABORTED');
COMMENT ON TABLE stepwell.episode_attempts IS 'Run status: one row an attempt, as of the state machine''s last snapshot.';
COMMENT ON COLUMN stepwell.episode_attempts.episode_id IS 'The episode.';
COMMENT ON COLUMN stepwell.episode_attempts.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN stepwell.episode_attempts.run_id IS 'The run it belongs to.';
COMMENT ON COLUMN stepwell.episode_attempts.requested_at IS 'When the attempt was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN stepwell.episode_attempts.retry_reason IS 'Why it was asked for again; null for attempt 1.';
COMMENT ON COLUMN stepwell.episode_attempts.from_checkpoint IS 'Checkpoint (URI) it starts from; null when from the beginning.';
COMMENT ON COLUMN stepwell.episode_attempts.claimed_at IS 'When a host took it (UTC, host''s clock); null while nobody has.';
COMMENT ON COLUMN stepwell.episode_attempts.host IS 'Name of the host that took it.';
COMMENT ON COLUMN stepwell.episode_attempts.host_pid IS 'Process id there (number).';
COMMENT ON COLUMN stepwell.episode_attempts.phase IS 'State of the state machine, e.g. AGENT_RUNNING; REQUESTED before its first snapshot.';
COMMENT ON COLUMN stepwell.episode_attempts.paused IS 'Whether the host holds it still (true or false).';
COMMENT ON COLUMN stepwell.episode_attempts.since_at IS 'When it entered that phase (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.episode_attempts.owes IS 'Who owes the next event: sim, agent or host; null once ended.';
COMMENT ON COLUMN stepwell.episode_attempts.owes_seq IS 'The sequence number that is owed (count from 0).';
COMMENT ON COLUMN stepwell.episode_attempts.next_step IS 'Steps done, as of the snapshot (steps).';
COMMENT ON COLUMN stepwell.episode_attempts.last_event_at IS 'When its last event was logged, as of the snapshot (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.episode_attempts.outcome IS 'success, failure, error or aborted; null while it runs.';
COMMENT ON COLUMN stepwell.episode_attempts.revision IS 'Revision of its verdict (number).';
COMMENT ON COLUMN stepwell.episode_attempts.sealed IS 'Whether it is closed for good (true or false).';
COMMENT ON COLUMN stepwell.episode_attempts.first_offset IS 'First of its events in the log (log offset).';
COMMENT ON COLUMN stepwell.episode_attempts.last_offset IS 'Last of its events that the snapshot covers (log offset).';
COMMENT ON COLUMN stepwell.episode_attempts.fold_hash IS 'Version of the state machine that made the snapshot (hex digest).';

-- --- what happened: one row a fact, in the order of the log; hypertables where TimescaleDB is present ---

CREATE TABLE stepwell.steps (
    occurred_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    episode_id text NOT NULL,
    attempt integer NOT NULL,
    step integer NOT NULL,
    producer_id text NOT NULL,
    producer_seq bigint NOT NULL,
    event_id uuid NOT NULL,
    action_seq bigint NOT NULL,
    sim_time double precision,
    reward double precision,
    success boolean,
    terminated boolean NOT NULL,
    truncated boolean NOT NULL,
    step_wall_s double precision,
    metrics jsonb,
    state_digest bytea,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (episode_id, attempt, producer_seq, producer_id, occurred_at),
    -- A clock that is decades off would open a chunk of its own for every row.
    CONSTRAINT steps_occurred_at_plausible CHECK (occurred_at >= '2000-01-01 00:00+00' AND occurred_at < '2100-01-01 00:00+00')
);
CREATE INDEX steps_occurred_at ON stepwell.steps USING brin (occurred_at);
COMMENT ON TABLE stepwell.steps IS 'One row a simulator step, as reported (sim::step_done). The view step_log leaves out what no verdict counts.';
COMMENT ON COLUMN stepwell.steps.occurred_at IS 'When the step was done (UTC, simulator''s clock).';
COMMENT ON COLUMN stepwell.steps.logged_at IS 'When the log took the fact (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.steps.episode_id IS 'The episode.';
COMMENT ON COLUMN stepwell.steps.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN stepwell.steps.step IS 'Number of the step (count from 0).';
COMMENT ON COLUMN stepwell.steps.producer_id IS 'Incarnation of the simulator that reported it.';
COMMENT ON COLUMN stepwell.steps.producer_seq IS 'The simulator''s own count (from 0, per attempt).';
COMMENT ON COLUMN stepwell.steps.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.steps.action_seq IS 'producer_seq of the action it applied (count from 0).';
COMMENT ON COLUMN stepwell.steps.sim_time IS 'Simulated time since the episode''s start (s); null where unknown.';
COMMENT ON COLUMN stepwell.steps.reward IS 'Reward of the step (task''s own unit); NaN and infinities are kept.';
COMMENT ON COLUMN stepwell.steps.success IS 'Whether the task stands achieved after the step (true or false); null where not told.';
COMMENT ON COLUMN stepwell.steps.terminated IS 'Whether the simulator ended the episode by its rules (true or false).';
COMMENT ON COLUMN stepwell.steps.truncated IS 'Whether the simulator cut the episode short (true or false).';
COMMENT ON COLUMN stepwell.steps.step_wall_s IS 'Wall time that the simulator took (s); null where not told.';
COMMENT ON COLUMN stepwell.steps.metrics IS 'Named numbers, units in the names; NaN and infinities as text (JSON object).';
COMMENT ON COLUMN stepwell.steps.state_digest IS 'Digest of the simulator''s full state (bytes); null where not told.';
COMMENT ON COLUMN stepwell.steps.source_partition IS 'Where the fact stands in stepwell.episode-events (partition number).';
COMMENT ON COLUMN stepwell.steps.source_offset IS 'Where the fact stands in that partition (log offset).';

CREATE TABLE stepwell.actions (
    occurred_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    episode_id text NOT NULL,
    attempt integer NOT NULL,
    first_step integer NOT NULL,
    n_steps integer NOT NULL,
    producer_id text NOT NULL,
    producer_seq bigint NOT NULL,
    event_id uuid NOT NULL,
    sim_time double precision,
    observed_step integer,
    inference_s double precision,
    shape integer[] NOT NULL,
    action double precision[],
    action_uri text,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (episode_id, attempt, producer_seq, producer_id, occurred_at),
    CONSTRAINT actions_occurred_at_plausible CHECK (occurred_at >= '2000-01-01 00:00+00' AND occurred_at < '2100-01-01 00:00+00')
);
CREATE INDEX actions_occurred_at ON stepwell.actions USING brin (occurred_at);
COMMENT ON TABLE stepwell.actions IS 'One row an action chunk, as sent by the policy (agent::action_sent).';
COMMENT ON COLUMN stepwell.actions.occurred_at IS 'When it was sent (UTC, agent''s clock).';
COMMENT ON COLUMN stepwell.actions.logged_at IS 'When the log took the fact (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.actions.episode_id IS 'The episode.';
COMMENT ON COLUMN stepwell.actions.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN stepwell.actions.first_step IS 'First step it is for (count from 0).';
COMMENT ON COLUMN stepwell.actions.n_steps IS 'For how many steps it is (steps).';
COMMENT ON COLUMN stepwell.actions.producer_id IS 'Incarnation of the agent that sent it.';
COMMENT ON COLUMN stepwell.actions.producer_seq IS 'The agent''s own count (from 0, per attempt).';
COMMENT ON COLUMN stepwell.actions.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.actions.sim_time IS 'Simulated time since the episode''s start (s); null where unknown.';
COMMENT ON COLUMN stepwell.actions.observed_step IS 'The observation it was computed from (count from 0); null where not told.';
COMMENT ON COLUMN stepwell.actions.inference_s IS 'Time that the policy took (s); null where not told.';
COMMENT ON COLUMN stepwell.actions.shape IS 'Lengths of the action array''s axes (elements); the first is n_steps.';
COMMENT ON COLUMN stepwell.actions.action IS 'The array''s elements in C order (task''s own units); NaN and infinities are kept; null where not in the log.';
COMMENT ON COLUMN stepwell.actions.action_uri IS 'Where the array lies when it is not in the log (URI).';
COMMENT ON COLUMN stepwell.actions.source_partition IS 'Where the fact stands in stepwell.episode-events (partition number).';
COMMENT ON COLUMN stepwell.actions.source_offset IS 'Where the fact stands in that partition (log offset).';

CREATE TABLE stepwell.telemetry (
    sampled_at timestamptz NOT NULL,
    worker_id text NOT NULL,
    host text NOT NULL,
    sample_seq bigint NOT NULL,
    point integer NOT NULL,
    metric text NOT NULL,
    unit text NOT NULL,
    value double precision NOT NULL,
    attributes jsonb NOT NULL,
    episode_id text,
    attempt integer,
    PRIMARY KEY (worker_id, sample_seq, point, sampled_at),
    CONSTRAINT telemetry_sampled_at_plausible CHECK (sampled_at >= '2000-01-01 00:00+00' AND sampled_at < '2100-01-01 00:00+00')
);
CREATE INDEX telemetry_metric ON stepwell.telemetry (metric, sampled_at DESC);
COMMENT ON TABLE stepwell.telemetry IS 'One row a measured number, as OpenTelemetry shapes them.';
COMMENT ON COLUMN stepwell.telemetry.sampled_at IS 'When it was measured (UTC, worker''s clock).';
COMMENT ON COLUMN stepwell.telemetry.worker_id IS 'Who measured.';
COMMENT ON COLUMN stepwell.telemetry.host IS 'On which machine.';
COMMENT ON COLUMN stepwell.telemetry.sample_seq IS 'Number of the sample (count from 0, per worker).';
COMMENT ON COLUMN stepwell.telemetry.point IS 'Number of the value within the sample (count from 0).';
COMMENT ON COLUMN stepwell.telemetry.metric IS 'Name of the metric, e.g. system.cpu.utilization.';
COMMENT ON COLUMN stepwell.telemetry.unit IS 'Unit of value (UCUM code: 1, s, By, Cel, W).';
COMMENT ON COLUMN stepwell.telemetry.value IS 'The number, in the unit of the column unit.';
COMMENT ON COLUMN stepwell.telemetry.attributes IS 'Attributes, e.g. which GPU (JSON object).';
COMMENT ON COLUMN stepwell.telemetry.episode_id IS 'The episode it belongs to; null where it belongs to none.';
COMMENT ON COLUMN stepwell.telemetry.attempt IS 'Number of the attempt (count from 1); null as episode_id.';

-- --- what it came to ---

CREATE TABLE stepwell.verdicts (
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
    requested_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,
    failure_type text,
    fault text,
    message text NOT NULL,
    labels text[] NOT NULL,
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
    PRIMARY KEY (episode_id, attempt, revision)
);
CREATE INDEX verdicts_run_id ON stepwell.verdicts (run_id);
CREATE INDEX verdicts_policy ON stepwell.verdicts (policy, ended_at DESC);
COMMENT ON TABLE stepwell.verdicts IS 'Every revision of every attempt''s verdict; the view episode_results has the last ones.';
COMMENT ON COLUMN stepwell.verdicts.episode_id IS 'The episode.';
COMMENT ON COLUMN stepwell.verdicts.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN stepwell.verdicts.revision IS 'Number of the revision; a higher one replaces a lower one, numbers may skip.';
COMMENT ON COLUMN stepwell.verdicts.event_id IS 'Identifies the verdict (UUID).';
COMMENT ON COLUMN stepwell.verdicts.run_id IS 'The run.';
COMMENT ON COLUMN stepwell.verdicts.trace_id IS 'W3C trace id (32 hex digits).';
COMMENT ON COLUMN stepwell.verdicts.issued_at IS 'When the deciding event was logged (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.verdicts.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN stepwell.verdicts.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN stepwell.verdicts.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN stepwell.verdicts.task IS 'Simulator and task.';
COMMENT ON COLUMN stepwell.verdicts.scene IS 'Name of the scene.';
COMMENT ON COLUMN stepwell.verdicts.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN stepwell.verdicts.seed IS 'Seed asked for (integer).';
COMMENT ON COLUMN stepwell.verdicts.repetition IS 'Number of the repetition (count from 0).';
COMMENT ON COLUMN stepwell.verdicts.cell IS 'Canonical text of the matrix cell.';
COMMENT ON COLUMN stepwell.verdicts.requested_at IS 'When the attempt was asked for (UTC, producer''s clock); null where unknown.';
COMMENT ON COLUMN stepwell.verdicts.started_at IS 'When the simulator was ready (UTC, producer''s clock); null where it never was.';
COMMENT ON COLUMN stepwell.verdicts.ended_at IS 'When the attempt ended (UTC, producer''s clock).';
COMMENT ON COLUMN stepwell.verdicts.outcome IS 'success, failure, error or aborted; only the first two say something about the policy.';
COMMENT ON COLUMN stepwell.verdicts.failure_type IS 'What went wrong, e.g. task_not_completed; null for a success.';
COMMENT ON COLUMN stepwell.verdicts.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN stepwell.verdicts.message IS 'The first cause, in the words of the component that reported it.';
COMMENT ON COLUMN stepwell.verdicts.labels IS 'What the step rules found, sorted (names).';
COMMENT ON COLUMN stepwell.verdicts.autonomous IS 'Whether no person put a hand in (true or false).';
COMMENT ON COLUMN stepwell.verdicts.n_steps IS 'Steps done (steps).';
COMMENT ON COLUMN stepwell.verdicts.total_reward IS 'Sum of the rewards in the order of the steps (task''s own unit).';
COMMENT ON COLUMN stepwell.verdicts.success_at_end IS 'Whether the task stood achieved after the last step (true or false); null where not told.';
COMMENT ON COLUMN stepwell.verdicts.success_once IS 'Whether it stood achieved after any step (true or false); null where not told.';
COMMENT ON COLUMN stepwell.verdicts.metrics IS 'Named numbers of the attempt, units in the names (JSON object).';
COMMENT ON COLUMN stepwell.verdicts.completeness IS 'complete or incomplete: whether all evidence is in.';
COMMENT ON COLUMN stepwell.verdicts.completeness_notes IS 'Why it is incomplete, e.g. tail unknown (texts).';
COMMENT ON COLUMN stepwell.verdicts.lost IS 'Sequences that never came (JSON array of producer, first, last; at most 64).';
COMMENT ON COLUMN stepwell.verdicts.late IS 'Sequences that came after they had been given up; not in the numbers (JSON array of producer, first, last; at most 64).';
COMMENT ON COLUMN stepwell.verdicts.lost_count IS 'Events that never came (count).';
COMMENT ON COLUMN stepwell.verdicts.late_count IS 'Events that came too late (count).';
COMMENT ON COLUMN stepwell.verdicts.duplicate_count IS 'Events that came again (count).';
COMMENT ON COLUMN stepwell.verdicts.violation_count IS 'Events that broke the protocol (count).';
COMMENT ON COLUMN stepwell.verdicts.nonfinite_count IS 'Events with NaN or infinite actions, observations or rewards (count).';
COMMENT ON COLUMN stepwell.verdicts.source_partition IS 'Partition of stepwell.episode-events that was folded (number).';
COMMENT ON COLUMN stepwell.verdicts.first_offset IS 'First folded event (log offset).';
COMMENT ON COLUMN stepwell.verdicts.last_offset IS 'Last folded event (log offset).';
COMMENT ON COLUMN stepwell.verdicts.fold_hash IS 'Version of the state machine and its configuration (hex digest).';
COMMENT ON COLUMN stepwell.verdicts.rule_set IS 'Name and version of the step rules.';
COMMENT ON COLUMN stepwell.verdicts.schema_fingerprints IS 'Schemas of the folded events, sorted (hex digests).';
COMMENT ON COLUMN stepwell.verdicts.simulator IS 'Name of the simulator, as it reported; empty where it never did.';
COMMENT ON COLUMN stepwell.verdicts.simulator_version IS 'Its version; empty where it never reported.';
COMMENT ON COLUMN stepwell.verdicts.adapter_version IS 'Version of the adapter; empty where it never reported.';
COMMENT ON COLUMN stepwell.verdicts.environment_digest IS 'Digest of the lock file of the simulator''s environment; empty where it never reported.';
COMMENT ON COLUMN stepwell.verdicts.reported_seed IS 'Seed that the simulator reported (integer); null where it never did.';
COMMENT ON COLUMN stepwell.verdicts.reported_checkpoint IS 'Checkpoint that the agent reported; null where it never did.';

CREATE TABLE stepwell.dead_letters (
    source_topic text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    logged_at timestamptz,
    source_key bytea,
    source_value bytea,
    source_headers jsonb NOT NULL,
    episode_id text,
    attempt integer,
    event_type text,
    reported_by text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_topic, source_partition, source_offset, kind)
);
CREATE INDEX dead_letters_episode ON stepwell.dead_letters (episode_id, attempt);
COMMENT ON TABLE stepwell.dead_letters IS 'Records that could not be used, kept whole, with their position and the reason.';
COMMENT ON COLUMN stepwell.dead_letters.source_topic IS 'Topic of the record.';
COMMENT ON COLUMN stepwell.dead_letters.source_partition IS 'Its partition (number).';
COMMENT ON COLUMN stepwell.dead_letters.source_offset IS 'Its position there (log offset).';
COMMENT ON COLUMN stepwell.dead_letters.kind IS 'unreadable, after_seal, violation, or refused (by this database).';
COMMENT ON COLUMN stepwell.dead_letters.reason IS 'Short stable code, e.g. trailing-bytes.';
COMMENT ON COLUMN stepwell.dead_letters.detail IS 'The reason in words.';
COMMENT ON COLUMN stepwell.dead_letters.logged_at IS 'When the log took the record (UTC, log''s clock); null where that is beyond what a timestamp holds.';
COMMENT ON COLUMN stepwell.dead_letters.source_key IS 'Its key (raw bytes).';
COMMENT ON COLUMN stepwell.dead_letters.source_value IS 'Its value (raw bytes).';
COMMENT ON COLUMN stepwell.dead_letters.source_headers IS 'Its headers in order (JSON array of name and value, the value in base64).';
COMMENT ON COLUMN stepwell.dead_letters.episode_id IS 'The episode it speaks of, where that could be read.';
COMMENT ON COLUMN stepwell.dead_letters.attempt IS 'Number of the attempt (count from 1), where that could be read.';
COMMENT ON COLUMN stepwell.dead_letters.event_type IS 'Type of the event, where that could be read.';
COMMENT ON COLUMN stepwell.dead_letters.reported_by IS 'The worker that set it aside.';
COMMENT ON COLUMN stepwell.dead_letters.recorded_at IS 'When this row was written (UTC, database''s clock).';

-- --- from failures to training ---

CREATE TABLE stepwell.failure_patterns (
    trigger_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    detected_at timestamptz NOT NULL,
    rule text NOT NULL,
    rule_version integer NOT NULL,
    rule_key text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    failure_type text NOT NULL,
    evidence jsonb NOT NULL,
    promise text NOT NULL
);
COMMENT ON TABLE stepwell.failure_patterns IS 'Failure patterns that a detector saw, each with its evidence.';
COMMENT ON COLUMN stepwell.failure_patterns.trigger_id IS 'Identifies the trigger (derived from rule, version, key and opening evidence).';
COMMENT ON COLUMN stepwell.failure_patterns.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.failure_patterns.detected_at IS 'When the deciding verdict was logged (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.failure_patterns.rule IS 'Name of the rule.';
COMMENT ON COLUMN stepwell.failure_patterns.rule_version IS 'Version of the rule (number).';
COMMENT ON COLUMN stepwell.failure_patterns.rule_key IS 'What the rule was judged for, e.g. policy=reach-expert.';
COMMENT ON COLUMN stepwell.failure_patterns.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.failure_patterns.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN stepwell.failure_patterns.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN stepwell.failure_patterns.failure_type IS 'The failure type that repeats.';
COMMENT ON COLUMN stepwell.failure_patterns.evidence IS 'The episodes it rests on, with the position of each verdict (JSON array of objects).';
COMMENT ON COLUMN stepwell.failure_patterns.promise IS 'What the rule promises, in words.';

CREATE TABLE stepwell.retrain_requests (
    trigger_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    requested_at timestamptz NOT NULL,
    rule text NOT NULL,
    rule_version integer NOT NULL,
    rule_key text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    failure_type text NOT NULL,
    evidence jsonb NOT NULL,
    sampling_weights jsonb NOT NULL,
    requested_by text NOT NULL,
    withdrawn_at timestamptz,
    withdrawn_reason text
);
COMMENT ON TABLE stepwell.retrain_requests IS 'Requests to retrain a policy; the view retrain_status adds the training services'' answers.';
COMMENT ON COLUMN stepwell.retrain_requests.trigger_id IS 'Identifies the trigger; one effect each.';
COMMENT ON COLUMN stepwell.retrain_requests.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.retrain_requests.requested_at IS 'When it was asked for (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retrain_requests.rule IS 'Name of the rule.';
COMMENT ON COLUMN stepwell.retrain_requests.rule_version IS 'Version of the rule (number).';
COMMENT ON COLUMN stepwell.retrain_requests.rule_key IS 'What the rule was judged for.';
COMMENT ON COLUMN stepwell.retrain_requests.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.retrain_requests.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN stepwell.retrain_requests.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN stepwell.retrain_requests.failure_type IS 'The failure type that repeats.';
COMMENT ON COLUMN stepwell.retrain_requests.evidence IS 'The episodes it rests on (JSON array of objects).';
COMMENT ON COLUMN stepwell.retrain_requests.sampling_weights IS 'Proposed shares of new training data (JSON array of scene, perturbation, weight; the weights sum to 1).';
COMMENT ON COLUMN stepwell.retrain_requests.requested_by IS 'Who asked (detector or person).';
COMMENT ON COLUMN stepwell.retrain_requests.withdrawn_at IS 'When it was withdrawn (UTC, log''s clock); null while it stands.';
COMMENT ON COLUMN stepwell.retrain_requests.withdrawn_reason IS 'Why it was withdrawn.';

CREATE TABLE stepwell.retrain_answers (
    event_id uuid PRIMARY KEY,
    trigger_id text NOT NULL,
    answered_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    policy text NOT NULL,
    trainer text NOT NULL,
    status text NOT NULL,
    new_checkpoint text,
    detail text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX retrain_answers_trigger_id ON stepwell.retrain_answers (trigger_id);
COMMENT ON TABLE stepwell.retrain_answers IS 'What training services answered to retrain requests, every answer.';
COMMENT ON COLUMN stepwell.retrain_answers.event_id IS 'Identifies the answer (UUID).';
COMMENT ON COLUMN stepwell.retrain_answers.trigger_id IS 'The trigger it answers.';
COMMENT ON COLUMN stepwell.retrain_answers.answered_at IS 'When it was given (UTC, training service''s clock).';
COMMENT ON COLUMN stepwell.retrain_answers.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retrain_answers.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.retrain_answers.trainer IS 'The training service that answered.';
COMMENT ON COLUMN stepwell.retrain_answers.status IS 'accepted, done, failed or rejected.';
COMMENT ON COLUMN stepwell.retrain_answers.new_checkpoint IS 'The retrained weights; null where there are none.';
COMMENT ON COLUMN stepwell.retrain_answers.detail IS 'What the service says about it.';
COMMENT ON COLUMN stepwell.retrain_answers.source_partition IS 'Where the answer stands in stepwell.retrain-results (partition number).';
COMMENT ON COLUMN stepwell.retrain_answers.source_offset IS 'Where the answer stands in that partition (log offset).';

-- --- how far we are ---

CREATE TABLE stepwell.sink_offsets (
    sink text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    read_to bigint NOT NULL,
    records bigint NOT NULL DEFAULT 0,
    log_end bigint NOT NULL,
    complete_until timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, topic, partition)
);
COMMENT ON TABLE stepwell.sink_offsets IS 'How far the tables follow the log; moves in one transaction with the rows, so it is the truth.';
COMMENT ON COLUMN stepwell.sink_offsets.sink IS 'Which projector (its group).';
COMMENT ON COLUMN stepwell.sink_offsets.topic IS 'Topic it reads.';
COMMENT ON COLUMN stepwell.sink_offsets.partition IS 'Partition it reads (number).';
COMMENT ON COLUMN stepwell.sink_offsets.next_offset IS 'Everything below is in the tables (log offset).';
COMMENT ON COLUMN stepwell.sink_offsets.read_to IS 'Where the reader stands; from next_offset to here lie only transaction markers (log offset).';
COMMENT ON COLUMN stepwell.sink_offsets.records IS 'Records read so far, the set-aside ones included (count).';
COMMENT ON COLUMN stepwell.sink_offsets.log_end IS 'End of the partition when last looked at (log offset).';
COMMENT ON COLUMN stepwell.sink_offsets.complete_until IS 'Everything logged before this moment is in the tables (UTC, log''s clock); null before the first record.';
COMMENT ON COLUMN stepwell.sink_offsets.seen_at IS 'When this row was last brought up to date (UTC, database''s clock).';

CREATE TABLE stepwell.consumer_positions (
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    log_end bigint NOT NULL,
    complete_until timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic, partition)
);
COMMENT ON TABLE stepwell.consumer_positions IS 'How far the workers before the tables (engine, detectors) are, as the projector sees it on the log.';
COMMENT ON COLUMN stepwell.consumer_positions.consumer IS 'Which workers (their group).';
COMMENT ON COLUMN stepwell.consumer_positions.topic IS 'Topic they read.';
COMMENT ON COLUMN stepwell.consumer_positions.partition IS 'Partition they read (number).';
COMMENT ON COLUMN stepwell.consumer_positions.next_offset IS 'Everything below has been handled (log offset).';
COMMENT ON COLUMN stepwell.consumer_positions.log_end IS 'End of the partition when last looked at (log offset).';
COMMENT ON COLUMN stepwell.consumer_positions.complete_until IS 'Everything logged before this moment has been handled (UTC, projector''s clock); null before it is known.';
COMMENT ON COLUMN stepwell.consumer_positions.seen_at IS 'When this row was last brought up to date (UTC, database''s clock).';

CREATE TABLE stepwell.settings (
    name text PRIMARY KEY,
    value double precision NOT NULL,
    unit text NOT NULL,
    meaning text NOT NULL
);
COMMENT ON TABLE stepwell.settings IS 'Thresholds of the views; change them with UPDATE.';
COMMENT ON COLUMN stepwell.settings.name IS 'Name of the threshold.';
COMMENT ON COLUMN stepwell.settings.value IS 'Its value, in the unit of the column unit.';
COMMENT ON COLUMN stepwell.settings.unit IS 'Unit of value (UCUM code).';
COMMENT ON COLUMN stepwell.settings.meaning IS 'What it decides.';
INSERT INTO stepwell.settings (name, value, unit, meaning) VALUES
    ('stuck_after_s', 30, 's', 'A running attempt counts as stuck when nothing was logged about it for so long.'),
    ('silent_after_s', 30, 's', 'A consumer counts as silent when nobody reported its position for so long.');
