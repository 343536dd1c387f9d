"""The supervisor's end of one agent's connection."""

from __future__ import annotations

import os
import select
import socket

from coterie.kube.agent.runtimes.runp import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coterie.kube.agent.runtimes.runp.execution import Execution
    from coterie.kube.agent.runtimes.runp.loop import Loop


class ClientConnection:
    def __init__(
        self,
        loop: Loop,
        peer: socket.socket,
        on_request: Callable[[ClientConnection, dict[str, Any]], None],
        on_close: Callable[[ClientConnection], None],
    ) -> None:
        self._loop = loop
        self._peer = peer
        self._on_request = on_request
        self._on_close = on_close
        self._inbox = wire.Inbox()
        self._waiting: list[tuple[bytes, list[int]]] = []
        self.executions: dict[int, Execution] = {}
        self.open = True
        peer.setblocking(False)
        loop.watch(peer.fileno(), select.EPOLLIN, self._ready)

    def answer(self, request: dict[str, Any], result: Any, handles: list[int] | None = None) -> None:
        """Handles are given away: they are closed here once they are on their way."""
        message = {"id": request["id"], "ok": result}
        if handles:
            message["fds"] = len(handles)
        self.send(message, handles)

    def refuse(self, request: dict[str, Any], reason: str, text: str) -> None:
        self.send({"id": request["id"], "error": [reason, text]})

    def send(self, message: dict[str, Any], handles: list[int] | None = None) -> None:
        if not self.open:
            _close_all(handles or [])
            return
        self._waiting.append((wire.encode(message), handles or []))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                data, handles = self._waiting[0]
                sent = socket.send_fds(self._peer, [data], handles) if handles else self._peer.send(data)
                _close_all(handles)
                if sent < len(data):
                    self._waiting[0] = (data[sent:], [])
                else:
                    del self._waiting[0]
        except BlockingIOError:
            self._loop.watch(self._peer.fileno(), select.EPOLLIN | select.EPOLLOUT, self._ready)
            return
        except OSError:
            self.close()
            return
        self._loop.watch(self._peer.fileno(), select.EPOLLIN, self._ready)

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if not self.open or not events & ~select.EPOLLOUT:
            return
        try:
            data, handles = wire.receive(self._peer)
            requests = self._inbox.feed(data, handles)
        except BlockingIOError:
            return
        except (OSError, ValueError, wire.WireError):
            self.close()
            return
        if not data:
            self.close()
            return
        for request, given in requests:
            _close_all(given)  # no request carries any
            self._on_request(self, request)

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.forget(self._peer.fileno())
        self._peer.close()
        self._inbox.close()
        for _, handles in self._waiting:
            _close_all(handles)
        for execution in self.executions.values():
            execution.kill()
        self._on_close(self)


def _close_all(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
    handles.clear()
