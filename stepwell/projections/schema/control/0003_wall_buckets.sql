-- Durations in buckets: what a percentile over any rows can be read from, without an extension of the database's.
-- The bounds are whole microseconds, each at most 1.1 times the one before (1, or the next number where that is less):
-- where a duration falls is decided with whole numbers and the same on every machine. docs/timescaledb.md says how far
-- off a percentile can be: (1.1 - 1) / (1.1 + 1), 4.8 %. stepwell/projections/sums/wall_buckets.py has the same bounds.

CREATE FUNCTION stepwell.wall_bounds() RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('{
    1,2,3,4,5,6,7,8,9,10,12,14,16,18,20,23,26,29,32,36,40,45,50,56,62,69,76,84,93,103,114,126,139,153,169,186,205,226,
    249,274,302,333,367,404,445,490,540,595,655,721,794,874,962,1059,1165,1282,1411,1553,1709,1880,2069,2276,2504,
    2755,3031,3335,3669,4036,4440,4885,5374,5912,6504,7155,7871,8659,9525,10478,11526,12679,13947,15342,16877,18565,
    20422,22465,24712,27184,29903,32894,36184,39803,43784,48163,52980,58279,64107,70518,77570,85328,93861,103248,
    113573,124931,137425,151168,166285,182914,201206,221327,243460,267807,294588,324047,356452,392098,431308,474439,
    521883,574072,631480,694629,764092,840502,924553,1017009,1118710,1230582,1353641,1489006,1637907,1801698,1981868,
    2180055,2398061,2637868,2901655,3191821,3511004,3862105,4248316,4673148,5140463,5654510,6219962,6841959,7526155,
    8278771,9106649,10017314,11019046,12120951,13333047,14666352,16132988,17746287,19520916,21473008,23620309,
    25982340,28580575,31438633,34582497,38040747,41844822,46029305,50632236,55695460,61265007,67391508,74130659,
    81543725,89698098,98667908,108534699,119388169,131326986,144459685,158905654,174796220,192275843,211503428,
    232653771,255919149,281511064,309662171,340628389,374691228,412160351,453376387,498714026,548585429,603443972,
    663788370,730167208,803183929,883502322,971852555,1069037811,1175941593,1293535753,1422889329,1565178262,
    1721696089,1893865698,2083252268,2291577495,2520735245,2772808770,3050089648,3355098613,3690608475,4059669323,
    4465636256,4912199882,5403419871,5943761859,6538138045,7191951850,7911147036,8702261740,9572487915,10529736707,
    11582710378,12740981416,14015079558,15416587514,16958246266,18654070893,20519477983,22571425782,24828568361,
    27311425198,30042567718,33046824490,36351506940,39986657635,43985323399,48383855739,53222241313,58544465445,
    64398911990,70838803190,77922683510,85714951862,94286447049,103715091754,114086600930,125495261024,138044787127,
    151849265840,167034192425,183737611668,202111372835,222322510119,244554761131,269010237245,295911260970,
    325502387068,358052625775,393857888353,433243677189,476568044908,524224849399,576647334339,634312067773,
    697743274551,767517602007,844269362208,928696298429,1021565928272
    }')::bigint[]
$$;
COMMENT ON FUNCTION stepwell.wall_bounds() IS 'Lower bounds (us) of the buckets 1, 2, ... of durations; bucket 0 is 0 us.';

CREATE FUNCTION stepwell.wall_us(wall_s double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- NaN, which counts as more than any number, a negative time and one of 30 years say nothing of how long it took.
    SELECT CASE WHEN wall_s >= 0 AND wall_s < 1e9 THEN round(wall_s * 1e6)::bigint END
$$;
COMMENT ON FUNCTION stepwell.wall_us(double precision) IS 'A duration (s) in whole microseconds; null where it makes no sense.';

CREATE FUNCTION stepwell.wall_bucket(wall_us bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT width_bucket(wall_us, stepwell.wall_bounds())
$$;
COMMENT ON FUNCTION stepwell.wall_bucket(bigint) IS 'The bucket (number) that a duration (us) falls in; null for null.';

CREATE FUNCTION stepwell.wall_bucket_s(wall_bucket integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- Between the least and the most of the bucket, where the error is as large either way.
    SELECT CASE WHEN wall_bucket = 0 THEN 0
                WHEN wall_bucket = cardinality(stepwell.wall_bounds()) THEN (stepwell.wall_bounds())[wall_bucket] / 1e6::double precision
                ELSE 2 / (1 / (stepwell.wall_bounds())[wall_bucket]::double precision
                          + 1 / ((stepwell.wall_bounds())[wall_bucket + 1] - 1)::double precision) / 1e6 END
$$;
COMMENT ON FUNCTION stepwell.wall_bucket_s(integer) IS 'The duration (s) that stands for a bucket: off by at most 4.8 % for any duration in it.';

CREATE FUNCTION stepwell.wall_percentile(share double precision, wall_buckets integer[], counts numeric[]) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT stepwell.wall_bucket_s(min(wall_bucket))
    FROM (SELECT wall_bucket, sum(count) OVER (ORDER BY wall_bucket) AS so_far, sum(count) OVER () AS every
          FROM unnest(wall_buckets, counts) AS given (wall_bucket, count) WHERE wall_bucket IS NOT NULL) AS added
    WHERE so_far >= share * every
$$;
COMMENT ON FUNCTION stepwell.wall_percentile(double precision, integer[], numeric[]) IS 'A percentile (s; share 0 to 1) of durations that are counted by bucket: wall_percentile(0.99, array_agg(wall_bucket), array_agg(steps)).';
