-- Queries of stepwell/projections/schema/public_views.py. One "-- name:" line opens each entry.

-- name: made
SELECT sha256 FROM stepwell.made_views WHERE name = 'all'

-- name: note
INSERT INTO stepwell.made_views (name, sha256) VALUES ('all', %(sha256)s)
ON CONFLICT (name) DO UPDATE SET sha256 = EXCLUDED.sha256

-- name: there
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'stepwell' AND c.relkind = 'v' ORDER BY c.relname
