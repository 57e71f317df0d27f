-- What is derived from the facts as they are written, and what keeps sums over them true.

CREATE TABLE verdict_changes (
    at timestamptz NOT NULL,
    episode_id text NOT NULL,
    change integer NOT NULL,
    sign integer NOT NULL,
    attempt integer NOT NULL,
    revision integer NOT NULL,
    run_id text NOT NULL,
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
    n_steps integer NOT NULL,
    issued_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (episode_id, change, at),
    CONSTRAINT verdict_changes_sign CHECK (sign IN (-1, 1)),
    CONSTRAINT verdict_changes_at_plausible CHECK (at >= '2000-01-01 00:00+00' AND at < '2100-01-01 00:00+00')
);
CREATE INDEX verdict_changes_at ON verdict_changes USING brin (at);
COMMENT ON TABLE verdict_changes IS 'How it came that the verdicts which count are what they are: -1 for the one that no longer counts, +1 for the one that does. Sums of sign over any dimensions are numbers of episodes.';
COMMENT ON COLUMN verdict_changes.at IS 'When the attempt was asked for; else when it started, else when it ended: the first of them between 2000 and 2100, else when the verdict was issued (UTC).';
COMMENT ON COLUMN verdict_changes.episode_id IS 'The episode.';
COMMENT ON COLUMN verdict_changes.change IS 'Number of the change (count from 1, per episode).';
COMMENT ON COLUMN verdict_changes.sign IS '+1: the verdict counts from here on; -1: it no longer does (number).';
COMMENT ON COLUMN verdict_changes.attempt IS 'The attempt that the verdict is about (count from 1).';
COMMENT ON COLUMN verdict_changes.revision IS 'The revision of the verdict (number).';
COMMENT ON COLUMN verdict_changes.run_id IS 'The run.';
COMMENT ON COLUMN verdict_changes.policy IS 'Name of the policy under test.';
COMMENT ON COLUMN verdict_changes.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN verdict_changes.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN verdict_changes.task IS 'Simulator and task.';
COMMENT ON COLUMN verdict_changes.scene IS 'Name of the scene.';
COMMENT ON COLUMN verdict_changes.perturbation IS 'Name of the perturbation; none for the plain cell.';
COMMENT ON COLUMN verdict_changes.purpose IS 'What the episode was run for: evaluation, or regression.';
COMMENT ON COLUMN verdict_changes.outcome IS 'success, failure, error or aborted.';
COMMENT ON COLUMN verdict_changes.failure_type IS 'What went wrong; null for a success.';
COMMENT ON COLUMN verdict_changes.fault IS 'Whose fault: policy, simulator, infrastructure or operator; null for a success.';
COMMENT ON COLUMN verdict_changes.n_steps IS 'Steps done (steps).';
COMMENT ON COLUMN verdict_changes.issued_at IS 'When the verdict''s deciding event was logged (UTC, log''s clock).';
COMMENT ON COLUMN verdict_changes.logged_at IS 'When the log took the verdict that made the change (UTC, log''s clock).';
COMMENT ON COLUMN verdict_changes.source_partition IS 'Where that verdict stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN verdict_changes.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE step_gaps (
    episode_id text NOT NULL,
    attempt integer NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    PRIMARY KEY (episode_id, attempt)
);
COMMENT ON TABLE step_gaps IS 'Attempts whose steps came before their request or claim: the sums over their steps are put right when that comes.';
COMMENT ON COLUMN step_gaps.episode_id IS 'The episode.';
COMMENT ON COLUMN step_gaps.attempt IS 'Number of the attempt (count from 1).';
COMMENT ON COLUMN step_gaps.first_at IS 'The earliest of those steps (UTC, simulator''s clock).';
COMMENT ON COLUMN step_gaps.last_at IS 'The latest of them (UTC, simulator''s clock).';
