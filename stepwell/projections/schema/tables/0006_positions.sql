-- How far the tables follow the log, how far the workers before them are, and what each worker says of itself.

CREATE TABLE sink_offsets (
    sink text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    read_to bigint NOT NULL,
    records bigint NOT NULL DEFAULT 0,
    log_end bigint NOT NULL,
    complete_until timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    looked_at timestamptz NOT NULL DEFAULT now(),
    events_per_s double precision,
    arrives_per_s double precision,
    progressed_at timestamptz,
    worker_id text NOT NULL DEFAULT '',
    waits_for text NOT NULL DEFAULT '',
    PRIMARY KEY (sink, topic, partition)
);
COMMENT ON TABLE sink_offsets IS 'How far the tables follow the log; moves in one transaction with the rows, so it is the truth.';
COMMENT ON COLUMN sink_offsets.sink IS 'Which projector (its group).';
COMMENT ON COLUMN sink_offsets.topic IS 'Topic it reads.';
COMMENT ON COLUMN sink_offsets.partition IS 'Partition it reads (number).';
COMMENT ON COLUMN sink_offsets.next_offset IS 'Everything below is in the tables (log offset).';
COMMENT ON COLUMN sink_offsets.read_to IS 'Where the reader stands; from next_offset to here lie only transaction markers (log offset).';
COMMENT ON COLUMN sink_offsets.records IS 'Records read so far, the set-aside ones included (count).';
COMMENT ON COLUMN sink_offsets.log_end IS 'End of the partition when last looked at (log offset).';
COMMENT ON COLUMN sink_offsets.complete_until IS 'Everything logged before this moment is in the tables (UTC, log''s clock); null before the first record.';
COMMENT ON COLUMN sink_offsets.seen_at IS 'When a projector last wrote this row (UTC, database''s clock).';
COMMENT ON COLUMN sink_offsets.looked_at IS 'When the log was asked for log_end (UTC, database''s clock).';
COMMENT ON COLUMN sink_offsets.events_per_s IS 'Offsets passed a second over the last minute before looked_at (1/s); null while not known.';
COMMENT ON COLUMN sink_offsets.arrives_per_s IS 'Offsets appended a second over the same time (1/s); null while not known.';
COMMENT ON COLUMN sink_offsets.progressed_at IS 'When the position was last seen to have moved (UTC, projector''s clock); null before.';
COMMENT ON COLUMN sink_offsets.worker_id IS 'The projector that wrote this row last; empty before its first report.';
COMMENT ON COLUMN sink_offsets.waits_for IS 'What that projector waits for, and why; empty for nothing.';

CREATE TABLE consumer_positions (
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    log_end bigint NOT NULL,
    complete_until timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    events_per_s double precision,
    arrives_per_s double precision,
    progressed_at timestamptz,
    PRIMARY KEY (consumer, topic, partition)
);
COMMENT ON TABLE consumer_positions IS 'How far the workers before the tables (engine, detectors) are, as the projector sees it on the log.';
COMMENT ON COLUMN consumer_positions.consumer IS 'Which workers (their group).';
COMMENT ON COLUMN consumer_positions.topic IS 'Topic they read.';
COMMENT ON COLUMN consumer_positions.partition IS 'Partition they read (number).';
COMMENT ON COLUMN consumer_positions.next_offset IS 'Everything below has been handled (log offset).';
COMMENT ON COLUMN consumer_positions.log_end IS 'End of the partition when last looked at (log offset).';
COMMENT ON COLUMN consumer_positions.complete_until IS 'Everything logged before this moment has been handled (UTC, projector''s clock); null before it is known.';
COMMENT ON COLUMN consumer_positions.seen_at IS 'When the log was asked for both (UTC, database''s clock).';
COMMENT ON COLUMN consumer_positions.events_per_s IS 'Offsets passed a second over the last minute before seen_at (1/s); null while not known.';
COMMENT ON COLUMN consumer_positions.arrives_per_s IS 'Offsets appended a second over the same time (1/s); null while not known.';
COMMENT ON COLUMN consumer_positions.progressed_at IS 'When the position was last seen to have moved (UTC, projector''s clock); null before.';

CREATE TABLE worker_status (
    worker_id text PRIMARY KEY,
    kind text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    version text NOT NULL,
    started_at timestamptz NOT NULL,
    reported_at timestamptz NOT NULL,
    report_seq bigint NOT NULL,
    state text NOT NULL,
    waits_for text NOT NULL,
    last_error text NOT NULL,
    last_error_at timestamptz,
    last_progress_at timestamptz,
    looked_at timestamptz,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
COMMENT ON TABLE worker_status IS 'What each worker said of itself last (worker::reported). The view workers adds whether it is still heard of.';
COMMENT ON COLUMN worker_status.worker_id IS 'The worker, e.g. stepwell-engine-0.';
COMMENT ON COLUMN worker_status.kind IS 'What it does: engine, detector, projector, otlp.';
COMMENT ON COLUMN worker_status.host IS 'Name of its machine.';
COMMENT ON COLUMN worker_status.pid IS 'Process id there (number).';
COMMENT ON COLUMN worker_status.version IS 'Version of Stepwell that it runs.';
COMMENT ON COLUMN worker_status.started_at IS 'When the process started (UTC, worker''s clock).';
COMMENT ON COLUMN worker_status.reported_at IS 'When it said this (UTC, worker''s clock).';
COMMENT ON COLUMN worker_status.report_seq IS 'The process''s own number of reports (count from 0).';
COMMENT ON COLUMN worker_status.state IS 'starting, running, waiting, stopping, stopped or failed.';
COMMENT ON COLUMN worker_status.waits_for IS 'What it waits for, and why; empty for nothing.';
COMMENT ON COLUMN worker_status.last_error IS 'The last thing that went wrong, in this process or in the ones before it under the same name; empty for nothing.';
COMMENT ON COLUMN worker_status.last_error_at IS 'When that was (UTC, worker''s clock).';
COMMENT ON COLUMN worker_status.last_progress_at IS 'When a position of it last moved (UTC, worker''s clock); null for not yet.';
COMMENT ON COLUMN worker_status.looked_at IS 'When it last saw where the log ends (UTC, worker''s clock); null for not yet.';
COMMENT ON COLUMN worker_status.logged_at IS 'When the report was appended to the log (UTC, log''s clock).';
COMMENT ON COLUMN worker_status.source_partition IS 'Partition of stepwell.telemetry (number).';
COMMENT ON COLUMN worker_status.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE worker_partitions (
    worker_id text NOT NULL,
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    log_end bigint,
    events_per_s double precision,
    arrives_per_s double precision,
    progressed_at timestamptz,
    complete_until timestamptz,
    reported_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    PRIMARY KEY (worker_id, consumer, topic, partition)
);
COMMENT ON TABLE worker_partitions IS 'What each worker said last of each partition that it has or had; the newest row of a partition tells who has it.';
COMMENT ON COLUMN worker_partitions.worker_id IS 'The worker.';
COMMENT ON COLUMN worker_partitions.consumer IS 'The group that it reads for.';
COMMENT ON COLUMN worker_partitions.topic IS 'The topic.';
COMMENT ON COLUMN worker_partitions.partition IS 'The partition (number).';
COMMENT ON COLUMN worker_partitions.position IS 'Everything below is processed (log offset).';
COMMENT ON COLUMN worker_partitions.log_end IS 'Where the partition ended when the worker last looked (log offset); null before.';
COMMENT ON COLUMN worker_partitions.events_per_s IS 'Offsets passed a second over the last minute (1/s); null while not known.';
COMMENT ON COLUMN worker_partitions.arrives_per_s IS 'Offsets appended a second over the last minute (1/s); null while not known.';
COMMENT ON COLUMN worker_partitions.progressed_at IS 'When the position last moved (UTC, worker''s clock); null for not yet.';
COMMENT ON COLUMN worker_partitions.complete_until IS 'Everything logged before this moment is processed (UTC, worker''s clock); null while not known.';
COMMENT ON COLUMN worker_partitions.reported_at IS 'When it said this (UTC, worker''s clock).';
COMMENT ON COLUMN worker_partitions.logged_at IS 'When the report was appended to the log (UTC, log''s clock).';
COMMENT ON COLUMN worker_partitions.source_partition IS 'Partition of stepwell.telemetry (number).';
COMMENT ON COLUMN worker_partitions.source_offset IS 'Where it stands in that partition (log offset).';
