"""The loop of the relay: accepts, dials, moves bytes, and does what the node asks for on the control socket."""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from _socket import AF_INET, AF_INET6, AF_UNIX, CMSG_LEN, SCM_RIGHTS, SO_PEERCRED, SOL_SOCKET, socket

import coterie
from coterie.kube.network.rootless import limits, messages
from coterie.kube.network.rootless.addresses import in_network, joined, packed, split_address
from coterie.kube.network.rootless.connection import EXHAUSTED, Connection, Pipes, Side
from coterie.kube.network.rootless.egress import EgressPolicy
from coterie.kube.network.rootless.proxy_protocol import header
from coterie.kube.network.rootless.sockets import (
    STREAM,
    Listener,
    ListenError,
    accept,
    is_machine_address,
    listen,
    original_destination,
    tune,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Endpoint = tuple[str, int]
    Pairs = list[tuple[str, str]]

_WATCHED = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
_NOT_YET = (errno.EAGAIN, errno.ECONNREFUSED, errno.ENOENT)
_MSG_CMSG_CLOEXEC = 0x40000000


class _Dialling:
    """A connection that was accepted, while its other side is not connected."""

    __slots__ = ("client", "deadline", "destination", "first", "inward", "server", "source", "target")

    def __init__(self, client: socket, *, inward: bool, source: str, deadline: float) -> None:
        self.client = client
        self.inward = inward
        self.source = source
        self.deadline = deadline
        self.first = b""
        """What the other side gets before anything else."""
        self.destination = ("", 0)
        self.target = ""
        """The Unix socket to dial, inward."""
        self.server: socket | None = None


class RelayServer:
    """The event loop. `run()` returns after `quit`."""

    def __init__(
        self,
        control: socket,
        *,
        destination_of: Callable[[socket], Endpoint] = original_destination,
        is_machine: Callable[[str], bool] = is_machine_address,
        on_quit: Callable[[], None] = lambda: None,
        is_reachable: Callable[[], bool] = lambda: True,
        reachable_seconds: float = limits.REACHABLE_SECONDS,
        log: Callable[[str], None] = lambda text: None,
        max_connections: int = limits.MAX_CONNECTIONS,
        max_per_source: int = limits.MAX_PER_SOURCE,
        connect_seconds: float = limits.CONNECT_SECONDS,
    ) -> None:
        self._destination_of = destination_of
        self._is_machine = is_machine
        self._on_quit = on_quit
        self._is_reachable = is_reachable
        self._reachable_seconds = reachable_seconds
        self._look_at = time.monotonic() + reachable_seconds
        self._log = log
        self._max_connections = max_connections
        self._max_per_source = max_per_source
        self._connect_seconds = connect_seconds
        self._epoll = select.epoll()
        self._control = control
        self._controls: dict[int, socket] = {}
        self._listeners: dict[str, Listener] = {}
        self._inner: Listener | None = None
        self._inner_key = ""
        self._target = ""
        self._targets: dict[str, str] = {}
        """Of addresses that have another one."""
        self._policy = EgressPolicy()
        self._pipes = Pipes()
        self._sides: dict[int, tuple[Connection, Side]] = {}
        self._dialling: dict[int, _Dialling] = {}
        """Outward: by the descriptor that is being connected."""
        self._waiting: list[_Dialling] = []
        """To be dialled again: the target does not accept connections now, or there were no descriptors."""
        self._queue: list[Connection] = []
        """Have more to move, after the others."""
        self._starved: list[Connection] = []
        """Have more to move, and got no pipe."""
        self._count = {True: 0, False: 0}
        self._per_source: dict[str, int] = {}
        self._total = {True: 0, False: 0}
        self._bytes = {True: [0, 0], False: [0, 0]}
        self._refused = 0
        self._failed = 0
        self._paused: set[int] = set()
        self._resume_at = 0.0
        self._retry_at = 0.0
        self._quit_at: float | None = None
        self._epoll.register(control.fileno(), select.EPOLLIN)

    # The loop

    def run(self) -> None:
        while self._quit_at is None or (self._open and time.monotonic() < self._quit_at):
            self._turn()
        self._close()

    @property
    def _open(self) -> int:
        return self._count[True] + self._count[False]

    def _turn(self) -> None:
        try:
            events = self._epoll.poll(self._timeout(time.monotonic()), limits.EVENTS_AT_ONCE)
        except InterruptedError:
            return
        queue, self._queue = self._queue, []
        for connection in queue:
            connection.queued = False
            if not connection.closed:
                self._pump(connection)
        # New descriptors are made only after the events of this turn were handled: a number means one thing in a turn.
        later = [each for each in events if not self._connection_event(*each)]
        for fd, event in later:
            self._other_event(fd, event)
        self._retry(time.monotonic())

    def _timeout(self, now: float) -> float:
        if self._queue:
            return 0
        until = [self._look_at - now]
        if self._waiting or self._starved:
            until.append(self._retry_at - now)
        if self._dialling:
            until.append(next(iter(self._dialling.values())).deadline - now)
        if self._resume_at:
            until.append(self._resume_at - now)
        if self._quit_at is not None:
            until.append(self._quit_at - now)
        return max(0.0, min(until))

    def _connection_event(self, fd: int, event: int) -> bool:
        found = self._sides.get(fd)
        if found is None:
            return False
        connection, side = found
        if connection.closed:
            return True
        failed = bool(event & select.EPOLLERR)
        connection.event(
            side,
            readable=bool(event & select.EPOLLIN),
            writable=bool(event & select.EPOLLOUT),
            hung_up=failed or bool(event & select.EPOLLHUP),
        )
        if failed:
            side.failed = True
            side.error()  # Taken off the socket, so that what arrived before the error can still be read.
        self._pump(connection)
        if failed and not connection.closed:
            self._end(connection, reset=True)
        return True

    def _other_event(self, fd: int, event: int) -> None:
        if fd in self._dialling:
            self._dialled(fd)
        elif fd == self._control.fileno():
            self._accept_control()
        elif fd in self._controls:
            self._read_control(fd)
        elif listener := next((each for each in self._all_listeners() if each.fd == fd), None):
            self._accept(listener)

    def _pump(self, connection: Connection) -> None:
        try:
            more = connection.pump(self._pipes)
        except OSError:
            self._end(connection, reset=True)
            return
        if connection.finished:
            self._end(connection, reset=False)
        elif self._pipes.exhausted and not connection.queued:
            connection.queued = True
            self._starved.append(connection)
        elif more and not connection.queued:
            connection.queued = True
            self._queue.append(connection)
        self._pipes.exhausted = False

    def _end(self, connection: Connection, *, reset: bool) -> None:
        counted = self._bytes[connection.inward]
        counted[0] += connection.forward.bytes
        counted[1] += connection.backward.bytes
        for side in (connection.client, connection.server):
            self._sides.pop(side.fd, None)
        connection.close(self._pipes, reset=reset)
        self._released(connection.inward, connection.source)

    # Accepting

    def _all_listeners(self) -> list[Listener]:
        return [*self._listeners.values(), *([self._inner] if self._inner else [])]

    def _accept(self, listener: Listener) -> None:
        inward = listener is not self._inner
        for _ in range(limits.ACCEPTS_AT_ONCE):
            if self._count[inward] >= self._max_connections:
                self._pause(listener)
            if listener.fd in self._paused:
                return
            try:
                fd, address = accept(listener.socket)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._pause_all(error.errno)
                    return
                continue  # The client is gone already.
            client = socket(fileno=fd)
            try:
                client.setblocking(False)
                os.set_inheritable(fd, False)
                self._begin(client, address, listener.address, inward=inward)
            except OSError as error:
                self._failed += 1
                self._log(f"connection of {address[0]} ended: {error.strerror}")
                Side(client).close(reset=True)

    def _pause(self, listener: Listener) -> None:
        if listener.fd not in self._paused:
            self._paused.add(listener.fd)
            self._epoll.modify(listener.fd, 0)

    def _pause_all(self, code: int) -> None:
        if not self._resume_at:
            self._log(f"cannot accept connections now: {os.strerror(code)}")
        self._resume_at = time.monotonic() + limits.PAUSE_SECONDS
        for listener in self._all_listeners():
            self._pause(listener)

    def _resume(self) -> None:
        self._resume_at = 0.0
        paused, self._paused = self._paused, set()
        for listener in self._all_listeners():
            if listener.fd in paused:
                self._epoll.modify(listener.fd, select.EPOLLIN)

    def _begin(self, client: socket, address: tuple[str, int], listening: str, *, inward: bool) -> None:
        """`listening`: the address of the listener. Dial the other side of a connection. OSError: it is ended."""
        source = address[0]
        refusal, counted, destination = "", source, ("", 0)
        if not inward:
            destination = self._destination_of(client)
            if destination == client.getsockname()[:2]:
                refusal = "it was not redirected"
            else:
                refusal = self._policy.refusal(source, destination, self._is_machine)
            counted = "" if self._policy.is_own(source) else source
        if not refusal and counted and self._per_source.get(counted, 0) >= self._max_per_source:
            refusal = "too many connections"
        if refusal:
            self._refused += 1
            to = f" to {joined(*destination)}" if destination[0] else ""
            self._log(f"refused a connection of {source}{to}: {refusal}")
            Side(client).close(reset=True)
            return
        tune(client)
        deadline = time.monotonic() + self._connect_seconds
        entry = _Dialling(client, inward=inward, source=counted, deadline=deadline)
        entry.destination = destination
        if inward:
            entry.target = self._targets.get(listening, self._target)
            entry.first = header(address[:2], client.getsockname()[:2])
        self._dial(entry)
        self._count[inward] += 1
        self._total[inward] += 1
        if counted:
            self._per_source[counted] = self._per_source.get(counted, 0) + 1

    def _released(self, inward: bool, source: str) -> None:
        self._count[inward] -= 1
        if source:
            left = self._per_source[source] - 1
            if left:
                self._per_source[source] = left
            else:
                del self._per_source[source]
        if self._paused and not self._resume_at and self._count[inward] < self._max_connections:
            self._resume()

    # Dialling

    def _dial(self, entry: _Dialling) -> None:
        """OSError: for good. A target that is not there yet is tried again, and so is everything without descriptors."""
        try:
            if entry.inward:
                self._dial_inward(entry)
            else:
                self._dial_outward(entry)
        except OSError as error:
            if error.errno in EXHAUSTED:
                self._pause_all(error.errno)
            elif not entry.inward or error.errno not in _NOT_YET or not entry.target:
                raise
            self._waiting.append(entry)

    def _dial_inward(self, entry: _Dialling) -> None:
        server = socket(AF_UNIX, STREAM)
        try:
            with messages.ShortPath(entry.target) as name:
                server.connect(name)
            server.send(entry.first)
        except OSError:
            server.close()
            raise
        self._connected(entry, server)

    def _dial_outward(self, entry: _Dialling) -> None:
        host = entry.destination[0]
        server = socket(AF_INET6 if ":" in host else AF_INET, STREAM)
        try:
            tune(server)
            server.connect(entry.destination)
        except BlockingIOError:
            entry.server = server
            self._epoll.register(server.fileno(), select.EPOLLOUT)
            self._dialling[server.fileno()] = entry
            return
        except OSError:
            server.close()
            raise
        self._connected(entry, server)

    def _dialled(self, fd: int) -> None:
        entry = self._dialling.pop(fd)
        server = entry.server
        assert server is not None
        self._epoll.unregister(fd)
        if code := Side(server).error():
            server.close()
            self._give_up(entry, os.strerror(code))
            return
        try:
            self._connected(entry, server)
        except OSError as error:
            server.close()
            self._give_up(entry, os.strerror(error.errno or 0))

    def _connected(self, entry: _Dialling, server: socket) -> None:
        connection = Connection(Side(entry.client), Side(server), inward=entry.inward, source=entry.source)
        try:
            for side in (connection.client, connection.server):
                self._sides[side.fd] = (connection, side)
                # Reports the state at once, so nothing that arrived before is missed.
                self._epoll.register(side.fd, _WATCHED)
        except OSError:
            for side in (connection.client, connection.server):
                self._sides.pop(side.fd, None)
            server.close()
            raise

    def _give_up(self, entry: _Dialling, why: str) -> None:
        self._failed += 1
        where = joined(*entry.destination) if entry.destination[0] else entry.target
        self._log(f"cannot connect to {where}: {why}")
        Side(entry.client).close(reset=True)
        self._released(entry.inward, entry.source)

    def _retry(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + self._reachable_seconds
            if self._quit_at is None and not self._is_reachable():
                self._log("the control socket is gone")
                self._quit(limits.MAX_DRAIN_SECONDS)
        if self._resume_at and now >= self._resume_at:
            self._resume()
        while self._dialling and (first := next(iter(self._dialling.values()))).deadline <= now:
            assert first.server is not None
            self._dialling.pop(first.server.fileno())
            first.server.close()
            self._give_up(first, os.strerror(errno.ETIMEDOUT))
        if now < self._retry_at:
            return
        self._retry_at = now + limits.RETRY_SECONDS
        self._queue += self._starved
        self._starved.clear()
        waiting, self._waiting = self._waiting[: limits.RETRIES_AT_ONCE], self._waiting[limits.RETRIES_AT_ONCE :]
        for entry in waiting:
            if entry.deadline <= now:
                self._give_up(entry, os.strerror(errno.ETIMEDOUT))
                continue
            try:
                self._dial(entry)
            except OSError as error:
                self._give_up(entry, os.strerror(error.errno or 0))

    # Control

    def _accept_control(self) -> None:
        try:
            fd, _ = accept(self._control)
        except OSError:
            return
        connection = socket(fileno=fd)
        connection.setblocking(False)
        uid = int.from_bytes(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)
        if uid not in (0, os.getuid()) or len(self._controls) >= limits.CONTROL_CONNECTIONS:
            connection.close()
            return
        self._controls[fd] = connection
        self._epoll.register(fd, select.EPOLLIN)

    def _read_control(self, fd: int) -> None:
        connection = self._controls[fd]
        given: list[int] = []
        try:
            data, rest, _, _ = connection.recvmsg(limits.CONTROL_MESSAGE, CMSG_LEN(16), _MSG_CMSG_CLOEXEC)
            for level, kind, payload in rest:
                if level == SOL_SOCKET and kind == SCM_RIGHTS:
                    given += [
                        int.from_bytes(payload[at : at + 4], sys.byteorder) for at in range(0, len(payload) - 3, 4)
                    ]
            if data:
                connection.send(self._answer(data, given))
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        finally:
            for each in given:
                os.close(each)
        del self._controls[fd]
        connection.close()

    def _answer(self, data: bytes, given: list[int]) -> bytes:
        try:
            verb, pairs = messages.decode(data)
            if verb == "configure":
                self._configure(pairs, given)
            elif verb == "quit":
                self._quit(float(messages.one(pairs, "drain", "0")))
            elif verb != "status":
                raise messages.MessageError(f'no such request: "{verb}"')
        except ListenError as error:
            return messages.encode("error", (("errno", error.code), ("message", error)))
        except OSError as error:
            return messages.encode("error", (("errno", error.errno), ("message", error.strerror)))
        except (ValueError, messages.MessageError) as error:
            return messages.encode("error", (("message", str(error).replace("\n", " ")),))
        return messages.encode("ok", self._status())

    def _configure(self, pairs: Pairs, given: list[int]) -> None:
        """All of it, or an error and nothing. Connections stay as they are."""
        if self._quit_at is not None:
            raise messages.MessageError("the relay is ending")
        addresses = [joined(*split_address(value)) for name, value in pairs if name == "listen"]
        targets = {}
        for name, value in pairs:
            if name == "target-of":
                address, _, path = value.partition(" ")
                targets[joined(*split_address(address))] = path
        policy = EgressPolicy(
            messages.one(pairs, "gateway"), messages.one(pairs, "pod-cidr"), messages.one(pairs, "egress") == "yes"
        )
        if policy.gateway:
            packed(policy.gateway)
        if policy.pod_cidr:
            in_network(bytes(4), policy.pod_cidr)
        if len(addresses) > limits.MAX_LISTENERS or len(set(addresses)) != len(addresses):
            raise messages.MessageError("too many addresses to listen on, or one of them twice")
        inner = messages.one(pairs, "inner", "none")
        if inner not in ("none", "keep", "given") or (inner == "given") != (len(given) == 1):
            raise messages.MessageError("the listener inside is none, kept, or given with its descriptor")
        fresh = self._bind([each for each in addresses if each not in self._listeners])
        for address in [each for each in self._listeners if each not in addresses]:
            self._drop(self._listeners.pop(address))
        for address, sock in fresh:
            self._listeners[address] = self._watch(sock, address)
        self._target = messages.one(pairs, "target")
        self._targets = targets
        self._policy = policy
        if inner != "keep" and self._inner is not None:
            self._drop(self._inner)
            self._inner = None
        if inner == "given":
            sock = socket(fileno=given.pop())
            sock.setblocking(False)
            self._inner = self._watch(sock, "")
        self._inner_key = messages.one(pairs, "inner-key") if self._inner else ""
        self._log(f"configured: listening on {', '.join(addresses) or 'nothing'}")

    def _bind(self, addresses: list[str]) -> list[tuple[str, socket]]:
        made: list[tuple[str, socket]] = []
        try:
            for address in addresses:
                made.append((address, listen(address)))
        except ListenError:
            for _, sock in made:
                sock.close()
            raise
        return made

    def _watch(self, sock: socket, address: str) -> Listener:
        listener = Listener(sock, address)
        self._epoll.register(listener.fd, select.EPOLLIN)
        return listener

    def _drop(self, listener: Listener) -> None:
        self._paused.discard(listener.fd)
        listener.socket.close()

    def _quit(self, drain: float) -> None:
        self._quit_at = time.monotonic() + min(max(drain, 0.0), limits.MAX_DRAIN_SECONDS)
        for listener in self._all_listeners():
            self._drop(listener)
        self._listeners.clear()
        self._inner = None
        self._log(f"ending, with {self._open} connections")
        self._on_quit()

    def _status(self) -> list[tuple[str, object]]:
        moving = {True: [0, 0], False: [0, 0]}
        for connection, side in self._sides.values():
            if side is connection.client:
                moving[connection.inward][0] += connection.forward.bytes
                moving[connection.inward][1] += connection.backward.bytes
        fields: list[tuple[str, object]] = [
            ("pid", os.getpid()),
            ("version", messages.VERSION),
            ("program", coterie.__version__),
            ("target", self._target),
            ("inner-key", self._inner_key),
            ("egress", "yes" if self._policy.enabled else "no"),
            ("refused", self._refused),
            ("failed", self._failed),
            ("pipes", self._pipes.open),
        ]
        for inward, name in ((True, "inward"), (False, "outward")):
            ended, now = self._bytes[inward], moving[inward]
            fields += [
                (f"{name}-connections", self._count[inward]),
                (f"{name}-accepted", self._total[inward]),
                (f"{name}-bytes-sent", ended[0] + now[0]),
                (f"{name}-bytes-received", ended[1] + now[1]),
            ]
        return fields + [("listen", address) for address in self._listeners]

    def _close(self) -> None:
        for connection in {id(each): each for each, _ in self._sides.values()}.values():
            self._end(connection, reset=True)
        for entry in (*self._dialling.values(), *self._waiting):
            entry.client.close()
            if entry.server is not None:
                entry.server.close()
        for control in (self._control, *self._controls.values()):
            control.close()
        self._pipes.close()
        self._epoll.close()
