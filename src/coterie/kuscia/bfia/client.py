"""Requests to partners that speak BFIA go through our own gateway, on the private socket where only the node itself calls.

A request that got no answer is sent again, 3 times at 200 ms. So a partner may have carried it out although the first answer was lost:
`BfiaAnswer.repeated` says that this is possible.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec

from coterie.base.clock import Clock
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kube.client.limits import printable
from coterie.kuscia.bfia import wire
from coterie.kuscia.bfia.wire import Plain

CONNECT_SECONDS, TOTAL_SECONDS = 10.0, 30.0
RETRIES, RETRY_SECONDS = 3, 0.2
_LARGEST_ANSWER = 1 << 20
_LONGEST_WORDS = 500


@dataclass(frozen=True, slots=True)
class BfiaAnswer:
    """What a partner said; `code` 0: nothing."""

    code: int = 0
    message: str = ""
    data: Plain = field(default_factory=dict)
    repeated: bool = False
    """The request was sent more than once."""

    @property
    def ok(self) -> bool:
        return self.code == wire.OK

    @property
    def refused(self) -> bool:
        """The partner says no, and would say so again."""
        return self.code == wire.BAD_REQUEST


class BfiaCalls(Protocol):
    async def call(self, partner: str, path: str, message: object) -> BfiaAnswer: ...


class BfiaClient:
    """BfiaCalls through the gateway."""

    def __init__(self, gateway: Path, node: str, error_header: str, clock: Clock) -> None:
        """`gateway`: the socket. `node`: our own domain. `error_header`: in which gateways say why they did not pass something on."""
        self._pool = Pool(gateway, connecting=CONNECT_SECONDS)
        self._node = node
        self._error_header = error_header
        self._clock = clock

    async def close(self) -> None:
        await self._pool.close()

    async def call(self, partner: str, path: str, message: object) -> BfiaAnswer:
        """`path`: behind wire.SCHEDULE."""
        problem = ""
        for attempt in range(RETRIES + 1):
            if attempt:
                await self._clock.sleep(RETRY_SECONDS)
            try:
                async with asyncio.timeout(TOTAL_SECONDS):
                    found = await self._once(partner, path, message, repeated=attempt > 0)
            except TimeoutError:
                problem = f"no answer within {TOTAL_SECONDS:g} s"
                continue
            except (HttpFailure, OSError) as failure:
                problem = f"our own gateway: {failure}"
                continue
            if isinstance(found, BfiaAnswer):
                return found
            problem = found
        return BfiaAnswer(message=f"{partner} cannot be reached: {problem}", repeated=True)

    async def _once(self, partner: str, path: str, message: object, *, repeated: bool) -> BfiaAnswer | str:
        """A sentence where there is no answer."""
        headers = {
            "Host": f"{wire.SCHEDULER_SERVICE}.{partner}.svc",
            "Content-Type": "application/json",
            "X-Node-Id": self._node,
            "X-Timestamp": str(int(self._clock.now().timestamp())),
        }
        method, target, body = request_line(path, message)
        response = await self._pool.request(method, target, headers, body)
        content = await response.read(_LARGEST_ANSWER)
        if response.status != 200:
            words = response.headers.get(self._error_header) or content[:200].decode(errors="replace").strip()
            return f"status {response.status}: {printable(words)}"
        return parse_answer(content, repeated=repeated)


def request_line(path: str, message: object) -> tuple[str, str, bytes]:
    """Method, target and body. Pure."""
    if path == wire.JOB_STATUS:
        assert isinstance(message, wire.JobRequest)
        return "GET", f"{wire.SCHEDULE}{path}?job_id={quote(message.job_id, safe='')}", b""
    return "POST", f"{wire.SCHEDULE}{path}", wire.write(message)


class _AnyAnswer(msgspec.Struct, frozen=True):
    """Errors of validation carry `message` where others have `msg`."""

    code: int
    msg: str = ""
    message: str = ""
    data: Plain | None = None


def parse_answer(content: bytes, *, repeated: bool = False) -> BfiaAnswer:
    """Pure. What cannot be read is a failure of the partner, not a refusal."""
    try:
        found = msgspec.json.decode(content, type=_AnyAnswer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        return BfiaAnswer(wire.FAILED, f"its answer cannot be read: {problem}", repeated=repeated)
    words = printable((found.msg or found.message)[:_LONGEST_WORDS])
    return BfiaAnswer(found.code, words, found.data or {}, repeated)
