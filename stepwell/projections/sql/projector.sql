-- Queries of the projector. One "-- name:" line opens each entry.

-- name: positions
SELECT topic, partition, next_offset FROM sink_offsets WHERE sink = %(sink)s

-- name: first_position
-- A partition that was never read starts where the log does.
INSERT INTO sink_offsets (sink, topic, partition, next_offset, read_to, log_end)
VALUES (%(sink)s, %(topic)s, %(partition)s, %(low)s, %(low)s, %(log_end)s)
ON CONFLICT DO NOTHING

-- name: advance
-- The position moves only from where the batch was read: of two projectors one wins, the other changes no row.
UPDATE sink_offsets
SET next_offset = %(end)s, read_to = %(end)s, records = records + %(records)s, log_end = greatest(log_end, %(end)s),
    complete_until = greatest(complete_until, timestamptz 'epoch' + %(logged_at)s::bigint * interval '1 microsecond'),
    seen_at = now()
WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND next_offset = %(start)s

-- name: report_own
UPDATE sink_offsets
SET log_end = %(log_end)s, read_to = %(read_to)s, seen_at = now(),
    looked_at = now() - make_interval(secs => %(look_age_s)s), worker_id = %(worker_id)s, waits_for = '',
    events_per_s = %(events_per_s)s, arrives_per_s = %(arrives_per_s)s,
    progressed_at = greatest(progressed_at, timestamptz 'epoch' + %(progressed_at)s::bigint * interval '1 microsecond'),
    complete_until = greatest(complete_until, timestamptz 'epoch' + %(complete_until)s::bigint * interval '1 microsecond')
WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND next_offset = %(next_offset)s

-- name: report_wait
-- We live; what the log says is not known. So neither its end nor the moment of the look is touched.
UPDATE sink_offsets SET seen_at = now(), worker_id = %(worker_id)s, waits_for = %(waits_for)s
WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s

-- name: report_other
INSERT INTO consumer_positions AS p
    (consumer, topic, partition, next_offset, log_end, seen_at, events_per_s, arrives_per_s, progressed_at, complete_until)
VALUES (%(consumer)s, %(topic)s, %(partition)s, %(read_to)s, %(log_end)s,
        now() - make_interval(secs => %(look_age_s)s), %(events_per_s)s, %(arrives_per_s)s,
        timestamptz 'epoch' + %(progressed_at)s::bigint * interval '1 microsecond',
        timestamptz 'epoch' + %(complete_until)s::bigint * interval '1 microsecond')
ON CONFLICT (consumer, topic, partition) DO UPDATE
SET next_offset = EXCLUDED.next_offset, log_end = EXCLUDED.log_end, seen_at = EXCLUDED.seen_at,
    events_per_s = EXCLUDED.events_per_s, arrives_per_s = EXCLUDED.arrives_per_s,
    progressed_at = greatest(p.progressed_at, EXCLUDED.progressed_at),
    complete_until = greatest(p.complete_until, EXCLUDED.complete_until)

-- name: merge_runs
INSERT INTO runs AS r (run_id, requested_by, first_requested_at)
SELECT run_id, requested_by, first_requested_at FROM staging_runs ORDER BY run_id
ON CONFLICT (run_id) DO UPDATE
SET requested_by = EXCLUDED.requested_by, first_requested_at = EXCLUDED.first_requested_at
WHERE (r.first_requested_at, r.requested_by COLLATE "C") > (EXCLUDED.first_requested_at, EXCLUDED.requested_by COLLATE "C")

-- name: merge_attempt_facts
-- The first request and the first claim in the log stand; which of them is here already depends on nothing else.
INSERT INTO episode_attempts AS a
    (episode_id, attempt, run_id, requested_at, retry_reason, from_checkpoint, claimed_at, host, host_pid)
SELECT episode_id, attempt, run_id, requested_at, retry_reason, from_checkpoint, claimed_at, host, host_pid
FROM staging_attempt_facts ORDER BY episode_id, attempt
ON CONFLICT (episode_id, attempt) DO UPDATE SET
    retry_reason = CASE WHEN a.requested_at IS NULL THEN EXCLUDED.retry_reason ELSE a.retry_reason END,
    from_checkpoint = CASE WHEN a.requested_at IS NULL THEN EXCLUDED.from_checkpoint ELSE a.from_checkpoint END,
    requested_at = coalesce(a.requested_at, EXCLUDED.requested_at),
    host = CASE WHEN a.claimed_at IS NULL THEN EXCLUDED.host ELSE a.host END,
    host_pid = CASE WHEN a.claimed_at IS NULL THEN EXCLUDED.host_pid ELSE a.host_pid END,
    claimed_at = coalesce(a.claimed_at, EXCLUDED.claimed_at)

-- name: merge_attempt_status
-- The snapshot that covers most stands; one of the same events by a newer state machine replaces it.
INSERT INTO episode_attempts AS a
    (episode_id, attempt, run_id, phase, paused, since_at, owes, owes_seq, next_step, last_event_at, outcome, revision,
     sealed, first_offset, last_offset, fold_hash)
SELECT episode_id, attempt, run_id, phase, paused, since_at, owes, owes_seq, next_step, last_event_at, outcome, revision,
       sealed, first_offset, last_offset, fold_hash
FROM staging_attempt_status ORDER BY episode_id, attempt
ON CONFLICT (episode_id, attempt) DO UPDATE SET
    phase = EXCLUDED.phase, paused = EXCLUDED.paused, since_at = EXCLUDED.since_at, owes = EXCLUDED.owes,
    owes_seq = EXCLUDED.owes_seq, next_step = EXCLUDED.next_step, last_event_at = EXCLUDED.last_event_at,
    outcome = EXCLUDED.outcome, revision = EXCLUDED.revision, sealed = EXCLUDED.sealed,
    first_offset = EXCLUDED.first_offset, last_offset = EXCLUDED.last_offset, fold_hash = EXCLUDED.fold_hash
WHERE a.last_offset IS NULL OR a.last_offset <= EXCLUDED.last_offset

-- name: merge_worker_status
-- The newest report stands. What went wrong last stays to be seen when the worker was started anew since.
INSERT INTO worker_status AS w
    (worker_id, kind, host, pid, version, started_at, reported_at, report_seq, state, waits_for, last_error, last_error_at,
     last_progress_at, looked_at, logged_at, source_partition, source_offset)
SELECT worker_id, kind, host, pid, version, started_at, reported_at, report_seq, state, waits_for, last_error, last_error_at,
       last_progress_at, looked_at, logged_at, source_partition, source_offset
FROM staging_worker_status ORDER BY worker_id
ON CONFLICT (worker_id) DO UPDATE SET
    kind = EXCLUDED.kind, host = EXCLUDED.host, pid = EXCLUDED.pid, version = EXCLUDED.version,
    started_at = EXCLUDED.started_at, reported_at = EXCLUDED.reported_at, report_seq = EXCLUDED.report_seq,
    state = EXCLUDED.state, waits_for = EXCLUDED.waits_for,
    last_error = CASE WHEN EXCLUDED.last_error_at IS NULL THEN w.last_error ELSE EXCLUDED.last_error END,
    last_error_at = coalesce(EXCLUDED.last_error_at, w.last_error_at),
    last_progress_at = coalesce(EXCLUDED.last_progress_at, w.last_progress_at), looked_at = EXCLUDED.looked_at,
    logged_at = EXCLUDED.logged_at, source_partition = EXCLUDED.source_partition, source_offset = EXCLUDED.source_offset
WHERE (w.logged_at, w.source_offset) < (EXCLUDED.logged_at, EXCLUDED.source_offset)

-- name: merge_worker_partitions
INSERT INTO worker_partitions AS w
    (worker_id, consumer, topic, partition, position, log_end, events_per_s, arrives_per_s, progressed_at, complete_until,
     reported_at, logged_at, source_partition, source_offset)
SELECT worker_id, consumer, topic, partition, position, log_end, events_per_s, arrives_per_s, progressed_at, complete_until,
       reported_at, logged_at, source_partition, source_offset
FROM staging_worker_partitions ORDER BY worker_id, consumer, topic, partition
ON CONFLICT (worker_id, consumer, topic, partition) DO UPDATE SET
    position = EXCLUDED.position, log_end = EXCLUDED.log_end, events_per_s = EXCLUDED.events_per_s,
    arrives_per_s = EXCLUDED.arrives_per_s, progressed_at = coalesce(EXCLUDED.progressed_at, w.progressed_at),
    complete_until = EXCLUDED.complete_until, reported_at = EXCLUDED.reported_at, logged_at = EXCLUDED.logged_at,
    source_partition = EXCLUDED.source_partition, source_offset = EXCLUDED.source_offset
WHERE (w.logged_at, w.source_offset) < (EXCLUDED.logged_at, EXCLUDED.source_offset)

-- name: merge_telemetry_series
-- The same series comes in several partitions; in one order, so that two projectors never wait for each other in a circle.
INSERT INTO telemetry_series (series_id, metric, unit, kind, temporality, worker_id, host, resource, scope, attributes)
SELECT series_id, metric, unit, kind, temporality, worker_id, host, resource, scope, attributes
FROM staging_telemetry_series ORDER BY series_id
ON CONFLICT (series_id) DO NOTHING
