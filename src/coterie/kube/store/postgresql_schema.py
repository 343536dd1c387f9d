"""The tables and functions of a store in PostgreSQL.

    head      one row: the newest revision, the mark of compaction, which history this is
    heads     what exists now: the revision, creation and lease of each key
    log       one row for each change, as in `rows.py`
    leases    with deadlines by the database's clock
    sweeping  how far dropping has come; a table of its own, so that it holds up no writer

A write is one call of one function, and that is one transaction: a client that stops in the middle holds no lock. The
function locks `head` in a statement of its own, and decides in the next: the next one has a new snapshot, which shows
what the one before it in the queue has committed. Both in one statement would decide on what was there before the wait.
Revisions are therefore given in the order of commits and have no gaps.
"""

from __future__ import annotations

FORMAT = 1

SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    revision bigint NOT NULL,
    compacted bigint NOT NULL,
    epoch bigint NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE {schema}.heads (
    key bytea PRIMARY KEY,
    revision bigint NOT NULL,
    created bigint NOT NULL,
    lease bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX heads_by_lease ON {schema}.heads (lease) WHERE lease <> 0;
CREATE TABLE {schema}.log (
    revision bigint PRIMARY KEY,
    key bytea NOT NULL,
    created bigint NOT NULL,
    previous bigint NOT NULL,
    deleted boolean NOT NULL,
    lease bigint NOT NULL,
    value bytea
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000);
CREATE UNIQUE INDEX log_by_key ON {schema}.log (key, revision DESC);
CREATE TABLE {schema}.leases (id bigserial PRIMARY KEY, ttl double precision NOT NULL, deadline timestamptz NOT NULL);
CREATE TABLE {schema}.sweeping (one boolean PRIMARY KEY DEFAULT true CHECK (one), swept bigint NOT NULL);
INSERT INTO {schema}.sweeping (swept) VALUES (0);

CREATE FUNCTION {schema}.put_many(
    asked_keys bytea[], asked_expects bigint[], asked_values bytea[], asked_deletes boolean[], asked_leases bigint[]
) RETURNS TABLE (i bigint, given bigint, verdict integer, actual bigint, created bigint, lease bigint, value bytea)
LANGUAGE plpgsql SET search_path = {schema} AS $$
#variable_conflict use_column
DECLARE
    base bigint;
    written bigint;
BEGIN
    SELECT revision INTO STRICT base FROM head FOR UPDATE;
    RETURN QUERY
    WITH asked AS (
        SELECT * FROM unnest(asked_keys, asked_expects, asked_values, asked_deletes, asked_leases)
            WITH ORDINALITY AS t (key, expect, value, deleted, lease, i)
    ), judged AS (
        SELECT a.i, a.key, a.value, a.deleted, a.lease,
            coalesce(h.revision, 0) AS actual, coalesce(h.created, 0) AS created,
            CASE
                WHEN a.expect IS NOT NULL AND a.expect <> coalesce(h.revision, 0) THEN 1
                WHEN a.deleted AND h.revision IS NULL THEN 1
                WHEN a.lease <> 0 AND l.id IS NULL THEN 2
                ELSE 0
            END AS verdict
        FROM asked a
        LEFT JOIN heads h ON h.key = a.key
        LEFT JOIN leases l ON l.id = a.lease AND l.deadline > now()
    ), taken AS (
        SELECT *, base + row_number() OVER (ORDER BY i) AS given FROM judged WHERE verdict = 0
    ), logged AS (
        INSERT INTO log (revision, key, created, previous, deleted, lease, value)
        SELECT given, key, CASE WHEN actual = 0 THEN given ELSE created END, actual, deleted, lease, value FROM taken
    ), gone AS (
        DELETE FROM heads USING taken WHERE heads.key = taken.key AND taken.deleted
    ), kept AS (
        INSERT INTO heads (key, revision, created, lease)
        SELECT key, given, CASE WHEN actual = 0 THEN given ELSE created END, lease FROM taken WHERE NOT deleted
        ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, lease = excluded.lease
    )
    SELECT j.i, t.given, j.verdict, j.actual, j.created, o.lease, o.value
    FROM judged j
    LEFT JOIN taken t ON t.i = j.i
    LEFT JOIN log o ON j.verdict = 1 AND o.revision = j.actual;
    SELECT count(*) INTO written FROM log WHERE revision > base;
    IF written > 0 THEN
        UPDATE head SET revision = base + written;
        PERFORM pg_notify('{channel}', (base + written)::text);
    END IF;
END $$;

CREATE FUNCTION {schema}.put_all(
    asked_keys bytea[], asked_expects bigint[], asked_values bytea[], asked_deletes boolean[], asked_leases bigint[]
) RETURNS TABLE (i bigint, given bigint, verdict integer, actual bigint, created bigint, lease bigint, value bytea)
LANGUAGE plpgsql SET search_path = {schema} AS $$
#variable_conflict use_column
DECLARE
    base bigint;
    at bigint;
    old heads%ROWTYPE;
    verdict integer;
BEGIN
    SELECT revision INTO STRICT base FROM head FOR UPDATE;
    FOR at IN 1 .. cardinality(asked_keys) LOOP
        SELECT * INTO old FROM heads h WHERE h.key = asked_keys[at];
        verdict := CASE
            WHEN asked_expects[at] IS NOT NULL AND asked_expects[at] <> coalesce(old.revision, 0) THEN 1
            WHEN asked_deletes[at] AND old.revision IS NULL THEN 1
            WHEN asked_leases[at] <> 0
                AND NOT EXISTS (SELECT FROM leases l WHERE l.id = asked_leases[at] AND l.deadline > now()) THEN 2
            ELSE 0
        END;
        IF verdict <> 0 THEN
            RAISE EXCEPTION 'refused' USING ERRCODE = 'CT001',
                DETAIL = at || ' ' || verdict || ' ' || coalesce(old.revision, 0);
        END IF;
        INSERT INTO log (revision, key, created, previous, deleted, lease, value) VALUES (
            base + at, asked_keys[at], coalesce(old.created, base + at), coalesce(old.revision, 0),
            asked_deletes[at], asked_leases[at], asked_values[at]);
        IF asked_deletes[at] THEN
            DELETE FROM heads h WHERE h.key = asked_keys[at];
        ELSE
            INSERT INTO heads (key, revision, created, lease)
            VALUES (asked_keys[at], base + at, base + at, asked_leases[at])
            ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, lease = excluded.lease;
        END IF;
    END LOOP;
    UPDATE head SET revision = base + cardinality(asked_keys);
    PERFORM pg_notify('{channel}', (base + cardinality(asked_keys))::text);
    RETURN QUERY SELECT n, base + n, 0, 0::bigint, 0::bigint, 0::bigint, NULL::bytea
        FROM generate_series(1, cardinality(asked_keys)::bigint) AS n;
END $$;

CREATE FUNCTION {schema}.end_leases(asked bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = {schema} AS $$
DECLARE
    base bigint;
    written bigint;
    ended bigint[];
BEGIN
    SELECT revision INTO STRICT base FROM head FOR UPDATE;
    WITH gone AS (
        DELETE FROM leases WHERE id = asked OR (asked = 0 AND deadline <= now()) RETURNING id
    ) SELECT coalesce(array_agg(id), '{}') INTO ended FROM gone;
    IF asked <> 0 AND cardinality(ended) = 0 THEN
        RETURN -1;
    END IF;
    WITH gone AS (
        DELETE FROM heads WHERE lease = ANY (ended) AND lease <> 0 RETURNING key, revision, created
    ) INSERT INTO log (revision, key, created, previous, deleted, lease, value)
        SELECT base + row_number() OVER (ORDER BY key), key, created, revision, true, 0, NULL FROM gone;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        UPDATE head SET revision = base + written;
        PERFORM pg_notify('{channel}', (base + written)::text);
    END IF;
    RETURN base + written;
END $$;

CREATE FUNCTION {schema}.sweep(upto bigint, step bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = {schema} AS $$
DECLARE
    start bigint;
    stop bigint;
BEGIN
    SELECT swept INTO start FROM sweeping FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN upto;  -- another server is at it
    END IF;
    stop := least(start + step, upto);
    IF stop <= start THEN
        RETURN upto;
    END IF;
    DELETE FROM log WHERE revision IN (
        SELECT previous FROM log WHERE revision > start AND revision <= stop AND previous > 0);
    DELETE FROM log WHERE revision > start AND revision <= stop AND deleted;
    UPDATE sweeping SET swept = stop;
    RETURN stop;
END $$;

INSERT INTO {schema}.head (format, revision, compacted, epoch) VALUES ({format}, 0, 0, {epoch});
"""

ROW = "revision, key, created, previous, deleted, lease, value"

IDENTITY = """SELECT h.format, h.revision, h.compacted, h.epoch,
    pg_is_in_recovery() AS standby,
    CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline
FROM {schema}.head h"""

FOLLOW = f"""SELECT h.revision AS newest, h.compacted AS mark, h.epoch,
    EXISTS (SELECT FROM {{schema}}.leases WHERE deadline <= now()) AS due, l.*
FROM {{schema}}.head h
LEFT JOIN LATERAL (SELECT {ROW} FROM {{schema}}.log WHERE revision > $1 ORDER BY revision LIMIT $2) l ON true
ORDER BY l.revision"""

AT = f"SELECT {ROW} FROM {{schema}}.log WHERE revision = $1"

GET = f"""SELECT h.revision AS newest, h.compacted AS mark, l.*
FROM {{schema}}.head h
LEFT JOIN LATERAL (
    SELECT {ROW} FROM {{schema}}.log WHERE key = $1 AND revision <= CASE WHEN $2 = 0 THEN h.revision ELSE $2 END
    ORDER BY revision DESC LIMIT 1) l ON true"""

PAGE_NOW = f"""SELECT h.revision AS newest, h.compacted AS mark, l.*
FROM {{schema}}.head h
LEFT JOIN LATERAL (
    SELECT {ROW} FROM (
        SELECT revision AS at FROM {{schema}}.heads
        WHERE key >= $1 AND key > $2 AND ($3::bytea IS NULL OR key < $3) ORDER BY key LIMIT $4) k
    JOIN {{schema}}.log ON log.revision = k.at) l ON true
ORDER BY l.key"""

PAGE_PAST = f"""SELECT h.revision AS newest, h.compacted AS mark, l.*
FROM {{schema}}.head h
LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT DISTINCT ON (key) {ROW} FROM {{schema}}.log
        WHERE key >= $1 AND key > $2 AND ($3::bytea IS NULL OR key < $3) AND revision <= $5
        ORDER BY key, revision DESC) d
    WHERE NOT deleted ORDER BY key LIMIT $4) l ON true
ORDER BY l.key"""

HISTORY = f"""SELECT h.revision AS newest, h.compacted AS mark, l.*
FROM {{schema}}.head h
LEFT JOIN LATERAL (
    SELECT {ROW} FROM {{schema}}.log
    WHERE revision > $1 AND revision <= $2 AND key >= $3 AND ($4::bytea IS NULL OR key < $4)
    ORDER BY revision LIMIT $5) l ON true
ORDER BY l.revision"""
