-- What was measured, in one row, and beside the simulator's steps. docs/telemetry.md shows each with an example.

CREATE OR REPLACE VIEW stepwell.telemetry AS
SELECT p.sampled_at, s.worker_id, s.host, s.metric, s.unit, s.kind, p.value,
       CASE WHEN s.kind = 'histogram' THEN p.value / nullif((p.distribution ->> 'count')::double precision, 0)
            ELSE p.value END AS mean,
       s.attributes, nullif(p.episode_id, '') AS episode_id, nullif(p.attempt, 0) AS attempt,
       s.resource, s.scope, s.temporality, p.started_at, p.distribution, p.series_id, p.logged_at
FROM stepwell.telemetry_points p JOIN stepwell.telemetry_series s USING (series_id);
COMMENT ON VIEW stepwell.telemetry IS 'Every measured number with what it is of. mean is the value, of a histogram the sum divided by the count.';

CREATE OR REPLACE VIEW stepwell.step_telemetry AS
SELECT a.episode_id, a.attempt, st.step, st.occurred_at, st.step_wall_s, s.metric, s.unit, s.kind,
       CASE WHEN s.kind = 'histogram' THEN p.value / nullif((p.distribution ->> 'count')::double precision, 0)
            ELSE p.value END AS value,
       s.worker_id, s.host, s.attributes, p.sampled_at,
       extract(epoch FROM st.occurred_at - p.sampled_at)::double precision AS age_s,
       s.series_id
FROM stepwell.episode_attempts a
CROSS JOIN (SELECT make_interval(secs => value) AS length FROM stepwell.settings WHERE name = 'sample_window_s') w
CROSS JOIN LATERAL (
    -- What was measured on the machine that ran the attempt, and what was measured for the attempt anywhere.
    SELECT series_id FROM stepwell.telemetry_series WHERE host = a.host
    UNION
    SELECT series_id FROM stepwell.telemetry_points
    WHERE episode_id = a.episode_id AND episode_id <> '' AND attempt IN (a.attempt, 0)
      AND sampled_at >= coalesce(a.claimed_at, a.requested_at, '-infinity') - w.length
      AND sampled_at <= CASE WHEN a.phase IN ('EPISODE_DONE', 'FAILED', 'ABORTED') THEN a.last_event_at + w.length
                        ELSE 'infinity' END
) c
JOIN stepwell.telemetry_series s USING (series_id)
JOIN stepwell.steps st ON st.episode_id = a.episode_id AND st.attempt = a.attempt
CROSS JOIN LATERAL (
    -- The window that holds the step, where the series has windows (delta); else the nearest sample before it.
    SELECT * FROM stepwell.telemetry_points t
    WHERE t.series_id = s.series_id
      AND t.sampled_at > st.occurred_at - w.length
      AND t.sampled_at <= st.occurred_at + CASE WHEN s.temporality = 'delta' THEN w.length ELSE interval '0' END
      AND t.started_at <= st.occurred_at
      AND ((t.episode_id = st.episode_id AND t.attempt IN (st.attempt, 0)) OR (t.episode_id = '' AND s.host = a.host))
    ORDER BY t.sampled_at DESC, t.started_at DESC LIMIT 1
) p;
COMMENT ON VIEW stepwell.step_telemetry IS 'For each simulator step and series the sample of that moment: of the episode itself, or of the machine that ran it. Ask for some episodes and metrics, not for all.';
