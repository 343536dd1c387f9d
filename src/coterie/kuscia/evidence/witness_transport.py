"""Checkpoints to partners go through our own gateway, on the private socket where only the node itself calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coterie.http.plain_client import HttpFailure, Pool
from coterie.kuscia.api.evidence_exchange import EVIDENCE_SERVICE
from coterie.kuscia.evidence.witness_exchange import WitnessAnswer

_SECONDS = 8.0
_LARGEST_ANSWER = 1 << 20


class WitnessTransport:
    """A `PartnerTransport`."""

    def __init__(self, gateway: Path, error_header: str) -> None:
        """`gateway`: the socket. `error_header`: in which gateways say why they did not pass something on."""
        self._pool = Pool(gateway)
        self._error_header = error_header

    async def close(self) -> None:
        await self._pool.close()

    async def post(self, partner: str, path: str, body: bytes) -> WitnessAnswer:
        headers = {"Host": f"{EVIDENCE_SERVICE}.{partner}.svc", "Content-Type": "application/octet-stream"}
        try:
            async with asyncio.timeout(_SECONDS):
                response = await self._pool.request("POST", path, headers, body)
                answer = await response.read(_LARGEST_ANSWER)
        except TimeoutError:
            return WitnessAnswer(0, problem=f"no answer within {_SECONDS:g} s")
        except (HttpFailure, OSError) as problem:
            return WitnessAnswer(0, problem=f"our own gateway: {problem}")
        why = ""
        if response.status != 200:
            words = response.headers.get(self._error_header) or answer[:200].decode(errors="replace").strip()
            why = f"status {response.status}: {words}"
        return WitnessAnswer(response.status, answer, response.headers.get("content-type", ""), why)
