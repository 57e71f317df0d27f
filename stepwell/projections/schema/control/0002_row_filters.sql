-- Which rows each team sees. While this table is empty, every reader sees all rows.

CREATE TABLE stepwell.row_filters (
    role text PRIMARY KEY,
    runs text NOT NULL DEFAULT '%',
    policies text NOT NULL DEFAULT '%',
    requested_by text NOT NULL DEFAULT '%',
    fleet boolean NOT NULL DEFAULT false,
    set_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stepwell.row_filters IS 'Which rows the views show to the members of each role; set by stepwell db roles --filter. A reader whom no filter names sees none, as soon as there is one.';
COMMENT ON COLUMN stepwell.row_filters.role IS 'Name of the role.';
COMMENT ON COLUMN stepwell.row_filters.runs IS 'Which runs (LIKE pattern on run_id).';
COMMENT ON COLUMN stepwell.row_filters.policies IS 'Which policies (LIKE pattern on their names).';
COMMENT ON COLUMN stepwell.row_filters.requested_by IS 'Whose episodes (LIKE pattern on who asked for them).';
COMMENT ON COLUMN stepwell.row_filters.fleet IS 'Whether also what belongs to no episode: telemetry of machines, dead letters (true or false).';
COMMENT ON COLUMN stepwell.row_filters.set_at IS 'When it was set (UTC, database''s clock).';
