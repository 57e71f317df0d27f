-- Queries of stepwell/projections/access/roles.py, grants.py and row_filters.py. One "-- name:" line opens each entry.

-- name: filters
SELECT role, runs, policies, requested_by, fleet FROM stepwell.row_filters ORDER BY role

-- name: any_filter
SELECT EXISTS (SELECT FROM stepwell.row_filters)

-- name: set_filter
INSERT INTO stepwell.row_filters (role, runs, policies, requested_by, fleet)
VALUES (%(role)s, %(runs)s, %(policies)s, %(requested_by)s, %(fleet)s)
ON CONFLICT (role) DO UPDATE SET runs = EXCLUDED.runs, policies = EXCLUDED.policies,
    requested_by = EXCLUDED.requested_by, fleet = EXCLUDED.fleet, set_at = now()

-- name: drop_filter
DELETE FROM stepwell.row_filters WHERE role = %(role)s

-- name: lock
-- Roles belong to the whole server, and two who change one at once would fail. The number is arbitrary and ours.
SELECT pg_advisory_xact_lock(5783366173)

-- name: me
SELECT current_database(), current_user::text, rolsuper FROM pg_roles WHERE rolname = current_user

-- name: ignores_users
-- The WebAssembly build has one session, of its superuser, for all of its clients.
SELECT version() LIKE '%%Emscripten%%'

-- name: role
SELECT rolsuper, rolcanlogin FROM pg_roles WHERE rolname = %(role)s

-- name: known
SELECT rolname::text FROM pg_roles WHERE rolname IN ('stepwell_owner', 'stepwell_writer', 'stepwell_reader')

-- name: in_use
-- Roles belong to the server; whether they are in use in this database is seen by the reader's way into its schema.
SELECT coalesce((SELECT has_schema_privilege(oid, 'stepwell', 'USAGE') FROM pg_roles WHERE rolname = 'stepwell_reader'), false)

-- name: may
SELECT pg_has_role(%(user)s::name, %(role)s::name, 'MEMBER')

-- name: given_by
-- Roles that a user was given and that are the role or members of it.
SELECT DISTINCT r.rolname::text FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
JOIN pg_roles u ON u.oid = m.member
WHERE u.rolname = %(user)s AND pg_has_role(r.oid, %(role)s::name, 'MEMBER') ORDER BY 1

-- name: settle
DO $$
DECLARE
    object record;
    schemas name[] := ARRAY(SELECT nspname FROM pg_namespace WHERE nspname = 'stepwell_views' OR nspname ~ '^stepwell(_g[1-9][0-9]*)?$');
    generations name[] := ARRAY(SELECT nspname FROM pg_namespace WHERE nspname ~ '^stepwell_g[1-9][0-9]*$');
BEGIN
    FOR object IN SELECT nspname FROM pg_namespace WHERE nspname = ANY(schemas) AND nspowner <> 'stepwell_owner'::regrole LOOP
        EXECUTE format('ALTER SCHEMA %I OWNER TO stepwell_owner', object.nspname);
    END LOOP;
    -- A sequence of a column goes with its table. A view among the tables is a continuous aggregate of TimescaleDB: only
    -- under that name do the table and the views behind it go with it.
    FOR object IN
        SELECT c.oid::regclass AS name, CASE WHEN c.relkind = 'v' AND n.nspname = ANY(generations) THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END AS kind
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = ANY(schemas) AND c.relkind IN ('r', 'p', 'v', 'm') AND c.relowner <> 'stepwell_owner'::regrole
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO stepwell_owner', object.kind, object.name);
    END LOOP;
    FOR object IN
        SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = ANY(schemas) AND p.proowner <> 'stepwell_owner'::regrole
    LOOP
        EXECUTE format('ALTER ROUTINE %s OWNER TO stepwell_owner', object.name);
    END LOOP;
    FOR object IN SELECT unnest(schemas) AS name LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC, stepwell_writer, stepwell_reader', object.name);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC, stepwell_writer, stepwell_reader', object.name);
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM PUBLIC, stepwell_reader', object.name);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO stepwell_writer', object.name);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO stepwell_writer', object.name);
        EXECUTE format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA %I TO stepwell_writer', object.name);
        IF object.name = ANY(generations) THEN
            EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO stepwell_writer', object.name);
        ELSE
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO stepwell_reader', object.name);
        END IF;
    END LOOP;
    FOR object IN
        SELECT c.oid::regclass AS name, n.nspname = ANY(generations) AS is_table
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname IN ('stepwell', 'stepwell_views') AND c.relkind = 'v'
              OR n.nspname = ANY(generations) AND c.relkind IN ('r', 'p')
    LOOP
        IF object.is_table THEN
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %s TO stepwell_writer', object.name);
        ELSE
            EXECUTE format('GRANT SELECT ON %s TO stepwell_reader', object.name);
        END IF;
    END LOOP;
    -- Whoever asks a view must be allowed the functions in it. What changes something is no function of a view.
    FOR object IN
        SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'stepwell' AND p.prokind IN ('f', 'a', 'w') AND p.provolatile <> 'v'
    LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO stepwell_reader', object.name);
    END LOOP;
END
$$

-- name: members
-- Users who may log in, by role, and what is set for them.
SELECT r.rolname::text, m.rolname::text, m.rolsuper,
       coalesce((SELECT s.setconfig FROM pg_db_role_setting s WHERE s.setrole = m.oid AND s.setdatabase = 0), '{}')
FROM pg_roles r JOIN pg_roles m ON m.oid <> r.oid AND m.rolcanlogin AND NOT m.rolsuper AND pg_has_role(m.oid, r.oid, 'MEMBER')
WHERE r.rolname IN ('stepwell_owner', 'stepwell_writer', 'stepwell_reader') OR r.rolname IN (SELECT role FROM stepwell.row_filters)
ORDER BY r.rolname, m.rolname

-- name: findings
WITH relations AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relowner, format('%I.%I', n.nspname, c.relname) AS name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE (n.nspname = 'stepwell_views' OR n.nspname ~ '^stepwell(_g[1-9][0-9]*)?$') AND c.relkind IN ('r', 'p', 'v', 'm')
), routines AS (
    SELECT p.oid, p.prokind, p.provolatile, p.proowner, p.oid::regprocedure::text AS name
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname ~ '^stepwell(_g[1-9][0-9]*)?$'
), schemas AS (
    SELECT oid, nspname, nspowner FROM pg_namespace
    WHERE nspname = 'stepwell_views' OR nspname ~ '^stepwell(_g[1-9][0-9]*)?$'
)
SELECT 'database ' || d.datname, 'everybody (PUBLIC) has ' || lower(a.privilege_type)
FROM pg_database d, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
WHERE d.datname = current_database() AND a.grantee = 0
UNION ALL
SELECT 'schema ' || nspname, 'its owner is ' || nspowner::regrole::text FROM schemas WHERE nspowner <> 'stepwell_owner'::regrole
UNION ALL
SELECT 'schema ' || nspname, 'stepwell_reader may look into it' FROM schemas
WHERE nspname ~ '^stepwell_g' AND has_schema_privilege('stepwell_reader', oid, 'USAGE')
UNION ALL
SELECT 'schema ' || nspname, 'stepwell_reader or stepwell_writer may create in it' FROM schemas
WHERE has_schema_privilege('stepwell_reader', oid, 'CREATE') OR has_schema_privilege('stepwell_writer', oid, 'CREATE')
UNION ALL
SELECT name, 'its owner is ' || relowner::regrole::text FROM relations WHERE relowner <> 'stepwell_owner'::regrole
UNION ALL
SELECT name, 'stepwell_reader may change it' FROM relations
WHERE has_table_privilege('stepwell_reader', oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
UNION ALL
SELECT name, 'stepwell_reader may read it, and it is no view' FROM relations
WHERE (relkind <> 'v' OR nspname ~ '^stepwell_g') AND has_table_privilege('stepwell_reader', oid, 'SELECT')
UNION ALL
SELECT name, 'stepwell_reader may not read it' FROM relations
WHERE relkind = 'v' AND nspname IN ('stepwell', 'stepwell_views') AND NOT has_table_privilege('stepwell_reader', oid, 'SELECT')
UNION ALL
SELECT name, 'stepwell_writer may not write it' FROM relations
WHERE relkind IN ('r', 'p') AND nspname ~ '^stepwell_g' AND NOT (
    has_table_privilege('stepwell_writer', oid, 'SELECT') AND has_table_privilege('stepwell_writer', oid, 'INSERT')
    AND has_table_privilege('stepwell_writer', oid, 'UPDATE') AND has_table_privilege('stepwell_writer', oid, 'DELETE'))
UNION ALL
SELECT name, 'stepwell_writer may change it' FROM relations
WHERE nspname !~ '^stepwell_g' AND has_table_privilege('stepwell_writer', oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
UNION ALL
SELECT name, 'its owner is ' || proowner::regrole::text FROM routines WHERE proowner <> 'stepwell_owner'::regrole
UNION ALL
SELECT name, 'stepwell_reader may call it, and it can change something' FROM routines
WHERE (prokind = 'p' OR provolatile = 'v') AND has_function_privilege('stepwell_reader', oid, 'EXECUTE')
UNION ALL
SELECT name, 'stepwell_reader may not call it' FROM routines
WHERE prokind <> 'p' AND provolatile <> 'v' AND NOT has_function_privilege('stepwell_reader', oid, 'EXECUTE')
ORDER BY 1, 2

-- name: harden
-- What every user of a database may do by PostgreSQL's own functions: hold locks that our workers wait for, and store
-- large objects. Owner and writers keep the locks.
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND (p.proname ~ '^pg_(try_)?advisory_(xact_)?lock(_shared)?$'
               OR p.proname IN ('lo_creat', 'lo_create', 'lo_from_bytea', 'lo_put', 'lowrite', 'lo_truncate', 'lo_truncate64'))
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', routine);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO stepwell_owner, stepwell_writer', routine);
    END LOOP;
END
$$

-- name: cancel_overdue
-- A statement that runs for too long is cancelled; a session that sits in a transaction, or on a lock of ours, is ended.
WITH readers AS (
    SELECT a.pid, a.usename::text AS usename, a.state, now() - a.query_start AS runs, now() - a.state_change AS sits,
           EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory') AS locks
    FROM pg_stat_activity a
    JOIN pg_roles u ON u.oid = a.usesysid AND NOT u.rolsuper
    JOIN pg_roles r ON r.rolname = 'stepwell_reader' AND pg_has_role(u.oid, r.oid, 'MEMBER')
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
      AND NOT EXISTS (SELECT FROM pg_roles w WHERE w.rolname IN ('stepwell_owner', 'stepwell_writer')
                      AND pg_has_role(u.oid, w.oid, 'MEMBER'))
)
SELECT pid, usename, 'cancelled', extract(epoch FROM runs)::double precision, pg_cancel_backend(pid) FROM readers
WHERE state = 'active' AND NOT locks AND runs > make_interval(secs => %(statement_s)s)
UNION ALL
SELECT pid, usename, 'ended', extract(epoch FROM sits)::double precision, pg_terminate_backend(pid) FROM readers
WHERE state ~ '^idle in transaction' AND sits > make_interval(secs => %(idle_s)s) OR locks AND runs > make_interval(secs => %(statement_s)s)
