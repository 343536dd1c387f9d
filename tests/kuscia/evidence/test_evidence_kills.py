"""An API server that is killed at any moment: nothing is in the store without its event in the log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store import SqliteStore
from coterie.kuscia.api import evidence
from coterie.kuscia.evidence.log_file import EvidenceReader

_SERVER = """
import asyncio, sys
from pathlib import Path
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.store import SqliteStore
from coterie.kuscia.evidence.api_writes import EvidenceGate
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.identity import domain_identity

async def main():
    home = Path(sys.argv[1])
    paths = DomainPaths.of(home, "alice").prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    service = EvidenceService(paths, "alice", home / "s", SYSTEM_CLOCK)
    running = asyncio.ensure_future(service.run())
    await service.ready.wait()
    store = SqliteStore(home / "store.db", clock=SYSTEM_CLOCK)
    await store.open()
    server = ApiServer(store, Settings(write_gate=EvidenceGate(service)), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("anna", ("system:masters",))))
    kind = Kind.dynamic(builtin("namespaces"))
    async def write(start):
        for number in range(start, 100000, 8):
            await client.create(kind, {"metadata": {"name": f"{sys.argv[2]}-{number}"}})
            print(number, flush=True)
    await asyncio.gather(*(write(start) for start in range(8)))

asyncio.run(main())
"""


def test_no_write_without_its_event(tmp_path: Path) -> None:
    for attempt, lines in (("a", 1), ("b", 17), ("c", 60)):
        child = subprocess.Popen([sys.executable, "-c", _SERVER, str(tmp_path), attempt], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(lines):
            assert child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
        recorded = set(recorded_names(tmp_path / "alice/var/storage/evidence/1/evidence.db"))
        stored = asyncio.run(stored_names(tmp_path / "store.db"))
        assert len(stored) >= lines
        assert stored <= recorded, sorted(stored - recorded)[:5]


def recorded_names(path: Path) -> Iterator[str]:
    reader = EvidenceReader(path)
    values = {commitment: each.value for commitment, each in reader.disclosures().items()}
    for each in reader.events():
        event = evidence.decode(each.body or b"")
        if event.kind == evidence.API_WRITE:
            yield values[event.object[1]].partition("#")[0].removeprefix("/")


async def stored_names(path: Path) -> set[str]:
    store = SqliteStore(path, clock=SYSTEM_CLOCK)
    await store.open()
    server = ApiServer(store, Settings(), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("anna", ("system:masters",))))
    found = (await client.list(Kind.dynamic(builtin("namespaces")))).items
    await client.close()
    await server.stop()
    await store.close()
    return {each["metadata"]["name"] for each in found if each["metadata"]["name"][:2] in ("a-", "b-", "c-")}
