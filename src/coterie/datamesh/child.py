"""The process that serves, started when the first engine comes and ended when none is left.

Arrow and gRPC weigh as much as all the rest of a node, so a node without engines does without them:

    node holds the ports ──engine's pod appears, or a connection──> child starts ──opens the ports──> gets the connections
                         <──no engine for five minutes── child ends

What connects before the child listens waits at the node and is passed on. The child reaches the API through the node
(`apidoor`). When it dies it is started again; it does not outlive the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.api import labels
from coterie.api.errors import ApiError
from coterie.api.types.pods import PODS, Pod
from coterie.base import pki
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.process import Exit, ProcessSpec, Supervised
from coterie.base.tasks import TaskOwner
from coterie.client.client import Client
from coterie.client.informer import Change
from coterie.client.informers import Informers
from coterie.client.transport import TransportError
from coterie.datamesh import takeover
from coterie.datamesh.apidoor import ApiDoor
from coterie.datamesh.settings import MeshSettings
from coterie.sources.making import ensure_default_source

log = logger("datamesh")

IDLE = 300.0
"""Seconds without an engine after which the child ends."""
_RESTART = Policy(first=0.2, factor=2.0, limit=10.0, jitter=0.2)
_PATIENCE = Policy(first=0.2, factor=2.0, limit=10.0)
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_CHUNK = 1 << 20
_REMEMBERED = 10.0
"""Seconds for which we know our own connections to the child."""


class MeshChild:
    """A Runnable, ready as soon as the ports are held."""

    name = "datamesh"

    def __init__(
        self,
        settings: MeshSettings,
        run: Path,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        everywhere: bool,
        idle: float = IDLE,
    ) -> None:
        """`run`: where the socket lies, private and short. `everywhere`: whether pods of all domains may be watched."""
        self.ready = asyncio.Event()
        self.settings = settings
        self._client = client
        self._clock = clock
        self._idle = idle
        self._socket = run / "datamesh.sock"
        self._door = ApiDoor(self._socket, client.transport, settings.domain, self._announced)
        self._pods = informers.get(PODS, "" if everywhere else settings.domain)
        self._engines: set[str] = set()
        self._needed = asyncio.Event()
        self._last_need = 0.0
        self._serving = asyncio.Event()
        self._stop = asyncio.Event()
        self._child = Supervised(self._spec(), clock=clock, on_exit=self._exited)
        self._held: list[socket.socket] = []
        self._passing: set[int] = set()
        self._always = False
        try:
            self._held = [takeover.hold(settings.address, port) for port in (settings.http_port, settings.grpc_port)]
        except takeover.CannotHold:
            # An old kernel: the child is there from the beginning.
            self._always = True

    @property
    def pid(self) -> int | None:
        """Of the process that serves, while there is one."""
        return self._child.pid

    def stop(self) -> None:
        self._stop.set()

    # The child.

    def _spec(self) -> ProcessSpec:
        settings = self.settings
        options = {
            "--domain": settings.domain,
            "--home": str(settings.paths.home),
            "--address": settings.address,
            "--http": str(settings.http_port),
            "--grpc": str(settings.grpc_port),
            "--api": str(self._socket),
        }
        return ProcessSpec(
            "datamesh",
            (sys.executable, "-m", "coterie.datamesh", *(word for pair in options.items() for word in pair)),
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
                # Arrow's own pools keep what a large read needed for good; the machine's give it back.
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "MALLOC_ARENA_MAX": "2",
            },
            log_file=settings.paths.log("datamesh"),
            stop_grace=7.0,
            restart=_RESTART,
            die_with_parent=True,
        )

    def _announced(self) -> None:
        self._serving.set()

    def _exited(self, _: Exit) -> None:
        self._serving.clear()

    async def run(self) -> None:
        await self._door.open()
        try:
            async with TaskOwner(self.name) as owner:
                self._pods.add_handler(self._seen)
                owner.start("default-source", self._default_source())
                owner.start("child", self._keep(), endless=True)
                for held in self._held:
                    owner.start("doorman", self._doorman(held, owner), endless=True)
                self.ready.set()
                await self._stopped_or(owner.wait())
                self._stop.set()
                await self._child.stop()
        finally:
            takeover.close(*self._held)
            await self._door.close()

    async def _stopped_or(self, failing: Coroutine[Any, Any, None]) -> None:
        """A failure is raised by the owner of what failed."""
        waits = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(failing)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            if not self._always:
                await self._needed.wait()
            life = asyncio.ensure_future(self._child.run())
            try:
                while self._always or self._wanted():
                    await self._clock.sleep(min(self._idle, 10.0))
                log.info("No engine is left; the data mesh sleeps")
                await self._child.stop()
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)

    def _wanted(self) -> bool:
        if self._engines:
            self._last_need = self._clock.monotonic()
        elif self._clock.monotonic() - self._last_need > self._idle:
            self._needed.clear()
        return self._needed.is_set()

    def _need(self) -> None:
        self._last_need = self._clock.monotonic()
        self._needed.set()

    def _seen(self, change: Change[Pod]) -> None:
        pod = change.object
        if pod.metadata.namespace != self.settings.domain:
            return
        engine = (pod.metadata.labels or {}).get(labels.KUSCIA_COMMUNICATION_ROLE_CLIENT) == "true"
        if engine and change.type != "deleted" and not pod.ended:
            self._engines.add(pod.metadata.uid)
            self._need()
        else:
            self._engines.discard(pod.metadata.uid)

    async def _default_source(self) -> None:
        """Until it is there; the API may be away for a while."""
        paths, backoff = self.settings.paths, Backoff(_PATIENCE)
        key = pki.public_key_of(pki.load_certificate(paths.domain_certificate.read_bytes()))
        assert isinstance(key, rsa.RSAPublicKey), "identity.ensure makes RSA keys only"
        while True:
            try:
                return await ensure_default_source(self._client, self.settings.domain, paths.data, key)
            except (ApiError, TransportError) as problem:
                if backoff.attempts == 3:
                    log.warning("The default data source cannot be made yet", error=problem)
                await self._clock.sleep(backoff.failed())

    # Those who come before the child listens.

    async def _doorman(self, held: socket.socket, owner: TaskOwner) -> None:
        loop = asyncio.get_running_loop()
        while True:
            early, caller = await loop.sock_accept(held)
            if caller[1] in self._passing:
                # Our own way to the child has come back to us: it ended just now.
                early.close()
                continue
            self._need()
            owner.start("early", self._passed_on(early, held.getsockname()[1]), vital=False)

    async def _passed_on(self, early: socket.socket, port: int) -> None:
        with early:
            await self._serving.wait()
            with contextlib.suppress(OSError):
                ours = await asyncio.open_connection(sock=early)
                theirs = await asyncio.open_connection(sock=await self._way_in(port), limit=_CHUNK)
                await asyncio.gather(_carry(ours[0], theirs[1]), _carry(theirs[0], ours[1]))

    async def _way_in(self, port: int) -> socket.socket:
        address = _EVERYWHERE.get(self.settings.address, self.settings.address)
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.setblocking(False)
        # Bound first: who is called may be ourselves, and must know.
        made.bind((address, 0))
        number = made.getsockname()[1]
        self._passing.add(number)
        asyncio.get_running_loop().call_later(_REMEMBERED, self._passing.discard, number)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except OSError:
            made.close()
            raise
        return made


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    except OSError:
        pass  # the other direction ends by the same
    finally:
        target.close()
