-- The three questions of operations: what runs, what is stuck, how far behind we are.
-- What the tables say holds as of a moment. While the projector is down or behind, that moment is long past, and silence
-- since then is the projector's, not the episode's: the views count up to it and no further.

CREATE OR REPLACE VIEW stepwell.partition_freshness AS
-- A clock that is ahead says nothing of the future; least() alone would take null for it.
SELECT topic, partition, CASE WHEN max(complete_until) > now() THEN now() ELSE max(complete_until) END AS as_of,
       max(seen_at) AS seen_at
FROM stepwell.sink_offsets GROUP BY topic, partition;
COMMENT ON VIEW stepwell.partition_freshness IS 'Until when each partition of the log is in the tables, and when a projector last reported it.';

CREATE OR REPLACE VIEW stepwell.projection_freshness AS
SELECT as_of, extract(epoch FROM now() - as_of)::double precision AS age_s, seen_at,
       CASE WHEN seen_at IS NULL OR now() - seen_at > patience THEN 'silent'
            WHEN as_of IS NULL OR now() - as_of > patience THEN 'behind' ELSE 'current' END AS state
FROM (
    -- A partition of which nothing is known yet leaves the whole unknown.
    SELECT CASE WHEN count(*) = count(as_of) THEN min(as_of) END AS as_of, min(seen_at) AS seen_at,
           (SELECT make_interval(secs => value) FROM stepwell.settings WHERE name = 'silent_after_s') AS patience
    FROM stepwell.partition_freshness
    WHERE topic IN ('stepwell.episode-events', 'stepwell.episode-snapshots', 'stepwell.policy-events')
) AS known;
COMMENT ON VIEW stepwell.projection_freshness IS 'One row: the moment as of which the tables of episodes hold, its age (s), the oldest report, and the state: current, behind, or silent when no projector reports.';

CREATE OR REPLACE VIEW stepwell.running_now AS
WITH known AS (
    SELECT partition, CASE WHEN count(*) = count(as_of) THEN min(as_of) END AS as_of
    FROM stepwell.partition_freshness
    WHERE topic IN ('stepwell.episode-events', 'stepwell.episode-snapshots') GROUP BY partition
)
SELECT a.run_id, a.episode_id, a.attempt, e.policy, e.task, e.scene, e.perturbation, a.host,
       a.phase, a.paused, a.since_at AS phase_since,
       coalesce(a.owes, 'sim') AS owes,
       greatest(a.next_step, steps.next_step) AS steps_done, e.max_steps,
       last.fact_at AS last_fact_at,
       extract(epoch FROM until.as_of - least(last.fact_at, until.as_of))::double precision AS idle_s,
       extract(epoch FROM until.as_of - least(coalesce(a.claimed_at, a.since_at), until.as_of))::double precision AS running_s,
       until.as_of
FROM stepwell.episode_attempts a
LEFT JOIN stepwell.episodes e USING (episode_id)
LEFT JOIN known ON known.partition = e.source_partition
CROSS JOIN stepwell.projection_freshness every
CROSS JOIN LATERAL (SELECT coalesce(known.as_of, every.as_of) AS as_of) until
-- A snapshot may be a minute old; the facts themselves are not.
CROSS JOIN LATERAL (SELECT max(s.step) + 1 AS next_step, max(s.logged_at) AS logged_at FROM stepwell.steps s
                    WHERE s.episode_id = a.episode_id AND s.attempt = a.attempt) steps
CROSS JOIN LATERAL (SELECT max(c.logged_at) AS logged_at FROM stepwell.actions c
                    WHERE c.episode_id = a.episode_id AND c.attempt = a.attempt) actions
CROSS JOIN LATERAL (SELECT greatest(a.last_event_at, a.since_at, a.claimed_at, steps.logged_at, actions.logged_at) AS fact_at) last
WHERE a.phase NOT IN ('EPISODE_DONE', 'FAILED', 'ABORTED') AND NOT a.sealed
  AND (a.claimed_at IS NOT NULL OR a.phase NOT IN ('REQUESTED', 'INIT'))
  -- The verdict comes by another topic and can be here first.
  AND NOT EXISTS (SELECT FROM stepwell.verdicts v WHERE v.episode_id = a.episode_id AND v.attempt = a.attempt);
COMMENT ON VIEW stepwell.running_now IS 'What is running, as of the moment as_of: one row an attempt that a host has taken and that has not ended. Durations (s) count up to as_of and are null while that is unknown.';

CREATE OR REPLACE VIEW stepwell.stuck_episodes AS
SELECT r.run_id, r.episode_id, r.attempt, r.policy, r.task, r.scene, r.host, r.phase, r.paused,
       r.owes AS stuck_on, r.last_fact_at AS stuck_since, r.idle_s AS stuck_s, r.steps_done, r.max_steps, r.as_of
FROM stepwell.running_now r
WHERE r.idle_s > (SELECT value FROM stepwell.settings WHERE name = 'stuck_after_s');
COMMENT ON VIEW stepwell.stuck_episodes IS 'What is stuck, as of the moment as_of: on whom (sim, agent or host), since when and for how long (s).';

CREATE OR REPLACE VIEW stepwell.workers AS
WITH known AS (
    -- Until when the reports are in the tables: what a worker said later is not known, and is no silence of its own.
    SELECT least(coalesce(min(as_of), now()), now()) AS as_of,
           (SELECT make_interval(secs => value) FROM stepwell.settings WHERE name = 'silent_after_s') AS patience
    FROM stepwell.partition_freshness WHERE topic = 'stepwell.telemetry'
)
SELECT w.worker_id, w.kind, w.host, w.pid, w.version,
       CASE WHEN w.state NOT IN ('stopped', 'failed') AND w.logged_at < k.as_of - k.patience THEN 'silent' ELSE w.state END AS state,
       CASE WHEN w.logged_at >= k.as_of - k.patience THEN w.waits_for ELSE '' END AS waits_for,
       w.last_error, w.last_error_at, w.last_progress_at, w.started_at, w.reported_at, w.logged_at AS heard_at,
       extract(epoch FROM now() - w.logged_at)::double precision AS heard_s_ago, k.as_of
FROM stepwell.worker_status w CROSS JOIN known k;
COMMENT ON VIEW stepwell.workers IS 'One row a worker, as of the moment as_of: its state as it said last (starting, running, waiting, stopping, stopped, failed), or silent when nothing was heard of it for silent_after_s.';

CREATE OR REPLACE VIEW stepwell.pipeline_lag AS
WITH limits AS (
    SELECT make_interval(secs => max(value) FILTER (WHERE name = 'silent_after_s')) AS silent_after,
           make_interval(secs => max(value) FILTER (WHERE name = 'stalled_after_s')) AS stalled_after,
           make_interval(secs => max(value) FILTER (WHERE name = 'lag_fresh_s')) AS fresh
    FROM stepwell.settings
), owners AS (
    SELECT DISTINCT ON (consumer, topic, partition) consumer, topic, partition, worker_id
    FROM stepwell.worker_partitions ORDER BY consumer, topic, partition, logged_at DESC, source_offset DESC
), positions AS (
    SELECT sink AS consumer, topic, partition, nullif(worker_id, '') AS worker_id, next_offset,
           greatest(next_offset, read_to) AS read_to, log_end, complete_until, seen_at, looked_at, events_per_s,
           arrives_per_s, progressed_at, waits_for, true AS tells_itself
    FROM stepwell.sink_offsets
    UNION ALL
    SELECT p.consumer, p.topic, p.partition, o.worker_id, p.next_offset, p.next_offset, p.log_end, p.complete_until,
           p.seen_at, p.seen_at, p.events_per_s, p.arrives_per_s, p.progressed_at, '', false
    FROM stepwell.consumer_positions p LEFT JOIN owners o USING (consumer, topic, partition)
), judged AS (
    SELECT p.*, greatest(p.log_end - p.read_to, 0) AS behind_events, w.last_error, w.last_error_at,
           now() - p.seen_at > l.silent_after AS unseen, now() - least(p.looked_at, p.seen_at) <= l.fresh AS fresh,
           now() - greatest(p.progressed_at, p.complete_until) > l.stalled_after AS still,
           -- Of a projector its own row knows more, and sooner.
           CASE WHEN p.tells_itself THEN p.waits_for
                WHEN w.state IN ('silent', 'failed', 'stopped') THEN format('a worker: %s is %s', w.worker_id, w.state)
                ELSE coalesce(w.waits_for, '') END AS wants,
           NOT p.tells_itself AND w.state IN ('silent', 'failed', 'stopped') AS deserted
    FROM positions p CROSS JOIN limits l LEFT JOIN stepwell.workers w ON w.worker_id = p.worker_id
)
SELECT consumer, topic, partition, worker_id, next_offset, log_end, behind_events,
       CASE WHEN behind_events = 0 AND fresh THEN 0
            ELSE extract(epoch FROM now() - complete_until)::double precision END AS behind_s,
       events_per_s,
       CASE WHEN unseen OR deserted THEN 'silent' WHEN wants <> '' THEN 'waiting'
            WHEN behind_events = 0 AND fresh THEN 'caught up'
            WHEN behind_events > 0 AND still THEN 'stalled' ELSE 'behind' END AS state,
       progressed_at, wants AS waits_for, coalesce(last_error, '') AS last_error, last_error_at, complete_until, seen_at,
       looked_at, arrives_per_s,
       CASE WHEN behind_events = 0 AND fresh THEN 0
            WHEN NOT unseen AND events_per_s > arrives_per_s THEN behind_events / (events_per_s - arrives_per_s) END AS catch_up_s
FROM judged;
COMMENT ON VIEW stepwell.pipeline_lag IS 'How far behind each consumer is in each partition, in events (on Kafka an upper bound: markers count) and in seconds, as of looked_at. state: silent (nobody reports, or the worker that has it is gone: it may be more), waiting (waits_for says for what), stalled (behind, and nothing moved for stalled_after_s), behind, or caught up (as of a look within lag_fresh_s). catch_up_s: when it will be caught up at this rate (s); null for never.';

CREATE OR REPLACE VIEW stepwell.upkeep AS
SELECT h.storage, u.ended_at, extract(epoch FROM now() - u.ended_at)::double precision AS ended_s_ago
FROM (SELECT storage FROM stepwell.generations WHERE state = 'active' ORDER BY made_at DESC, name DESC LIMIT 1) AS h
LEFT JOIN stepwell.upkeep_runs u USING (storage);
COMMENT ON VIEW stepwell.upkeep IS 'One row: how the tables are kept, and when stepwell db upkeep last came to its end; null for never. On plain tables it must run once a day; on hypertables jobs of TimescaleDB do the same.';
