"""Asks the peers on the machine's own link again and again whether they are reached there: UDP between the gateway addresses, by the
device `vlink0` and no other way. Nothing is sent while there are no such peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.network.overlay.link_paths import INTERVAL, LinkMessage, LinkPaths, decode
from coterie.kube.network.pods.firewall import LINK_PROBE_PORT
from coterie.kube.network.pods.links import LINK_DEVICE

_log = logger("network.overlay")
_MESSAGES_AT_ONCE = 256
_LONGEST = 64


class LinkProbe:
    """Lives in the event loop of its maker."""

    def __init__(self, open_socket: Callable[[], socket.socket], clock: Clock, changed: Callable[[], None]) -> None:
        """`open_socket`: of UDP in the domain's namespace, bound to the gateway address and LINK_PROBE_PORT, not blocking; may take a
        while. `changed`: called when `answering` is another."""
        self.answering: frozenset[str] = frozenset()
        """Ranges of the peers that answer."""
        self._open_socket = open_socket
        self._clock = clock
        self._changed = changed
        self._paths = LinkPaths()
        self._peers: dict[str, str] = {}
        self._index = 0
        self._socket: socket.socket | None = None
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    def follow(self, index: int, peers: Mapping[str, str]) -> None:
        """`index`: of the device; peers: by range, the gateway address."""
        if index == self._index and peers == self._peers:
            return
        if index != self._index:
            self._close_socket()
        self._index, self._peers = index, dict(peers)
        self._paths.follow(self._peers)
        if not self._peers:
            self.close()
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        else:
            self._tick()

    def namespace_changed(self) -> None:
        self._close_socket()
        self._index = 0

    def close(self) -> None:
        """Tells the peers that this node does not listen any longer."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._send(self._paths.leaving_messages())
        self._close_socket()
        self._paths = LinkPaths()
        self._peers = {}
        self.answering = frozenset()

    async def _run(self) -> None:
        while True:
            if self._socket is None:
                await self._open()
            self._tick()
            await self._clock.sleep(INTERVAL)

    async def _open(self) -> None:
        index = self._index
        try:
            made = await asyncio.to_thread(self._open_bound)
        except OSError as problem:
            if str(problem) != self._problem:
                _log.warning("Nodes on the same link are reached by VXLAN: no socket; trying again", error=problem)
            self._problem = str(problem)
            return
        self._problem = ""
        if self._index != index or not index:
            made.close()  # the device was made anew meanwhile
            return
        self._socket = made
        asyncio.get_running_loop().add_reader(made.fileno(), self._readable)

    def _open_bound(self) -> socket.socket:
        made = self._open_socket()
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LINK_DEVICE.encode())
        except OSError:
            made.close()
            raise
        return made

    def _close_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _tick(self) -> None:
        self._send(self._paths.due(self._clock.monotonic()))
        self._update()

    def _readable(self) -> None:
        for _ in range(_MESSAGES_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, (address, _port) = self._socket.recvfrom(_LONGEST)
            except OSError:  # there is no more, or the device went
                break
            message = decode(data)
            if message is not None:
                self._send(self._paths.received(address, message, self._clock.monotonic()))
        self._update()

    def _send(self, messages: Iterable[tuple[str, LinkMessage]]) -> None:
        for address, message in messages:
            if self._socket is not None:
                with contextlib.suppress(OSError):  # no answer will come: that is what this finds out
                    self._socket.sendto(message.encode(), (address, LINK_PROBE_PORT))

    def _update(self) -> None:
        answering = self._paths.answering(self._clock.monotonic())
        if answering != self.answering:
            self.answering = answering
            self._changed()
