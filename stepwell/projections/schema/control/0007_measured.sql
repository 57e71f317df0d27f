-- What a point of telemetry adds to the sums of its series, said once for both storages.

CREATE FUNCTION stepwell.summed(value double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- NaN counts as more than any number. Beyond these, a sum of a few would be more than a double holds.
    SELECT value > '-1e300' AND value < '1e300'
$$;
COMMENT ON FUNCTION stepwell.summed(double precision) IS 'Whether a point with this value is summed: no NaN, no infinity, nothing beyond 1e300.';

CREATE FUNCTION stepwell.measured(value double precision, measurements bigint, distribution jsonb, edge text) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN distribution IS NULL THEN value
                -- Without measurements, or since the sender began: nothing of the bucket. NaN and infinities are texts.
                WHEN measurements > 0 AND jsonb_typeof(distribution -> edge) = 'number' THEN (distribution -> edge)::double precision END
$$;
COMMENT ON FUNCTION stepwell.measured(double precision, bigint, jsonb, text) IS 'The least or the most (edge: min or max) that a point measured: its value; of a histogram what it says, null where it says nothing.';
