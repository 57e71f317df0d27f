-- Why 30 days a chunk: docs/decisions/0021-hypertables.md.
SELECT create_hypertable('dead_letters'::regclass, by_range('logged_at', INTERVAL '30 days'), create_default_indexes => false);
