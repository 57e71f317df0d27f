-- What was measured.

CREATE TABLE telemetry (
    sampled_at timestamptz NOT NULL,
    worker_id text NOT NULL,
    host text NOT NULL,
    sample_seq bigint NOT NULL,
    point integer NOT NULL,
    metric text NOT NULL,
    unit text NOT NULL,
    value double precision NOT NULL,
    attributes jsonb NOT NULL,
    episode_id text,
    attempt integer,
    PRIMARY KEY (worker_id, sample_seq, point, sampled_at),
    CONSTRAINT telemetry_sampled_at_plausible CHECK (sampled_at >= '2000-01-01 00:00+00' AND sampled_at < '2100-01-01 00:00+00')
);
CREATE INDEX telemetry_metric ON telemetry (metric, sampled_at DESC);
COMMENT ON TABLE telemetry IS 'One row a measured number, as OpenTelemetry shapes them.';
COMMENT ON COLUMN telemetry.sampled_at IS 'When it was measured (UTC, worker''s clock).';
COMMENT ON COLUMN telemetry.worker_id IS 'Who measured.';
COMMENT ON COLUMN telemetry.host IS 'On which machine.';
COMMENT ON COLUMN telemetry.sample_seq IS 'Number of the sample (count from 0, per worker).';
COMMENT ON COLUMN telemetry.point IS 'Number of the value within the sample (count from 0).';
COMMENT ON COLUMN telemetry.metric IS 'Name of the metric, e.g. system.cpu.utilization.';
COMMENT ON COLUMN telemetry.unit IS 'Unit of value (UCUM code: 1, s, By, Cel, W).';
COMMENT ON COLUMN telemetry.value IS 'The number, in the unit of the column unit.';
COMMENT ON COLUMN telemetry.attributes IS 'Attributes, e.g. which GPU (JSON object).';
COMMENT ON COLUMN telemetry.episode_id IS 'The episode it belongs to; null where it belongs to none.';
COMMENT ON COLUMN telemetry.attempt IS 'Number of the attempt (count from 1); null as episode_id.';
