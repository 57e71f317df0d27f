-- How far the tables follow the log, and how far the workers before them are.

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
COMMENT ON COLUMN sink_offsets.seen_at IS 'When this row was last brought up to date (UTC, database''s clock).';

CREATE TABLE consumer_positions (
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    log_end bigint NOT NULL,
    complete_until timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic, partition)
);
COMMENT ON TABLE consumer_positions IS 'How far the workers before the tables (engine, detectors) are, as the projector sees it on the log.';
COMMENT ON COLUMN consumer_positions.consumer IS 'Which workers (their group).';
COMMENT ON COLUMN consumer_positions.topic IS 'Topic they read.';
COMMENT ON COLUMN consumer_positions.partition IS 'Partition they read (number).';
COMMENT ON COLUMN consumer_positions.next_offset IS 'Everything below has been handled (log offset).';
COMMENT ON COLUMN consumer_positions.log_end IS 'End of the partition when last looked at (log offset).';
COMMENT ON COLUMN consumer_positions.complete_until IS 'Everything logged before this moment has been handled (UTC, projector''s clock); null before it is known.';
COMMENT ON COLUMN consumer_positions.seen_at IS 'When this row was last brought up to date (UTC, database''s clock).';
