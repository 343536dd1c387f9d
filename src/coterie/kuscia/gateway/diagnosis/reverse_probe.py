"""A link is measured for a partner by a process of its own that ends afterwards.

The HTTP and gRPC clients that a measurement needs would stay in the node's memory, and its work would delay the node's.
The process gets no keys and no tokens: it calls through our own gateway, as the node does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from coterie.base import parent_death
from coterie.base.log import logger
from coterie.kuscia.gateway.diagnosis.messages import LinkReport, ProbePlan

_log = logger("gateway.diagnosis")
_SECONDS = 90.0
"""Besides the time for which an answer is held back."""
_LONGEST = 64 << 10


class ProbeTask(msgspec.Struct, frozen=True):
    """What the process reads on its standard input."""

    gateway: str
    source: str
    destination: str
    plan: ProbePlan
    number: str = ""


class ReverseProbe:
    def __init__(self, source: str, gateway: Path) -> None:
        """`gateway`: the socket at which the node calls its own gateway."""
        self._source = source
        self._gateway = gateway

    async def measure(self, destination: str, plan: ProbePlan, number: str = "") -> LinkReport | None:
        task = ProbeTask(str(self._gateway), self._source, destination, plan, number)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "coterie.kuscia.gateway.diagnosis",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
                **parent_death.parent_environment(),
            },
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_SECONDS + plan.idle_seconds):
                found, _ = await child.communicate(msgspec.json.encode(task))
            return msgspec.json.decode(found[:_LONGEST], type=LinkReport) if found else None
        except (TimeoutError, msgspec.DecodeError) as error:
            _log.warning("A link could not be measured", destination=destination, error=error)
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
