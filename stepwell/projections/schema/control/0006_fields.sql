-- What has been seen in JSON columns and in telemetry: the views of the schema stepwell_views are made from it.

CREATE TABLE stepwell.metric_views (
    view text PRIMARY KEY,
    metric text NOT NULL,
    unit text NOT NULL,
    kind text NOT NULL,
    UNIQUE (metric, unit, kind)
);
COMMENT ON TABLE stepwell.metric_views IS 'Which view of stepwell_views shows which metric: one for each unit and kind that a metric has had.';
COMMENT ON COLUMN stepwell.metric_views.view IS 'Name of the view.';
COMMENT ON COLUMN stepwell.metric_views.metric IS 'Name of the metric.';
COMMENT ON COLUMN stepwell.metric_views.unit IS 'Its unit (UCUM code).';
COMMENT ON COLUMN stepwell.metric_views.kind IS 'gauge, counter, up_down_counter or histogram.';

CREATE TABLE stepwell.fields (
    field bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    view text NOT NULL,
    column_name text NOT NULL,
    path text[] NOT NULL,
    kind text NOT NULL CHECK (kind IN ('number', 'text', 'boolean', 'json')),
    from_at timestamptz,
    until_at timestamptz,
    first_seen timestamptz NOT NULL,
    last_seen timestamptz NOT NULL,
    meaning text NOT NULL DEFAULT '',
    UNIQUE (view, column_name)
);
COMMENT ON TABLE stepwell.fields IS 'The columns of the views of stepwell_views: one for each key and kind of value that was ever seen. A column keeps its name and type for good.';
COMMENT ON COLUMN stepwell.fields.field IS 'Number of the field (count from 1): the order of the columns.';
COMMENT ON COLUMN stepwell.fields.view IS 'Name of the view.';
COMMENT ON COLUMN stepwell.fields.column_name IS 'Name of its column.';
COMMENT ON COLUMN stepwell.fields.path IS 'The key, and in nested objects the keys on the way to it (texts).';
COMMENT ON COLUMN stepwell.fields.kind IS 'What the column holds: number (double precision; NaN and infinities too), text, boolean, or json (arrays, objects, numbers beyond doubles).';
COMMENT ON COLUMN stepwell.fields.from_at IS 'The column shows values from this moment on (UTC, clock of the view''s time column); null: from the first on.';
COMMENT ON COLUMN stepwell.fields.until_at IS 'The column shows values before this moment (UTC, clock of the view''s time column); null: to the last.';
COMMENT ON COLUMN stepwell.fields.first_seen IS 'Earliest time at which a look has found it (UTC, clock of the rows looked at).';
COMMENT ON COLUMN stepwell.fields.last_seen IS 'Latest time at which a look has found it (UTC, clock of the rows looked at).';
COMMENT ON COLUMN stepwell.fields.meaning IS 'What it means, in the words of whoever described it; empty before.';
