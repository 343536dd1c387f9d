"""Aborting a TLS connection that is closed already does nothing, in all versions of Python."""

from __future__ import annotations

from asyncio import sslproto
from typing import Any

import pytest

from coterie.http import tls_abort


class Protocol:
    def __init__(self) -> None:
        self.aborted = 0

    def _abort(self, *_: Any) -> None:
        self.aborted += 1


@pytest.mark.parametrize("closed", [True, False])
def test_abort(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto._SSLProtocolTransport, "abort", sslproto._SSLProtocolTransport.abort)  # put back later
    tls_abort.repair()
    tls_abort.repair()
    protocol = Protocol()
    transport: Any = object.__new__(sslproto._SSLProtocolTransport)
    transport._ssl_protocol = None if closed else protocol
    transport.abort()
    assert transport._closed and protocol.aborted == (0 if closed else 1)
