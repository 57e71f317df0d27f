-- What was planned, and how far it is. docs/database.md explains how the tables hang together.
-- Times are timestamptz (microseconds); every table and column says in its comment what it holds and in which unit. No
-- foreign keys: hypertables bear none, and the topics that feed the tables arrive independently of each other.

CREATE TABLE runs (
    run_id text PRIMARY KEY,
    requested_by text NOT NULL,
    first_requested_at timestamptz NOT NULL
);
COMMENT ON TABLE runs IS 'One row a run; the view run_summary counts what came of it.';
COMMENT ON COLUMN runs.run_id IS 'Identifies the run (text).';
COMMENT ON COLUMN runs.requested_by IS 'Who asked for the first of its episodes (name).';
COMMENT ON COLUMN runs.first_requested_at IS 'When its first episode was asked for (UTC, producer''s clock).';

CREATE TABLE episodes (
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
    definition jsonb,
    purpose text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX episodes_run_id ON episodes (run_id);
COMMENT ON TABLE episodes IS 'One row an episode that was asked for: one cell of a run''s matrix, one repetition.';
COMMENT ON COLUMN episodes.episode_id IS 'Identifies the episode (text).';
COMMENT ON COLUMN episodes.run_id IS 'The run it was planned in.';
COMMENT ON COLUMN episodes.task IS 'Simulator and task, e.g. metaworld/reach-v3.';
COMMENT ON COLUMN episodes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN episodes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN episodes.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN episodes.scene IS 'Name of the scene.';
COMMENT ON COLUMN episodes.perturbation IS 'Name of the perturbation applied; none for the plain cell.';
COMMENT ON COLUMN episodes.seed IS 'Seed asked for (integer).';
COMMENT ON COLUMN episodes.repetition IS 'Number of the repetition (count from 0).';
COMMENT ON COLUMN episodes.cell IS 'Canonical text of the matrix cell.';
COMMENT ON COLUMN episodes.max_steps IS 'The step budget (steps).';
COMMENT ON COLUMN episodes.requested_by IS 'Who asked for it (name).';
COMMENT ON COLUMN episodes.requested_at IS 'When it was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN episodes.trace_id IS 'W3C trace id (32 hex digits).';
COMMENT ON COLUMN episodes.source_partition IS 'Partition of stepwell.episode-events that holds all its facts (number).';
COMMENT ON COLUMN episodes.source_offset IS 'Offset of its request there (log offset).';
COMMENT ON COLUMN episodes.purpose IS 'What the episode is run for: evaluation, or regression (to judge a retrained checkpoint).';
COMMENT ON COLUMN episodes.definition IS 'Scene, policy and perturbation as the task spec defines them (JSON object; text that is no JSON stands as a JSON string); null where not told.';

CREATE TABLE episode_attempts (
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
CREATE INDEX episode_attempts_run_id ON episode_attempts (run_id);
CREATE INDEX episode_attempts_live ON episode_attempts (phase)
    WHERE phase NOT IN ('EPISODE_DONE', 'FAILED', 'ABORTED');
COMMENT ON TABLE episode_attempts IS 'Run status: one row an attempt, as of the state machine''s last snapshot.';
COMMENT ON COLUMN episode_attempts.episode_id IS 'The episode.';
COMMENT ON COLUMN episode_attempts.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN episode_attempts.run_id IS 'The run it belongs to.';
COMMENT ON COLUMN episode_attempts.requested_at IS 'When the attempt was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN episode_attempts.retry_reason IS 'Why it was asked for again; null for attempt 1.';
COMMENT ON COLUMN episode_attempts.from_checkpoint IS 'Checkpoint (URI) it starts from; null when from the beginning.';
COMMENT ON COLUMN episode_attempts.claimed_at IS 'When a host took it (UTC, host''s clock); null while nobody has.';
COMMENT ON COLUMN episode_attempts.host IS 'Name of the host that took it.';
COMMENT ON COLUMN episode_attempts.host_pid IS 'Process id there (number).';
COMMENT ON COLUMN episode_attempts.phase IS 'State of the state machine, e.g. AGENT_RUNNING; REQUESTED before its first snapshot.';
COMMENT ON COLUMN episode_attempts.paused IS 'Whether the host holds it still (true or false).';
COMMENT ON COLUMN episode_attempts.since_at IS 'When it entered that phase (UTC, log''s clock).';
COMMENT ON COLUMN episode_attempts.owes IS 'Who owes the next event: sim, agent or host; null once ended.';
COMMENT ON COLUMN episode_attempts.owes_seq IS 'The sequence number that is owed (count from 0).';
COMMENT ON COLUMN episode_attempts.next_step IS 'Steps done, as of the snapshot (steps).';
COMMENT ON COLUMN episode_attempts.last_event_at IS 'When it last took something in, as of the snapshot (UTC, log''s clock); a repeated or refused fact and a report of silence do not count.';
COMMENT ON COLUMN episode_attempts.outcome IS 'success, failure, error or aborted; null while it runs.';
COMMENT ON COLUMN episode_attempts.revision IS 'Revision of its verdict (number).';
COMMENT ON COLUMN episode_attempts.sealed IS 'Whether it is closed for good (true or false).';
COMMENT ON COLUMN episode_attempts.first_offset IS 'First of its events in the log (log offset).';
COMMENT ON COLUMN episode_attempts.last_offset IS 'Last of its events that the snapshot covers (log offset).';
COMMENT ON COLUMN episode_attempts.fold_hash IS 'Version of the state machine that made the snapshot (hex digest).';
