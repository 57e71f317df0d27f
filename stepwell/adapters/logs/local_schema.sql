-- The local log, layout 1. One SQLite database in WAL mode; every client holds a connection of its own.

CREATE TABLE topics (
    topic        TEXT PRIMARY KEY,
    partitions   INTEGER NOT NULL CHECK (partitions > 0),
    compacted    INTEGER NOT NULL,     -- 1: only the last record of each key is kept
    retention_ms INTEGER NOT NULL,     -- -1: for ever
    timestamps   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A slot is one partition of one topic; its number is part of every record's address.
CREATE TABLE slots (
    slot         INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL REFERENCES topics (topic),
    partition    INTEGER NOT NULL,
    low          INTEGER NOT NULL DEFAULT 0,   -- first offset still kept
    high         INTEGER NOT NULL DEFAULT 0,   -- next offset to be given; never goes down
    compacted_to INTEGER NOT NULL DEFAULT 0,   -- what lies below was compacted
    UNIQUE (topic, partition)
) STRICT;

-- address = slot * 2^40 + offset: one B-tree, in which a partition is one range.
CREATE TABLE records (
    address      INTEGER PRIMARY KEY,
    timestamp    INTEGER NOT NULL,     -- time of append, microseconds since 1970 UTC
    key          BLOB,
    value        BLOB,                 -- NULL: a tombstone
    headers      BLOB                  -- MessagePack: array of [name, bytes or nil]; NULL: none
) STRICT;

-- The newest holder of a transactional id has the highest epoch; older ones are fenced.
CREATE TABLE transactional_ids (
    transactional_id TEXT PRIMARY KEY,
    epoch            INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE consumer_groups (
    name         TEXT PRIMARY KEY,
    epoch        INTEGER NOT NULL      -- goes up whenever members or owners change; members look at it in poll
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
    group_name   TEXT NOT NULL,
    member_id    TEXT NOT NULL,        -- one incarnation
    instance_id  TEXT,                 -- static membership; NULL: dynamic
    topics       TEXT NOT NULL,        -- JSON array of names
    generation   INTEGER NOT NULL,     -- goes up whenever this member takes or gives up partitions
    timeout_us   INTEGER NOT NULL,
    heartbeat_us INTEGER NOT NULL,     -- microseconds since 1970 UTC
    PRIMARY KEY (group_name, member_id),
    UNIQUE (group_name, instance_id)
) STRICT, WITHOUT ROWID;

-- Who shall have a partition (target) and who has it (owner). A new target waits until the owner has let go.
CREATE TABLE ownership (
    group_name   TEXT NOT NULL,
    slot         INTEGER NOT NULL,
    target       TEXT,
    owner        TEXT,
    PRIMARY KEY (group_name, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE group_positions (
    group_name   TEXT NOT NULL,
    slot         INTEGER NOT NULL,
    position     INTEGER NOT NULL,     -- next offset to be read
    PRIMARY KEY (group_name, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE upkeep (
    task         TEXT PRIMARY KEY,
    last_us      INTEGER NOT NULL      -- when it last ran, microseconds since 1970 UTC
) STRICT, WITHOUT ROWID;
