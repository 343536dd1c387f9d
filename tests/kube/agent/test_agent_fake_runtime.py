"""The fake runtime passes the suite that all runtimes pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from runtime_suite import RuntimeSuite

from coterie.base.clock import VirtualClock
from coterie.kube.agent.runtimes.fake import HOST_IMAGE, FakeMachine, FakeRuntime
from coterie.kube.agent.runtimes.fake_script import (
    FOR_EVER,
    ExitStep,
    PrintStep,
    SleepStep,
    Step,
    TrapStep,
    WriteStep,
    parse,
)


class FakeHarness:
    image = HOST_IMAGE
    handler = "runp"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.machine = FakeMachine(self.clock)
        self.runtime = FakeRuntime(self.machine)

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = FakeRuntime(self.machine)
        await self.runtime.open()

    async def until(self, check: Callable[[], bool], seconds: float = 10.0) -> None:
        for _ in range(int(seconds / 0.1)):
            await self.clock.advance(0.1)
            if check():
                return
        raise AssertionError("it never came to this")

    async def finish(self, work: Awaitable[object], seconds: float = 10.0) -> object:
        task = asyncio.ensure_future(work)
        await self.until(task.done, seconds)
        return await task


class TestFakeRuntime(RuntimeSuite):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[FakeHarness]:
        harness = FakeHarness(tmp_path)
        await harness.runtime.open()
        yield harness
        await harness.runtime.close()
        await harness.machine.close()


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["sh", "-c", "echo a b; exit 3"], (PrintStep("a b"), ExitStep(3))),
        (["/bin/sh", "-c", "trap '' TERM; sleep inf"], (TrapStep(None), SleepStep(FOR_EVER))),
        (["sh", "-c", "echo x >&2\nsleep 0.5"], (PrintStep("x", "stderr"), SleepStep(0.5))),
        (["sh", "-c", "echo 'a; b' > /m/f"], (WriteStep("/m/f", "a; b"),)),
        (["sleep", "3"], (SleepStep(3),)),
        (["my-server", "--port", "80"], (SleepStep(FOR_EVER),)),
        ([], (SleepStep(FOR_EVER),)),
    ],
)
def test_the_words_of_the_fake_shell(words: list[str], steps: tuple[Step, ...]) -> None:
    assert parse(words) == steps
