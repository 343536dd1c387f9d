"""How a guest's programme tells what it did: one line for each step, and an exit status.

A step that raises ends the programme with its trace, so the test that started it shows where the guest stumbled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 15.0


def tell(steps: Iterable[Callable[[], object]]) -> None:
    """Run steps in their order; an asynchronous one runs in the loop of the first."""
    with asyncio.Runner() as runner:
        for step in steps:
            done = step()
            if asyncio.iscoroutine(done):
                runner.run(done)
            print("did", step.__name__, flush=True)


def until(look: Callable[[], T], what: str) -> T:
    """The first true answer, soon."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {_PATIENCE:.0f} s: {what}")
        time.sleep(0.02)
    return found


async def until_async(look: Callable[[], Awaitable[T]], what: str) -> T:
    deadline = time.monotonic() + _PATIENCE
    while not (found := await look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {_PATIENCE:.0f} s: {what}")
        await asyncio.sleep(0.02)
    return found
