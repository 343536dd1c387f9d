"""One transport over several API servers of one control plane: requests go to one of them until it fails, then to the next.

A request that was certainly not carried out is sent to the next server at once, and so is a question whatever became of it. A
change whose outcome nobody knows is not sent again: its error goes to the caller, and the next request to another server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.base.log import logger
from coterie.kube.client.transport import (
    Disconnected,
    NotSent,
    ResponseTimeout,
    Transport,
    TransportError,
    TransportRequest,
    TransportResponse,
)

log = logger("client.failover")
_UNAVAILABLE = 503
"""A server that starts, stops, or cannot reach its store."""


class FailoverTransport:
    def __init__(self, servers: Sequence[str], make: Callable[[str], Transport]) -> None:
        """`servers`: URLs, the first is tried first. `make`: the transport to one of them."""
        if not servers:
            raise ValueError("at least one server is needed")
        self._make = make
        self._servers = list(dict.fromkeys(servers))
        self._current = self._servers[0]
        self._transports: dict[str, Transport] = {}
        self._failing: set[str] = set()

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._servers)

    @property
    def current(self) -> str:
        return self._current

    def use(self, servers: Sequence[str]) -> None:
        """These are the servers from now on. Requests on their way, and the server in use, are left alone."""
        if servers:
            self._servers = list(dict.fromkeys(servers))

    async def send(self, call: TransportRequest) -> TransportResponse:
        """Raises TransportError when no server can be used."""
        tried: list[str] = []
        while True:
            server = self._current
            tried.append(server)
            try:
                reply = await self._transport(server).send(call)
            except (NotSent, Disconnected, ResponseTimeout) as problem:
                self._leave(server, str(problem))
                again = isinstance(problem, NotSent) or not call.mutating
                if again and self._current not in tried:
                    continue
                raise
            except TransportError:
                raise
            if reply.status == _UNAVAILABLE:
                self._leave(server, "it answers 503")
                # Refused before anything was done; what the last one says is the answer.
                if self._current not in tried:
                    continue
            else:
                self._failing.discard(server)
            return reply

    def _transport(self, server: str) -> Transport:
        if server not in self._transports:
            self._transports[server] = self._make(server)
        return self._transports[server]

    def _leave(self, server: str, why: str) -> None:
        if server != self._current:
            return  # somebody else was faster
        others = [each for each in self._servers if each != server]
        if others:
            position = self._servers.index(server) if server in self._servers else -1
            self._current = self._servers[(position + 1) % len(self._servers)]
            # Once for each that fails, not for each attempt while none answers.
            say = log.debug if server in self._failing else log.info
            say("Another API server is used", instead_of=server, server=self._current, reason=why)
        self._failing.add(server)

    async def close(self) -> None:
        for each in self._transports.values():
            await each.close()
        self._transports.clear()
