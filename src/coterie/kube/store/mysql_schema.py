"""The tables of a store in MySQL, and what is said to them. Pure.

    coterie_head      one row: the newest revision, the mark of compaction, which history this is; who writes now
                      (`epoch`, `holder`) and that he lives (`beat`)
    coterie_log       one row for each change, as in `rows.py`
    coterie_leases    with deadlines by the database's clock; 0: ended, its keys go next
    coterie_requests  writes of servers that may not write themselves, and their answers
    coterie_sweeping  how far dropping has come; a table of its own, so that it holds up no writer

What belongs together is sent as one packet of several statements: the row lock on `coterie_head` is then held while the server
works and never while a client sleeps. A statement that fails ends the packet, so a batch whose fence does not hold writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.kube.store.rows import StoreRow

FORMAT = 1
LONGEST_KEY = 2000
FENCED = 1048
"""`revision` cannot be NULL: the fence does not hold."""

NOW = "UNIX_TIMESTAMP(NOW(6))"

_TABLE = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4"
TABLES = (
    f"""CREATE TABLE IF NOT EXISTS coterie_log (
    revision BIGINT NOT NULL PRIMARY KEY, k VARBINARY({LONGEST_KEY}) NOT NULL, created BIGINT NOT NULL,
    previous BIGINT NOT NULL, deleted TINYINT NOT NULL, lease BIGINT NOT NULL, value LONGBLOB,
    UNIQUE KEY by_key (k, revision)) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS coterie_leases (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, ttl DOUBLE NOT NULL, deadline DOUBLE NOT NULL) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS coterie_requests (
    asker BIGINT NOT NULL, n BIGINT NOT NULL, asked DOUBLE NOT NULL, taken BIGINT NOT NULL, body LONGBLOB NOT NULL,
    answer LONGBLOB, PRIMARY KEY (asker, n)) {_TABLE}""",
    f"CREATE TABLE IF NOT EXISTS coterie_sweeping (one TINYINT NOT NULL PRIMARY KEY, swept BIGINT NOT NULL) {_TABLE}",
    "INSERT IGNORE INTO coterie_sweeping VALUES (1, 0)",
    f"""CREATE TABLE IF NOT EXISTS coterie_head (
    one TINYINT NOT NULL PRIMARY KEY, format INT NOT NULL, history BIGINT NOT NULL, revision BIGINT NOT NULL,
    compacted BIGINT NOT NULL, epoch BIGINT NOT NULL, beat BIGINT NOT NULL, holder VARCHAR(255) NOT NULL) {_TABLE}""",
)
"""`coterie_head` and its row come last: who finds the row finds all tables."""

ROW = "revision, k, created, previous, deleted, lease, value"
HEAD = "SELECT history, revision, compacted, epoch, beat, holder, format FROM coterie_head WHERE one = 1"
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
COMMIT = "COMMIT"

HEADS = """SELECT l.k, l.revision, l.created, l.lease FROM (SELECT k, MAX(revision) AS at FROM coterie_log GROUP BY k) m
JOIN coterie_log l ON l.revision = m.at WHERE NOT l.deleted"""

DUE = f"SELECT id FROM coterie_leases WHERE deadline <= {NOW} LIMIT 1000"


def first_head(history: int) -> str:
    return f"INSERT IGNORE INTO coterie_head VALUES (1, {FORMAT}, {history}, 0, 0, 1, 0, '')"


def blob(value: bytes | None) -> str:
    return "NULL" if value is None else f"x'{value.hex()}'"


def text(value: str) -> str:
    """Whatever the session's settings for quotes and backslashes are."""
    return f"CONVERT({blob(value.encode())} USING utf8mb4)" if value else "''"


def numbers(values: Iterable[int]) -> str:
    return "(" + ",".join(map(str, values)) + ")"


def log_after(revision: int, limit: int) -> str:
    return f"SELECT {ROW} FROM coterie_log WHERE revision > {revision} ORDER BY revision LIMIT {limit}"


def newest_of(key: bytes, revision: int) -> str:
    bound = f" AND revision <= {revision}" if revision else ""
    return f"SELECT {ROW} FROM coterie_log WHERE k = {blob(key)}{bound} ORDER BY revision DESC LIMIT 1"


def page(prefix: bytes, end: bytes | None, after: bytes, revision: int, limit: int) -> str:
    """The newest row of each key, those that say "deleted" too: the caller leaves them out and counts them."""
    where = [f"k >= {blob(prefix)}", *([f"k > {blob(after)}"] if after else []), *([f"k < {blob(end)}"] if end else [])]
    if revision:
        where.append(f"revision <= {revision}")
    return (
        f"SELECT l.revision, l.k, l.created, l.previous, l.deleted, l.lease, l.value FROM (SELECT k, MAX(revision) AS at"
        f" FROM coterie_log WHERE {' AND '.join(where)} GROUP BY k ORDER BY k LIMIT {limit}) m"
        f" JOIN coterie_log l ON l.revision = m.at ORDER BY l.k"
    )


def history(prefix: bytes, end: bytes | None, after: int, upto: int, limit: int) -> str:
    bounds = f" AND k >= {blob(prefix)}" + (f" AND k < {blob(end)}" if end else "")
    return (
        f"SELECT {ROW} FROM coterie_log WHERE revision > {after} AND revision <= {upto}{bounds}"
        f" ORDER BY revision LIMIT {limit}"
    )


def fenced(epoch: int, base: int, reached: int) -> str:
    """The first statement of each batch. One who is not the holder any more, or has not seen all, gets an error."""
    return (
        f"UPDATE coterie_head SET revision = IF(epoch = {epoch} AND revision = {base}, {reached}, NULL),"
        f" beat = beat + 1 WHERE one = 1"
    )


def insert(rows: Sequence[StoreRow]) -> str:
    values = ",".join(
        f"({row.revision},{blob(row.key.encode())},{row.created},{row.previous},{row.deleted},{row.lease},{blob(row.value)})"
        for row in rows
    )
    return f"INSERT INTO coterie_log ({ROW}) VALUES {values}"


def take_over(epoch: int, holder: str) -> str:
    return (
        f"UPDATE coterie_head SET epoch = epoch + 1, beat = beat + 1, holder = {text(holder)}"
        f" WHERE one = 1 AND epoch = {epoch}"
    )


def beat(epoch: int) -> str:
    return f"UPDATE coterie_head SET beat = beat + 1 WHERE one = 1 AND epoch = {epoch}"


def release(epoch: int) -> str:
    return f"UPDATE coterie_head SET holder = '' WHERE one = 1 AND epoch = {epoch}"


def sweep(start: int, stop: int) -> list[str]:
    return [
        "DELETE old FROM coterie_log old JOIN coterie_log newer ON newer.previous = old.revision"
        f" WHERE newer.revision > {start} AND newer.revision <= {stop} AND newer.previous > 0",
        f"DELETE FROM coterie_log WHERE revision > {start} AND revision <= {stop} AND deleted",
        f"UPDATE coterie_sweeping SET swept = GREATEST(swept, {stop})",
    ]
