"""Whether a pod could work here: from inside the pod network a name is resolved and the gateway answers.

A node whose pods cannot do that is not ready, whatever else works. Asked when the node starts, again every few seconds
while it fails, and from time to time while there are pods.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from coterie.base.clock import Clock
from coterie.base.log import logger

log = logger("agent.network")
_TIMEOUT = 3.0
_RETRY_SECONDS = 2.0
_RECHECK_SECONDS = 300.0
_ID = 0x0C07
_RECURSION = 0x0100
_TYPE_A, _CLASS_IN = 1, 1


class TrialNetwork(Protocol):
    """Makes a pod's network that exists only for the check."""

    async def trial_sockets(self) -> tuple[socket.socket, socket.socket]:
        """A UDP and a TCP socket of it. Raises OSError."""

    async def end_trial(self) -> None: ...


class NetworkCheck:
    """A Runnable, ready when the first check is over, whatever it found."""

    name = "network-check"

    def __init__(
        self,
        network: TrialNetwork,
        address: str,
        name: str,
        port: int,
        clock: Clock,
        *,
        needed: Callable[[], bool],
        gateway: str = "",
    ) -> None:
        """`address`: of DNS and gateway; `gateway`: of the gateway, where it is elsewhere; `name`: one that the DNS knows, empty: there is no DNS; `port`: the gateway's, 0: there is none; `needed`:
        whether there are pods, for which it is worth to look again."""
        self.ready = asyncio.Event()
        self.problem = "the pod network has not been checked yet"
        """Empty when pods can work."""
        self.on_change: Callable[[], None] = lambda: None
        self._network = network
        self._address = address
        self._gateway = gateway or address
        self._wanted = name
        self._port = port
        self._clock = clock
        self._needed = needed
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        watching = asyncio.create_task(self._watch(), name="network-check")
        try:
            waiting = asyncio.create_task(self._stop.wait())
            await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            if self.problem or self._needed():
                self._found(await self.check())
            self.ready.set()
            await self._clock.sleep(_RETRY_SECONDS if self.problem else _RECHECK_SECONDS)

    def _found(self, problem: str) -> None:
        if problem == self.problem:
            return
        if problem:
            log.warning("Pods cannot work on this node", why=problem)
        self.problem = problem
        self.on_change()

    async def check(self) -> str:
        """What does not work; empty when all does."""
        try:
            udp, tcp = await self._network.trial_sockets()
        except OSError as problem:
            return f"no network for a pod can be made: {problem}"
        try:
            return await self._resolve(udp) or await self._reach(tcp)
        finally:
            udp.close()
            tcp.close()
            await self._network.end_trial()

    async def _resolve(self, udp: socket.socket) -> str:
        if not self._wanted:
            return ""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT):
                await loop.sock_connect(udp, (self._address, 53))
                await loop.sock_sendall(udp, question(self._wanted))
                answer = await loop.sock_recv(udp, 4096)
        except (OSError, TimeoutError) as problem:
            return f"DNS at {self._address} does not answer a pod ({problem or 'no answer in time'})"
        if not has_answer(answer):
            return f"DNS at {self._address} does not know {self._wanted}"
        return ""

    async def _reach(self, tcp: socket.socket) -> str:
        if not self._port:
            return ""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT):
                await loop.sock_connect(tcp, (self._gateway, self._port))
                await loop.sock_sendall(tcp, b"GET / HTTP/1.1\r\nHost: check.invalid\r\nConnection: close\r\n\r\n")
                answer = await loop.sock_recv(tcp, 64)
        except (OSError, TimeoutError) as problem:
            return (
                f"a pod does not reach the gateway at {self._gateway}:{self._port} ({problem or 'no answer in time'})"
            )
        # Any answer will do: what it says is the business of whoever calls.
        return (
            "" if answer.startswith(b"HTTP/1.") else f"the gateway at {self._gateway}:{self._port} does not speak HTTP"
        )


def question(name: str) -> bytes:
    """A DNS query for the address of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return struct.pack(">HHHHHH", _ID, _RECURSION, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", _TYPE_A, _CLASS_IN)


def has_answer(data: bytes) -> bool:
    if len(data) < 12:
        return False
    number, flags, _, answers = struct.unpack_from(">HHHH", data)
    return bool(number == _ID and flags & 0x8000 and not flags & 0xF and answers)
