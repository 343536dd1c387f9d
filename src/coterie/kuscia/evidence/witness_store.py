"""What a witness must not forget, in one SQLite file beside the logs: partners' logs, what was cosigned of them, what contradicts itself, and who cosigned ours.

A write is on disk when it returns. In a control plane of several members each has such a file, and the rows of logs and findings are in the shared
store besides, before a write returns (`shared_witness.py`): the file of a member that did not lead meanwhile takes them over. The file outlives the own log: after `coterie audit reopen` all of it still holds.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.evidence import merkle, witness
from coterie.kuscia.evidence.shared_witness import SharedWitnessRows
from coterie.kuscia.evidence.signed_notes import NoteKey, SignedNote
from coterie.kuscia.evidence.witness import (
    IntroducedLog,
    LogFinding,
    PinnedLog,
    Succession,
    WitnessRefusal,
    WitnessRequest,
)

WITNESS_FILE = "witness.db"
_CLOSED_BY = ("", "person", "partner")
"""By the number in the column `accepted`."""
_MOST_FINDINGS = 20
"""Of one partner: the first ones are the proof, a partner does not fill our disk with more."""
MOST_LOGS = 256
"""Of one partner: some for each year."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS logs (origin TEXT PRIMARY KEY, domain TEXT NOT NULL, key TEXT NOT NULL, opened BLOB NOT NULL,
  size INTEGER NOT NULL, root BLOB NOT NULL, note TEXT NOT NULL, current INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS findings (id INTEGER PRIMARY KEY, domain TEXT NOT NULL, origin TEXT NOT NULL, reason TEXT NOT NULL, sentence TEXT NOT NULL,
  first TEXT NOT NULL, second TEXT NOT NULL, time INTEGER NOT NULL, accepted INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS exchanges (partner TEXT PRIMARY KEY, origin TEXT NOT NULL, size INTEGER NOT NULL, cosigned INTEGER NOT NULL,
  tried INTEGER NOT NULL, problem TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class KeptFinding:
    finding: LogFinding
    time: int
    """Seconds since 1970."""
    accepted: bool
    """Nobody has to look at it any more."""
    closed_by: str = ""
    """`person`, or `partner`: it opened its log anew as it should, or went on from what it showed before."""


@dataclass(frozen=True, slots=True)
class ExchangeState:
    """How far a partner cosigned our log."""

    partner: str
    origin: str = ""
    size: int = 0
    cosigned: int = 0
    """When, in seconds since 1970."""
    tried: int = 0
    problem: str = ""
    """Why the last try brought nothing."""


class WitnessReader:
    """Reads the file while the node writes it; from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection
        finally:
            connection.close()

    def logs(self) -> list[PinnedLog]:
        """All that were ever introduced, the newest of each domain last."""
        if not self.path.exists():
            return []
        with self._connected() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM logs ORDER BY domain, current, length(origin), origin")
            return [_log(row) for row in rows]


class WitnessStore(WitnessReader):
    """One process writes."""

    def __init__(self, path: Path, shared: SharedWitnessRows | None = None) -> None:
        """Raises EvidenceError."""
        super().__init__(path)
        self._lock = threading.Lock()
        self._shared = shared
        self._kept: dict[str, bytes] = {}
        """What is in the shared store."""
        self._behind = shared is not None
        """The shared store may know more than this file."""
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._writing = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._writing.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
            os.chmod(path, 0o600)
        try:
            with self._transaction():
                pass  # what other members were told is here before anybody asks
        except BaseException:
            self._writing.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._writing.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise EvidenceError(
                f"{self.path} cannot be written: {problem}; free the disk or repair the file"
            ) from problem

    @contextmanager
    def _transaction(self, changed: str = "") -> Iterator[sqlite3.Connection]:
        """`changed`: the domain whose logs and findings may be written."""
        with self._lock, self._explained():
            if self._behind:
                with self._committed():
                    self._take_over()
                self._behind = False
            with self._committed():
                yield self._writing
                if changed and self._shared is not None:
                    self._behind = True  # until the file has it too
                    self._share(changed)
            if self._shared is not None:
                self._behind = False

    @contextmanager
    def _committed(self) -> Iterator[None]:
        self._writing.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writing.execute("COMMIT")
        except BaseException:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            raise

    def _share(self, domain: str) -> None:
        assert self._shared is not None
        rows = {key: value for key, value in self._rows(domain) if self._kept.get(key) != value}
        if rows:
            self._shared.keep(rows)
            self._kept.update(rows)

    def _rows(self, domain: str) -> Iterator[tuple[str, bytes]]:
        for row in self._writing.execute(f"SELECT {_COLUMNS} FROM logs WHERE domain = ?", (domain,)):
            yield f"log-{_digest(row[1])}", msgspec.json.encode(row)
        for row in self._writing.execute(f"SELECT {_FINDING_COLUMNS} FROM findings WHERE domain = ?", (domain,)):
            yield f"finding-{_digest(*row[:-1])}", msgspec.json.encode(row)

    def _take_over(self) -> None:
        """The shared store is right about every log and finding that it knows. What only this file knows, from a time when it was not shared, stays."""
        assert self._shared is not None
        self._kept = self._shared.load()
        execute = self._writing.execute
        logs = [msgspec.json.decode(row, type=_LogRow) for key, row in self._kept.items() if key.startswith("log-")]
        for domain in {row[0] for row in logs}:
            execute("UPDATE logs SET current = 0 WHERE domain = ?", (domain,))
        for row in logs:
            execute(f"INSERT OR REPLACE INTO logs ({_COLUMNS}) VALUES ({_MARKS})", row)
        same = " AND ".join(f"{name} = ?" for name in _FINDING_COLUMNS.split(", ")[:-1])
        for key, value in self._kept.items():
            if key.startswith("finding-"):
                found = msgspec.json.decode(value, type=_FindingRow)
                execute(f"DELETE FROM findings WHERE {same}", found[:-1])
                execute(f"INSERT INTO findings ({_FINDING_COLUMNS}) VALUES ({_MARKS})", found)

    # Partners' logs.

    def current(self, domain: str) -> PinnedLog | None:
        with self._transaction() as connection:
            return _current(connection, domain)

    def answer_to(self, request: WitnessRequest, caller: str, *, settled: bool) -> WitnessRefusal | bool:
        """What `cosign` would answer now. Nothing is written: a new checkpoint is recorded first."""
        with self._transaction() as connection:
            return _answer(request, caller, _current(connection, caller), settled)

    def cosign(self, request: WitnessRequest, caller: str, *, settled: bool) -> WitnessRefusal | bool:
        """Whether it is new. It is on disk, and the cosignature may be given out. The check and the write are one transaction."""
        with self._transaction(caller) as connection:
            pinned = _current(connection, caller)
            answer = _answer(request, caller, pinned, settled)
            if answer is True and pinned is not None:
                checkpoint = request.checkpoint
                connection.execute(
                    "UPDATE logs SET size = ?, root = ?, note = ? WHERE origin = ?",
                    (checkpoint.size, checkpoint.root, _signed_by(request.note, pinned.key), checkpoint.origin),
                )
            return answer

    def succession(self, domain: str, new: IntroducedLog) -> Succession:
        """What `introduce` would do now. Nothing is written: a new log is recorded first."""
        with self._transaction() as connection:
            return _succession(connection, domain, new)

    def introduce(self, domain: str, new: IntroducedLog) -> Succession:
        with self._transaction(domain) as connection:
            result = _succession(connection, domain, new)
            if result.pin is not None:
                _pin(connection, domain, result.pin)
            return result

    # Findings.

    def is_new(self, finding: LogFinding) -> bool:
        """Whether `keep_finding` would keep it: it is recorded first."""
        with self._transaction() as connection:
            return _is_new(connection, finding)

    def keep_finding(self, finding: LogFinding, time: int) -> bool:
        """False: it is known."""
        with self._transaction(finding.domain) as connection:
            if not _is_new(connection, finding):
                return False
            connection.execute(
                "INSERT INTO findings (domain, origin, reason, sentence, first, second, time) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    finding.domain,
                    finding.origin,
                    finding.reason,
                    finding.sentence,
                    finding.first,
                    finding.second,
                    time,
                ),
            )
            return True

    def findings(self, domain: str = "") -> list[KeptFinding]:
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT domain, origin, reason, sentence, first, second, time, accepted FROM findings WHERE ? IN ('', domain) ORDER BY id",
                (domain,),
            )
            return [KeptFinding(LogFinding(*row[:6]), row[6], bool(row[7]), _CLOSED_BY[row[7]]) for row in rows]

    def accept(self, domain: str) -> int:
        """A person looked at the findings of a partner. Its log may be introduced anew, whatever it is now. The number of findings."""
        with self._transaction(domain) as connection:
            count = connection.execute(
                "UPDATE findings SET accepted = 1 WHERE domain = ? AND accepted = 0", (domain,)
            ).rowcount
            if count:
                connection.execute("UPDATE logs SET current = 0 WHERE domain = ?", (domain,))
            return count

    def close_findings(self, domain: str, reasons: tuple[str, ...], origin: str = "") -> int:
        """The partner put it right itself. `origin`: only of this log. The number of findings."""
        marks = ", ".join("?" * len(reasons))
        with self._transaction(domain) as connection:
            return connection.execute(
                f"UPDATE findings SET accepted = 2 WHERE domain = ? AND accepted = 0 AND ? IN ('', origin) AND reason IN ({marks})",
                (domain, origin, *reasons),
            ).rowcount

    # Our own log at partners.

    def exchange(self, partner: str) -> ExchangeState:
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT partner, origin, size, cosigned, tried, problem FROM exchanges WHERE partner = ?", (partner,)
            ).fetchone()
            return ExchangeState(*row) if row else ExchangeState(partner)

    def exchanges(self) -> list[ExchangeState]:
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT partner, origin, size, cosigned, tried, problem FROM exchanges ORDER BY partner"
            )
            return [ExchangeState(*row) for row in rows]

    def keep_exchange(self, state: ExchangeState) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?, ?)",
                (state.partner, state.origin, state.size, state.cosigned, state.tried, state.problem),
            )


def _answer(request: WitnessRequest, caller: str, pinned: PinnedLog | None, settled: bool) -> WitnessRefusal | bool:
    refusal = witness.decide(request, caller, pinned, settled=settled)
    if refusal is not None:
        return refusal
    assert pinned is not None
    return request.checkpoint.size > pinned.size or not pinned.note


def _succession(connection: sqlite3.Connection, domain: str, new: IntroducedLog) -> Succession:
    result = witness.succeed(new, domain, _current(connection, domain))
    if result.pin is not None:
        count = connection.execute("SELECT count(*) FROM logs WHERE domain = ?", (domain,)).fetchone()[0]
        if count >= MOST_LOGS:
            return Succession(refused=f"{MOST_LOGS} logs of {domain} are known, which is the most")
    return result


def _is_new(connection: sqlite3.Connection, finding: LogFinding) -> bool:
    known = connection.execute(
        "SELECT count(*), coalesce(sum(origin = ? AND reason = ? AND accepted = 0), 0) FROM findings WHERE domain = ?",
        (finding.origin, finding.reason, finding.domain),
    ).fetchone()
    return not known[1] and known[0] < _MOST_FINDINGS


_COLUMNS = "domain, origin, key, opened, size, root, note, current"
_FINDING_COLUMNS = "domain, origin, reason, sentence, first, second, time, accepted"
_MARKS = ", ".join("?" * 8)
_LogRow = tuple[str, str, str, bytes, int, bytes, str, int]
_FindingRow = tuple[str, str, str, str, str, str, int, int]


def _digest(*words: object) -> str:
    return hashlib.sha256(msgspec.json.encode(words)).hexdigest()


def _log(row: _LogRow) -> PinnedLog:
    domain, origin, key, opened, size, root, note, current = row
    return PinnedLog(domain, origin, NoteKey.parse(key), opened, size, root, note, bool(current))


def _signed_by(note: str, key: NoteKey) -> str:
    """Only what proves something."""
    found = SignedNote.parse(note)
    return str(SignedNote(found.text, tuple(each for each in found.signatures if each.key_id == key.id)))


def _current(connection: sqlite3.Connection, domain: str) -> PinnedLog | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM logs WHERE domain = ? AND current = 1", (domain,)).fetchone()
    return _log(row) if row else None


def _pin(connection: sqlite3.Connection, domain: str, new: IntroducedLog) -> None:
    connection.execute("UPDATE logs SET current = 0 WHERE domain = ?", (domain,))
    connection.execute(
        "INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?, 0, ?, '', 1)",
        (new.origin, domain, str(new.key), new.opened, merkle.EMPTY_ROOT),
    )
