"""The calls of Transport: who may use which session, what headers mean, and the answers.

    /v1/interconn/chan/transport, invoke   push      x-ptp-session-id, x-ptp-topic, x-ptp-source-node-id
    /v1/interconn/chan/pop, peek           take      x-ptp-session-id, x-ptp-topic, x-ptp-target-node-id (whose messages)
    /v1/interconn/chan/release             release   x-ptp-session-id, x-ptp-topic and x-ptp-target-node-id where given

In BFIA's form (`grpc_messages.py`) topic, timeout and payload are in the body, which is what a content type of `application/x-protobuf` without
`x-ptp-topic` says, and the path may be that of the gRPC service.

A session belongs to a task: its id is the task's, or `session_` and the task's, with or without a dot and more. Engines of the task take
and release; its parties push, each as itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from coterie.http.messages import Request, Response
from coterie.http.server import Tasks
from coterie.kuscia.transport import grpc_messages, handing_over, outbound
from coterie.kuscia.transport.grpc_messages import GRPC_SERVICE, GrpcInbound
from coterie.kuscia.transport.metrics import TransportMetrics
from coterie.kuscia.transport.outbound import CONTENT_TYPE, Outbound, TransportCode, TransportRefused
from coterie.kuscia.transport.queues import MessageQueues, QueueKey, TakenMessage, task_of_session

CHANNEL = "/v1/interconn/chan/"
PUSH, INVOKE, POP, PEEK, RELEASE = "transport", "invoke", "pop", "peek", "release"
GRPC_PUSH = "push"
SESSION, TOPIC = "x-ptp-session-id", "x-ptp-topic"
SOURCE_NODE, TARGET_NODE = "x-ptp-source-node-id", "x-ptp-target-node-id"
_DEFAULT_SECONDS, _LEAST_SECONDS, _MOST_SECONDS = 120, 1, 300
_LONGEST_NAME = 512


class TransportCaller(NamedTuple):
    domain: str
    """Who calls, as the gateway found out."""
    task: str = ""
    """Of an engine of ours: the task that it belongs to. Empty for partners."""


Recognise = Callable[[Request], Awaitable[TransportCaller | None]]
"""Who calls; None: nobody that is let in."""
PartiesOf = Callable[[str], Awaitable[frozenset[str]]]
"""The domains that take part in a task; none when there is no such task here. Raises TransportRefused."""
BeforePush = Callable[[], Awaitable[None]]
"""Called before a message is taken in. Raises TransportRefused when none can be."""


async def _always() -> None:
    pass


def wait_seconds(request: Request, inbound: GrpcInbound | None = None) -> float:
    """What the caller wants to wait at most, within what is allowed."""
    text = str(inbound.timeout or "") if inbound is not None else request.query and request.param("timeout")
    if not text:
        return _DEFAULT_SECONDS
    if not text.isdecimal():
        raise TransportRefused(TransportCode.BAD_REQUEST, "timeout must be a number of seconds")
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, int(text)))


def in_form_of_bfia(request: Request) -> bool:
    if request.path.startswith(GRPC_SERVICE):
        return True
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == grpc_messages.CONTENT_TYPE and TOPIC not in request.headers


def action_of(path: str) -> str:
    if path.startswith(GRPC_SERVICE):
        action = path.removeprefix(GRPC_SERVICE)
        return INVOKE if action == GRPC_PUSH else action
    return path.removeprefix(CHANNEL)


class TransportCalls:
    """A handler of HTTP requests."""

    def __init__(
        self,
        queues: MessageQueues,
        recognise: Recognise,
        parties_of: PartiesOf,
        metrics: TransportMetrics,
        before_push: BeforePush = _always,
    ) -> None:
        self._queues = queues
        self._recognise = recognise
        self._parties_of = parties_of
        self._metrics = metrics
        self._before_push = before_push
        self._tasks = Tasks()

    async def handle(self, request: Request) -> Response:
        caller = await self._recognise(request)
        if caller is None:
            return Response(401, b"", "")
        bfia = in_form_of_bfia(request)
        self._metrics.running += 1
        answer, taken = Outbound(), None
        try:
            taken = await self._carry_out(caller, request, bfia=bfia)
            if taken is None:
                made = _plain(answer, bfia=bfia)
            elif taken.size <= handing_over.PIECE:
                made = _plain(Outbound(await taken.read()), bfia=bfia)
            else:
                framing = grpc_messages.framing(taken.size) if bfia else outbound.framing(taken.size)
                kind = grpc_messages.CONTENT_TYPE if bfia else CONTENT_TYPE
                made = handing_over.response(taken, framing, kind, self._tasks)
        except OSError as problem:
            words = f"the message could not be read: {problem.strerror or problem}; try again later"
            answer = Outbound(b"", TransportCode.SERVER_ERROR, words)
            made = _plain(answer, bfia=bfia)
        except TransportRefused as problem:
            answer = outbound.refused(problem)
            made = _plain(answer, bfia=bfia)
        finally:
            self._metrics.running -= 1
        sent = taken.size if taken is not None and answer.code == TransportCode.SUCCESS else 0
        self._metrics.call(action_of(request.path), answer.code, len(request.body), sent)
        if bfia:
            size = len(made.body) if made.stream is None else made.stream_length
            made.headers.append((grpc_messages.SIZE, str(size)))
        return made

    async def _carry_out(self, caller: TransportCaller, request: Request, *, bfia: bool) -> TakenMessage | None:
        action = action_of(request.path)
        inbound = grpc_messages.decode(request.body) if bfia else None
        session = _needed(request, SESSION)
        await self._check_session(caller, session)
        if action in (PUSH, INVOKE):
            source = _needed(request, SOURCE_NODE)
            if source != caller.domain:
                raise TransportRefused(
                    TransportCode.NOT_AUTHORIZED, f"{caller.domain} cannot send messages of {source}"
                )
            key = QueueKey(session, source, _topic(request, inbound))
            await self._before_push()
            body = request.body if inbound is None else inbound.payload
            await self._queues.push(key, body, wait_seconds(request, inbound))
            return None
        if not caller.task:
            raise TransportRefused(
                TransportCode.NOT_AUTHORIZED, "messages are taken and released by engines of this domain"
            )
        if action == RELEASE:
            topic = inbound.topic if inbound is not None else _given(request, TOPIC)
            self._queues.release(session, _given(request, TARGET_NODE), topic)
            return None
        if action not in (POP, PEEK):
            raise TransportRefused(TransportCode.BAD_REQUEST, f"there is nothing at {request.path}")
        key = QueueKey(session, _needed(request, TARGET_NODE), _topic(request, inbound))
        if action == PEEK:
            return await self._queues.peek(key)
        return await self._queues.pop(key, wait_seconds(request, inbound))

    async def _check_session(self, caller: TransportCaller, session: str) -> None:
        if "," in session:  # what a header that was sent twice may have become
            raise TransportRefused(TransportCode.BAD_REQUEST, f"{SESSION} has no comma")
        task = task_of_session(session)
        allowed = task == caller.task if caller.task else caller.domain in await self._parties_of(task)
        if not allowed:
            raise TransportRefused(
                TransportCode.NOT_AUTHORIZED,
                f"session {session} is not of a task that {caller.domain} takes part in here",
            )


def _plain(answer: Outbound, *, bfia: bool) -> Response:
    """Without a message."""
    if bfia:
        return Response(body=grpc_messages.encode(answer), content_type=grpc_messages.CONTENT_TYPE)
    return Response(body=outbound.encode(answer), content_type=CONTENT_TYPE)


def _given(request: Request, header: str) -> str:
    value = request.headers.get(header, "").strip()
    if len(value) > _LONGEST_NAME:
        raise TransportRefused(TransportCode.BAD_REQUEST, f"{header} has at most {_LONGEST_NAME} characters")
    return value


def _topic(request: Request, inbound: GrpcInbound | None) -> str:
    """BFIA's own form knows messages without one."""
    if inbound is None:
        return _needed(request, TOPIC)
    if len(inbound.topic) > _LONGEST_NAME:
        raise TransportRefused(TransportCode.BAD_REQUEST, f"topic has at most {_LONGEST_NAME} characters")
    return inbound.topic


def _needed(request: Request, header: str) -> str:
    value = _given(request, header)
    if not value:
        raise TransportRefused(TransportCode.BAD_REQUEST, f"the header {header} is needed")
    return value
