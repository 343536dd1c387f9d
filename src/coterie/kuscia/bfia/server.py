"""The scheduling interface for partners that speak BFIA. Only our own Envoy connects here, and only for partners that it authenticated.

partner ─▶ gateways ─▶ socket ─▶ who, how often ─▶ message ─▶ answers.py decides ─▶ one write ─▶ answer

Two requests of one job are handled one after the other. A write names the version that was decided on; when somebody else was
faster, the request is decided again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer, HttpShares
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.child_api_listener import private_socket
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, DOMAINS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.bfia import answers, wire
from coterie.kuscia.bfia.answers import JOB_EXISTS, Message, ServerDecision, ServerView
from coterie.kuscia.bfia.wire import BfiaRefused, CommonAnswer

log = logger("bfia.server")

_BURST, _PER_SECOND = 200.0, 20.0
"""Requests of one partner. A partner polls each of its tasks every 5 seconds."""
_AT_ONCE = 32
"""Requests of one partner that arrive or are being answered."""
_ATTEMPTS = 5
_REMEMBERED_TASKS = 1000
BY_TASK_ID = "bfia/task-id"
_NODE_ID = "x-node-id"


class BfiaServer:
    """A Runnable."""

    name = "bfia-server"

    def __init__(self, client: Client, informers: Informers, socket: Path, caller_header: str, clock: Clock) -> None:
        """`socket`: where our Envoy leads partners. `caller_header`: in which it says who they are."""
        self.ready = asyncio.Event()
        self._client = client
        self._domains = informers.get(DOMAINS)
        self._jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._jobs.cache.add_index(BY_TASK_ID, by_task_id)
        self._started: dict[str, str] = {}
        self._socket = socket
        self._caller_header = caller_header
        self._clock = clock
        self._stop = asyncio.Event()
        self._allowance: dict[str, tuple[float, float]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        server = HttpServer(
            self.handle,
            limits=HttpLimits(max_body=wire.MAX_BODY, max_connections=256),
            shares=HttpShares(lambda headers: headers.get(self._caller_header, ""), _AT_ONCE, 2 * wire.MAX_BODY),
        )
        await server.serve(private_socket(self._socket))
        try:
            self.ready.set()
            await self._stop.wait()
        finally:
            await server.stop(1.0)
            self._socket.unlink(missing_ok=True)

    async def handle(self, request: Request) -> Response:
        caller = request.headers.get(self._caller_header, "")
        domain = self._domains.cache.get(caller)
        if domain is None or not domain.partner or domain.protocol != BFIA_PROTOCOL:
            return Response(403, b"only for partners that speak BFIA\n", "text/plain; charset=utf-8")
        if not self._allowed(caller):
            return Response(429, b"too many requests\n", "text/plain; charset=utf-8")
        path = request.path.removeprefix(wire.SCHEDULE)
        if request.method != ("GET" if path == wire.JOB_STATUS else "POST"):
            return Response(405, b"GET is for job/status_all, POST for the others\n", "text/plain; charset=utf-8")
        try:
            answers.claimed_caller(request.headers.get(_NODE_ID, ""), caller)
            message = answers.parse(path, request.params, request.body)
            answer = await self._answered(path, message, caller)
        except (BfiaRefused, HttpProblem) as refusal:
            code = refusal.code if isinstance(refusal, BfiaRefused) else wire.BAD_REQUEST
            log.info("A partner's request is refused", partner=caller, path=path, why=refusal)
            answer = CommonAnswer(code=code, msg=str(refusal))
        except (ApiError, TransportError) as problem:
            log.warning("A partner's request could not be carried out", partner=caller, path=path, error=problem)
            answer = CommonAnswer(code=wire.FAILED, msg="the request could not be carried out; try again")
        return Response(200, wire.write(answer))

    def _allowed(self, caller: str) -> bool:
        now = self._clock.monotonic()
        left, since = self._allowance.get(caller, (_BURST, now))
        left = min(_BURST, left + (now - since) * _PER_SECOND)
        self._allowance[caller] = (max(0.0, left - 1.0), now)
        return left >= 1.0

    async def _answered(self, path: str, message: Message, caller: str) -> CommonAnswer:
        names = answers.named_objects(message)
        job_name = names.job or self._job_of(names.task)
        async with self._one_at_a_time(job_name):
            for _ in range(_ATTEMPTS):
                view = await self._view(caller, job_name, names.task)
                decision = answers.decide(path, message, view)
                try:
                    await self._do(decision, view)
                except Conflict:
                    continue
                if path == wire.TASK_START:
                    self._remember(names.task, job_name)
                if decision != ServerDecision(data=decision.data):
                    log.info("A partner's request is carried out", partner=caller, path=path, job=job_name)
                return decision.answer
        raise BfiaRefused("the job changes all the time; try again", wire.FAILED)

    def _job_of(self, task: str) -> str:
        """The cache may be a moment behind a task that was just started."""
        found = self._jobs.cache.by_index(BY_TASK_ID, task)
        return found[0].metadata.name if found else self._started.get(task, "")

    def _remember(self, task: str, job: str) -> None:
        self._started[task] = job
        if len(self._started) > _REMEMBERED_TASKS:
            del self._started[next(iter(self._started))]

    async def _view(self, caller: str, job_name: str, task_name: str) -> ServerView:
        own = frozenset(each.metadata.name for each in self._domains.cache.list() if is_own(each))
        job = await self._job(job_name)
        tasks: dict[str, KusciaTask] = {}
        for template in job.spec.tasks if job is not None else ():
            if template.task_id and (found := await self._task(template.task_id)) is not None:
                tasks[template.task_id] = found
        task = tasks.get(task_name) or await self._task(task_name)
        return ServerView(caller, own, rfc3339(self._clock.now()), job, task, tasks)

    async def _do(self, decision: ServerDecision, view: ServerView) -> None:
        if decision.create is not None:
            try:
                await self._client.create(KUSCIA_JOBS.as_dynamic, decision.create)
            except AlreadyExists:
                raise BfiaRefused(JOB_EXISTS) from None
            except Conflict:
                raise
            except ApiError as problem:
                if 400 <= problem.code < 500:
                    raise BfiaRefused(str(problem)) from problem
                raise
        if decision.job_patch is not None and view.job is not None:
            await self._client.patch(KUSCIA_JOBS, view.job.metadata.name, CROSS_DOMAIN, decision.job_patch)
        if decision.task_status is not None and view.task is not None:
            await write_status(self._client, KUSCIA_TASKS, view.task, view.task.status, decision.task_status)

    async def _job(self, name: str) -> KusciaJob | None:
        """Read from the server: a partner may send two requests faster than a cache follows."""
        if not name:
            return None
        try:
            return await self._client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
        except NotFound:
            return None

    async def _task(self, name: str) -> KusciaTask | None:
        if not name:
            return None
        try:
            return await self._client.get(KUSCIA_TASKS, name, CROSS_DOMAIN)
        except NotFound:
            return None

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, job: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(job, (asyncio.Lock(), 0))
        self._locks[job] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[job]
            if users > 1:
                self._locks[job] = (lock, users - 1)
            else:
                del self._locks[job]


def by_task_id(job: KusciaJob) -> tuple[str, ...]:
    return tuple(task.task_id for task in job.spec.tasks if task.task_id)
