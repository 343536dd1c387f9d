"""The client library of HiveServer2, impyla, as a source needs it. Needs the extra `hive`: import it lazily.

The socket is ours: with TLS that checks the server, with time-outs, and with a second handle, so that another thread can end whatever waits for it. The library
logs nothing here: its errors quote statements and what servers say.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from impala._thrift_api import ThriftClient, get_transport
from impala.error import Error as ImpylaError
from impala.hiveserver2 import HS2Service
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TSSLSocket import TSSLSocket
from thrift.transport.TTransport import TTransportException

from coterie.kuscia.sources.endpoints import SourceEndpoint
from coterie.kuscia.sources.protocol import SourceError

LOST = (TTransportException, OSError, EOFError)
REFUSED = (ImpylaError, TException)
DIALLING, ANSWER = 10.0, 180.0
_NOBODY = "anonymous"
_DONE, _FAILED = (
    frozenset({"FINISHED_STATE"}),
    frozenset({"ERROR_STATE", "CANCELED_STATE", "CLOSED_STATE", "UKNOWN_STATE"}),
)

for _name in ("impala", "thrift", "thrift_sasl", "puresasl"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@dataclass(slots=True)
class FetchSize:
    rows: int
    """That are asked for next; who reads may change it."""


class HiveLine:
    """One connection and its session. All of it blocks; `interrupt` is for other threads."""

    def __init__(self, place: SourceEndpoint, user: str, password: str, context: ssl.SSLContext | None) -> None:
        self._place, self._user, self._password = place, user or _NOBODY, password or _NOBODY
        self._context = context
        self._handle: socket.socket | None = None
        self._stopped = False
        self._line: Any = None
        self._transport: Any = None
        self._session: Any = None

    def __repr__(self) -> str:
        return f"HiveLine({self._place.host}:{self._place.port})"

    def connect(self) -> None:
        host, port = self._place.host, self._place.port
        plain = socket.create_connection((host, port), timeout=DIALLING)
        self._handle = plain.dup()
        if self._context is not None:
            with plain:  # the other one goes on
                handle: socket.socket = self._context.wrap_socket(plain, server_hostname=host)
            self._line = TSSLSocket(host, port, ssl_context=self._context)
        else:
            handle, self._line = plain, TSocket(host, port)
        self._line.setHandle(handle)
        if self._stopped:
            raise SourceError("reading was stopped")
        mechanism = "NOSASL" if self._place.options.get("auth") == "nosasl" else "PLAIN"
        self._transport = get_transport(self._line, host, "hive", mechanism, self._user, self._password)
        if mechanism == "PLAIN":
            self._transport.open()
        self._line.setTimeout(ANSWER * 1000)
        service = HS2Service(ThriftClient(TBinaryProtocolAccelerated(self._transport)), retries=1)
        self._session = service.open_session(self._user)

    def query(self, statement: str, seconds: float, size: FetchSize) -> Iterator[tuple[list[str], list[list[Any]]]]:
        """Types of the columns, and values column by column."""
        operation = self._session.execute(statement, run_async=True)
        end, pause = time.monotonic() + seconds, 0.01
        while (state := operation.get_status()) not in _DONE:
            if state in _FAILED:
                raise ImpylaError(operation.get_state().errorMessage or state)
            if time.monotonic() > end:
                operation.cancel()
                raise SourceError("the statement took longer than the source allows (query_seconds)")
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        described = operation.get_result_schema()
        kinds = [each[1] for each in described]
        while True:
            part = operation.fetch(described, size.rows, convert_types=False, convert_strings_to_unicode=False)
            if not len(part):
                return
            yield (
                kinds,
                [
                    [None if gone else value for gone, value in zip(each.nulls, each.values, strict=False)]
                    for each in part.columns
                ],
            )

    def interrupt(self) -> None:
        self._stopped = True
        if self._handle is not None:
            with suppress(OSError):  # it may be down already
                self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._session is not None and not self._stopped:
            with suppress(*LOST, *REFUSED):
                self._session.close()
        if self._line is not None:
            self._line.close()
        if self._handle is not None:
            self._handle.close()
            self._handle = None
