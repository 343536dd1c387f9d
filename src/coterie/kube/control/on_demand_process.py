"""A child process that serves, started when somebody needs it and ended when nobody does.

Some libraries weigh as much as all the rest of a node, so a node does without them until they are needed:

    node holds the listeners ──somebody needs it, or connects──> child starts ──accepts──> serves
                             <──not needed for minutes── child ends

Listeners are ports and Unix sockets. The node opens them, never accepts, and passes their descriptors to the child
(base/listener_handover.py). While no child serves, the node only waits until one has a connection; what connects meanwhile
stays in the backlog for the child. No other process can have a port, at no moment.

Listeners may belong to another network namespace (`NamespaceListeners`). The child reaches the API through the node
(kube/control/child_api_listener.py). When it dies it is started again; it does not outlive the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.base import child_logging, listener_handover
from coterie.base.backoff import Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.process import ProcessExit, ProcessSpec, Supervised
from coterie.base.tasks import TaskOwner
from coterie.kube.client.transport import Transport
from coterie.kube.control.child_api_listener import Allowed, ChildApiListener, private_socket
from coterie.kube.control.child_metrics import ChildMetricsSource, metrics_socket

log = logger("child")

IDLE = 300.0
"""Seconds without need after which the child ends."""
UNUSED = 15.0
"""The same for a child that was started for somebody who then never called: most engines of small jobs read no data, and
the data mesh is larger than the rest of the node."""
_RESTART = Policy(first=0.2, factor=2.0, limit=10.0, jitter=0.2)
_POLL_SECONDS = 10.0

OpenListener = Callable[[], socket.socket]
"""A new listening socket, or OSError."""
OpenPort = Callable[[str, int], socket.socket]
"""The same on this address and port."""


@dataclass(frozen=True, slots=True)
class HeldListener:
    """A listening socket that the node opens and the child serves."""

    name: str
    """As the child calls it."""
    open: OpenListener
    path: Path | None = None
    """Of a Unix socket; removed in the end."""
    shared: bool = False
    """The child opens the port itself, beside this one, and gets new connections there. Only in a network namespace in
    which no other program is."""

    @classmethod
    def port(cls, name: str, address: str, port: int, open_port: OpenPort = listener_handover.listen) -> HeldListener:
        return cls(name, lambda: open_port(address, port))

    @classmethod
    def shared_port(cls, name: str, address: str, port: int, open_port: OpenPort) -> HeldListener:
        return cls(name, lambda: open_port(address, port), shared=True)

    @classmethod
    def unix(cls, name: str, path: Path) -> HeldListener:
        """Only this user may connect."""
        return cls(name, lambda: private_socket(path, backlog=listener_handover.BACKLOG), path)


@dataclass(frozen=True, slots=True)
class NamespaceListeners:
    """How to listen in another network namespace: that of a domain's pods."""

    address: str
    """Of ours in it."""
    open_port: OpenPort
    """`listener_handover.listen`, executed in the namespace."""
    open_shared_port: OpenPort
    """`listener_handover.listen_shared`, executed in the namespace."""
    netns: Path | None = None
    """Of root: the namespace, which a child enters to open a port of its own."""
    prefix: tuple[str, ...] = ()
    """Of an ordinary user: the command that starts a child inside the namespace (see ProcessSpec.prefix)."""


@dataclass(frozen=True, slots=True)
class OnDemandProcessSpec:
    name: str
    """Of the process and its log."""
    who: str
    """As refusals of the API call it: "a data mesh"."""
    module: str
    """`python -m` of this."""
    options: Mapping[str, str]
    """Command line options; `--api` and `--listeners` are added."""
    listeners: Sequence[HeldListener]
    api: Path
    """The socket by which the child reaches the API; its directory is private."""
    log_file: Path
    env: Mapping[str, str] = field(default_factory=dict)
    logging: Path | None = None
    """How it logs (base/child_logging.py)."""
    log_rotation: Rotation = STANDARD
    prefix: tuple[str, ...] = ()
    """See ProcessSpec.prefix."""


class OnDemandProcess:
    """The listeners are held from the beginning. Raises OSError when one cannot be had."""

    def __init__(
        self,
        plan: OnDemandProcessSpec,
        transport: Transport,
        allowed: Allowed,
        clock: Clock,
        *,
        idle: float = IDLE,
        in_use: Callable[[], bool] = lambda: False,
    ) -> None:
        """`in_use`: a need that lasts, besides connections and what the child says."""
        self.open = asyncio.Event()
        """Who connects will be served."""
        self._plan = plan
        self._clock = clock
        self._idle = idle
        self._in_use = in_use
        self._api_listener = ChildApiListener(
            plan.api, transport, who=plan.who, allowed=allowed, ready=self._announced, used=self._called, asked=self._asked
        )  # fmt: skip
        self._needed = asyncio.Event()
        self._last_need = 0.0
        self._used = False
        """Somebody connected, or the child asked the API for somebody."""
        self._stop = asyncio.Event()
        self._watching = False
        self._backlog = False
        """A connection waits for the child to serve."""
        self._held = _open_all(plan.listeners)
        self._child = Supervised(_spec(plan, self._held), clock=clock, on_exit=self._exited)
        self.metrics = ChildMetricsSource(plan.name, metrics_socket(plan.api), lambda: self._child.pid)

    @property
    def pid(self) -> int | None:
        """Of the process that serves, while there is one."""
        return self._child.pid

    def need(self) -> None:
        self._last_need = self._clock.monotonic()
        self._needed.set()

    def _called(self) -> None:
        self._used = True
        self.need()

    def _asked(self) -> None:
        self._used = True

    def stop(self) -> None:
        self._stop.set()

    def release(self) -> None:
        """Of one that is never run."""
        listener_handover.close(*self._held.values())
        for each in self._plan.listeners:
            if each.path is not None:
                each.path.unlink(missing_ok=True)

    async def run(self) -> None:
        try:
            await self._api_listener.open()
            async with TaskOwner(self._plan.name) as owner:
                self._watch()
                owner.start("child", self._supervise(), endless=True)
                self.open.set()
                await _first(self._stop.wait(), owner.wait())
                self._stop.set()
                await self._child.stop()
        finally:
            self._unwatch()
            self.release()
            await self._api_listener.close()

    # The child.

    def _announced(self) -> None:
        self._unwatch()
        self._backlog = False
        self.need()

    def _exited(self, _: ProcessExit) -> None:
        self._backlog = False
        if not self._stop.is_set():
            self._watch()

    async def _supervise(self) -> None:
        while True:
            await self._needed.wait()
            life = asyncio.ensure_future(self._child.run())
            try:
                while True:
                    while self._is_needed():
                        await self._clock.sleep(min(self._idle, _POLL_SECONDS))
                    await self.metrics.keep()
                    if not self._needed.is_set():  # nobody came while it was asked
                        break
                log.info("Idle; process stopped", child=self._plan.name)
                self._used = False
                await self._child.stop()
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)

    def _is_needed(self) -> bool:
        if self._backlog or self._in_use():
            self._last_need = self._clock.monotonic()
        elif self._clock.monotonic() - self._last_need > (self._idle if self._used else min(self._idle, UNUSED)):
            self._needed.clear()
        return self._needed.is_set()

    # Connections that come while no child serves.

    def _watch(self) -> None:
        """Until the first connection, or until the child serves: from then on it accepts, and we need not look."""
        if not self._watching:
            self._watching = True
            for each in self._held.values():
                asyncio.get_running_loop().add_reader(each, self._connected)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            for each in self._held.values():
                asyncio.get_running_loop().remove_reader(each)

    def _connected(self) -> None:
        self._unwatch()
        self._backlog = True
        self._called()


class OnDemandRunnable:
    """A Runnable around a process that it holds in `_held`."""

    _held: OnDemandProcess

    @property
    def ready(self) -> asyncio.Event:
        return self._held.open

    @property
    def pid(self) -> int | None:
        """Of the process that serves, while there is one."""
        return self._held.pid

    @property
    def metrics(self) -> ChildMetricsSource:
        return self._held.metrics

    def stop(self) -> None:
        self._held.stop()


def _open_all(listeners: Sequence[HeldListener]) -> dict[str, socket.socket]:
    made: dict[str, socket.socket] = {}
    try:
        for each in listeners:
            made[each.name] = each.open()
            if each.shared:
                listener_handover.prefer_successor(made[each.name])
    except OSError:
        listener_handover.close(*made.values())
        raise
    return made


def _spec(plan: OnDemandProcessSpec, held: Mapping[str, socket.socket]) -> ProcessSpec:
    options = {**plan.options, "--api": str(plan.api), "--listeners": listener_handover.encode(held)}
    return ProcessSpec(
        plan.name,
        (sys.executable, "-m", plan.module, *(word for pair in options.items() for word in pair)),
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "MALLOC_ARENA_MAX": "2",
            **child_logging.environment(plan.log_file, plan.logging),
            **plan.env,
        },
        log_file=plan.log_file,
        log_rotation=plan.log_rotation,
        stop_grace=7.0,
        restart=_RESTART,
        die_with_parent=True,
        pass_fds=tuple(each.fileno() for each in held.values()),
        prefix=plan.prefix,
    )


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """A failure is raised by the owner of what failed."""
    waits = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
