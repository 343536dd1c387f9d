"""The process that measures one link: `python -m coterie.kuscia.gateway.diagnosis`, a `ProbeTask` on its standard input.

It writes a `LinkReport`, or nothing when the destination does not confirm the number that it was given.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from coterie.base import parent_death
from coterie.kuscia.gateway.diagnosis.link_probe import PartnerLinkProbe
from coterie.kuscia.gateway.diagnosis.reverse_probe import ProbeTask


async def _measure(task: ProbeTask) -> bytes:
    async with PartnerLinkProbe(Path(task.gateway), task.source, task.destination) as probe:
        if task.number and not await probe.confirms(task.number):
            return b""
        return msgspec.json.encode(await probe.measure(task.plan))


def main() -> None:
    parent_death.die_with_parent()
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeTask)
    sys.stdout.buffer.write(asyncio.run(_measure(task)))


if __name__ == "__main__":
    main()
