-- Queries of stepwell/projections/schema/generations.py. One "-- name:" line opens each entry.

-- name: enter
-- The number is arbitrary and ours: writers hold it shared, whoever moves the tables holds it alone.
SELECT pg_advisory_xact_lock_shared(5783366172), set_config('search_path', %(path)s, true)

-- name: show
SELECT set_config('search_path', %(path)s, true)

-- name: lock
SELECT pg_advisory_xact_lock(5783366172)

-- name: homes
SELECT array_agg(name ORDER BY made_at DESC, name DESC), (array_agg(storage ORDER BY made_at DESC, name DESC))[1]
FROM stepwell.generations WHERE state = 'active'

-- name: has_timescale
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'timescaledb')

-- name: next_name
SELECT 'stepwell_g' || coalesce(max(substr(name, length('stepwell_g') + 1)::integer), 0) + 1 FROM stepwell.generations

-- name: new_generation
INSERT INTO stepwell.generations (name, storage, state, relations, made_from, made_by, made_at)
VALUES (%(name)s, %(storage)s, 'building', %(relations)s, %(made_from)s, %(made_by)s, clock_timestamp())

-- name: file_path
-- The extension's functions are found wherever it was put.
SELECT set_config('search_path', concat_ws(', ', quote_ident(%(schema)s), 'stepwell',
    (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
     WHERE e.extname = 'timescaledb')), true)

-- name: relations
SELECT c.relname, array_agg(a.attname ORDER BY a.attnum), array_agg(col_description(c.oid, a.attnum) ORDER BY a.attnum),
       obj_description(c.oid, 'pg_class')
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %(schema)s::text AND c.relkind IN ('r', 'p', 'v')
GROUP BY c.oid, c.relname ORDER BY c.relname

-- name: take_homes
INSERT INTO stepwell.homes (relation, schema)
SELECT c.relname, %(schema)s::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s::text AND c.relkind IN ('r', 'p', 'v')
ON CONFLICT (relation) DO UPDATE SET schema = EXCLUDED.schema

-- name: settle_states
UPDATE stepwell.generations AS g
SET state = CASE WHEN EXISTS (SELECT FROM stepwell.homes h WHERE h.schema = g.name) THEN 'active' ELSE 'retired' END,
    activated_at = coalesce(activated_at, CASE WHEN EXISTS (SELECT FROM stepwell.homes h WHERE h.schema = g.name) THEN now() END),
    retired_at = CASE WHEN NOT EXISTS (SELECT FROM stepwell.homes h WHERE h.schema = g.name) THEN now() END
WHERE state = 'active' OR EXISTS (SELECT FROM stepwell.homes h WHERE h.schema = g.name)

-- name: homes_of_relations
SELECT relation, schema FROM stepwell.homes ORDER BY relation
