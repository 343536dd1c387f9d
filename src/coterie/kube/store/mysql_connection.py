"""One connection to MySQL for a store: blocking, in a thread, and another thread can end it.

The socket is opened here and handed to the driver, with a second handle kept: shutting that down ends whatever the driver
waits for.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from coterie.base.store_address import StoreAddress
from coterie.kube.store.protocol import StoreError, StoreUnavailable

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 8.0
LOCK_SECONDS = 4
_LONG_SECONDS = 600.0
_NO_DATABASE = 1049
_DENIED = frozenset({1044, 1045, 1130, 1142, 1143, 1203, 1226, 1227, 1370, 1698, 2059, 3118})
_UNDONE = frozenset(
    {1022, 1062, 1114, 1118, 1153, 1205, 1206, 1213, 1290, 1406, 1792, 1836, 1021, 1030, 1037, 1038, 1041}
)
"""Errors of one statement, after which its transaction can be rolled back: nothing of it was written."""
NOTHING_THERE = frozenset({1146, 1049})


class StatementFailed(StoreError):
    """The server answered, and refused."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code

    @property
    def undone(self) -> bool:
        return self.code in _UNDONE


class MysqlStoreConnection:
    def __init__(
        self,
        address: StoreAddress,
        host: tuple[str, int],
        *,
        isolation: str,
        idle_seconds: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: where the address wants it, and one is there already."""
        self._address = address
        self._tls = tls
        self._host = host
        self._isolation = isolation
        self._idle_seconds = idle_seconds
        self._line: Any = None
        self._handle: socket.socket | None = None
        self._lock = threading.Lock()
        self._ended = False
        self.packet = 0
        """The largest packet that the server takes."""
        self.read_only = False
        self.durable = True

    def connect(self, *, database: bool = True) -> None:
        label, (host, port) = self._address.label, self._host
        try:
            plain = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
            with self._lock:
                if self._ended:
                    plain.close()
                    raise StoreUnavailable("the store is closed")
                self._handle = plain.dup()
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._line = pymysql.Connection(
                host=host,
                user=self._address.user,
                password=self._address.password.reveal().encode(),  # the driver would take Latin-1
                database=self._address.database if database else None,
                charset="utf8mb4",
                autocommit=True,
                read_timeout=ANSWER_SECONDS,
                write_timeout=ANSWER_SECONDS,
                ssl=self._tls or tls_of(self._address),
                ssl_disabled=not self._address.tls,
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
                defer_connect=True,
            )
            self._line.connect(plain)
            self._settle()
        except StatementFailed as problem:
            raise StoreUnavailable(f"{label}: {problem}") from problem
        except pymysql.err.MySQLError as problem:
            code = _code(problem)
            if code == _NO_DATABASE and database:
                self.close()
                self._make_database()
                self.connect()
                return
            if code in _DENIED:
                raise StoreUnavailable(f"{label} does not let us in ({code})") from problem
            raise StoreUnavailable(f"{label} cannot be reached: {_words(problem)}") from problem
        except (OSError, EOFError, RuntimeError) as problem:
            raise StoreUnavailable(f"{label} cannot be reached: {_words(problem)}") from problem

    def _make_database(self) -> None:
        """As kine does."""
        maker = MysqlStoreConnection(self._address, self._host, isolation=self._isolation, idle_seconds=60)
        try:
            maker.connect(database=False)
            name = self._address.database.replace("`", "``")
            maker.run(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        except StatementFailed as problem:
            raise StoreError(f"{self._address.label}: the database cannot be made: {problem}") from problem
        finally:
            maker.close()

    def _settle(self) -> None:
        self.run(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00',"
            f" innodb_lock_wait_timeout = {LOCK_SECONDS}, wait_timeout = {self._idle_seconds}"
        )
        self.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {self._isolation}")
        ((packet, read_only, flush),) = self.query(
            "SELECT @@max_allowed_packet, @@global.read_only, @@innodb_flush_log_at_trx_commit"
        )
        self.packet, self.read_only, self.durable = int(packet), bool(read_only), int(flush) == 1

    def run(self, statement: str) -> int:
        """How many rows it found."""
        self._ask(statement)
        found: int = self._line._result.affected_rows
        return found

    def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self._ask(statement)[0]

    def packet_of(self, statements: Sequence[str]) -> list[Sequence[tuple[Any, ...]]]:
        """All at once; the rows of each. The first that fails ends the packet, and its transaction is rolled back."""
        return self._ask(";".join(statements))

    def last_id(self) -> int:
        return int(self._line._result.insert_id)

    def _ask(self, text: str) -> list[Sequence[tuple[Any, ...]]]:
        line = self._line
        if line is None:
            raise StoreUnavailable(f"{self._address.label}: the connection is closed")
        try:
            line.query(text)
            found = [line._result.rows or ()]
            while line._result.has_next:
                line.next_result()
                found.append(line._result.rows or ())
            return found
        except pymysql.err.MySQLError as problem:
            code = _code(problem)
            if code and code < 2000 and code not in (1053, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 1180):
                self._roll_back()
                raise StatementFailed(code, f"{self._address.label}: {_words(problem)}") from problem
            raise StoreUnavailable(f"{self._address.label} did not answer: {_words(problem)}") from problem
        except (OSError, EOFError, ValueError, AttributeError, IndexError) as problem:
            # The driver's own troubles with a connection that was ended under it.
            raise StoreUnavailable(f"{self._address.label} did not answer: {_words(problem)}") from problem

    def _roll_back(self) -> None:
        """Whether there is a transaction or not: an error does not say."""
        try:
            self._line.query("ROLLBACK")
        except (pymysql.err.MySQLError, OSError, EOFError) as problem:
            raise StoreUnavailable(f"{self._address.label} did not answer: {_words(problem)}") from problem

    def patient(self) -> None:
        """For one long piece of work: a restore."""
        self._line._read_timeout = self._line._write_timeout = _LONG_SECONDS
        self.run("SET SESSION wait_timeout = 3600")

    def interrupt(self) -> None:
        """From any thread; everything that waits ends with an error."""
        with self._lock:
            self._ended = True
            if self._handle is not None:
                with suppress(OSError):  # it may be down already
                    self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._line is not None:
            self._line._force_close()
            self._line = None
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


def tls_of(address: StoreAddress) -> ssl.SSLContext | None:
    """One for all connections of a session: reading the machine's authorities takes 20 ms."""
    if not address.tls:
        return None
    context = ssl.create_default_context(cafile=address.ca or None)
    if dict(address.options).get("tls") == "skip-verify":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _code(problem: BaseException) -> int:
    return problem.args[0] if problem.args and isinstance(problem.args[0], int) else 0


def _words(problem: BaseException) -> str:
    """Without rows or statements: the server quotes them in some errors."""
    code = _code(problem)
    if code:
        return f"error {code} ({str(problem.args[-1])[:120]})" if code not in (1062, 1406, 1064) else f"error {code}"
    return str(problem)[:200] or type(problem).__name__
