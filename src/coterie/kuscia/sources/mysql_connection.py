"""One connection to MySQL: blocking, but another thread can end it.

The socket is opened here and handed to the driver, with a second handle kept: shutting that down ends whatever the
driver waits for.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from coterie.kuscia.sources.endpoints import SourceEndpoint, address_of, endpoint_of, without
from coterie.kuscia.sources.protocol import DataNotFound, SourceError, SourceInfo, SourceUnreachable

_PORT = 3306
_AS_THEY_CAME: Any = encoders
"""No decoders: cells stay bytes."""
_ANSWER = 180.0
_DENIED = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1203, 1226, 1227, 1370, 1698, 2059, 3118})
_LOST = frozenset({2003, 2006, 2013, 2014, 2055, 1053, 1040})
_UNKNOWN = frozenset({1051, 1146})
_NO_FIT = frozenset({1048, 1264, 1265, 1292, 1366, 1367, 1406})
_TOO_LONG = frozenset({1969, 3024})
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,NO_ZERO_IN_DATE', "
    "time_zone = '+00:00', lock_wait_timeout = 60, net_write_timeout = 3600, net_read_timeout = 3600"
)


class MySQLConnection:
    def __init__(self, info: SourceInfo) -> None:
        self._info = info
        self._database_label = f"the database {info.database} at {address_of(info.endpoint)}"
        self._connection: Any = None
        self._handle: socket.socket | None = None
        self._stopped = False
        self.packet = 0
        """The server's largest packet."""

    def connect(self) -> None:
        password = self._info.password
        place = endpoint_of(self._info.endpoint, _PORT)
        with self._errors():
            plain = _dialled(place)
            self._handle = plain.dup()
            if self._stopped:
                raise SourceError("it was stopped")
            self._connection = pymysql.Connection(
                host=place.host,
                user=self._info.user,
                password=password.reveal() if password else "",
                database=self._info.database,
                charset="utf8mb4",
                use_unicode=False,
                conv=_AS_THEY_CAME,
                cursorclass=SSCursor,
                read_timeout=_ANSWER,
                write_timeout=_ANSWER,
                ssl=_tls(place.options.get("tls", "")),
                defer_connect=True,
            )
            self._connection.connect(plain)
            self.execute(_SESSION)
            self.packet = int(self.query("SELECT @@max_allowed_packet")[0][0])

    def execute(self, statement: str | bytes) -> None:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.execute(statement)

    def query(self, statement: str) -> list[tuple[bytes, ...]]:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def stream(self, statement: str, rows: int) -> Iterator[list[tuple[bytes | None, ...]]]:
        with self._errors():
            cursor = self._connection.cursor()
            cursor.execute(statement)
            while part := cursor.fetchmany(rows):
                yield part

    def described(self, statement: str) -> list[Any]:
        """The columns of what it would give, as the driver's descriptors; no row is asked for."""
        with self._errors(), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor._result.fields)

    def interrupt(self) -> None:
        """From any thread; everything that waits ends with an error."""
        self._stopped = True
        if self._handle is not None:
            with suppress(OSError):  # it may be down already
                self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            # Not `close`: that says goodbye first, which a stream that was left in the middle would not allow.
            self._connection._force_close()
            self._connection = None
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The server's words are kept to those that quote no rows."""
        try:
            yield
        except pymysql.err.MySQLError as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if code in _DENIED:
                raise SourceUnreachable(
                    f"{self._database_label} denied its user access or this operation ({code})"
                ) from error
            if code in _UNKNOWN:
                raise DataNotFound("there is no such table") from error
            if code in _TOO_LONG:
                raise SourceError(f"the query took longer than the source allows ({code})") from error
            if code in _NO_FIT:
                raise SourceError(
                    f"a value does not fit its column in MySQL ({code}); see the column's type"
                ) from error
            if code in _LOST or code == 0:
                raise SourceUnreachable(
                    f"{self._database_label} does not answer ({code or type(error).__name__})"
                ) from error
            raise SourceError(
                f"{self._database_label}: {without(str(error.args[-1])[:200], self._info.user)}"
            ) from error
        except (OSError, EOFError) as error:
            raise SourceUnreachable(f"{self._database_label} does not answer: {type(error).__name__}") from error


def _dialled(place: SourceEndpoint) -> socket.socket:
    if not place.host.startswith("/"):
        return socket.create_connection((place.host, place.port), timeout=10)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.connect(place.host)
    except OSError:
        local.close()
        raise
    return local


def _tls(wanted: str) -> ssl.SSLContext | None:
    """`?tls=true` checks the server's certificate, `?tls=skip-verify` only encrypts."""
    if wanted in ("", "false"):
        return None
    context = ssl.create_default_context()
    if wanted == "skip-verify":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
