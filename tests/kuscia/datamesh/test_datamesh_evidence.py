"""No row leaves without its event, also when the log's process is killed at any moment; and it goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pyarrow.flight as fl
from datamesh_kit import api_world, reading

from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.datamesh.server import DataMesh
from coterie.kuscia.datamesh.settings import MeshSettings
from coterie.kuscia.evidence.domain_log import LOG_FILE
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.sources.source_creation import ensure_default_source

_LOG = """
import asyncio, sys
from pathlib import Path
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kuscia.evidence.service import EvidenceService

async def main():
    service = EvidenceService(DomainPaths(Path(sys.argv[1])), "alice", Path(sys.argv[2]), SYSTEM_CLOCK)
    running = asyncio.ensure_future(service.run())
    await service.ready.wait()
    print("ready", flush=True)
    await running

asyncio.run(main())
"""


async def begin_log(home: Path, socket: Path) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LOG, str(home), str(socket), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 60) == b"ready\n"
    return child


def used_jobs(home: Path) -> list[str]:
    """Jobs of the uses that are in the log, one for each use."""
    reader = EvidenceReader(home / "var/storage/evidence/1" / LOG_FILE)
    events = [evidence.decode(each.body) for each in reader.events() if each.body is not None]
    return [event.job for event in events if event.kind == evidence.GRANT_USED]


async def test_rows_leave_only_after_their_event(tmp_path: Path) -> None:
    socket = tmp_path / "e.sock"
    async with api_world(tmp_path) as world:
        child = await begin_log(world.paths.home, socket)
        settings = MeshSettings(world.domain, world.paths, http_port=0, grpc_port=0, evidence=socket)
        world.mesh = DataMesh(settings, world.client, world.identity, world.shelf.open, SYSTEM_CLOCK, run=tmp_path)
        read, refused = 0, ""
        try:
            async with world.mesh:
                world.grpc_port = world.mesh.grpc_port
                await ensure_default_source(world.client, "alice", world.paths.data, world.identity.key.public_key())
                await world.table("people")
                await world.grant("g", "people", "bob")
                pair = await world.engine("bob", job="j", parties=("alice", "bob"))

                async def keep_reading() -> None:
                    nonlocal read, refused
                    while not refused:
                        try:
                            await reading(world, pair, "people")
                        except fl.FlightError as problem:
                            refused = str(problem)
                        else:
                            read += 1

                for more in (1, 3):
                    refused = ""
                    task = asyncio.ensure_future(keep_reading())
                    goal = read + more
                    while read < goal and not refused:
                        await asyncio.sleep(0.01)
                    os.kill(child.pid, signal.SIGKILL)
                    await child.wait()
                    await asyncio.wait_for(task, 60)
                    assert "evidence" in refused, "what cannot be recorded is not read, and the caller learns why"
                    assert len(used_jobs(world.paths.home)) >= read > 0
                    child = await begin_log(world.paths.home, socket)
                before = read
                await reading(world, pair, "people")
                assert len(used_jobs(world.paths.home)) >= before + 1
        finally:
            child.kill()
            await child.wait()
