-- What the generated views of stepwell_views read JSON with. None of these fails, whatever the JSON holds.

CREATE OR REPLACE FUNCTION stepwell.json_kind(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- JSON has no NaN and no infinities: they stand as text. More than 300 digits may be beyond what a double holds.
    SELECT CASE jsonb_typeof(value)
        WHEN 'number' THEN CASE WHEN length(value #>> '{}') <= 300 THEN 'number' ELSE 'json' END
        WHEN 'string' THEN CASE WHEN value #>> '{}' IN ('nan', 'inf', '-inf', 'NaN', 'Infinity', '-Infinity') THEN 'number' ELSE 'text' END
        WHEN 'boolean' THEN 'boolean' WHEN 'object' THEN 'json' WHEN 'array' THEN 'json' END
$$;
COMMENT ON FUNCTION stepwell.json_kind(jsonb) IS 'number, text, boolean or json: in which kind of column a value stands; null for a JSON null.';

CREATE OR REPLACE FUNCTION stepwell.json_number(value jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE stepwell.json_kind(value) WHEN 'number' THEN (value #>> '{}')::double precision END
$$;
COMMENT ON FUNCTION stepwell.json_number(jsonb) IS 'The number; null where the value is of another kind.';

CREATE OR REPLACE FUNCTION stepwell.json_text(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE stepwell.json_kind(value) WHEN 'text' THEN value #>> '{}' END
$$;
COMMENT ON FUNCTION stepwell.json_text(jsonb) IS 'The text; null where the value is of another kind.';

CREATE OR REPLACE FUNCTION stepwell.json_boolean(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'boolean' THEN value::boolean END
$$;
COMMENT ON FUNCTION stepwell.json_boolean(jsonb) IS 'Whether it is true; null where the value is of another kind.';

CREATE OR REPLACE FUNCTION stepwell.json_json(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE stepwell.json_kind(value) WHEN 'json' THEN value END
$$;
COMMENT ON FUNCTION stepwell.json_json(jsonb) IS 'The array, object or very long number; null where the value is of another kind.';

CREATE OR REPLACE FUNCTION stepwell.json_leaves(document jsonb, depth integer)
RETURNS TABLE (path text[], value jsonb) LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 20 AS $$
    WITH RECURSIVE walk (path, value) AS (
        SELECT ARRAY[e.key], e.value
        FROM jsonb_each(CASE WHEN jsonb_typeof(document) = 'object' THEN document ELSE '{}' END) e
        UNION ALL
        SELECT w.path || e.key, e.value FROM walk w
        CROSS JOIN LATERAL jsonb_each(
            CASE WHEN jsonb_typeof(w.value) = 'object' AND cardinality(w.path) < depth THEN w.value ELSE '{}' END) e
    )
    SELECT w.path, w.value FROM walk w
    WHERE NOT (jsonb_typeof(w.value) = 'object' AND cardinality(w.path) < depth AND w.value <> '{}')
$$;
COMMENT ON FUNCTION stepwell.json_leaves(jsonb, integer) IS 'What stands at the ends of nested objects, down to a depth (count from 1), with the keys on the way; nothing where the document is no object.';

CREATE OR REPLACE FUNCTION stepwell.json_rest(document jsonb, depth integer, known text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT jsonb_object_agg(array_to_string(path, '.'), value) FROM stepwell.json_leaves(document, depth)
    WHERE stepwell.json_kind(value) || ' ' || to_jsonb(path)::text <> ALL (known)
$$;
COMMENT ON FUNCTION stepwell.json_rest(jsonb, integer, text[]) IS 'What no column shows: the leaves whose kind and path are not among those known; null where there is nothing.';
