-- Why one day a chunk: docs/decisions/0021-hypertables.md.
SELECT create_hypertable('telemetry_points'::regclass, by_range('sampled_at', INTERVAL '1 day'), create_default_indexes => false);
SELECT create_hypertable('spans'::regclass, by_range('started_at', INTERVAL '1 day'), create_default_indexes => false);
