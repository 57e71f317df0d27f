-- What happened in the episodes: one row a fact, in the order of the log.

CREATE TABLE steps (
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
CREATE INDEX steps_occurred_at ON steps USING brin (occurred_at);
COMMENT ON TABLE steps IS 'One row a simulator step, as reported (sim::step_done). The view step_log leaves out what no verdict counts.';
COMMENT ON COLUMN steps.occurred_at IS 'When the step was done (UTC, simulator''s clock).';
COMMENT ON COLUMN steps.logged_at IS 'When the log took the fact (UTC, log''s clock).';
COMMENT ON COLUMN steps.episode_id IS 'The episode.';
COMMENT ON COLUMN steps.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN steps.step IS 'Number of the step (count from 0).';
COMMENT ON COLUMN steps.producer_id IS 'Incarnation of the simulator that reported it.';
COMMENT ON COLUMN steps.producer_seq IS 'The simulator''s own count (from 0, per attempt).';
COMMENT ON COLUMN steps.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN steps.action_seq IS 'producer_seq of the action it applied (count from 0).';
COMMENT ON COLUMN steps.sim_time IS 'Simulated time since the episode''s start (s); null where unknown.';
COMMENT ON COLUMN steps.reward IS 'Reward of the step (task''s own unit); NaN and infinities are kept.';
COMMENT ON COLUMN steps.success IS 'Whether the task stands achieved after the step (true or false); null where not told.';
COMMENT ON COLUMN steps.terminated IS 'Whether the simulator ended the episode by its rules (true or false).';
COMMENT ON COLUMN steps.truncated IS 'Whether the simulator cut the episode short (true or false).';
COMMENT ON COLUMN steps.step_wall_s IS 'Wall time that the simulator took (s); null where not told.';
COMMENT ON COLUMN steps.metrics IS 'Named numbers, units in the names; NaN and infinities as text (JSON object).';
COMMENT ON COLUMN steps.state_digest IS 'Digest of the simulator''s full state (bytes); null where not told.';
COMMENT ON COLUMN steps.source_partition IS 'Where the fact stands in stepwell.episode-events (partition number).';
COMMENT ON COLUMN steps.source_offset IS 'Where the fact stands in that partition (log offset).';

CREATE TABLE actions (
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
CREATE INDEX actions_occurred_at ON actions USING brin (occurred_at);
COMMENT ON TABLE actions IS 'One row an action chunk, as sent by the policy (agent::action_sent).';
COMMENT ON COLUMN actions.occurred_at IS 'When it was sent (UTC, agent''s clock).';
COMMENT ON COLUMN actions.logged_at IS 'When the log took the fact (UTC, log''s clock).';
COMMENT ON COLUMN actions.episode_id IS 'The episode.';
COMMENT ON COLUMN actions.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN actions.first_step IS 'First step it is for (count from 0).';
COMMENT ON COLUMN actions.n_steps IS 'For how many steps it is (steps).';
COMMENT ON COLUMN actions.producer_id IS 'Incarnation of the agent that sent it.';
COMMENT ON COLUMN actions.producer_seq IS 'The agent''s own count (from 0, per attempt).';
COMMENT ON COLUMN actions.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN actions.sim_time IS 'Simulated time since the episode''s start (s); null where unknown.';
COMMENT ON COLUMN actions.observed_step IS 'The observation it was computed from (count from 0); null where not told.';
COMMENT ON COLUMN actions.inference_s IS 'Time that the policy took (s); null where not told.';
COMMENT ON COLUMN actions.shape IS 'Lengths of the action array''s axes (elements); the first is n_steps.';
COMMENT ON COLUMN actions.action IS 'The array''s elements in C order (task''s own units); NaN and infinities are kept; null where not in the log.';
COMMENT ON COLUMN actions.action_uri IS 'Where the array lies when it is not in the log (URI).';
COMMENT ON COLUMN actions.source_partition IS 'Where the fact stands in stepwell.episode-events (partition number).';
COMMENT ON COLUMN actions.source_offset IS 'Where the fact stands in that partition (log offset).';
