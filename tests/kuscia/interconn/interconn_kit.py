"""Several control planes that carry out jobs together, in one process and in virtual time. Each member reaches its
host's API as its own service account there, with the rights that account really has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from job_world import JOB, JOB_PLANE, JobWorld, job_world
from workload_world import STEP

from coterie.base.clock import VirtualClock
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.transport import Transport, TransportError, TransportRequest, TransportResponse
from coterie.kuscia.api.types.domain import INTEROP_CONFIGS
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.interconn import runnable as interconn

INTEROP = INTEROP_CONFIGS.as_dynamic


class Cut:
    """A transport that can be cut, as a network can."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.down = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        if self.down:
            raise TransportError("the partner cannot be reached")
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


class Network:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.planes: dict[str, JobWorld] = {}
        self.links: dict[tuple[str, str], list[Cut]] = {}

    def __getitem__(self, name: str) -> JobWorld:
        return self.planes[name]

    def connect(self, member: str, host: str) -> Client:
        user = f"system:serviceaccount:{member}:{member}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{member}", "system:authenticated")
        link = Cut(InProcessTransport(self.planes[host].server.handle, UserInfo(user, groups)))
        self.links.setdefault((member, host), []).append(link)
        return Client(link, clock=self.clock)

    def cut(self, member: str, host: str, *, down: bool = True) -> None:
        for link in self.links[member, host]:
            link.down = down

    async def settle(self, seconds: float = 1.0) -> None:
        for _ in range(max(1, round(seconds / STEP))):
            for plane in self.planes.values():
                await plane.kubelet()
            await self.clock.advance(STEP)

    async def until(self, question: Callable[[], Awaitable[bool]], seconds: float = 90.0) -> None:
        for _ in range(round(seconds / STEP)):
            if await question():
                return
            await self.settle(STEP)
        pictures = {name: await plane.picture() for name, plane in self.planes.items()}
        raise AssertionError(f"not true within {seconds} s: {pictures}")

    async def until_phase(self, wanted: str, *names: str, job: str = "j", seconds: float = 90.0) -> list[Object]:
        """On every plane named, or on all."""

        async def reached() -> bool:
            found = [await self._status(plane, job) for plane in names or self.planes]
            return all(status.get("phase") == wanted for status in found)

        await self.until(reached, seconds)
        return [await self._status(plane, job) for plane in names or self.planes]

    async def _status(self, plane: str, job: str) -> Object:
        world = self.planes[plane]
        found = [each for each in await world.list(JOB, "cross-domain") if each["metadata"]["name"] == job]
        return (found[0].get("status") or {}) if found else {}

    async def until_clean(self) -> None:
        async def clean() -> bool:
            return not [each for plane in self.planes.values() for each in await plane.left_behind()]

        await self.until(clean)


@asynccontextmanager
async def network(
    *names: str,
    makes: tuple[Any, ...] = JOB_PLANE,
    jobs: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> AsyncIterator[Network]:
    """Autonomous domains that know each other, each following all others' jobs. `jobs`: by name, settings of its job controller."""
    clock = VirtualClock()
    net = Network(clock)
    async with AsyncExitStack() as stack:
        for name in names:

            def link(client: Client, informers: Any, clock: Any, me: str = name) -> Any:
                return interconn.make(client, informers, lambda host: net.connect(me, host), clock=clock)

            plane = await stack.enter_async_context(
                job_world(
                    partners=tuple(other for other in names if other != name),
                    domains=names,
                    makes=(*_with_settings(makes, (jobs or {}).get(name, {})), link),
                    clock=clock,
                    **settings,
                )
            )
            net.planes[name] = plane
        for name, plane in net.planes.items():
            for other in names:
                if other != name:
                    body = {"metadata": {"name": other}, "spec": {"host": other, "members": [name]}}
                    await plane.client.create(INTEROP, body)
        await net.settle(2)
        yield net


def _with_settings(makes: tuple[Any, ...], chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    plain = ("kusciajob-controller", kusciajob.make)
    return tuple((plain[0], partial(kusciajob.make, **chosen)) if each == plain else each for each in makes)
