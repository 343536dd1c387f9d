"""Our side of a tunnel in Kuscia's frames where we have no public port: we fetch the partner's calls.

    GET http://receiver.<partner>.svc/poll?service=<ours>      over our own route to the partner, for each service it may call
    a frame ──> entrance.sock of our Envoy                     as if it had come to a public port: the same checks and rules
    POST http://receiver.<partner>.svc/reply?msgid=<id>        what the service answered

A call enters under the name of the partner whose poll it came by, with a secret that only this process and its Envoy have;
whatever the frame says of who calls is not passed on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.plain_client import HttpFailure, PlainResponse, Pool
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.model import SnapshotInputs
from coterie.kuscia.gateway.names import (
    API_SERVICE,
    HANDSHAKE_SERVICE,
    HOST,
    ORIGIN,
    PROTOCOL,
    RECEIVER_SERVICE,
    SOURCE,
    TOKEN,
    TRANSIT_HASH,
)
from coterie.kuscia.gateway.polling.frames import (
    MAX_FRAME,
    AnswerFrame,
    CallFrame,
    FrameReader,
    PollFault,
    encode_answer,
)
from coterie.kuscia.gateway.polling.passed_headers import answer_headers, call_headers

POLL_SECONDS = 300
RENEW_SECONDS = 270.0
AGAIN_SECONDS = 10.0
"""After a poll that failed."""
CALL_SECONDS = 30.0
STREAM_SECONDS = 360.0
"""Of an answer of the API, which is passed on as it comes."""
MOST_CALLS = 64
MOST_BYTES = 32 << 20
"""At a time, of one partner and service: more is fetched when these are answered."""
_LOOK_SECONDS = 1.0
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
Poll = tuple[str, str]
"""A partner and a service of ours."""


def wanted_polls(inputs: SnapshotInputs) -> frozenset[Poll]:
    """For each partner whose calls we fetch: the handshake, and what is opened to it."""
    found: set[Poll] = set()
    for route in inputs.inbound:
        if polled(route):
            opened = (each.name for each in inputs.services if each.endpoints and each.opened_to(route.source))
            found |= {(route.source, service) for service in (HANDSHAKE_SERVICE, *opened)}
    return frozenset(found)


class _Room:
    """For calls that were fetched and are not answered yet."""

    def __init__(self) -> None:
        self._calls = 0
        self._bytes = 0
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._calls >= MOST_CALLS or (self._calls and self._bytes + size > MOST_BYTES):
            self._freed.clear()
            await self._freed.wait()
        self._calls += 1
        self._bytes += size

    def free(self, size: int) -> None:
        self._calls -= 1
        self._bytes -= size
        self._freed.set()


class CallPoller:
    """A Runnable; ready at once."""

    name = "call-poller"

    def __init__(
        self,
        domain: str,
        node_socket: Path,
        entrance: Path,
        secret: SecretValue,
        inputs: Callable[[], SnapshotInputs | None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ready = asyncio.Event()
        self._domain = domain
        self._out = Pool(node_socket)
        self._in = Pool(entrance)
        self._secret = secret
        self._inputs = inputs
        self._clock = clock
        self._stop = asyncio.Event()
        self._log = logger("gateway.polling").bind(domain=domain)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        owner = TaskOwner("call-poller")
        running: dict[Poll, asyncio.Task[None]] = {}
        seen: SnapshotInputs | None = None
        wanted: frozenset[Poll] = frozenset()
        try:
            while not self._stop.is_set():
                if (inputs := self._inputs()) is not seen:
                    seen, wanted = inputs, wanted_polls(inputs) if inputs is not None else frozenset()
                for gone in running.keys() - wanted:
                    running.pop(gone).cancel()
                for new in wanted - running.keys():
                    running[new] = owner.start(f"{new[1]} for {new[0]}", self._follow(new, owner), vital=False)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _LOOK_SECONDS)
        finally:
            await owner.close()
            await self._out.close()
            await self._in.close()

    async def _follow(self, poll: Poll, owner: TaskOwner) -> None:
        """One poll after the other."""
        partner, service = poll
        room = _Room()
        last = ""
        while True:
            try:
                await self._fetch(poll, owner, room)
                last = ""
                continue
            except (HttpFailure, PollFault, OSError) as error:
                problem = str(error) or type(error).__name__
            if problem != last:
                self._log.warning("Calls cannot be fetched", partner=partner, service=service, why=problem)
            last = problem
            await self._clock.sleep(AGAIN_SECONDS * (1 + random.random() / 10))

    async def _fetch(self, poll: Poll, owner: TaskOwner, room: _Room) -> None:
        """Until it is time for another poll. Raises HttpFailure, PollFault."""
        partner, service = poll
        until = RENEW_SECONDS + random.random() * 10
        headers = {**self._towards(partner), TRANSIT_HASH: f"{service}.{self._domain}.svc"}
        with suppress(TimeoutError):
            async with asyncio.timeout(until):
                answer = await self._out.request(
                    "GET", f"/poll?service={quote(service)}&timeout={POLL_SECONDS}s", headers
                )
                with closing(answer):
                    if answer.status != 200:
                        text = (await answer.read(1000)).decode("utf-8", "replace").strip()
                        raise HttpFailure(f"{partner} answers {answer.status}: {text[:200]}")
                    reader = FrameReader()
                    while data := await answer.chunk():
                        for frame in reader.feed(data):
                            size = len(frame.body)
                            await room.take(size)
                            task = owner.start(f"call of {partner}", self._serve(poll, frame), vital=False)
                            task.add_done_callback(lambda _, size=size: room.free(size))  # type: ignore[misc]

    def _towards(self, partner: str) -> dict[str, str]:
        return {"Host": f"{RECEIVER_SERVICE}.{partner}.svc"}

    # ---- one call ----

    async def _serve(self, poll: Poll, frame: CallFrame) -> None:
        partner, service = poll
        try:
            await self._forward(poll, frame)
        except (HttpFailure, TimeoutError, OSError) as error:
            self._log.warning("A fetched call failed", partner=partner, service=service, why=str(error) or "no answer")
            await self._reply(partner, frame, [AnswerFrame(502, end=True)])

    async def _forward(self, poll: Poll, frame: CallFrame) -> None:
        partner, service = poll
        host = f"{service}.{self._domain}.svc"
        if (
            frame.host.partition(":")[0].lower() != host
            or frame.method not in _METHODS
            or not frame.path.startswith("/")
        ):
            await self._reply(partner, frame, [AnswerFrame(404, end=True)])
            return
        headers = call_headers(frame.headers, to_partner=False) | {
            "Host": host,
            HOST: host,
            SOURCE: partner,
            ORIGIN: partner,
            TOKEN: self._secret.reveal(),
            PROTOCOL: "kuscia",
        }
        streamed = service == API_SERVICE
        async with asyncio.timeout(STREAM_SECONDS if streamed else CALL_SECONDS):
            try:
                answer = await self._in.request(frame.method, frame.path, headers, frame.body)
            except ValueError:  # something in it cannot be written as HTTP
                await self._reply(partner, frame, [AnswerFrame(400, end=True)])
                return
            with closing(answer):
                if streamed:
                    await self._stream(partner, frame, answer)
                    return
                body = await answer.read(MAX_FRAME)
        if len(body) > MAX_FRAME - (64 << 10):
            await self._reply(partner, frame, [AnswerFrame(502, end=True)])
            return
        made = AnswerFrame(answer.status, answer_headers(answer.headers), body, end=True)
        await self._reply(partner, frame, [made])

    async def _stream(self, partner: str, frame: CallFrame, answer: PlainResponse) -> None:
        """Head, pieces, end: as each comes."""
        head = AnswerFrame(answer.status, answer_headers(answer.headers), chunk=True)
        await self._reply(partner, frame, [head])
        place = 1
        while data := await answer.chunk():
            await self._reply(partner, frame, [AnswerFrame(body=data, chunk=True, index=place)])
            place += 1
        await self._reply(partner, frame, [AnswerFrame(end=True, chunk=True, index=place)])

    async def _reply(self, partner: str, frame: CallFrame, answers: Iterable[AnswerFrame]) -> None:
        """Raises HttpFailure. A reply that the partner refuses is lost, as the call would be."""
        for each in answers:
            headers = {
                **self._towards(partner),
                "Content-Type": "application/x-protobuf",
                TRANSIT_HASH: _printable(frame.host),
            }
            async with asyncio.timeout(CALL_SECONDS):
                answer = await self._out.request(
                    "POST", f"/reply?msgid={quote(frame.id, safe='')}", headers, encode_answer(each)
                )
                with closing(answer):
                    await answer.read(1000)


def _printable(text: str) -> str:
    return "".join(letter for letter in text[:256] if " " < letter < "\x7f")
