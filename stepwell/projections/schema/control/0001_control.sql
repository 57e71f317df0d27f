-- What stands beside the tables: which generation of them is in force, and thresholds of the views.

CREATE TABLE stepwell.generations (
    name text PRIMARY KEY CHECK (name ~ '^stepwell_g[1-9][0-9]*$'),
    storage text NOT NULL CHECK (storage IN ('hypertables', 'plain')),
    state text NOT NULL CHECK (state IN ('building', 'active', 'retired')),
    relations text[],
    made_from text NOT NULL,
    made_by text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    activated_at timestamptz,
    retired_at timestamptz
);
COMMENT ON TABLE stepwell.generations IS 'Each set of the tables: a schema of its own. One that is being built is not seen by the views until it is activated.';
COMMENT ON COLUMN stepwell.generations.name IS 'Name of its schema.';
COMMENT ON COLUMN stepwell.generations.storage IS 'hypertables (TimescaleDB) or plain.';
COMMENT ON COLUMN stepwell.generations.state IS 'building, active (the views show at least one of its tables), or retired (none).';
COMMENT ON COLUMN stepwell.generations.relations IS 'The tables that it is made for (names); null for all.';
COMMENT ON COLUMN stepwell.generations.made_from IS 'What fills it: live (it was there from the start), log or archive.';
COMMENT ON COLUMN stepwell.generations.made_by IS 'Version of Stepwell that made it.';
COMMENT ON COLUMN stepwell.generations.made_at IS 'When it was made (UTC, database''s clock).';
COMMENT ON COLUMN stepwell.generations.activated_at IS 'When the views were pointed at it (UTC, database''s clock); null before.';
COMMENT ON COLUMN stepwell.generations.retired_at IS 'When the views were pointed elsewhere (UTC, database''s clock); null before.';

CREATE TABLE stepwell.homes (
    relation text PRIMARY KEY,
    schema text NOT NULL REFERENCES stepwell.generations (name)
);
COMMENT ON TABLE stepwell.homes IS 'In which generation each table lives; the view of the same name shows it. Changed under the exclusive lock that every writer holds shared.';
COMMENT ON COLUMN stepwell.homes.relation IS 'Name of the table, and of its view.';
COMMENT ON COLUMN stepwell.homes.schema IS 'The generation that holds it.';

CREATE TABLE stepwell.made_views (
    name text PRIMARY KEY,
    sha256 text NOT NULL
);
COMMENT ON TABLE stepwell.made_views IS 'From which files the views were made.';
COMMENT ON COLUMN stepwell.made_views.name IS 'What the views are made of, e.g. all.';
COMMENT ON COLUMN stepwell.made_views.sha256 IS 'Digest of those files as they were used (hex).';

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
    ('silent_after_s', 30, 's', 'A consumer or worker counts as silent when nothing was heard of it for so long.'),
    ('stalled_after_s', 60, 's', 'A consumer that is behind counts as stalled when its position has not moved for so long.'),
    ('lag_fresh_s', 10, 's', 'A consumer counts as caught up only while the log was looked at within so long.'),
    ('sample_window_s', 5, 's', 'A sample counts as of the moment of a simulator step when it was taken within so long.');
