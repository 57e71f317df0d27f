-- How the making of each new generation goes.

CREATE TABLE stepwell.rebuilds (
    generation text PRIMARY KEY REFERENCES stepwell.generations (name),
    step text NOT NULL CHECK (step IN ('filling', 'carrying over', 'comparing', 'handing over', 'dropping', 'done', 'cancelled')),
    keep_old boolean NOT NULL DEFAULT false,
    runner text NOT NULL,
    backend_pid integer NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    cancel_asked boolean NOT NULL DEFAULT false,
    carried jsonb NOT NULL DEFAULT '{}',
    compared jsonb NOT NULL DEFAULT '{}',
    differences jsonb NOT NULL DEFAULT '[]',
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    handed_over_at timestamptz,
    ended_at timestamptz
);
CREATE UNIQUE INDEX rebuilds_one_at_a_time ON stepwell.rebuilds ((true)) WHERE ended_at IS NULL;
COMMENT ON TABLE stepwell.rebuilds IS 'One row a rebuild of the tables (stepwell db rebuild): how far it is, and what it found.';
COMMENT ON COLUMN stepwell.rebuilds.generation IS 'The generation that it makes.';
COMMENT ON COLUMN stepwell.rebuilds.step IS 'filling, carrying over, comparing, handing over, dropping (the views show the new tables already), done or cancelled.';
COMMENT ON COLUMN stepwell.rebuilds.keep_old IS 'Whether the old tables stay when it is done (true or false).';
COMMENT ON COLUMN stepwell.rebuilds.runner IS 'The process that worked on it last: host and process id.';
COMMENT ON COLUMN stepwell.rebuilds.backend_pid IS 'Process id of that process''s connection on the server (number).';
COMMENT ON COLUMN stepwell.rebuilds.seen_at IS 'When that process last said that it lives (UTC, database''s clock).';
COMMENT ON COLUMN stepwell.rebuilds.cancel_asked IS 'Whether somebody asked to give it up (true or false).';
COMMENT ON COLUMN stepwell.rebuilds.carried IS 'Rows that the log no longer tells and that were taken over from the old tables (JSON object of table and count of rows).';
COMMENT ON COLUMN stepwell.rebuilds.compared IS 'Rows that the last comparison found in the old tables (JSON object of table and count of rows).';
COMMENT ON COLUMN stepwell.rebuilds.differences IS 'What the last comparison found to differ, a sentence a table (JSON array of texts).';
COMMENT ON COLUMN stepwell.rebuilds.started_at IS 'When it was begun (UTC, database''s clock).';
COMMENT ON COLUMN stepwell.rebuilds.handed_over_at IS 'When the views were pointed at the new tables (UTC, database''s clock); null before.';
COMMENT ON COLUMN stepwell.rebuilds.ended_at IS 'When it was done or cancelled (UTC, database''s clock); null before.';
