-- From failures to training: rules, patterns, and the whole ledger of requests.

CREATE TABLE failure_patterns (
    trigger_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    detected_at timestamptz NOT NULL,
    rule text NOT NULL,
    rule_version integer NOT NULL,
    rule_key text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    failure_type text NOT NULL,
    evidence jsonb NOT NULL,
    detail text NOT NULL,
    promise text NOT NULL
);
COMMENT ON TABLE failure_patterns IS 'Failure patterns that a detector saw, each with its evidence.';
COMMENT ON COLUMN failure_patterns.trigger_id IS 'Identifies the trigger (derived from rule, version, key and opening evidence).';
COMMENT ON COLUMN failure_patterns.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN failure_patterns.detected_at IS 'When the deciding verdict was logged (UTC, log''s clock).';
COMMENT ON COLUMN failure_patterns.rule IS 'Name of the rule.';
COMMENT ON COLUMN failure_patterns.rule_version IS 'Version of the rule (number).';
COMMENT ON COLUMN failure_patterns.rule_key IS 'What the rule was judged for, e.g. policy=reach-expert.';
COMMENT ON COLUMN failure_patterns.policy IS 'Name of the policy.';
COMMENT ON COLUMN failure_patterns.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN failure_patterns.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN failure_patterns.failure_type IS 'The failure type that repeats.';
COMMENT ON COLUMN failure_patterns.evidence IS 'The episodes it rests on, each with the position of its verdict and of its facts (JSON array of objects; -1 where not known).';
COMMENT ON COLUMN failure_patterns.promise IS 'What the rule promises, in words.';
COMMENT ON COLUMN failure_patterns.detail IS 'What was seen, in words and numbers.';

CREATE TABLE retrain_requests (
    trigger_id text PRIMARY KEY,
    event_id uuid NOT NULL,
    requested_at timestamptz NOT NULL,
    rule text NOT NULL,
    rule_version integer NOT NULL,
    rule_key text NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    checkpoint text,
    failure_type text NOT NULL,
    evidence jsonb NOT NULL,
    detail text NOT NULL,
    sampling_weights jsonb NOT NULL,
    weights_formula text NOT NULL,
    hard_negatives jsonb NOT NULL,
    regression_spec jsonb,
    requested_by text NOT NULL
);
COMMENT ON TABLE retrain_requests IS 'Requests to retrain a policy; the view retrain_status adds the training services'' answers.';
COMMENT ON COLUMN retrain_requests.trigger_id IS 'Identifies the trigger; one effect each.';
COMMENT ON COLUMN retrain_requests.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN retrain_requests.requested_at IS 'When it was asked for (UTC, log''s clock).';
COMMENT ON COLUMN retrain_requests.rule IS 'Name of the rule.';
COMMENT ON COLUMN retrain_requests.rule_version IS 'Version of the rule (number).';
COMMENT ON COLUMN retrain_requests.rule_key IS 'What the rule was judged for.';
COMMENT ON COLUMN retrain_requests.policy IS 'Name of the policy.';
COMMENT ON COLUMN retrain_requests.policy_version IS 'Version of the policy.';
COMMENT ON COLUMN retrain_requests.checkpoint IS 'Identifies the policy''s weights; null where it has none.';
COMMENT ON COLUMN retrain_requests.failure_type IS 'The failure type that repeats.';
COMMENT ON COLUMN retrain_requests.evidence IS 'The episodes it rests on, each with the position of its verdict and of its facts (JSON array of objects; -1 where not known).';
COMMENT ON COLUMN retrain_requests.sampling_weights IS 'Proposed shares of new training data (JSON array of scene, perturbation, weight; the weights sum to 1).';
COMMENT ON COLUMN retrain_requests.requested_by IS 'Who asked (detector or person).';
COMMENT ON COLUMN retrain_requests.detail IS 'What was seen, in words and numbers.';
COMMENT ON COLUMN retrain_requests.hard_negatives IS 'Further failed episodes of the same kind, newest first (JSON array of objects, as evidence).';
COMMENT ON COLUMN retrain_requests.weights_formula IS 'How sampling_weights were worked out.';
COMMENT ON COLUMN retrain_requests.regression_spec IS 'What to run with the new checkpoint (JSON object, format stepwell-regression/1; text that is no JSON stands as a JSON string); null where not told.';

CREATE TABLE retrain_closings (
    trigger_id text PRIMARY KEY,
    policy text NOT NULL,
    closed_as text NOT NULL,
    closed_at timestamptz NOT NULL,
    reason text NOT NULL
);
COMMENT ON TABLE retrain_closings IS 'Triggers that the detector closed by itself, before anybody had closed them by an answer.';
COMMENT ON COLUMN retrain_closings.trigger_id IS 'The trigger.';
COMMENT ON COLUMN retrain_closings.policy IS 'Name of the policy.';
COMMENT ON COLUMN retrain_closings.closed_as IS 'withdrawn (it lost its evidence) or expired (nobody closed it in time).';
COMMENT ON COLUMN retrain_closings.closed_at IS 'When it was closed (UTC, log''s clock).';
COMMENT ON COLUMN retrain_closings.reason IS 'Why, in words.';

CREATE TABLE retrain_answers (
    event_id uuid PRIMARY KEY,
    trigger_id text NOT NULL,
    answered_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    policy text NOT NULL,
    trainer text NOT NULL,
    status text NOT NULL,
    new_checkpoint text,
    detail text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL
);
CREATE INDEX retrain_answers_trigger_id ON retrain_answers (trigger_id);
COMMENT ON TABLE retrain_answers IS 'What training services answered to retrain requests, every answer.';
COMMENT ON COLUMN retrain_answers.event_id IS 'Identifies the answer (UUID).';
COMMENT ON COLUMN retrain_answers.trigger_id IS 'The trigger it answers.';
COMMENT ON COLUMN retrain_answers.answered_at IS 'When it was given (UTC, training service''s clock).';
COMMENT ON COLUMN retrain_answers.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN retrain_answers.policy IS 'Name of the policy.';
COMMENT ON COLUMN retrain_answers.trainer IS 'The training service that answered.';
COMMENT ON COLUMN retrain_answers.status IS 'accepted, done, failed or rejected.';
COMMENT ON COLUMN retrain_answers.new_checkpoint IS 'The retrained weights; null where there are none.';
COMMENT ON COLUMN retrain_answers.detail IS 'What the service says about it.';
COMMENT ON COLUMN retrain_answers.source_partition IS 'Where the answer stands in retrain-results (partition number).';
COMMENT ON COLUMN retrain_answers.source_offset IS 'Where the answer stands in that partition (log offset).';

CREATE TABLE retrain_acknowledgements (
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
CREATE INDEX retrain_acknowledgements_trigger_id ON retrain_acknowledgements (trigger_id);
COMMENT ON TABLE retrain_acknowledgements IS 'Who has seen which request, every time it was said.';
COMMENT ON COLUMN retrain_acknowledgements.event_id IS 'Identifies the acknowledgement (UUID).';
COMMENT ON COLUMN retrain_acknowledgements.trigger_id IS 'The trigger that was seen.';
COMMENT ON COLUMN retrain_acknowledgements.policy IS 'Name of the policy.';
COMMENT ON COLUMN retrain_acknowledgements.acknowledged_at IS 'When it was said (UTC, that person''s clock).';
COMMENT ON COLUMN retrain_acknowledgements.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN retrain_acknowledgements.acknowledged_by IS 'Who has seen it (name).';
COMMENT ON COLUMN retrain_acknowledgements.detail IS 'What they said about it.';
COMMENT ON COLUMN retrain_acknowledgements.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN retrain_acknowledgements.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE retrain_mutes (
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
CREATE INDEX retrain_mutes_policy ON retrain_mutes (policy, rule);
COMMENT ON TABLE retrain_mutes IS 'Every time that somebody muted a policy (or one rule of it) or ended that; the view mutes_in_force has what holds.';
COMMENT ON COLUMN retrain_mutes.event_id IS 'Identifies the event (UUID).';
COMMENT ON COLUMN retrain_mutes.policy IS 'Name of the policy.';
COMMENT ON COLUMN retrain_mutes.rule IS 'Name of the rule; null: every rule.';
COMMENT ON COLUMN retrain_mutes.muted IS 'Whether it was muted (true) or the mute was ended (false).';
COMMENT ON COLUMN retrain_mutes.muted_until IS 'When the mute ends by itself (UTC); null: when somebody ends it.';
COMMENT ON COLUMN retrain_mutes.said_at IS 'When it was said (UTC, that person''s clock).';
COMMENT ON COLUMN retrain_mutes.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN retrain_mutes.said_by IS 'Who said it (name).';
COMMENT ON COLUMN retrain_mutes.reason IS 'Why it was muted; empty where the mute was ended.';
COMMENT ON COLUMN retrain_mutes.source_partition IS 'Where it stands in stepwell.policy-events (partition number).';
COMMENT ON COLUMN retrain_mutes.source_offset IS 'Where it stands in that partition (log offset).';

CREATE TABLE rule_sets (
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
COMMENT ON TABLE rule_sets IS 'One row each time that a rule set was put in force, in all partitions at once; before the first, the one that is built in was.';
COMMENT ON COLUMN rule_sets.event_id IS 'Identifies the activation (UUID).';
COMMENT ON COLUMN rule_sets.rule_set IS 'Name of the rule set.';
COMMENT ON COLUMN rule_sets.version IS 'Version of the rule set (number).';
COMMENT ON COLUMN rule_sets.rules IS 'The whole set (JSON object).';
COMMENT ON COLUMN rule_sets.sha256 IS 'SHA-256 of its canonical text (bytes).';
COMMENT ON COLUMN rule_sets.activated_at IS 'When it was put in force (UTC, that person''s clock).';
COMMENT ON COLUMN rule_sets.logged_at IS 'When the log took it (UTC, log''s clock).';
COMMENT ON COLUMN rule_sets.activated_by IS 'Who put it in force (name).';
COMMENT ON COLUMN rule_sets.source_partition IS 'Where it stands in stepwell.rule-sets (partition number).';
COMMENT ON COLUMN rule_sets.source_offset IS 'Where it stands in that partition (log offset).';
