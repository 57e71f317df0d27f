-- When upkeep was done by command. On plain tables nobody else does it.

CREATE TABLE stepwell.upkeep_runs (
    storage text PRIMARY KEY,
    ended_at timestamptz NOT NULL
);
COMMENT ON TABLE stepwell.upkeep_runs IS 'When stepwell db upkeep last came to its end; written by it.';
COMMENT ON COLUMN stepwell.upkeep_runs.storage IS 'How the tables were kept: hypertables or plain.';
COMMENT ON COLUMN stepwell.upkeep_runs.ended_at IS 'When it ended (UTC, database''s clock).';
