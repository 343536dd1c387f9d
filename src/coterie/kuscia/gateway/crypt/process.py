"""The child process that encrypts, and its keys: started when the first route needs it, kept alive, stopped with us.

    crypt = CryptChild(CryptSettings(domain, run=..., logs=...))
    owner.start("crypt", crypt.run())
    await crypt.update(keys_of(inputs))            # before each change that Envoy is told of
    await envoy.apply(snapshot(inputs))            # with inputs.crypt = crypt.settings.socket

When it dies, requests on encrypted routes get 503 until it is back, a moment later; others notice nothing. It does not
outlive us as Envoy does: after we were killed encrypted routes answer 503 until our next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from coterie.base import child_logging
from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.files import private_directory
from coterie.base.log import logger
from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.process import ProcessSpec, Supervised
from coterie.kuscia.gateway.crypt.keys import KeyTable, write_keys

_log = logger("gateway.crypt")
_RESTART = Policy(first=0.1, factor=2.0, limit=10.0, jitter=0.2)
_LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class CryptSettings:
    domain: str
    run: Path
    """The socket and the file with the keys; only we may look inside."""
    logs: Path
    logging: Path | None = None
    """How it logs (base/child_logging.py)."""
    log_rotation: Rotation = STANDARD
    start_seconds: float = 10.0
    """How long `update` waits for the first process before it goes on without."""

    @property
    def socket(self) -> Path:
        return self.run / "crypt.sock"

    @property
    def keys(self) -> Path:
        return self.run / "crypt-keys.json"

    @property
    def log(self) -> Path:
        return self.logs / "crypt.log"


class BodyEncryptionProcess:
    """A Runnable, ready at once: without encrypted routes there is nothing to wait for."""

    def __init__(self, settings: CryptSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if len(str(settings.socket).encode()) > _LONGEST_SOCKET_PATH:
            raise ValueError(f"the path of the socket is too long for a socket: {settings.socket}")
        self.name = "crypt"
        self.ready = asyncio.Event()
        self.settings = settings
        self._needed = asyncio.Event()
        self._stop = asyncio.Event()
        self._table: KeyTable | None = None
        self._log = _log.bind(domain=settings.domain)
        self._child = Supervised(self._spec(), clock=clock)

    def _spec(self) -> ProcessSpec:
        settings = self.settings
        paths = ("--socket", str(settings.socket), "--keys", str(settings.keys))
        return ProcessSpec(
            "crypt",
            (sys.executable, "-m", "coterie.kuscia.gateway.crypt", *paths),
            # Nothing of our environment is its business, except where our code lies.
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
                **child_logging.environment(settings.log, settings.logging),
            },
            log_file=settings.log,
            log_rotation=settings.log_rotation,
            stop_grace=2.0,
            restart=_RESTART,
            die_with_parent=True,
        )

    async def run(self) -> None:
        private_directory(self.settings.run)
        self.settings.logs.mkdir(parents=True, exist_ok=True)
        self.ready.set()
        try:
            if await _first(self._needed, self._stop) is self._needed:
                await asyncio.gather(self._child.run(), self._stopping())
        finally:
            self.ready.clear()
            for path in (self.settings.keys, self.settings.socket):
                path.unlink(missing_ok=True)

    async def _stopping(self) -> None:
        await self._stop.wait()
        await self._child.stop()

    def stop(self) -> None:
        self._stop.set()

    async def update(self, table: KeyTable) -> None:
        """Let the child know these keys. Returns when it does; the first time that includes its start."""
        if table != self._table and (table or self._needed.is_set()):
            private_directory(self.settings.run)
            write_keys(self.settings.keys, table)
        self._table = table
        if table and not self._needed.is_set():
            self._needed.set()
            if not await self._listening():
                self._log.error(
                    "Body encryption does not start; routes that ask for it answer 503", log=self.settings.log
                )

    async def _listening(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.start_seconds):
                while not self._stop.is_set():
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_unix_connection(self.settings.socket)
                        writer.close()
                        return True
                    await asyncio.sleep(0.02)
        return False

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def restarts(self) -> int:
        return self._child.restarts


async def _first(*events: asyncio.Event) -> asyncio.Event:
    waits = {asyncio.ensure_future(each.wait()): each for each in events}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[next(iter(done))]
    finally:
        for wait in waits:
            wait.cancel()
