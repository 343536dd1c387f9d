"""Transports around transports: each changes or observes requests and passes them on.

Client(DryRun(Counting(HttpTransport(...))))
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from coterie.kube.client.transport import Transport, TransportRequest, TransportResponse


class _Wrapper:
    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, call: TransportRequest) -> TransportResponse:
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


class DryRun(_Wrapper):
    """Every write is checked by the server and not kept."""

    async def send(self, call: TransportRequest) -> TransportResponse:
        if not call.mutating or "dryRun=" in call.query:
            return await self._inner.send(call)
        query = f"{call.query}&dryRun=All" if call.query else "dryRun=All"
        return await self._inner.send(replace(call, query=query))


class ReadOnly(_Wrapper):
    """Refuses to send writes: for tools that must only look."""

    async def send(self, call: TransportRequest) -> TransportResponse:
        if call.mutating:
            raise PermissionError(f"this client only reads: {call.method} {call.path}")
        return await self._inner.send(call)


class Impersonating(_Wrapper):
    """Acts as somebody else, as far as the server allows it."""

    def __init__(self, inner: Transport, user: str, group: str = "") -> None:
        super().__init__(inner)
        self._headers = {"Impersonate-User": user}
        if group:
            self._headers["Impersonate-Group"] = group

    async def send(self, call: TransportRequest) -> TransportResponse:
        return await self._inner.send(replace(call, headers={**call.headers, **self._headers}))


class Counting(_Wrapper):
    """Counts requests by method and answers by status, for metrics and tests."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.requests[call.method] += 1
        reply = await self._inner.send(call)
        self.answers[reply.status] += 1
        return reply


class FixedHost(_Wrapper):
    """Reaches a server by another name than its address: through a gateway that looks at the Host header."""

    def __init__(self, inner: Transport, host: str) -> None:
        super().__init__(inner)
        self._host = host

    async def send(self, call: TransportRequest) -> TransportResponse:
        return await self._inner.send(replace(call, headers={**call.headers, "Host": self._host}))
