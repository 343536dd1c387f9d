"""Whether a partner answers now: the question that gateways ask each other every 15 seconds, asked for a person who watches.

It goes through our own gateway and the route itself. Light on purpose: no HTTP client library, no certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kuscia.gateway.names import ERROR, HANDSHAKE_SERVICE, HOST, SOURCE
from coterie.kuscia.gateway.paths import GatewayPaths

REVISION: Final = "kuscia-token-revision"
HANDSHAKE: Final = "/handshake"
SHORTEST_LIMIT: Final = 1.0
LONGEST_LIMIT: Final = 5.0
_TIMES: Final = 4
_NO_UPSTREAM: Final = (502, 503, 504)
_LISTENERS: Final = "lds.json"
_NODE: Final = "node"
_LARGEST: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class PartnerAnswer:
    answered: bool
    seconds: float
    problem: str = ""


def answer_limit(last: PartnerAnswer | None) -> float:
    """Seconds until silence counts as an answer: short where the partner answered quickly before."""
    if last is None:
        return LONGEST_LIMIT
    return min(LONGEST_LIMIT, max(SHORTEST_LIMIT, _TIMES * last.seconds))


async def ask_partner(
    gateway: Pool, source: str, destination: str, revision: int, limit: float, clock: Clock
) -> PartnerAnswer:
    """`gateway`: the source's own (`node_socket`)."""
    host = f"{HANDSHAKE_SERVICE}.{destination}.svc"
    headers = {"Host": host, HOST: host, SOURCE: source, REVISION: str(revision)}
    began = clock.monotonic()
    try:
        async with asyncio.timeout(limit):
            status, problem = await _exchange(gateway, headers)
    except TimeoutError:
        return PartnerAnswer(False, limit, f"no answer within {limit:.1f} s")
    except HttpFailure as error:
        return PartnerAnswer(False, clock.monotonic() - began, f"our own gateway does not answer: {error}")
    took = clock.monotonic() - began
    if status in _NO_UPSTREAM:
        return PartnerAnswer(False, took, problem or f"our own gateway answers {status}")
    return PartnerAnswer(True, took)


async def _exchange(gateway: Pool, headers: Mapping[str, str]) -> tuple[int, str]:
    answer = await gateway.request("GET", HANDSHAKE, headers)
    with closing(answer):
        body = await answer.read(_LARGEST)
    return answer.status, answer.headers.get(ERROR, "") or body.decode("utf-8", "replace")[:200]


def node_socket(home: DomainPaths) -> Path | None:
    """Where the domain's own node calls, as its gateway was last configured; None when there is none on this machine."""
    file = GatewayPaths.of(home).directory / _LISTENERS
    try:
        listed = orjson.loads(file.read_bytes())["resources"]
        return Path(next(each for each in listed if each["name"] == _NODE)["address"]["pipe"]["path"])
    except (OSError, orjson.JSONDecodeError, KeyError, StopIteration, TypeError):
        return None
