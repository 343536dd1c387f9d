"""Parts that sleep until there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coterie.base.tasks import TaskFailed
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.core import CONFIG_MAPS, ConfigMap
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport
from coterie.kube.client.informer import Informer
from coterie.kube.client.transport import TransportResponse
from coterie.kube.control.lazy_controller import LazyController
from coterie.kube.control.manager import Runnable


class Part:
    def __init__(self, error: Exception | None = None) -> None:
        self.name = "part"
        self.ready = asyncio.Event()
        self.ended = False
        self._error = error
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        if self._error is not None:
            raise self._error
        self.ready.set()
        await self._stop.wait()
        self.ended = True


class Endless:
    name = "endless"

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    async def run(self) -> None:
        self.ready.set()
        await asyncio.Event().wait()


def waker(*names: str) -> Informer[ConfigMap]:
    informer = Informer(Client(FakeTransport(lambda call: TransportResponse(500))), CONFIG_MAPS)
    informer.replace([ConfigMap(metadata=ObjectMeta(name=name, namespace="d")) for name in names])
    informer.ready.set()
    return informer


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def dormant(informer: Informer[ConfigMap], *parts: Runnable) -> tuple[LazyController, list[int]]:
    made: list[int] = []

    def make() -> Sequence[Runnable]:
        made.append(1)
        return parts

    return LazyController("sleeper", [informer], make), made


async def test_it_sleeps_until_an_object_is_seen_and_is_made_once() -> None:
    informer, part = waker(), Part()
    sleeper, made = dormant(informer, part)
    task = asyncio.create_task(sleeper.run())
    await settle()
    assert sleeper.ready.is_set() and not made and not sleeper.started
    for name in ("a", "b"):
        informer.changed("ADDED", ConfigMap(metadata=ObjectMeta(name=name, namespace="d")))
    await settle()
    assert made == [1] and part.ready.is_set()
    sleeper.stop()
    await task
    assert part.ended


async def test_what_is_there_at_start_makes_it_ready_with_its_part() -> None:
    part, endless = Part(), Endless()
    sleeper, made = dormant(waker("a"), part, endless)
    task = asyncio.create_task(sleeper.run())
    await settle()
    assert made and sleeper.ready.is_set()
    sleeper.stop()
    await task
    assert part.ended, "the part ended by itself, and what never ends did not keep us"


async def test_one_that_was_never_woken_stops() -> None:
    sleeper, made = dormant(waker(), Part())
    task = asyncio.create_task(sleeper.run())
    await settle()
    sleeper.stop()
    await task
    assert not made


async def test_a_part_that_fails_fails_it() -> None:
    sleeper, _ = dormant(waker("a"), Part(ValueError("broken")), Endless())
    with pytest.raises(TaskFailed, match="broken"):
        await sleeper.run()
    assert not sleeper.ready.is_set()


async def test_a_part_that_only_ends_when_cancelled_does_not_hold_up_the_stop() -> None:
    sleeper, _ = dormant(waker("a"), Endless())
    task = asyncio.create_task(sleeper.run())
    await settle()
    assert sleeper.started
    sleeper.stop()
    await asyncio.wait_for(task, 5)
