"""The actor: loads the code, takes calls, ends.

    main thread          accepts connections; signals; sees calls that do not end
    one per connection   reads a request, runs the function, writes the answer: no call changes its thread
    async-calls          the event loop of asynchronous functions, from the first one on
    load                 imports new code (`PUT /code`, SIGINT), while calls go on with the old

So a call costs one read, one write and two small JSON texts. A function that does not end keeps its thread: health and other calls go on,
and after the deadline of the call the actor takes no more calls, lets the others finish and ends with `exit_codes.CALL_STUCK`.

A zygote that has imported this module calls `main()` in the forked child, after it replaced `os.environ`. Importing starts no thread and opens
no file.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from _operator import _compare_digest as compare_digest  # `hmac` has the same, and takes OpenSSL along

from coterie.engines.actor import exit_codes
from coterie.engines.actor.answers import Answer, answer_of, failure, piece_bytes, raised
from coterie.engines.actor.async_loop import AsyncLoop, CallTimeout, LoopStuck
from coterie.engines.actor.call_output import CURRENT, CallLines, CallStream
from coterie.engines.actor.code_loader import CodeError, CodeLoader, LoadedCode, error_text, upload_tools
from coterie.engines.actor.http_wire import (
    LAST_CHUNK,
    Connection,
    PeerGone,
    RequestHead,
    WireError,
    answer_head,
    chunk,
)
from coterie.engines.actor.library import serverless
from coterie.engines.actor.settings import ActorSettings, SettingsError, names, read_settings, read_spare_settings
from coterie.engines.actor.spare import Claim, SpareActor
from coterie.engines.actor.tracebacks import traceback_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_BODY = 32 << 20
"""Bytes of a call."""
MOST_CODE = 4 << 20
_MORE_CONNECTIONS = 32
"""Besides one for each call that may run."""
_HEAD_SECONDS = 10.0
"""For the first request of a connection, and for all of one that never showed the token."""
_TRANSFER_SECONDS = 60.0
"""For each piece of a body or an answer."""
_STUCK_SECONDS = 3.0
"""How long after its deadline a call may still run."""
_LOOK_SECONDS = 1.0
_TERMINATION_LOG = "/dev/termination-log"


class Actor:
    def __init__(self, settings: ActorSettings, out: CallStream, err: CallStream) -> None:
        self._settings = settings
        self._out, self._err = out, err
        self._pid = os.getpid()
        self._loader = CodeLoader(settings.code, os.environ.get("TMPDIR") or "/tmp")
        self._code: LoadedCode | None = None
        self._loop = AsyncLoop()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._running: dict[object, float] = {}
        """When each call has to be over, in monotonic seconds."""
        self._watched = False
        """The main thread looks at `_running` again and again."""
        self._draining = False
        self._stuck = False
        self._alone = False
        """All calls that run should have ended."""
        self._reload = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._expected = b"Bearer " + settings.token

    # ----- code

    def load_first(self) -> None:
        """CodeError; or the process ends when the import does not."""
        settings = self._settings
        timer = threading.Timer(settings.load_timeout, self._load_timeout)
        timer.daemon = True
        timer.start()
        try:
            self._code = self._loader.load(settings.handler, settings.version, settings.next)
        finally:
            timer.cancel()

    def _load_timeout(self) -> None:
        seconds = self._settings.load_timeout
        end(exit_codes.LOAD_TIMEOUT, f"the code could not be loaded: the import did not end within {seconds:g} s")

    def _replace(
        self, version: str | None, handler: str | None, next: frozenset[str] | None, archive: bytes | None
    ) -> LoadedCode:
        """CodeError: the old code stays."""
        old = self._code
        assert old is not None
        new = self._loader.load_within(
            self._settings.load_timeout,
            old.handler if handler is None else handler,
            old.version if version is None else version,
            old.next if next is None else next,
            archive,
        )
        self._code = new
        log(f"the code was replaced: version {new.version or '-'}")
        return new

    def _reload_from_directory(self) -> None:
        try:
            self._replace(None, None, None, None)
        except CodeError as problem:
            log(f"the code was not replaced: {problem}")

    # ----- main thread

    def serve(self, listener: socket.socket, claim: Claim | None = None) -> int:
        listener.listen(128)
        listener.setblocking(False)
        self._signals()
        if claim is not None:
            claim.accept()
        log(
            f'version {self._settings.version or "-"} of action "{self._settings.action}" listens on port {listener.getsockname()[1]}'
        )
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            for handle, _ in poll.poll(_LOOK_SECONDS * 1000 if self._watched or self._draining else None):
                if handle == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif not self._draining:
                    self._accept(listener)
            if self._reload:
                self._reload = False
                threading.Thread(target=self._reload_from_directory, name="reload", daemon=True).start()
            if self._draining:
                listener.close()
                return self._drain()
            self._look_for_stuck_calls()

    def _signals(self) -> None:
        """After the code was loaded, which may have changed them."""
        signal.signal(signal.SIGINT, self._on_reload)
        signal.signal(signal.SIGTERM, self._on_end)

    def _on_reload(self, *_: Any) -> None:
        self._reload = True
        self._wake()

    def _on_end(self, *_: Any) -> None:
        self._draining = True
        self._wake()

    def _wake(self) -> None:
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b"w")

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as problem:
            log(f"a connection was not accepted: {problem.strerror}")
            if listener.fileno() < 0 or not _is_open(listener):
                end(exit_codes.CALL_STUCK, "the code closed the socket of the actor")
            time.sleep(0.05)  # no descriptor or no memory is left
            return
        accepted.setblocking(True)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(accepted)
        with self._lock:
            self._connections.add(connection)
            crowded = len(self._connections) > self._settings.concurrency + _MORE_CONNECTIONS
            other = next((each for each in self._connections if not each.trusted and each is not connection), None)
        if crowded:
            (other or connection).close()  # those who never showed the token first
        try:
            threading.Thread(target=self._serve_connection, args=(connection,), name="calls", daemon=True).start()
        except RuntimeError:  # the code has all processes that the pod may have
            self._forget(connection)

    def _look_for_stuck_calls(self) -> None:
        now = time.monotonic()
        with self._lock:
            if not self._running:
                self._watched = False
                if self._stuck:
                    end(exit_codes.CALL_STUCK, "the event loop is blocked by a call whose deadline has passed")
                return
            late = [limit for limit in self._running.values() if limit < now]
            others = len(self._running) - len(late)
        if late and not self._stuck:
            self._stuck = True
            log("a call runs although its deadline has passed; no more calls are taken")
        if late and not others and self._alone:
            end(exit_codes.CALL_STUCK, "a call did not end after its deadline")
        self._alone = bool(late) and not others  # the last answer of the others may still be on its way

    def _drain(self) -> int:
        """Calls that run are answered; how long that may take is the grace period of the pod."""
        log("SIGTERM: no more calls are taken")
        while True:
            with self._lock:
                if not self._running:
                    break
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            select.select([self._wake_read], [], [], _LOOK_SECONDS)
            self._look_for_stuck_calls()
        with self._lock:
            connections = list(self._connections)
        limit = time.monotonic() + _TRANSFER_SECONDS
        while any(not each.idle for each in connections) and time.monotonic() < limit:
            time.sleep(0.002)  # an answer is on its way
        for each in connections:
            each.close()
        atexit._run_exitfuncs()
        log("all calls are answered")
        return exit_codes.DRAINED

    # ----- a connection

    def _serve_connection(self, connection: Connection) -> None:
        try:
            while self._serve_request(connection):
                pass
        except WireError as problem:
            with contextlib.suppress(OSError):
                connection.text(problem.status, f"{problem}", close=True)
                _discard_input(connection.socket)
        except (PeerGone, OSError):
            return
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.idle = True
        connection.close()
        connection.socket.close()

    def _serve_request(self, connection: Connection) -> bool:
        """Whether the connection stays."""
        connection.idle = True
        connection.socket.settimeout(None if connection.trusted else _HEAD_SECONDS)
        head = connection.reader.head()
        if head is None:
            return False
        connection.idle = False
        connection.socket.settimeout(_TRANSFER_SECONDS)
        if head.path == "/healthz":
            self._health(connection, head)
        elif not compare_digest(head.headers.get(b"authorization", b""), self._expected):
            raise WireError(401, "the token is missing or wrong")
        else:
            connection.trusted = True
            self._route(connection, head)
        return head.keep_alive and not self._draining

    def _health(self, connection: Connection, head: RequestHead) -> None:
        if head.method not in ("GET", "HEAD"):
            raise WireError(405, "/healthz has GET only")
        connection.reader.body(head, 0)
        refusal = self._refusal()
        body = (refusal or "ok").encode() + b"\n"
        first = answer_head(503 if refusal else 200, len(body), close=not head.keep_alive)
        connection.send(first if head.method == "HEAD" else first + body)

    def _route(self, connection: Connection, head: RequestHead) -> None:
        if head.path == "/invoke":
            if head.method != "POST":
                raise WireError(405, "/invoke has POST only")
            self._invoke(connection, head, connection.reader.body(head, MOST_BODY))
        elif head.path == "/code":
            if head.method != "PUT":
                raise WireError(405, "/code has PUT only")
            self._put_code(connection, head, connection.reader.body(head, MOST_CODE))
        else:
            raise WireError(404, "there are /healthz, /invoke and /code")

    def _put_code(self, connection: Connection, head: RequestHead, archive: bytes) -> None:
        try:
            query: dict[str, str] = upload_tools().query_parameters(head.query)
        except ValueError as problem:
            raise WireError(400, f"{problem}") from problem
        if unknown := query.keys() - {"version", "handler", "next"}:
            raise WireError(400, f"unknown parameter {min(unknown)[:100]}")
        targets = query.get("next")
        try:
            new = self._replace(
                query.get("version"), query.get("handler"), None if targets is None else names(targets), archive
            )
        except CodeError as problem:
            log(f"the code was not replaced: {problem}")
            connection.text(422, f"{problem}")
            return
        body = json.dumps({"version": new.version}).encode() + b"\n"
        connection.send(answer_head(200, len(body), kind="application/json") + body)

    def _refusal(self) -> str:
        """Why no call is taken."""
        if self._draining:
            return "the actor is ending"
        return "a call did not end after its deadline" if self._stuck else ""

    # ----- a call

    def _invoke(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        line, _, payload = body.partition(b"\n")
        request = request_of(line, payload)
        key = object()
        if refusal := self._begin(key, request):
            connection.text(503, refusal, close=self._draining)
            return
        lines = CallLines(request.id)
        mark = CURRENT.set(lines)
        try:
            answer = self._answer(request)
            if answer.pieces is None:
                self._end(key, lines)
                self._send(connection, head, answer)
            else:
                self._stream(connection, answer, request)
                self._end(key, lines)
                connection.send(LAST_CHUNK)
        finally:
            self._end(key, lines)
            CURRENT.reset(mark)

    def _begin(self, key: object, request: serverless.Request) -> str:
        """Count the call, or say why there is no room for it."""
        seconds = min(request.remaining(), self._settings.timeout or float("inf"))
        with self._lock:
            if refusal := self._refusal():
                return refusal
            if len(self._running) >= self._settings.concurrency:
                return f"all {self._settings.concurrency} calls of this actor are running"
            self._running[key] = time.monotonic() + seconds + _STUCK_SECONDS
            watched, self._watched = self._watched, True
        if not watched:
            self._wake()
        return ""

    def _end(self, key: object, lines: CallLines) -> None:
        """Before the caller sees the end of the answer: he may send the next call at once, on another connection."""
        self._out.finish(lines)
        self._err.finish(lines)
        if sys.stdout is not self._out or sys.stderr is not self._err:
            sys.stdout, sys.stderr = self._out, self._err
        with self._lock:
            self._running.pop(key, None)
        if self._draining:
            self._wake()

    def _answer(self, request: serverless.Request) -> Answer:
        code, action = self._code, self._settings.action
        assert code is not None
        try:
            result = code.function(request)
            if hasattr(type(result), "__await__"):
                result = self._loop.run(result, self._seconds(request))
            answer = answer_of(action, code.next, result)
        except CallTimeout:
            answer = failure(action, "TimeoutError: the deadline of the call has passed", 504)
        except LoopStuck:
            self._stuck = True
            answer = failure(
                action, "TimeoutError: the deadline of the call has passed, and it cannot be cancelled", 504
            )
        except BaseException as problem:  # noqa: BLE001 (whatever the user's code raises is its answer)
            self._leave_if_forked()
            self._err.write(traceback_text(problem))
            return raised(action, problem)
        self._leave_if_forked()
        if answer.failed:
            self._err.write(answer.body.decode("utf-8", "replace"))
        return answer

    def _seconds(self, request: serverless.Request) -> float | None:
        seconds = min(request.remaining(), self._settings.timeout or float("inf"))
        return None if seconds == float("inf") else seconds

    def _send(self, connection: Connection, head: RequestHead, answer: Answer) -> None:
        first = answer_head(
            200,
            len(answer.line) + len(answer.body),
            close=self._draining or not head.keep_alive,
            kind="application/octet-stream",
        )
        if len(answer.body) < 1 << 16:
            connection.send(first + answer.line + answer.body)
        else:
            connection.send(first + answer.line)
            connection.send(answer.body)

    def _stream(self, connection: Connection, answer: Answer, request: serverless.Request) -> None:
        """All but the last chunk. An error in the middle ends the connection without the last chunk: whoever reads sees that it is not complete."""
        connection.send(answer_head(200, None, kind="application/octet-stream") + chunk(answer.line))
        pieces = self._pieces(answer, request)
        while True:
            try:
                piece = next(pieces, None)
                data = b"" if piece is None else piece_bytes(piece)
            except BaseException as problem:
                self._leave_if_forked()
                self._err.write(traceback_text(problem))
                raise PeerGone from problem
            self._leave_if_forked()
            if piece is None:
                break
            if data:
                connection.send(chunk(data))

    def _pieces(self, answer: Answer, request: serverless.Request) -> Iterator[Any]:
        source: Any = answer.pieces
        if not hasattr(type(source), "__aiter__"):
            yield from source
            return
        iterator = source.__aiter__()
        while True:
            try:
                yield self._loop.run(iterator.__anext__(), self._seconds(request))
            except StopAsyncIteration:
                return

    def _leave_if_forked(self) -> None:
        """The code forked, and this is the child: the call is the parent's."""
        if os.getpid() != self._pid:
            os._exit(0)


def request_of(line: bytes, payload: bytes) -> serverless.Request:
    """WireError 400 when the first line is not what the dispatcher sends."""
    try:
        call = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise WireError(400, f"the first line of the body is not JSON: {error_text(problem)}") from problem
    if not isinstance(call, dict):
        raise WireError(400, "the first line of the body is not an object")

    def field(name: str, kind: type, default: Any) -> Any:
        value = call.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise WireError(400, f"{name} must be {kind.__name__}")
        return value

    headers = field("headers", dict, {})
    if not all(isinstance(value, str) for value in headers.values()):
        raise WireError(400, "the values of headers must be str")
    deadline = field("deadline", int, 0)
    return serverless.Request(
        field("params", dict, {}),
        field("path", str, ""),
        payload,
        headers=headers,
        content_type=field("contentType", str, ""),
        id=field("id", str, ""),
        request_id=field("request", str, ""),
        action=field("action", str, ""),
        deadline=deadline / 1000 if deadline > 0 else None,
        attempt=field("attempt", int, 0),
        traceparent=field("traceparent", str, ""),
    )


def main() -> int:
    """The exit code. Reads `os.environ` when it is called."""
    out, err = CallStream(1), CallStream(2)
    sys.stdout, sys.stderr = out, err
    try:
        spare = read_spare_settings(os.environ)
        if spare is not None:
            return _main_of_spare(SpareActor(spare), out, err)
        settings = read_settings(os.environ)
        listener = _bound(settings.host, settings.port)
    except (SettingsError, OSError) as problem:
        return failed(exit_codes.BAD_ENVIRONMENT, f"{problem}")
    return _run(settings, listener, out, err)


def _main_of_spare(spare: SpareActor, out: CallStream, err: CallStream) -> int:
    """From the claim on as any other actor: what the claim says takes the place of environment and directory."""
    listener = _bound(spare.settings.host, spare.settings.port)
    claim = spare.wait(listener)
    try:
        settings = claim.apply(os.environ, spare.settings)
    except (SettingsError, OSError) as problem:
        claim.refuse(400, f"{problem}")
        return failed(exit_codes.BAD_ENVIRONMENT, f"{problem}")
    return _run(settings, listener, out, err, claim)


def _bound(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as problem:
        raise SettingsError(f"port {port}: {problem.strerror}") from problem
    return listener


def _run(
    settings: ActorSettings, listener: socket.socket, out: CallStream, err: CallStream, claim: Claim | None = None
) -> int:
    os.environ.pop("COTERIE_ACTOR_TOKEN", None)  # no business of the code and of what it starts
    reseed()
    sys.dont_write_bytecode = True
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(serverless.__file__))))
    sys.modules["serverless"] = serverless
    actor = Actor(settings, out, err)
    try:
        actor.load_first()
    except CodeError as problem:
        if problem.__cause__ is not None:
            err.write(traceback_text(problem.__cause__))
        message = f"the code could not be loaded: {problem}"
        if claim is not None:
            claim.refuse(422, message)
        return failed(exit_codes.BAD_CODE, message)
    return actor.serve(listener, claim)


def before_fork() -> None:
    """For a zygote, once, when all is imported: objects stay in memory that its children share."""
    gc.collect()
    gc.freeze()


def reseed() -> None:
    """Children of a zygote would all draw the same numbers."""
    for name in ("random", "numpy.random"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.seed()


def log(message: str) -> None:
    """Of the actor itself, whatever the code made of `sys.stderr`."""
    with contextlib.suppress(OSError):
        os.write(2, f"actor: {message}\n".encode("utf-8", "backslashreplace"))


def failed(code: int, message: str) -> int:
    """Log and termination message."""
    log(message)
    with contextlib.suppress(OSError), open(_TERMINATION_LOG, "w") as file:
        file.write(message[:4000])
    return code


def end(code: int, message: str) -> None:
    """At once: some thread does not end by itself."""
    os._exit(failed(code, message))


def _is_open(listener: socket.socket) -> bool:
    try:
        return bool(listener.getsockname())
    except OSError:
        return False


def _discard_input(connection: socket.socket) -> None:
    """A little of what still comes: a connection that is closed with unread input is reset, and the peer may never see the answer."""
    connection.settimeout(0.5)
    connection.shutdown(socket.SHUT_WR)
    for _ in range(64):
        if not connection.recv(1 << 16):
            return
