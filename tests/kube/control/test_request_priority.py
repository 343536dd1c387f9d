"""Controllers pause while many requests come and the loop is busy, never for long, and not otherwise."""

from __future__ import annotations

import asyncio

import pytest

from coterie.kube.control import controller, request_priority
from coterie.kube.control.controller import Controller, Result
from coterie.kube.control.request_priority import LONGEST, RequestPriority


class Machine:
    """`load`: share of the time in which the thread runs or waits for a processor; None: the system does not tell."""

    def __init__(self) -> None:
        self.now = self.demand = 0.0
        self.requests = 0
        self.tells = True
        self.asked = 0
        self.priority = RequestPriority(lambda: self.requests, self.demanded, lambda: self.now)

    def demanded(self) -> float | None:
        self.asked += 1
        return self.demand if self.tells else None

    def after(self, windows: int, *, load: float, rate: float) -> float:
        for _ in range(windows):
            self.now += 0.05
            self.demand += 0.05 * load
            self.requests += round(0.05 * rate)
            pause = self.priority.pause()
        return pause


@pytest.mark.parametrize(
    ("load", "rate", "pauses"),
    [(0.9, 1000, True), (0.9, 300, False), (0.3, 1000, False), (1.0, 0, False)],
    ids=["both", "few requests", "time to spare", "controllers alone"],
)
def test_who_pauses(load: float, rate: float, pauses: bool) -> None:
    assert bool(Machine().after(20, load=load, rate=rate)) is pauses


def test_a_pause_grows_to_its_limit_and_goes_again() -> None:
    machine = Machine()
    pauses = [machine.after(1, load=0.9, rate=1000) for _ in range(20)]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST
    assert machine.after(10, load=0.9, rate=0) == 0.0


def test_a_system_that_does_not_tell_pauses_nobody() -> None:
    machine = Machine()
    machine.tells = False
    assert machine.after(20, load=1.0, rate=5000) == 0.0


def test_without_requests_the_system_is_not_asked() -> None:
    machine = Machine()
    machine.after(20, load=1.0, rate=100)
    assert machine.asked <= 1


def test_this_system_tells() -> None:
    before = request_priority.thread_demand()
    assert before is not None
    for _ in range(10_000):  # the system counts when the scheduler comes by
        sum(range(20_000))
        if (after := request_priority.thread_demand()) is not None and after > before:
            return
    raise AssertionError("a thread that runs is not counted")


async def test_a_controller_goes_on_while_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def pause(self) -> float:
            return 0.001

    monkeypatch.setattr(controller, "REQUEST_PRIORITY", Busy())
    done: list[int] = []
    everything = asyncio.Event()

    async def reconcile(key: int) -> Result | None:
        done.append(key)
        if len(done) == 20:
            everything.set()
        return None

    made: Controller[int] = Controller("sample", reconcile, [], workers=2)
    for key in range(20):
        made.enqueue(key)
    running = asyncio.create_task(made.run())
    try:
        async with asyncio.timeout(30):
            await everything.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert done == list(range(20))
