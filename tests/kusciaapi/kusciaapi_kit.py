"""KusciaAPI with everything around it: an API server in memory, the domain's keys; with or without doors.

async with here(tmp_path) as world:                                 # no sockets: for the services
    answer = await world.call(OPERATIONS, "QueryJob", job_id="x")   # as the operator; `caller=` for others
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.api.meta import Object
from coterie.api.types.kind import Kind, builtin
from coterie.apiserver.http.messages import UserInfo
from coterie.apiserver.server import ApiServer, Settings
from coterie.base import identity, pki
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.paths import DomainPaths
from coterie.base.secret import Secret
from coterie.client.client import Client
from coterie.client.inprocess import InProcessTransport
from coterie.kusciaapi.callers import OPERATOR, Caller, Role
from coterie.kusciaapi.operations import Here, Mode, Operation
from coterie.store.memory import MemoryStore

_KEY = Secret(pki.key_pem(pki.new_key("rsa"), pkcs1=True))
"""Made once: it takes longer than most tests."""
ADMIN = UserInfo("admin", ("system:masters",))


def domain_caller(name: str) -> Caller:
    return Caller(Role.DOMAIN, name)


def operation(operations: Sequence[Operation], method: str) -> Operation:
    return next(each for each in operations if each.method == method)


@dataclass
class World:
    here: Here

    @property
    def client(self) -> Client:
        return self.here.client

    async def call(
        self, operations: Sequence[Operation], method: str, *, caller: Caller = OPERATOR, **request: Any
    ) -> Any:
        """The answer of one operation with `work`."""
        chosen = operation(operations, method)
        return await chosen.run(self.here, caller, chosen.request(**request))

    def pieces(
        self, operations: Sequence[Operation], method: str, *, caller: Caller = OPERATOR, **request: Any
    ) -> AsyncIterator[Any]:
        """The answers of one operation with `stream`."""
        chosen = operation(operations, method)
        return chosen.pieces(self.here, caller, chosen.request(**request))

    async def namespace(self, name: str) -> None:
        obj: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.client.create(Kind.dynamic(builtin("namespaces")), obj)


@asynccontextmanager
async def here(
    directory: Path,
    *,
    mode: Mode = Mode.AUTONOMY,
    domain: str = "alice",
    namespaces: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
    client: Client | None = None,
    extra: dict[str, str] | None = None,
) -> AsyncIterator[World]:
    """The domain's own namespace and `cross-domain` exist; `namespaces`: further ones. `client`: of another world's API."""
    paths = DomainPaths.of(directory, domain).prepare()
    own = identity.ensure(paths, domain, _KEY, clock.now())
    if client is not None:
        yield World(Here(client, domain, mode, paths, own, clock, extra or {}))
        return
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(kuscia=True), SYSTEM_CLOCK)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    world = World(Here(Client(transport), domain, mode, paths, own, clock, extra or {}))
    try:
        for name in dict.fromkeys((domain, *namespaces)):
            await world.namespace(name)
        yield world
    finally:
        await transport.close()
        await server.stop()
        await store.close()
