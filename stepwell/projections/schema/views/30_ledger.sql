-- Rules and the ledger of requests.

CREATE OR REPLACE VIEW stepwell.mutes_in_force AS
SELECT policy, rule, muted_until, said_at AS muted_at, said_by AS muted_by, reason
FROM (
    -- All that is said about a policy stands in one partition; the last word on a rule counts.
    SELECT DISTINCT ON (policy, rule) * FROM stepwell.retrain_mutes
    ORDER BY policy, rule, logged_at DESC, source_offset DESC
) AS last_word
WHERE muted AND (muted_until IS NULL OR muted_until > now());
COMMENT ON VIEW stepwell.mutes_in_force IS 'For which policies, and which of their rules (null: all), nobody is asked to retrain now, until when, by whom and why.';

CREATE OR REPLACE VIEW stepwell.retrain_status AS
WITH triggers AS (
    SELECT trigger_id, policy, policy_version, checkpoint, failure_type, rule, rule_version, rule_key, detail, evidence,
           requested_at AS opened_at, requested_at
    FROM stepwell.retrain_requests
    UNION ALL
    SELECT trigger_id, policy, policy_version, checkpoint, failure_type, rule, rule_version, rule_key, detail, evidence,
           detected_at, NULL
    FROM stepwell.failure_patterns p
    WHERE NOT EXISTS (SELECT FROM stepwell.retrain_requests r WHERE r.trigger_id = p.trigger_id)
)
SELECT t.trigger_id, t.policy, t.policy_version, t.checkpoint, t.failure_type, t.rule, t.rule_version, t.rule_key,
       t.detail AS seen, jsonb_array_length(t.evidence) AS evidence_episodes, t.opened_at, t.requested_at,
       CASE WHEN c.closed_as IS NOT NULL THEN c.closed_as WHEN a.status IS NOT NULL THEN a.status
            WHEN t.requested_at IS NULL THEN 'muted' WHEN k.acknowledged_by IS NOT NULL THEN 'acknowledged'
            ELSE 'open' END AS status,
       k.acknowledged_by, k.acknowledged_at, a.trainer, a.answered_at, a.new_checkpoint, a.detail,
       c.closed_at, c.reason AS closed_reason
FROM triggers t
-- The detector closes only what no answer has closed: so its word beats any answer.
LEFT JOIN stepwell.retrain_closings c ON c.trigger_id = t.trigger_id
-- The answer that counts is the first that closes the request, else the last 'accepted': as in the detector's ledger.
-- Of what the detector has closed, an answer that would have closed it came too late.
LEFT JOIN LATERAL (SELECT * FROM stepwell.retrain_answers s
                   WHERE s.trigger_id = t.trigger_id AND s.policy = t.policy
                     AND (s.status = 'accepted' OR c.closed_as IS NULL AND s.status IN ('done', 'failed', 'rejected'))
                   ORDER BY s.status = 'accepted',
                            CASE WHEN s.status = 'accepted' THEN -s.source_offset ELSE s.source_offset END
                   LIMIT 1) a ON true
LEFT JOIN LATERAL (SELECT * FROM stepwell.retrain_acknowledgements s
                   WHERE s.trigger_id = t.trigger_id AND s.policy = t.policy
                   ORDER BY s.source_offset DESC LIMIT 1) k ON true;
COMMENT ON VIEW stepwell.retrain_status IS 'The ledger: each trigger with where it stands: open, acknowledged (a person has seen it), accepted, done, failed or rejected (the answer that counts, the first closing one), expired, withdrawn, or muted (its pattern was published, nobody was asked).';

CREATE OR REPLACE VIEW stepwell.rules_in_force AS
SELECT s.rule_set, s.version, part.name AS judges, rule.definition ->> 'name' AS rule, rule.definition ->> 'kind' AS kind,
       rule.definition, s.logged_at AS since, s.activated_by
FROM (SELECT * FROM stepwell.rule_sets ORDER BY logged_at DESC, source_offset DESC LIMIT 1) AS s
CROSS JOIN (VALUES ('steps'), ('verdicts')) AS part (name)
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(s.rules -> part.name) = 'array' THEN s.rules -> part.name ELSE '[]' END) AS rule (definition);
COMMENT ON VIEW stepwell.rules_in_force IS 'One row a rule of the set that was put in force last, and whether it judges steps or verdicts; empty while the built-in set is in force.';

CREATE OR REPLACE VIEW stepwell.awaited_verdicts AS
SELECT e.policy, e.policy_version, e.checkpoint, e.run_id, e.episode_id, e.task, e.scene, e.perturbation, e.requested_at,
       row_number() OVER (PARTITION BY e.policy ORDER BY e.source_partition, e.source_offset) AS place,
       extract(epoch FROM f.as_of - least(e.logged_at, f.as_of))::double precision AS waiting_s, f.as_of
FROM stepwell.expected_verdicts e
LEFT JOIN stepwell.partition_freshness f ON f.topic = 'stepwell.policy-events' AND f.partition = e.source_partition
WHERE e.purpose = 'evaluation'
  AND NOT EXISTS (SELECT FROM stepwell.verdicts v WHERE v.episode_id = e.episode_id AND v.attempt = 1);
COMMENT ON VIEW stepwell.awaited_verdicts IS 'First attempts of evaluations whose verdict is still to come, as of the moment as_of: place in the policy''s order of requests (count from 1) and how long they have been waited for (s). Rules that go by that order wait for the first of them, up to their limit.';

CREATE OR REPLACE VIEW stepwell.rule_failures AS
SELECT reason AS rule, detail, episode_id, attempt, event_type, source_topic, source_partition, source_offset, logged_at,
       source_key, source_value, reported_by
FROM stepwell.dead_letters WHERE kind = 'rule_failed';
COMMENT ON VIEW stepwell.rule_failures IS 'Rules that raised on a record and were parked (of the attempt, or of the policy until rules are activated again), with that record; the other rules went on.';
