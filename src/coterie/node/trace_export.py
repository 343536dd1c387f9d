"""Spans to a collector: OTLP over HTTP as JSON, in batches, off the path of everything else.

    ring ──batch, every few seconds──> POST /v1/traces ──200──> exported; ──429, 5xx, no answer──> the same batch later
                                                       ──other──> dropped

The ring is the queue: a collector that is away costs no memory, and what the ring no longer has when it is back is counted as
lost. Redirects are not followed, and answers are read up to a limit.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from coterie.base import otlp
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.base.trace import Span, TraceRing, Value
from coterie.http.client_sessions import close_session, tcp_connector

BATCH: Final = 512
PERIOD: Final = 5.0
_LAST: Final = 2.0
"""Seconds for what is left when the node stops."""
_RETRIED: Final = frozenset((408, 429, 502, 503, 504))
_ANSWER: Final = 64 << 10
_BACKOFF: Final = Policy(first=1.0, factor=2.0, limit=60.0)

log = logger("node.traces")


class ExportRefused(Exception):
    """The collector does not take this batch, and would not later."""


class ExportFailed(Exception):
    """The collector cannot take it now."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


def read_headers(path: Path) -> dict[str, SecretValue]:
    """Lines `name: value`; empty ones and those that begin with # are left. Raises OSError, ValueError."""
    out: dict[str, SecretValue] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip().replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"line {number} is not `name: value`")
        out[name.strip()] = SecretValue(value.strip())
    return out


def tls_context(ca_file: str, certificate_file: str, key_file: str) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) for files that cannot be used."""
    context = ssl.create_default_context(cafile=ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate_file:
        context.load_cert_chain(certificate_file, key_file)
    return context


class SpanExporter:
    def __init__(
        self,
        ring: TraceRing,
        endpoint: str,
        resource: Mapping[str, Value],
        version: str,
        clock: Clock,
        *,
        headers: Mapping[str, SecretValue] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
    ) -> None:
        self.exported = 0
        self._ring = ring
        self._endpoint = endpoint
        self._resource = resource
        self._version = version
        self._clock = clock
        self._headers = headers or {}
        self._tls = tls
        self._timeout = timeout
        self._number = ring.recorded
        self._backoff = Backoff(_BACKOFF)

    async def run(self) -> None:
        """Until it is cancelled; what is there then gets one more chance."""
        connector = tcp_connector(ssl=self._tls if self._tls is not None else True, limit=1)
        session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=self._timeout), cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            while True:
                await self._clock.sleep(await self.export(session))
        finally:
            try:
                async with asyncio.timeout(_LAST):
                    await self.export(session)
            except TimeoutError:
                pass
            await close_session(session)

    async def export(self, session: aiohttp.ClientSession) -> float:
        """All that waits, batch after batch. Returns how long to wait before the next call."""
        while self._number < self._ring.recorded:
            spans, lost, number = self._ring.after(self._number, BATCH)
            if lost:
                self._ring.drop("queue", lost)
                # Counted once, also when the batch itself has to be sent again.
                self._number = number - len(spans)
            try:
                rejected = await self._send(session, spans)
            except ExportRefused as problem:
                self._ring.drop("refused", len(spans))
                log.warning("The collector of traces refuses spans", endpoint=self._endpoint, why=str(problem))
            except ExportFailed as problem:
                if self._backoff.attempts == 0:
                    log.warning("Spans cannot be exported yet", endpoint=self._endpoint, why=str(problem))
                return max(problem.after, self._backoff.failed())
            else:
                if rejected:
                    self._ring.drop("rejected", rejected)
                self.exported += len(spans) - rejected
                self._backoff.succeeded()
            self._number = number
        return PERIOD

    async def _send(self, session: aiohttp.ClientSession, spans: list[Span]) -> int:
        """How many of them the collector rejected."""
        body = otlp.encode(otlp.export_request(spans, self._resource, self._version))
        headers = {"Content-Type": "application/json", "User-Agent": f"coterie/{self._version}"}
        headers |= {name: value.reveal() for name, value in self._headers.items()}
        try:
            async with session.post(self._endpoint, data=body, headers=headers, allow_redirects=False) as response:
                answer = await response.content.read(_ANSWER)
                status, after = response.status, response.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise ExportFailed(str(problem) or type(problem).__name__) from problem
        if status in _RETRIED:
            raise ExportFailed(f"HTTP {status}", min(float(after), _BACKOFF.limit) if after.isdigit() else 0.0)
        if not 200 <= status < 300:
            raise ExportRefused(f"HTTP {status}")
        return min(len(spans), _rejected(answer))


def _rejected(answer: bytes) -> int:
    """`partialSuccess.rejectedSpans`, a 64-bit integer, so a text in JSON."""
    try:
        found: Any = json.loads(answer or b"{}")
        return max(0, int(found["partialSuccess"]["rejectedSpans"]))
    except (ValueError, KeyError, TypeError):
        return 0
