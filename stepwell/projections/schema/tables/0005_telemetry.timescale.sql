-- Why one day a chunk: docs/decisions/0021-hypertables.md.
SELECT create_hypertable('telemetry'::regclass, by_range('sampled_at', INTERVAL '1 day'), create_default_indexes => false);
