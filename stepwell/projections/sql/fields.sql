-- Queries of stepwell/projections/on_read/views.py and fields.py. One "-- name:" line opens each entry.

-- name: make_schema
CREATE SCHEMA IF NOT EXISTS stepwell_views

-- name: there
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'stepwell_views' AND c.relkind = 'v' ORDER BY c.relname

-- name: fields
SELECT view, column_name, path, kind, from_at::text, until_at::text, kind || ' ' || to_jsonb(path)::text,
       concat('Key ', to_jsonb(path)::text, ', ', kind, '. ' || nullif(meaning, ''), ' From ' || from_at::text || ' on.',
              ' Until ' || until_at::text || '.')
FROM stepwell.fields ORDER BY view, field

-- name: fields_view
CREATE OR REPLACE VIEW stepwell_views.fields AS
SELECT f.view, f.column_name, f.path, f.kind, m.metric, m.unit, f.meaning, f.from_at, f.until_at, f.first_seen, f.last_seen
FROM stepwell.fields f LEFT JOIN stepwell.metric_views m USING (view);
COMMENT ON VIEW stepwell_views.fields IS 'Every column of these views: which key and kind of value it shows, since when and until when a look has found it, and what it means.'

-- name: metric_views
SELECT view, metric, unit, kind FROM stepwell.metric_views ORDER BY view

-- name: exists
SELECT to_regclass('stepwell.' || quote_ident(%(relation)s)) IS NOT NULL

-- name: step_metrics
-- The newest episodes of each task and policy, and the last steps of each; with null limits all of them.
WITH newest AS MATERIALIZED (
    SELECT episode_id FROM (
        SELECT episode_id, requested_at, row_number() OVER (PARTITION BY task, policy ORDER BY requested_at DESC) AS place
        FROM stepwell.episodes) AS placed
    WHERE %(each)s::bigint IS NULL OR place <= %(each)s
    ORDER BY requested_at DESC LIMIT %(episodes)s
)
SELECT ARRAY[l.key], stepwell.json_kind(l.value), count(*), min(s.occurred_at), max(s.occurred_at)
FROM newest n
CROSS JOIN LATERAL (SELECT t.metrics, t.occurred_at FROM stepwell.steps t WHERE t.episode_id = n.episode_id
                    ORDER BY t.attempt DESC, t.producer_seq DESC LIMIT %(rows)s) s
CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(s.metrics) = 'object' THEN s.metrics ELSE '{}' END) l
WHERE jsonb_typeof(l.value) <> 'null' GROUP BY 1, 2

-- name: verdict_metrics
WITH newest AS MATERIALIZED (
    SELECT episode_id FROM (
        SELECT episode_id, requested_at, row_number() OVER (PARTITION BY task, policy ORDER BY requested_at DESC) AS place
        FROM stepwell.episodes) AS placed
    WHERE %(each)s::bigint IS NULL OR place <= %(each)s
    ORDER BY requested_at DESC LIMIT %(episodes)s
)
SELECT ARRAY[l.key], stepwell.json_kind(l.value), count(*), min(v.ended_at), max(v.ended_at)
FROM newest n JOIN stepwell.verdicts v USING (episode_id)
CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(v.metrics) = 'object' THEN v.metrics ELSE '{}' END) l
WHERE jsonb_typeof(l.value) <> 'null' GROUP BY 1, 2

-- name: episode_definitions
WITH newest AS MATERIALIZED (
    SELECT definition, requested_at FROM (
        SELECT definition, requested_at, row_number() OVER (PARTITION BY task, policy ORDER BY requested_at DESC) AS place
        FROM stepwell.episodes) AS placed
    WHERE %(each)s::bigint IS NULL OR place <= %(each)s
    ORDER BY requested_at DESC LIMIT %(episodes)s
)
SELECT l.path, stepwell.json_kind(l.value), count(*), min(n.requested_at), max(n.requested_at)
FROM newest n CROSS JOIN LATERAL stepwell.json_leaves(n.definition, %(depth)s) l
WHERE jsonb_typeof(l.value) <> 'null' GROUP BY 1, 2

-- name: span_attributes
-- Those of the newest episodes, and of no episode those of the last hours that have any.
WITH newest AS MATERIALIZED (
    SELECT episode_id FROM (
        SELECT episode_id, requested_at, row_number() OVER (PARTITION BY task, policy ORDER BY requested_at DESC) AS place
        FROM stepwell.episodes) AS placed
    WHERE %(each)s::bigint IS NULL OR place <= %(each)s
    ORDER BY requested_at DESC LIMIT %(episodes)s
), looked AS (
    SELECT s.attributes, s.started_at FROM newest n
    CROSS JOIN LATERAL (SELECT t.attributes, t.started_at FROM stepwell.spans t
                        WHERE t.episode_id = n.episode_id AND t.episode_id <> '' LIMIT %(rows)s) s
    UNION ALL
    SELECT t.attributes, t.started_at FROM stepwell.spans t
    WHERE t.episode_id = '' AND (%(since)s::timestamptz IS NULL OR t.started_at >= %(since)s)
)
SELECT ARRAY[l.key], stepwell.json_kind(l.value), count(*), min(s.started_at), max(s.started_at)
FROM looked s CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(s.attributes) = 'object' THEN s.attributes ELSE '{}' END) l
WHERE jsonb_typeof(l.value) <> 'null' GROUP BY 1, 2

-- name: metrics
-- The dictionary of series is small; each series' first and last point come from the key.
SELECT s.metric, s.unit, s.kind, l.path, l.kind, count(*), min(first.at), max(last.at)
FROM stepwell.telemetry_series s
CROSS JOIN LATERAL (SELECT p.sampled_at AS at FROM stepwell.telemetry_points p WHERE p.series_id = s.series_id
                    ORDER BY p.sampled_at LIMIT 1) first
CROSS JOIN LATERAL (SELECT p.sampled_at AS at FROM stepwell.telemetry_points p WHERE p.series_id = s.series_id
                    ORDER BY p.sampled_at DESC LIMIT 1) last
LEFT JOIN LATERAL (SELECT e.path, stepwell.json_kind(e.value) AS kind FROM stepwell.json_leaves(s.attributes, 1) e
                   WHERE jsonb_typeof(e.value) <> 'null') l ON true
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, min(first.at), 2, 3, 4, 5

-- name: known_fields
SELECT field, view, path, kind, column_name FROM stepwell.fields WHERE until_at IS NULL ORDER BY field

-- name: column_names
SELECT view, column_name FROM stepwell.fields

-- name: add_field
INSERT INTO stepwell.fields (view, column_name, path, kind, from_at, first_seen, last_seen, meaning)
VALUES (%(view)s, %(column)s, %(path)s, %(kind)s, %(from_at)s, %(first)s, %(last)s, %(meaning)s)

-- name: saw_field
UPDATE stepwell.fields SET first_seen = least(first_seen, %(first)s), last_seen = greatest(last_seen, %(last)s)
WHERE field = %(field)s

-- name: add_metric_view
INSERT INTO stepwell.metric_views (view, metric, unit, kind) VALUES (%(view)s, %(metric)s, %(unit)s, %(kind)s)

-- name: describe
UPDATE stepwell.fields SET meaning = %(meaning)s WHERE view = %(view)s AND column_name = %(column)s

-- name: one_field
SELECT field, path, kind, from_at, first_seen, last_seen FROM stepwell.fields
WHERE view = %(view)s AND column_name = %(column)s AND until_at IS NULL

-- name: end_field
UPDATE stepwell.fields SET until_at = %(at)s, last_seen = least(last_seen, %(at)s) WHERE field = %(field)s

-- name: shown
SELECT view, column_name, path, kind, from_at, until_at, first_seen, last_seen, meaning,
       to_regclass(format('stepwell_views.%I', view)) IS NOT NULL
FROM stepwell.fields ORDER BY view, field
