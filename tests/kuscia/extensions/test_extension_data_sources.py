"""What a lite's own account may not do with data sources, at its control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.sources.local_roots import OUTSIDE_ANNOTATION

SOURCES = DOMAIN_DATA_SOURCES.as_dynamic
MASTERS = ("system:masters",)
"""So that only admission is tried; rights are elsewhere."""
ALLOWED = {OUTSIDE_ANNOTATION: "true"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    yield server
    await server.stop()
    await store.close()


def client_of(server: ApiServer, name: str) -> Client:
    return Client(InProcessTransport(server.handle, UserInfo(name, MASTERS)))


def a_source(uri: str = "/data", **annotations: str) -> Object:
    meta = {"name": "s", "namespace": "alice", **({"annotations": annotations} if annotations else {})}
    return {"metadata": meta, "spec": {"name": "s", "type": "localfs", "uri": uri}}


async def test_the_operator_opens_directories_and_the_lite_does_not(server: ApiServer) -> None:
    operator, lite = client_of(server, "admin"), client_of(server, "system:serviceaccount:alice:alice")
    await operator.create(Kind.dynamic(builtin("namespaces")), {"metadata": {"name": "alice"}})
    with pytest.raises(Forbidden, match="operator at the control plane"):
        await lite.create(SOURCES, a_source(**ALLOWED))
    await lite.create(SOURCES, a_source())
    await lite.patch(SOURCES, "s", "alice", {"spec": {"uri": "/other"}})
    with pytest.raises(Forbidden, match="operator at the control plane"):
        await lite.patch(SOURCES, "s", "alice", {"metadata": {"annotations": ALLOWED}})
    await operator.patch(SOURCES, "s", "alice", {"metadata": {"annotations": ALLOWED}})
    for change in ({"spec": {"uri": "/etc"}}, {"spec": {"data": {"encryptedInfo": "x"}}}, {"metadata": {"annotations": {OUTSIDE_ANNOTATION: None}}}):  # fmt: skip
        with pytest.raises(Forbidden, match="operator at the control plane"):
            await lite.patch(SOURCES, "s", "alice", change)
    await lite.patch(SOURCES, "s", "alice", {"metadata": {"labels": {"a": "b"}}})
    await operator.patch(SOURCES, "s", "alice", {"spec": {"uri": "/etc"}})
    await lite.delete(SOURCES, "s", "alice")
