"""Programs end right after their last answer: no socket is left to the garbage collector, however the server parts.

The server here answers and then says nothing any more, not even the farewell that TLS waits for.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.transport import TransportRequest
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.handshake.handshake_client import (
    HandshakeTarget,
    HttpHandshakeTransport,
    PartnerUnreachable,
)
from coterie.kuscia.gateway.registration.client import MasterClient
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.kuscia.routes import probe
from coterie.kuscia.routes.facts import RouteCheckFacts
from coterie.sdk.errors import Unauthorized
from coterie.sdk.wire import Address as SdkAddress
from coterie.sdk.wire import Wire

_ANSWER = b"HTTP/1.1 401 Unauthorized\r\nKuscia-Error-Message: no\r\nContent-Length: 2\r\nConnection: %b\r\n\r\n{}"


class Silent:
    """Answers each connection's first request, and keeps the connection."""

    def __init__(self, directory: Path, *, tls: bool, parting: bytes) -> None:
        self._parting = parting
        self._held = ExitStack()
        self._tls: ssl.SSLContext | None = None
        self.authority = directory / "ca"
        if tls:
            now, key = datetime.now(UTC), pki.new_key("ec")
            authority = pki.self_signed_ca("bob", pki.new_key("ec"), now=now)
            pki.save_certificate(self.authority, authority.certificate)
            pki.save_key(directory / "key", key)
            made = pki.issue_server(authority, "bob", key.public_key(), names=("kusciaapi",), now=now)
            pki.save_certificate(directory / "crt", made)
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(directory / "crt", directory / "key")
        self._listener = self._held.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = SocketAddress(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._held.enter_context(taken)
            with suppress(OSError):
                taken.settimeout(10)
                if self._tls is not None:
                    taken = self._held.enter_context(
                        self._tls.wrap_socket(taken, server_side=True, suppress_ragged_eofs=True)
                    )
                if taken.recv(65536):
                    taken.sendall(_ANSWER % self._parting)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._held.close()


@pytest.fixture(params=[b"close", b"keep-alive"], ids=["says close", "keeps it"])
def parting(request: pytest.FixtureRequest) -> bytes:
    return bytes(request.param)


def _endpoint(at: SocketAddress) -> MasterEndpoint:
    return MasterEndpoint(at.host, at.port, tls=True)


def _me() -> DomainIdentity:
    key = pki.new_key("rsa")
    return DomainIdentity("alice", Path("/x"), Path("/x"), "", key)  # type: ignore[arg-type]


async def _register(server: Silent) -> None:
    client = MasterClient(_endpoint(server.address), _me())
    await client.check_is_gateway(await client.fetch_certificate())


async def _probe(server: Silent) -> None:
    at = server.address
    facts = RouteCheckFacts("alice", "bob", datetime.now(UTC), host=at.host, port=at.port, tls=True)
    found = await probe.dial(facts, _endpoint(at), "", SYSTEM_CLOCK)
    assert found.status == 401


async def _api(server: Silent) -> None:
    transport = HttpTransport(ClusterConnection(f"https://{server.address}", insecure=True))
    assert (await transport.send(TransportRequest("GET", "/api"))).status == 401
    await transport.close()


async def _sdk(server: Silent) -> None:
    wire = Wire(SdkAddress(f"https://{server.address}", ca=server.authority))
    with pytest.raises(Unauthorized):
        await wire.ask("/api/v1/job/query", {})
    await wire.close()


async def _handshake(server: Silent) -> None:
    caller = HttpHandshakeTransport(server.address)
    with pytest.raises(PartnerUnreachable):
        await caller.call(HandshakeTarget("alice", "bob"), {}, None)
    await caller.close()


@pytest.mark.parametrize("work", [_register, _probe, _api, _sdk, _handshake])
def test_nothing_is_left_open(tmp_path: Path, work: Callable[[Silent], Awaitable[None]], parting: bytes) -> None:
    server = Silent(tmp_path, tls=work is not _handshake, parting=parting)
    try:
        gc.collect()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", ResourceWarning)
            asyncio.run(_in(work, server))
            gc.collect()
        assert [str(each.message) for each in heard] == []
    finally:
        server.close()


async def _in(work: Callable[[Silent], Awaitable[None]], server: Silent) -> None:
    await work(server)


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before
