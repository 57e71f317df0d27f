-- What retention has taken away.

CREATE TABLE stepwell.retirements (
    schema text NOT NULL REFERENCES stepwell.generations (name) ON DELETE CASCADE,
    relation text NOT NULL,
    range_start timestamptz NOT NULL,
    range_end timestamptz NOT NULL,
    logged_before timestamptz NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schema, relation, range_start, range_end)
);
COMMENT ON TABLE stepwell.retirements IS 'What retention has taken away: rows of that range of time that were logged before that moment. Sums are never refreshed from what is left there.';
COMMENT ON COLUMN stepwell.retirements.schema IS 'The generation that holds it.';
COMMENT ON COLUMN stepwell.retirements.relation IS 'Name of the table.';
COMMENT ON COLUMN stepwell.retirements.range_start IS 'Start of the range of the table''s own time (UTC).';
COMMENT ON COLUMN stepwell.retirements.range_end IS 'End of the range, which is not part of it (UTC).';
COMMENT ON COLUMN stepwell.retirements.logged_before IS 'Everything that went was logged before (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retirements.retired_at IS 'When that was (UTC, database''s clock).';
