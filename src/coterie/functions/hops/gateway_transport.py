"""Messages to partners go through our own gateway, on the private socket where only the node itself calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coterie.functions.hops.outbox import PostResult
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kuscia.gateway.names import ERROR, FUNCTIONS_SERVICE

_SECONDS = 30.0
"""For one message. The partner answers as soon as it is on its bus."""
_LARGEST_ANSWER = 64 << 10
_LONGEST_PAUSE = 60.0


class GatewayTransport:
    """A `HopTransport`."""

    def __init__(self, gateway: Path) -> None:
        """`gateway`: the socket."""
        self._pool = Pool(gateway)

    async def close(self) -> None:
        await self._pool.close()

    async def post(self, partner: str, path: str, body: bytes) -> PostResult:
        headers = {"Host": f"{FUNCTIONS_SERVICE}.{partner}.svc", "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(_SECONDS):
                response = await self._pool.request("POST", path, headers, body)
                answer = await response.read(_LARGEST_ANSWER)
        except TimeoutError:
            return PostResult(0, problem=f"no answer within {_SECONDS:g} s")
        except (HttpFailure, OSError) as problem:
            return PostResult(0, problem=f"our own gateway: {problem}")
        found = {name.lower(): value for name, value in response.headers.items()}
        why = found.get(ERROR) or answer[:200].decode(errors="replace").strip()
        printable = "".join(each for each in why if each.isprintable())
        return PostResult(
            response.status,
            answer,
            "" if response.status == 202 else f"status {response.status}: {printable}",
            _pause(found.get("retry-after", "")),
        )


def _pause(text: str) -> float:
    return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0
