"""`RuntimesByHandler`: several runtimes on one node; each pod goes to the one that has its handler.

    prepare_pod(handler=kata) ──> the first runtime whose handler "kata" is available
    everything else of that pod ──> the same runtime, also after a restart of the agent: `open()` asks each for its pods

The first runtime owns the pod network: it assigns the addresses of all pods, and hears of each pod's removal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from coterie.kube.agent.runtimes.protocol import (
    ContainerLimits,
    ContainerSpec,
    ContainerState,
    ContainerUsage,
    ExecSession,
    ImageInfo,
    PodKind,
    PodNetworkClass,
    PodRuntime,
    PodSandbox,
    PodState,
    ResizingRuntime,
    RuntimeFailure,
    RuntimeHandler,
)


class RuntimesByHandler:
    """Implements `PodRuntime`."""

    def __init__(
        self,
        runtimes: Sequence[PodRuntime],
        preferred: Mapping[str, PodRuntime] | None = None,
        *,
        guests_too: bool = True,
        missing: Sequence[RuntimeHandler] = (),
    ) -> None:
        """`preferred`: by handler, the runtime that has it although another one before it knows it too. Not `guests_too`: pods
        that other domains begin go to the first one all the same. `missing`: handlers that no runtime here would have."""
        self._runtimes = tuple(runtimes)
        self._preferred = preferred or {}
        self._guests_too = guests_too
        self._missing = tuple(missing)
        self._of_pod: dict[str, PodRuntime] = {}

    @property
    def name(self) -> str:
        return self._network.name

    @property
    def _network(self) -> PodRuntime:
        return self._runtimes[0]

    async def open(self) -> None:
        opened: list[PodRuntime] = []
        try:
            for runtime in self._runtimes:
                await runtime.open()
                opened.append(runtime)
        except BaseException:
            for runtime in reversed(opened):
                await runtime.close()
            raise
        self._of_pod = {pod.uid: runtime for runtime in self._runtimes for pod in runtime.pods()}

    async def close(self) -> None:
        for runtime in reversed(self._runtimes):
            await runtime.close()

    # Pods and containers.

    async def prepare_pod(self, sandbox: PodSandbox) -> None:
        runtime = self._of_pod.get(sandbox.uid) or self._for_sandbox(sandbox)
        await runtime.prepare_pod(sandbox)
        self._of_pod[sandbox.uid] = runtime

    def _for_sandbox(self, sandbox: PodSandbox) -> PodRuntime:
        handler = sandbox.handler
        guest = sandbox.kind == PodKind.GUEST and not self._guests_too
        candidates = self._runtimes if guest else self._with(handler)
        known = [(runtime, each) for runtime in candidates for each in runtime.handlers() if each.name == handler]
        for runtime, each in known:
            if each.available:
                return runtime
        reasons = [
            each.why for each in (*(each for _, each in known), *self._missing) if each.name == handler and each.why
        ]
        why = reasons[0] if reasons else "no runtime of this node knows it"
        raise RuntimeFailure("RuntimeHandlerMissing", f'the handler "{handler}" is not available on this node: {why}')

    def _with(self, handler: str) -> Sequence[PodRuntime]:
        return (self._preferred[handler],) if handler in self._preferred else self._runtimes

    def _of(self, pod_uid: str) -> PodRuntime:
        """The pod's runtime; the first one answers for pods that nobody has."""
        return self._of_pod.get(pod_uid) or self._network

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        return await self._of(pod_uid).start_container(pod_uid, spec)

    async def stop_container(self, pod_uid: str, name: str, grace: float) -> None:
        await self._of(pod_uid).stop_container(pod_uid, name, grace)

    async def signal_container(self, pod_uid: str, name: str, number: int) -> None:
        await self._of(pod_uid).signal_container(pod_uid, name, number)

    def resize_problem(self, pod_uid: str) -> str:
        runtime = self._of(pod_uid)
        if isinstance(runtime, ResizingRuntime):
            return runtime.resize_problem(pod_uid)
        return f"the runtime {runtime.name} cannot change limits of running containers"

    async def resize_pod(
        self, pod_uid: str, limits: ContainerLimits, containers: Mapping[str, ContainerLimits], *, final: bool
    ) -> None:
        runtime = self._of(pod_uid)
        if not isinstance(runtime, ResizingRuntime):
            raise RuntimeFailure("ResizeError", self.resize_problem(pod_uid))
        await runtime.resize_pod(pod_uid, limits, containers, final=final)

    async def stop_pod(self, pod_uid: str, grace: float) -> None:
        await self._of(pod_uid).stop_pod(pod_uid, grace)

    async def remove_pod(self, pod_uid: str) -> None:
        runtime = self._of(pod_uid)
        await runtime.remove_pod(pod_uid)
        if runtime is not self._network:
            await self._network.remove_pod(pod_uid)  # frees the address
        self._of_pod.pop(pod_uid, None)

    # What there is.

    def pods(self) -> Sequence[PodState]:
        return [pod for runtime in self._runtimes for pod in runtime.pods() if self._of(pod.uid) is runtime]

    def pod(self, pod_uid: str) -> PodState | None:
        return self._of(pod_uid).pod(pod_uid)

    def events(self) -> AsyncIterator[str]:
        return _MergedEvents([runtime.events() for runtime in self._runtimes])

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        return await self._of(pod_uid).usage(pod_uid)

    def network_bytes(self, pod_uid: str) -> int | None:
        return self._of(pod_uid).network_bytes(pod_uid)

    def writable_directories(self, pod_uid: str) -> Mapping[str, Sequence[Path]]:
        return self._of(pod_uid).writable_directories(pod_uid)

    def deleted_files(self, pod_uid: str) -> int:
        return self._of(pod_uid).deleted_files(pod_uid)

    def images(self) -> Sequence[ImageInfo]:
        found: dict[str, ImageInfo] = {}
        for runtime in self._runtimes:
            for image in runtime.images():
                known = found.setdefault(image.name, image)
                if image.digest and not known.digest and image.id == known.id:
                    found[image.name] = image  # only one runtime looks at the code of built-in images
        return list(found.values())

    def handlers(self) -> Sequence[RuntimeHandler]:
        """Each name once: as the first runtime that has it available says, else as the first that knows it."""
        found: dict[str, RuntimeHandler] = {}
        for runtime in self._runtimes:
            for handler in runtime.handlers():
                if runtime not in self._with(handler.name):
                    continue
                known = found.get(handler.name)
                if known is None or (handler.available and not known.available):
                    found[handler.name] = handler
        for handler in self._missing:
            found.setdefault(handler.name, handler)
        return tuple(found.values())

    def limitations(self) -> Sequence[str]:
        return tuple(dict.fromkeys(sentence for runtime in self._runtimes for sentence in runtime.limitations()))

    # Streams.

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> ExecSession:
        return await self._of(pod_uid).exec(pod_uid, container, command, stdin=stdin, tty=tty, stderr=stderr)

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> ExecSession:
        return await self._of(pod_uid).attach(pod_uid, container, stdin=stdin)

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._of(pod_uid).dial(pod_uid, port)

    # The pod network.

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        return self._network.assign_address(pod_uid, network)

    def pod_ip(self, pod_uid: str) -> str:
        return self._network.pod_ip(pod_uid)


class _MergedEvents:
    """The uids that any of several streams yields. Ends when all of them have ended."""

    def __init__(self, sources: Sequence[AsyncIterator[str]]) -> None:
        self._idle = list(sources)
        self._waiting: dict[asyncio.Task[str | None], AsyncIterator[str]] = {}
        self._ready: deque[str] = deque()

    def __aiter__(self) -> _MergedEvents:
        return self

    async def __anext__(self) -> str:
        while not self._ready:
            for source in self._idle:
                self._waiting[asyncio.create_task(_next_of(source), name="runtime-events")] = source
            self._idle.clear()
            if not self._waiting:
                raise StopAsyncIteration
            try:
                done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                for task in self._waiting:
                    task.cancel()
                await asyncio.gather(*self._waiting, return_exceptions=True)
                self._waiting.clear()
                raise
            for task in done:
                source = self._waiting.pop(task)
                uid = task.result()
                if uid is not None:
                    self._ready.append(uid)
                    self._idle.append(source)
        return self._ready.popleft()


async def _next_of(source: AsyncIterator[str]) -> str | None:
    return await anext(source, None)
