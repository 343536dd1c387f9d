"""Sessions and their queues: bounded, in memory as long as they fit and in files when they do not.

    push ──> session ──> queue (node, topic) ──> pop, peek
               │ more than `memory` bytes in all sessions: bodies go into the session's file
               └ ends with `release`, or when nobody used it for a while; for some time it is remembered that it was released

A session has at most `session` bytes that nobody took; who pushes more waits for room. One task holds at most a quarter of what all may hold,
however many sessions and topics it names, so that it leaves room for the others. A message counts until it was handed over. All is done on one
event loop; only large files are written and read in threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from coterie.base.clock import Clock
from coterie.kuscia.transport.outbound import TransportCode, TransportRefused
from coterie.kuscia.transport.settings import QueueLimits

_IN_THREAD = 256 << 10
"""Bytes from which on a file is not worth blocking the loop."""
_BLOCK = 4096
"""Where bodies begin in a file, so that the disk gets their room back one by one."""
_SHARE = 4
"""One task has at most this part of all: a quarter."""
_KEPT_QUEUES = 4
"""Of a session, without messages."""
_PUNCH_HOLE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux, which Python does not offer."""
_libc = ctypes.CDLL(None)

T = TypeVar("T")


_SESSION_PREFIX = "session_"


def task_of_session(session: str) -> str:
    return session.removeprefix(_SESSION_PREFIX).partition(".")[0]


class QueueKey(NamedTuple):
    session: str
    node: str
    """Who sent what is in the queue."""
    topic: str


class _StoredBody(NamedTuple):
    offset: int
    size: int


_Body = bytes | _StoredBody


class TakenMessage:
    """A message on its way to whoever popped it. It counts as waiting until it was handed over (`finish`); when the reader leaves before it has
    all, it is the oldest message again (`give_back`)."""

    def __init__(self, queues: MessageQueues, session: _Session, key: QueueKey, queue: _Queue) -> None:
        """Takes it from its queue."""
        self._queues = queues
        self._session = session
        self._key = key
        self._queue = queue
        body = queue.bodies.popleft()
        self._body = body
        self._over = False
        self.size = _size_of(body)
        if session.file is not None and isinstance(body, _StoredBody):
            session.file.hold()

    async def piece(self, start: int, size: int) -> bytes:
        """Some of its bytes."""
        if not isinstance(self._body, _StoredBody):
            return self._body[start : start + size]
        assert self._session.file is not None
        size = min(size, self.size - start)
        return await self._session.file.read(_StoredBody(self._body.offset + start, size))

    async def read(self) -> bytes:
        """All of it, and it is handed over. It is given back when that fails."""
        if not isinstance(self._body, _StoredBody):
            self.finish()
            return self._body
        try:
            found = await self.piece(0, self.size)
        except BaseException:
            self.give_back()
            raise
        self.finish()
        return found

    def finish(self) -> None:
        if not self._over:
            self._end()
            self._queues._dropped(self._session, self._body)

    def give_back(self) -> None:
        if not self._over:
            self._end()
            self._queues._put_back(self._session, self._key, self._queue, self._body)

    def _end(self) -> None:
        self._over = True
        if self._session.file is not None and isinstance(self._body, _StoredBody):
            self._session.file.let_go()


class _Queue:
    __slots__ = ("bodies", "dropped", "takers")

    def __init__(self) -> None:
        self.bodies: deque[_Body] = deque()
        self.takers: deque[asyncio.Future[TakenMessage]] = deque()
        self.dropped = False
        """Somebody released it."""


class _SessionFile:
    """Bodies that did not fit into memory. It has no name: it goes with the process, whatever happens."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed with the session
        self._end = 0
        self._kept = 0
        self._holders = 0
        """Threads that use the descriptor, and messages that are being read: as long as there are any, it stays open."""
        self._closed = False

    async def put(self, body: bytes) -> _StoredBody:
        """When its caller is cancelled the place is free again as soon as nobody writes there."""
        place = _StoredBody(self._end, len(body))
        self._end += -(-len(body) // _BLOCK) * _BLOCK
        self._kept += 1
        if len(body) < _IN_THREAD:
            try:
                _write(self._file.fileno(), body, place.offset)
            except OSError:
                self.drop(place)
                raise
            return place
        writing = self._in_thread(_write, body, place.offset)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(lambda _: self.drop(place))
            raise
        except OSError:
            self.drop(place)
            raise
        return place

    async def read(self, place: _StoredBody) -> bytes:
        if place.size < _IN_THREAD:
            return _read(self._file.fileno(), place)
        return await asyncio.shield(self._in_thread(_read, place))

    def drop(self, place: _StoredBody) -> None:
        self._kept -= 1
        if self._closed:
            return
        if not self._kept:
            os.ftruncate(self._file.fileno(), 0)
            self._end = 0
        else:
            _free(self._file.fileno(), place)

    def close(self) -> None:
        self._closed = True
        self._close_when_free()

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        self._close_when_free()

    def _close_when_free(self) -> None:
        if self._closed and not self._holders:
            self._file.close()

    def _in_thread(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """The thread goes on when its caller is cancelled, so the descriptor must not become that of another file."""
        self.hold()
        running = asyncio.get_running_loop().run_in_executor(None, work, self._file.fileno(), *arguments)
        running.add_done_callback(self._thread_ended)
        return running

    def _thread_ended(self, running: asyncio.Future[T]) -> None:
        if not running.cancelled():
            running.exception()  # somebody who was cancelled does not ask for it
        self.let_go()


def _size_of(body: _Body) -> int:
    return body.size if isinstance(body, _StoredBody) else len(body)


def _write(handle: int, body: bytes, offset: int) -> None:
    view = memoryview(body)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def _read(handle: int, place: _StoredBody) -> bytes:
    parts, offset, left = [], place.offset, place.size
    while left:
        part = os.pread(handle, left, offset)
        if not part:
            raise OSError("the file of the session is shorter than what was written to it")
        parts.append(part)
        offset, left = offset + len(part), left - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _free(handle: int, place: _StoredBody) -> None:
    """Gives the disk its blocks back. Where the file system cannot do that, it gets them when the file is empty."""
    size = -(-place.size // _BLOCK) * _BLOCK
    _libc.fallocate(handle, _PUNCH_HOLE, ctypes.c_longlong(place.offset), ctypes.c_longlong(size))


class _TaskUse:
    """What all sessions of one task have together."""

    __slots__ = ("messages", "queues", "released", "sessions", "size")

    def __init__(self) -> None:
        self.sessions = 0
        self.size = 0
        self.messages = 0
        self.queues = 0
        self.released: dict[str, float] = {}
        """Until when sessions are refused, the oldest first."""


class _Session:
    def __init__(self, task: _TaskUse, now: float) -> None:
        self.task = task
        self.queues: dict[tuple[str, str], _Queue] = {}
        self.size = 0
        self.messages = 0
        self.used = now
        self.waiting: dict[asyncio.Future[None], int] = {}
        """Messages for which there is no room yet, and their sizes."""
        self.callers = 0
        """Calls that wait in it: as long as there are any, it does not expire."""
        self.released = False
        self.file: _SessionFile | None = None

    def in_use(self, clock: Clock) -> _SessionUse:
        return _SessionUse(self, clock)


class _SessionUse:
    """`with`; made for each call, and a generator would cost three times as much."""

    __slots__ = ("_clock", "_session")

    def __init__(self, session: _Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock

    def __enter__(self) -> None:
        self._session.callers += 1

    def __exit__(self, *_: object) -> None:
        self._session.callers -= 1
        self._session.used = self._clock.monotonic()


class MessageQueues:
    def __init__(
        self, limits: QueueLimits, clock: Clock, directory: Path, task_of: Callable[[str], str] = task_of_session
    ) -> None:
        """`directory`: private, on a disk with room for what does not fit into memory."""
        self._limits = limits
        self._clock = clock
        self._directory = directory
        self._task_of = task_of
        self._kept_queues = min(_KEPT_QUEUES, limits.queues_of_session // _SHARE)
        self._sessions: dict[str, _Session] = {}
        self._tasks: dict[str, _TaskUse] = {}
        self._short: dict[_Session, None] = {}
        """Sessions in which somebody waits for room that others have."""
        self.size = 0
        self.messages = 0
        self.in_memory = 0
        self._queues = 0

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def unused(self) -> bool:
        """Nothing would be lost with it: no session, and none that was released a while ago."""
        return not self._tasks

    async def push(self, key: QueueKey, body: bytes, seconds: float) -> None:
        """Returns when the message is in its queue. TransportRefused when there is no room for so long."""
        if len(body) > self._limits.body:
            raise TransportRefused(
                TransportCode.TOO_LARGE, f"a message has at most {self._limits.body} bytes, this has {len(body)}"
            )
        session = self._session(key.session)
        with session.in_use(self._clock):
            await self._take_room(session, len(body), seconds)
            try:
                if session.released:
                    raise _was_released(key.session)
                queue = self._queue(session, key)
            except TransportRefused:
                self._count(session, -len(body), -1)
                self._freed(session)
                raise
            if self.in_memory + len(body) <= self._limits.memory:
                self.in_memory += len(body)
                queue.bodies.append(body)
            else:
                await self._store(session, key, body)
                queue = self._queue(session, key)
            self._hand_out(session, key, queue)

    async def _store(self, session: _Session, key: QueueKey, body: bytes) -> None:
        place = None
        try:
            if session.file is None:
                session.file = _SessionFile(self._directory)
            place = await session.file.put(body)
            if session.released:
                raise _was_released(key.session)
            self._queue(session, key).bodies.append(place)
        except OSError as problem:
            self._count(session, -len(body), -1)
            self._freed(session)
            raise TransportRefused(
                TransportCode.BUFFER_FULL, f"the message could not be stored: {problem.strerror}; try again later"
            ) from problem
        except BaseException:  # its caller left, or the session or the room for its topic is gone
            if place is not None and session.file is not None:
                session.file.drop(place)
            self._count(session, -len(body), -1)
            self._freed(session)
            raise

    async def pop(self, key: QueueKey, seconds: float) -> TakenMessage | None:
        """The oldest message; None when none comes for so long."""
        session = self._session(key.session)
        with session.in_use(self._clock):
            queue = self._queue(session, key)
            if queue.bodies:
                return self._take(session, key, queue)
            taker: asyncio.Future[TakenMessage] = asyncio.get_running_loop().create_future()
            queue.takers.append(taker)
            alarm = asyncio.ensure_future(self._clock.sleep(seconds))
            try:
                await asyncio.wait((taker, alarm), return_when=asyncio.FIRST_COMPLETED)
                return taker.result() if taker.done() else None
            except asyncio.CancelledError:
                # Whoever waited is gone: what it was given at the same moment is for the next one.
                if taker.done() and not taker.cancelled() and taker.exception() is None:
                    taker.result().give_back()
                raise
            finally:
                alarm.cancel()
                taker.cancel()
                if taker in queue.takers:
                    queue.takers.remove(taker)
                self._tidy(session, key, queue)

    async def peek(self, key: QueueKey) -> TakenMessage | None:
        """The oldest message, which is taken; None at once when there is none. That it is taken is what engines know."""
        session = self._session(key.session)
        with session.in_use(self._clock):
            queue = session.queues.get((key.node, key.topic))
            return self._take(session, key, queue) if queue is not None and queue.bodies else None

    def release(self, session: str, node: str = "", topic: str = "") -> None:
        """Drops a topic, of one node or of all, or the whole session. Whoever waits in it is refused."""
        found = self._sessions.get(session)
        if topic:
            for known in list(found.queues) if found is not None else ():
                if known[1] == topic and node in ("", known[0]):
                    assert found is not None
                    self._drop_queue(session, found, known)
            return
        task = self._task(session)
        task.released.pop(session, None)
        task.released[session] = self._clock.monotonic() + self._limits.remembered_seconds
        if len(task.released) > self._limits.sessions // _SHARE:
            del task.released[next(iter(task.released))]
        if found is not None:
            self._end(session, found)

    async def clean(self) -> None:
        """Ends sessions that nobody uses; runs until cancelled."""
        while True:
            await self._clock.sleep(self._limits.clean_seconds)
            self.expire()

    def expire(self) -> None:
        now = self._clock.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.callers and now - session.used >= self._limits.idle_seconds:
                self._end(name, session)
        for name, task in list(self._tasks.items()):
            for released in [each for each, until in task.released.items() if until <= now]:
                del task.released[released]
            if not (task.sessions or task.released or task.messages):
                del self._tasks[name]

    def close(self) -> None:
        for name, session in list(self._sessions.items()):
            self._end(name, session)

    # Sessions.

    def _task(self, session: str) -> _TaskUse:
        return self._tasks.setdefault(self._task_of(session), _TaskUse())

    def _session(self, name: str) -> _Session:
        now = self._clock.monotonic()
        known = self._tasks.get(self._task_of(name))
        if known is not None and known.released.get(name, 0.0) > now:
            raise _was_released(name)
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= self._limits.sessions:
                raise TransportRefused(TransportCode.BUFFER_FULL, f"there are {len(self._sessions)} sessions already")
            if known is not None and known.sessions >= max(1, self._limits.sessions // _SHARE):
                raise TransportRefused(
                    TransportCode.BUFFER_FULL, f"the task of session {name} has {known.sessions} sessions already"
                )
            task = self._task(name)
            task.sessions += 1
            session = self._sessions[name] = _Session(task, now)
        session.used = now
        return session

    def _queue(self, session: _Session, key: QueueKey) -> _Queue:
        queue = session.queues.get((key.node, key.topic))
        if queue is None:
            limits, task = self._limits, session.task
            if len(session.queues) >= limits.queues_of_session:
                raise TransportRefused(
                    TransportCode.BUFFER_FULL, f"session {key.session} has {len(session.queues)} topics already"
                )
            if task.queues >= max(1, limits.queues // _SHARE) or self._queues >= limits.queues:
                raise TransportRefused(
                    TransportCode.BUFFER_FULL, f"the task of session {key.session} has {task.queues} topics already"
                )
            queue = session.queues[(key.node, key.topic)] = _Queue()
            task.queues += 1
            self._queues += 1
        return queue

    def _take(self, session: _Session, key: QueueKey, queue: _Queue) -> TakenMessage:
        taken = TakenMessage(self, session, key, queue)
        self._tidy(session, key, queue)
        return taken

    def _tidy(self, session: _Session, key: QueueKey, queue: _Queue) -> None:
        """A topic without messages, for which nobody waits, is none; a few are kept for what comes next."""
        if len(session.queues) <= self._kept_queues:
            return
        if not (queue.bodies or queue.takers or queue.dropped) and session.queues.get((key.node, key.topic)) is queue:
            self._remove_queue(session, (key.node, key.topic))

    def _remove_queue(self, session: _Session, known: tuple[str, str]) -> _Queue:
        session.task.queues -= 1
        self._queues -= 1
        return session.queues.pop(known)

    def _end(self, name: str, session: _Session) -> None:
        session.released = True
        for waiter in session.waiting:
            if not waiter.done():
                waiter.set_exception(_was_released(name))
        session.waiting.clear()
        self._short.pop(session, None)
        for known in list(session.queues):
            self._drop_queue(name, session, known)
        if session.file is not None:
            session.file.close()
        del self._sessions[name]
        session.task.sessions -= 1

    def _drop_queue(self, name: str, session: _Session, known: tuple[str, str]) -> None:
        queue = self._remove_queue(session, known)
        queue.dropped = True
        for body in queue.bodies:
            self._dropped(session, body)
        queue.bodies.clear()
        for taker in queue.takers:
            if not taker.done():
                taker.set_exception(_was_released(name))

    # Bytes.

    async def _take_room(self, session: _Session, size: int, seconds: float) -> None:
        """Counts a message, when there is room for it. Small ones do not wait behind large ones: an engine may need them first."""
        if self._fits_session(session, size) and self._fits_beside_others(session, size):
            self._count(session, size, 1)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.waiting[waiter] = size
        self._admit(session)  # notes what it waits for
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((waiter, alarm), return_when=asyncio.FIRST_COMPLETED)
            if not waiter.done():
                raise TransportRefused(
                    TransportCode.BUFFER_FULL,
                    f"nobody took the {session.size} bytes of the session for {seconds:g} s; take them, or release it",
                )
            waiter.result()
        except asyncio.CancelledError:
            if waiter.done() and waiter.exception() is None:
                self._count(session, -size, -1)
                self._freed(session)
            raise
        finally:
            alarm.cancel()
            session.waiting.pop(waiter, None)

    def _fits_session(self, session: _Session, size: int) -> bool:
        limits = self._limits
        # One message alone is always taken: a session may be smaller than what a message may have.
        return not session.messages or (
            session.size + size <= limits.session and session.messages < limits.messages_of_session
        )

    def _fits_beside_others(self, session: _Session, size: int) -> bool:
        limits, task = self._limits, session.task
        return (
            (not task.messages or task.size + size <= max(limits.session, limits.total // _SHARE))
            and self.size + size <= limits.total
            and task.messages < limits.messages // _SHARE
            and self.messages < limits.messages
        )

    def _freed(self, session: _Session) -> None:
        """There is room in a session, and so in all that they have together."""
        if session.waiting:
            self._admit(session)
        for other in list(self._short):
            self._admit(other)

    def _admit(self, session: _Session) -> None:
        short = False
        for waiter, size in list(session.waiting.items()):
            if waiter.done() or not self._fits_session(session, size):
                continue
            if self._fits_beside_others(session, size):
                del session.waiting[waiter]
                self._count(session, size, 1)
                waiter.set_result(None)
            else:
                short = True
        if short:
            self._short[session] = None
        else:
            self._short.pop(session, None)

    def _count(self, session: _Session, size: int, messages: int) -> None:
        task = session.task
        session.size += size
        session.messages += messages
        task.size += size
        task.messages += messages
        self.size += size
        self.messages += messages

    def _dropped(self, session: _Session, body: _Body) -> None:
        """It is not there any more."""
        if not isinstance(body, _StoredBody):
            self.in_memory -= len(body)
        elif session.file is not None:
            session.file.drop(body)
        self._count(session, -_size_of(body), -1)
        if session.waiting or self._short:
            self._freed(session)

    def _put_back(self, session: _Session, key: QueueKey, queue: _Queue, body: _Body) -> None:
        if not (session.released or queue.dropped):
            try:
                queue = self._queue(session, key)
            except TransportRefused:  # others have all the topics meanwhile
                queue.dropped = True
        if session.released or queue.dropped:
            self._dropped(session, body)
            return
        queue.bodies.appendleft(body)
        self._hand_out(session, key, queue)

    def _hand_out(self, session: _Session, key: QueueKey, queue: _Queue) -> None:
        while queue.bodies and (taker := _next_taker(queue)) is not None:
            taker.set_result(TakenMessage(self, session, key, queue))


def _next_taker(queue: _Queue) -> asyncio.Future[TakenMessage] | None:
    while queue.takers:
        taker = queue.takers.popleft()
        if not taker.done():
            return taker
    return None


def _was_released(session: str) -> TransportRefused:
    return TransportRefused(TransportCode.SESSION_RELEASED, f"session {session} was released")
