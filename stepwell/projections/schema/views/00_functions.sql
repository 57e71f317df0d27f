-- What views compute with.


-- Wilson's score interval (E. B. Wilson, 1927), 95 %: it stays within 0 and 1 and holds for few episodes too.
CREATE OR REPLACE FUNCTION stepwell.wilson_low(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN trials = 0 THEN NULL WHEN successes = 0 THEN 0 ELSE greatest(0, (p + z * z / (2 * n) - z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)) END
    FROM (SELECT 1.959963984540054::double precision AS z, nullif(trials, 0)::double precision AS n,
                 successes::double precision / nullif(trials, 0) AS p) AS given
$$;
COMMENT ON FUNCTION stepwell.wilson_low(bigint, bigint) IS 'Lower end of Wilson''s 95 % interval of a rate (0 to 1); null without trials.';

CREATE OR REPLACE FUNCTION stepwell.wilson_high(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN trials = 0 THEN NULL WHEN successes = trials THEN 1 ELSE least(1, (p + z * z / (2 * n) + z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)) END
    FROM (SELECT 1.959963984540054::double precision AS z, nullif(trials, 0)::double precision AS n,
                 successes::double precision / nullif(trials, 0) AS p) AS given
$$;
COMMENT ON FUNCTION stepwell.wilson_high(bigint, bigint) IS 'Upper end of Wilson''s 95 % interval of a rate (0 to 1); null without trials.';
