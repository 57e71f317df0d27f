-- Rules as data, and the whole trigger ledger: which rules are in force, what they found at which step, what they wait
-- for, where they failed, and everything that people, services and the detector said about a request to retrain.
-- Rows that are here already get what the log says of them: nothing, for records from before these fields.

-- --- what verdicts and episodes say now ---

ALTER TABLE stepwell.verdicts ADD COLUMN label_steps integer[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN stepwell.verdicts.label_steps IS 'For each of labels the step at which it was first found (count from 0); -1 where it is of no one step; empty where not told.';

ALTER TABLE stepwell.verdicts ADD COLUMN purpose text NOT NULL DEFAULT 'evaluation';
COMMENT ON COLUMN stepwell.verdicts.purpose IS 'What the episode was run for: evaluation, or regression (to judge a retrained checkpoint). Detection rules count evaluation alone.';

ALTER TABLE stepwell.episodes ADD COLUMN purpose text NOT NULL DEFAULT 'evaluation';
COMMENT ON COLUMN stepwell.episodes.purpose IS 'What the episode is run for: evaluation, or regression (to judge a retrained checkpoint).';
ALTER TABLE stepwell.episodes ADD COLUMN definition jsonb;
COMMENT ON COLUMN stepwell.episodes.definition IS 'Scene, policy and perturbation as the task spec defines them (JSON object; text that is no JSON stands as a JSON string); null where not told.';

CREATE OR REPLACE VIEW stepwell.latest_verdicts AS
SELECT DISTINCT ON (episode_id, attempt) * FROM stepwell.verdicts ORDER BY episode_id, attempt, revision DESC;

CREATE VIEW stepwell.labelled_steps AS
SELECT v.episode_id, v.attempt, v.policy, v.policy_version, v.checkpoint, v.task, v.scene, v.perturbation, v.outcome,
       v.purpose, found.label, nullif(found.step, -1) AS step
FROM stepwell.latest_verdicts v, unnest(v.labels, v.label_steps) AS found (label, step);
COMMENT ON VIEW stepwell.labelled_steps IS 'What the step rules found: one row a label of an attempt''s last verdict, with the step at which it was first found; step is null where it is of no one step.';

-- --- the ledger ---

ALTER TABLE stepwell.failure_patterns ADD COLUMN detail text NOT NULL DEFAULT '';
COMMENT ON COLUMN stepwell.failure_patterns.detail IS 'What was seen, in words and numbers.';
ALTER TABLE stepwell.retrain_requests
    ADD COLUMN detail text NOT NULL DEFAULT '',
    ADD COLUMN hard_negatives jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN weights_formula text NOT NULL DEFAULT '',
    ADD COLUMN regression_spec jsonb;
COMMENT ON COLUMN stepwell.retrain_requests.detail IS 'What was seen, in words and numbers.';
COMMENT ON COLUMN stepwell.retrain_requests.hard_negatives IS 'Further failed episodes of the same kind, newest first (JSON array of objects, as evidence).';
COMMENT ON COLUMN stepwell.retrain_requests.weights_formula IS 'How sampling_weights were worked out.';
COMMENT ON COLUMN stepwell.retrain_requests.regression_spec IS 'What to run with the new checkpoint (JSON object, format stepwell-regression/1; text that is no JSON stands as a JSON string); null where not told.';
COMMENT ON COLUMN stepwell.failure_patterns.evidence IS 'The episodes it rests on, each with the position of its verdict and of its facts (JSON array of objects; -1 where not known).';
COMMENT ON COLUMN stepwell.retrain_requests.evidence IS 'The episodes it rests on, each with the position of its verdict and of its facts (JSON array of objects; -1 where not known).';
UPDATE stepwell.failure_patterns SET evidence = (
    SELECT coalesce(jsonb_agg(episode || '{"task": "", "events_partition": -1, "first_offset": -1, "last_offset": -1}' ORDER BY place), '[]')
    FROM jsonb_array_elements(evidence) WITH ORDINALITY AS e (episode, place));
UPDATE stepwell.retrain_requests SET evidence = (
    SELECT coalesce(jsonb_agg(episode || '{"task": "", "events_partition": -1, "first_offset": -1, "last_offset": -1}' ORDER BY place), '[]')
    FROM jsonb_array_elements(evidence) WITH ORDINALITY AS e (episode, place));

CREATE TABLE stepwell.retrain_closings (
    trigger_id text PRIMARY KEY,
    policy text NOT NULL,
    closed_as text NOT NULL,
    closed_at timestamptz NOT NULL,
    reason text NOT NULL
);
COMMENT ON TABLE stepwell.retrain_closings IS 'Triggers that the detector closed by itself, before anybody had closed them by an answer.';
COMMENT ON COLUMN stepwell.retrain_closings.trigger_id IS 'The trigger.';
COMMENT ON COLUMN stepwell.retrain_closings.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.retrain_closings.closed_as IS 'withdrawn (it lost its evidence) or expired (nobody closed it in time).';
COMMENT ON COLUMN stepwell.retrain_closings.closed_at IS 'When it was closed (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retrain_closings.reason IS 'Why, in words.';
INSERT INTO stepwell.retrain_closings (trigger_id, policy, closed_as, closed_at, reason)
SELECT trigger_id, policy, 'withdrawn', withdrawn_at, coalesce(withdrawn_reason, '')
FROM stepwell.retrain_requests WHERE withdrawn_at IS NOT NULL;
DROP VIEW stepwell.retrain_status;
ALTER TABLE stepwell.retrain_requests DROP COLUMN withdrawn_at, DROP COLUMN withdrawn_reason;

CREATE TABLE stepwell.retrain_acknowledgements (
    event_id uuid PRIMARY KEY,
    trigger_id text NOT NULL,
    policy text NOT NULL,
    acknowledged_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    acknowledged_by text NOT NULL,
    detail text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX retrain_acknowledgements_trigger_id ON stepwell.retrain_acknowledgements (trigger_id);
COMMENT ON TABLE stepwell.retrain_acknowledgements IS 'Who has seen which request, every time it was said.';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.event_id IS 'Identifies the acknowledgement (UUID).';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.trigger_id IS 'The trigger that was seen.';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.acknowledged_at IS 'When it was said (UTC, that person''s clock).';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.acknowledged_by IS 'Who has seen it (name).';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.detail IS 'What they said about it.';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN stepwell.retrain_acknowledgements.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE stepwell.retrain_mutes (
    event_id uuid PRIMARY KEY,
    policy text NOT NULL,
    rule text,
    muted boolean NOT NULL,
    muted_until timestamptz,
    said_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    said_by text NOT NULL,
    reason text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX retrain_mutes_policy ON stepwell.retrain_mutes (policy, rule);
COMMENT ON TABLE stepwell.retrain_mutes IS 'Every time that somebody muted a policy (or one rule of it) or ended that; the view mutes_in_force has what holds.';
COMMENT ON COLUMN stepwell.retrain_mutes.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.retrain_mutes.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.retrain_mutes.rule IS 'Name of the rule; null: every rule.';
COMMENT ON COLUMN stepwell.retrain_mutes.muted IS 'Whether it was muted (true) or the mute was ended (false).';
COMMENT ON COLUMN stepwell.retrain_mutes.muted_until IS 'When the mute ends by itself (UTC); null: when somebody ends it.';
COMMENT ON COLUMN stepwell.retrain_mutes.said_at IS 'When it was said (UTC, that person''s clock).';
COMMENT ON COLUMN stepwell.retrain_mutes.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.retrain_mutes.said_by IS 'Who said it (name).';
COMMENT ON COLUMN stepwell.retrain_mutes.reason IS 'Why it was muted; empty where the mute was ended.';
COMMENT ON COLUMN stepwell.retrain_mutes.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN stepwell.retrain_mutes.source_offset IS 'Where it stands in that partition (log offset).';

CREATE VIEW stepwell.mutes_in_force AS
SELECT policy, rule, muted_until, said_at AS muted_at, said_by AS muted_by, reason
FROM (
    -- All that is said about a policy stands in one partition; the last word on a rule counts.
    SELECT DISTINCT ON (policy, rule) * FROM stepwell.retrain_mutes
    ORDER BY policy, rule, logged_at DESC, source_offset DESC
) AS last_word
WHERE muted AND (muted_until IS NULL OR muted_until > now());
COMMENT ON VIEW stepwell.mutes_in_force IS 'For which policies, and which of their rules (null: all), nobody is asked to retrain now, until when, by whom and why.';

CREATE VIEW stepwell.retrain_status AS
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

-- --- rules ---

CREATE TABLE stepwell.rule_sets (
    event_id uuid PRIMARY KEY,
    rule_set text NOT NULL,
    version integer NOT NULL,
    rules jsonb NOT NULL,
    sha256 bytea NOT NULL,
    activated_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    activated_by text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
COMMENT ON TABLE stepwell.rule_sets IS 'One row each time that a rule set was put in force, in all partitions at once; before the first, the one that is built in was.';
COMMENT ON COLUMN stepwell.rule_sets.event_id IS 'Identifies the activation (UUID).';
COMMENT ON COLUMN stepwell.rule_sets.rule_set IS 'Name of the rule set.';
COMMENT ON COLUMN stepwell.rule_sets.version IS 'Version of the rule set (number).';
COMMENT ON COLUMN stepwell.rule_sets.rules IS 'The whole set (JSON object).';
COMMENT ON COLUMN stepwell.rule_sets.sha256 IS 'SHA-256 of its canonical text (bytes).';
COMMENT ON COLUMN stepwell.rule_sets.activated_at IS 'When it was put in force (UTC, that person''s clock).';
COMMENT ON COLUMN stepwell.rule_sets.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.rule_sets.activated_by IS 'Who put it in force (name).';
COMMENT ON COLUMN stepwell.rule_sets.source_partition IS 'Where it stands in stepwell.rule-sets (partition number).';
COMMENT ON COLUMN stepwell.rule_sets.source_offset IS 'Where it stands in that partition (log offset).';

CREATE VIEW stepwell.rules_in_force AS
SELECT s.rule_set, s.version, part.name AS judges, rule.definition ->> 'name' AS rule, rule.definition ->> 'kind' AS kind,
       rule.definition, s.logged_at AS since, s.activated_by
FROM (SELECT * FROM stepwell.rule_sets ORDER BY logged_at DESC, source_offset DESC LIMIT 1) AS s
CROSS JOIN (VALUES ('steps'), ('verdicts')) AS part (name)
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(s.rules -> part.name) = 'array' THEN s.rules -> part.name ELSE '[]' END) AS rule (definition);
COMMENT ON VIEW stepwell.rules_in_force IS 'One row a rule of the set that was put in force last, and whether it judges steps or verdicts; empty while the built-in set is in force.';

CREATE TABLE stepwell.expected_verdicts (
    episode_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    run_id text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    task text NOT NULL,
    scene text NOT NULL,
    perturbation text NOT NULL,
    purpose text NOT NULL,
    requested_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX expected_verdicts_policy ON stepwell.expected_verdicts (policy);
COMMENT ON TABLE stepwell.expected_verdicts IS 'Episodes in the order in which the engine learnt that they were asked for: the order of requests that some rules go by.';
COMMENT ON COLUMN stepwell.expected_verdicts.episode_id IS 'The episode.';
COMMENT ON COLUMN stepwell.expected_verdicts.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN stepwell.expected_verdicts.run_id IS 'The run it belongs to.';
COMMENT ON COLUMN stepwell.expected_verdicts.policy IS 'Name of the policy.';
COMMENT ON COLUMN stepwell.expected_verdicts.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN stepwell.expected_verdicts.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN stepwell.expected_verdicts.task IS 'Simulator and task.';
COMMENT ON COLUMN stepwell.expected_verdicts.scene IS 'Name of the scene.';
COMMENT ON COLUMN stepwell.expected_verdicts.perturbation IS 'Name of the perturbation applied; none for the plain cell.';
COMMENT ON COLUMN stepwell.expected_verdicts.purpose IS 'What the episode is run for: evaluation, or regression (to judge a retrained checkpoint).';
COMMENT ON COLUMN stepwell.expected_verdicts.requested_at IS 'When it was asked for (UTC, producer''s clock).';
COMMENT ON COLUMN stepwell.expected_verdicts.logged_at IS 'When the log took the expectation (UTC, log''s clock).';
COMMENT ON COLUMN stepwell.expected_verdicts.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN stepwell.expected_verdicts.source_offset IS 'Where it stands in that partition (log offset): the place in the order.';

CREATE VIEW stepwell.awaited_verdicts AS
SELECT e.policy, e.policy_version, e.checkpoint, e.run_id, e.episode_id, e.task, e.scene, e.perturbation, e.requested_at,
       row_number() OVER (PARTITION BY e.policy ORDER BY e.source_partition, e.source_offset) AS place,
       extract(epoch FROM f.as_of - least(e.logged_at, f.as_of))::double precision AS waiting_s, f.as_of
FROM stepwell.expected_verdicts e
LEFT JOIN stepwell.partition_freshness f ON f.topic = 'stepwell.policy-events' AND f.partition = e.source_partition
WHERE e.purpose = 'evaluation'
  AND NOT EXISTS (SELECT FROM stepwell.verdicts v WHERE v.episode_id = e.episode_id AND v.attempt = 1);
COMMENT ON VIEW stepwell.awaited_verdicts IS 'First attempts of evaluations whose verdict is still to come, as of the moment as_of: place in the policy''s order of requests (count from 1) and how long they have been waited for (s). Rules that go by that order wait for the first of them, up to their limit.';

-- --- where rules failed ---

-- Several rules may fail on one record, each with a letter of its own.
ALTER TABLE stepwell.dead_letters DROP CONSTRAINT dead_letters_pkey;
ALTER TABLE stepwell.dead_letters ADD PRIMARY KEY (source_topic, source_partition, source_offset, kind, reason);
COMMENT ON COLUMN stepwell.dead_letters.kind IS 'unreadable, after_seal, violation, rule_failed (a detection rule raised on it), or refused (by this database).';
COMMENT ON COLUMN stepwell.dead_letters.reason IS 'Short stable code, e.g. trailing-bytes; of rule_failed the rule that failed.';

CREATE VIEW stepwell.rule_failures AS
SELECT reason AS rule, detail, episode_id, attempt, event_type, source_topic, source_partition, source_offset, logged_at,
       source_key, source_value, reported_by
FROM stepwell.dead_letters WHERE kind = 'rule_failed';
COMMENT ON VIEW stepwell.rule_failures IS 'Rules that raised on a record and were parked (of the attempt, or of the policy until rules are activated again), with that record; the other rules went on.';
