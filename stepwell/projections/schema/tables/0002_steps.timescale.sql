-- Why one day a chunk: docs/decisions/0021-hypertables.md.
SELECT create_hypertable('steps'::regclass, by_range('occurred_at', INTERVAL '1 day'), create_default_indexes => false);
SELECT create_hypertable('actions'::regclass, by_range('occurred_at', INTERVAL '1 day'), create_default_indexes => false);
