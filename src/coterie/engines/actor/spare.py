"""A spare actor: started before anybody knows for which action, so that a cold function need not wait for a pod.

    waits: GET /healthz ──> 200          PUT /claim + token ──> environment and code of one action ──> an actor like any other

It can be claimed once, by whoever has the token whose digest is in its environment. Nothing of an action is in its memory before, and whatever is
in it afterwards ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from _blake2 import blake2b  # `hashlib` has the same, and takes OpenSSL along
from _operator import _compare_digest as compare_digest

from coterie.engines.actor.http_wire import Connection, PeerGone, RequestHead, WireError, answer_head
from coterie.engines.actor.settings import ActorSettings, SettingsError, SpareSettings, read_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any, NoReturn

MOST_CLAIM = 4 << 20
_FILES = ("action.py", "archive.000")
_VARIABLES = ("COTERIE_ACTION", "COTERIE_ACTOR_TOKEN")
"""How the names of variables begin that a claim may set."""
_MOST_CONNECTIONS = 16
_SECONDS = 10.0


class Claim:
    """What the actor is to be, and who waits for it."""

    def __init__(self, connection: Connection, body: bytes) -> None:
        """WireError when it is none."""
        self._connection = connection
        line, _, self._content = body.partition(b"\n")
        try:
            found: Any = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise WireError(400, "the first line of the body is not JSON") from problem
        claim = found if isinstance(found, dict) else {}
        variables, self._file = claim.get("environment"), claim.get("file")
        if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
            raise WireError(400, "environment must be an object of strings")
        if unknown := [name for name in variables if not name.startswith(_VARIABLES)]:
            raise WireError(400, f"a claim cannot set {unknown[0][:100]}")
        if self._file not in _FILES:
            raise WireError(400, f"file must be one of {', '.join(_FILES)}")
        self._variables: dict[str, str] = variables

    def apply(self, environment: MutableMapping[str, str], spare: SpareSettings) -> ActorSettings:
        """Environment and code are those of the action from now on. SettingsError, OSError."""
        environment.pop("COTERIE_ACTOR_SPARE", None)
        environment.update(self._variables)
        settings = read_settings(environment)
        if (settings.host, settings.port, settings.code) != (spare.host, spare.port, spare.code):
            raise SettingsError("a claim cannot move the actor")
        path = os.path.join(spare.code, str(self._file))
        with open(path, "xb") as file:
            file.write(self._content)
        self._content = b""
        return settings

    def accept(self) -> None:
        self._answer(200, "claimed")

    def refuse(self, status: int, why: str) -> None:
        self._answer(status, why)

    def _answer(self, status: int, text: str) -> None:
        with contextlib.suppress(OSError):
            self._connection.text(status, text, close=True)
        self._connection.close()
        self._connection.socket.close()


class SpareActor:
    def __init__(self, settings: SpareSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._connections = 0
        self._claim: Claim | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def wait(self, listener: socket.socket) -> Claim:
        """Until it is claimed. SIGTERM ends it, SIGINT (new code) is for actors with code."""
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        listener.listen(128)
        listener.setblocking(False)
        with contextlib.suppress(OSError):
            os.write(2, b"actor: waits for an action and listens on port %d\n" % listener.getsockname()[1])
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while self._claim is None:
            for handle, _ in poll.poll():
                if handle != self._wake_read:
                    self._accept(listener)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as the code of any actor finds them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return self._claim

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        with self._lock:
            crowded = self._connections >= _MOST_CONNECTIONS
            self._connections += not crowded
        if crowded:
            accepted.close()
            return
        accepted.settimeout(_SECONDS)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._serve, args=(Connection(accepted),), name="spare", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """One request. The connection of the claim stays open until the code is loaded."""
        kept = False
        try:
            head = connection.reader.head()
            if head is not None:
                kept = self._answer(connection, head)
        except WireError as problem:
            with contextlib.suppress(OSError):
                connection.text(problem.status, f"{problem}", close=True)
        except (PeerGone, OSError):
            pass
        finally:
            if not kept:
                connection.close()
                connection.socket.close()
            with self._lock:
                self._connections -= 1
        if kept:
            os.write(self._wake_write, b"c")

    def _answer(self, connection: Connection, head: RequestHead) -> bool:
        """Whether the actor was claimed."""
        if head.path == "/healthz":
            if head.method not in ("GET", "HEAD"):
                raise WireError(405, "/healthz has GET only")
            body = b"spare\n"
            first = answer_head(200, len(body), close=True)
            connection.send(first if head.method == "HEAD" else first + body)
            return False
        token = head.headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        digest = blake2b(token, digest_size=32).hexdigest()
        if not compare_digest(digest, self.settings.digest):
            raise WireError(401, "the token is missing or wrong")
        if (head.method, head.path) != ("PUT", "/claim"):
            raise WireError(503, "this actor has no code yet: PUT /claim")
        claim = Claim(connection, connection.reader.body(head, MOST_CLAIM))
        with self._lock:
            if self._claim is not None:
                raise WireError(409, "this actor was claimed before")
            self._claim = claim
        return True


def _end(*_: Any) -> NoReturn:
    os._exit(0)
