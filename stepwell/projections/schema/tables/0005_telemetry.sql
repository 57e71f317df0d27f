-- What was measured: series (what), points (when and how much), spans.

CREATE TABLE telemetry_series (
    series_id bigint PRIMARY KEY,
    metric text NOT NULL,
    unit text NOT NULL,
    kind text NOT NULL,
    temporality text NOT NULL,
    worker_id text NOT NULL,
    host text NOT NULL,
    resource jsonb NOT NULL,
    scope text NOT NULL,
    attributes jsonb NOT NULL
);
CREATE INDEX telemetry_series_metric ON telemetry_series (metric, host);
COMMENT ON TABLE telemetry_series IS 'One row a series: all that its points have in common. Made from what it says of itself, so nobody assigns the numbers.';
COMMENT ON COLUMN telemetry_series.series_id IS 'First 8 bytes of SHA-256 over all other columns (signed number).';
COMMENT ON COLUMN telemetry_series.metric IS 'Name of the metric, e.g. system.cpu.utilization.';
COMMENT ON COLUMN telemetry_series.unit IS 'Unit of its values (UCUM code: 1, s, By, Cel, W).';
COMMENT ON COLUMN telemetry_series.kind IS 'gauge, counter (only grows), up_down_counter or histogram.';
COMMENT ON COLUMN telemetry_series.temporality IS 'none (gauges), delta (since the last point) or cumulative (since started_at).';
COMMENT ON COLUMN telemetry_series.worker_id IS 'Who measured.';
COMMENT ON COLUMN telemetry_series.host IS 'On which machine.';
COMMENT ON COLUMN telemetry_series.resource IS 'What else the sender says of itself (JSON object of texts).';
COMMENT ON COLUMN telemetry_series.scope IS 'Name and version of the instrumentation; may be empty.';
COMMENT ON COLUMN telemetry_series.attributes IS 'What the number is about, e.g. which GPU (JSON object of texts).';

CREATE TABLE telemetry_points (
    sampled_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    series_id bigint NOT NULL,
    value double precision NOT NULL,
    measurements bigint,
    distribution jsonb,
    episode_id text NOT NULL DEFAULT '',
    attempt integer NOT NULL DEFAULT 0,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (series_id, sampled_at, started_at, episode_id, attempt),
    -- A clock that is decades off would open a chunk of its own for every row.
    CONSTRAINT telemetry_points_sampled_at_plausible CHECK (sampled_at >= '2000-01-01 00:00+00' AND sampled_at < '2100-01-01 00:00+00')
);
CREATE INDEX telemetry_points_sampled_at ON telemetry_points USING brin (sampled_at);
CREATE INDEX telemetry_points_episode ON telemetry_points (episode_id, sampled_at) WHERE episode_id <> '';
COMMENT ON TABLE telemetry_points IS 'One row a measured number; the view telemetry joins what it is of.';
COMMENT ON COLUMN telemetry_points.sampled_at IS 'When it was measured (UTC, sender''s clock).';
COMMENT ON COLUMN telemetry_points.started_at IS 'Since when a counter or histogram counts (UTC, sender''s clock); the same as sampled_at for gauges.';
COMMENT ON COLUMN telemetry_points.series_id IS 'What it is of (number in telemetry_series).';
COMMENT ON COLUMN telemetry_points.value IS 'The number (unit of its series); of a histogram the sum. NaN and infinities are kept.';
COMMENT ON COLUMN telemetry_points.measurements IS 'What value is the sum of (number of measurements): 1, of a histogram its count. Null where values must not be added up: cumulative counters and histograms tell all since started_at, and some histograms do not tell their count.';
COMMENT ON COLUMN telemetry_points.distribution IS 'Of a histogram: count, min, max, bounds (upper ends, in the unit of the series) and counts, one more than bounds (JSON object); else null.';
COMMENT ON COLUMN telemetry_points.episode_id IS 'The episode it belongs to; empty where it belongs to none.';
COMMENT ON COLUMN telemetry_points.attempt IS 'Number of the attempt (count from 1); 0 where it belongs to none.';
COMMENT ON COLUMN telemetry_points.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN telemetry_points.source_partition IS 'Where it stands in stepwell.telemetry (partition number).';
COMMENT ON COLUMN telemetry_points.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE spans (
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    trace_id text NOT NULL,
    span_id text NOT NULL,
    parent_span_id text,
    name text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    status_message text NOT NULL,
    worker_id text NOT NULL,
    host text NOT NULL,
    resource jsonb NOT NULL,
    scope text NOT NULL,
    attributes jsonb NOT NULL,
    events jsonb NOT NULL,
    links jsonb NOT NULL,
    episode_id text NOT NULL DEFAULT '',
    attempt integer NOT NULL DEFAULT 0,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (trace_id, span_id, started_at),
    CONSTRAINT spans_started_at_plausible CHECK (started_at >= '2000-01-01 00:00+00' AND started_at < '2100-01-01 00:00+00')
);
CREATE INDEX spans_started_at ON spans USING brin (started_at);
CREATE INDEX spans_episode ON spans (episode_id, started_at) WHERE episode_id <> '';
COMMENT ON TABLE spans IS 'One row a span: an operation with its beginning and end, as OpenTelemetry''s SDKs send them.';
COMMENT ON COLUMN spans.started_at IS 'When it began (UTC, sender''s clock).';
COMMENT ON COLUMN spans.ended_at IS 'When it ended (UTC, sender''s clock).';
COMMENT ON COLUMN spans.trace_id IS 'Its trace (W3C id, hexadecimal); an attempt''s own is in verdicts.trace_id.';
COMMENT ON COLUMN spans.span_id IS 'Identifies it within the trace (W3C id, hexadecimal).';
COMMENT ON COLUMN spans.parent_span_id IS 'The span within which it was done; null for the first of a trace.';
COMMENT ON COLUMN spans.name IS 'What was done.';
COMMENT ON COLUMN spans.kind IS 'internal, server, client, producer or consumer.';
COMMENT ON COLUMN spans.status IS 'unset, ok or error.';
COMMENT ON COLUMN spans.status_message IS 'Why, where it is an error.';
COMMENT ON COLUMN spans.worker_id IS 'Who did it.';
COMMENT ON COLUMN spans.host IS 'On which machine.';
COMMENT ON COLUMN spans.resource IS 'What else the sender says of itself (JSON object of texts).';
COMMENT ON COLUMN spans.scope IS 'Name and version of the instrumentation; may be empty.';
COMMENT ON COLUMN spans.attributes IS 'What is said of it (JSON object of texts).';
COMMENT ON COLUMN spans.events IS 'What happened meanwhile: name, at_us (µs since 1970 UTC), attributes (JSON array).';
COMMENT ON COLUMN spans.links IS 'Other spans that it has to do with: trace_id, span_id, attributes (JSON array).';
COMMENT ON COLUMN spans.episode_id IS 'The episode it belongs to; empty where it belongs to none.';
COMMENT ON COLUMN spans.attempt IS 'Number of the attempt (count from 1); 0 where it belongs to none.';
COMMENT ON COLUMN spans.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN spans.source_partition IS 'Where it stands in stepwell.telemetry (partition number).';
COMMENT ON COLUMN spans.source_offset IS 'Where it stands in that partition (log offset).';
