"""The table that KusciaAPI is: which service, method and path, who may call it where, and what it does.

    HTTP (8082), gRPC (8083), gateway ──> Operation.run(here, caller, request) ──> response

A failure is an answer too: `status.code` and a sentence. Each module of services has its rows in `OPERATIONS`; the work
is a function of where it runs, who calls and what was asked, and answers plain data of the response's form:

    async def query(here: Here, caller: Caller, request: Any) -> Object:
        return {"data": {"job_id": request.job_id}}
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.kuscia.kusciaapi import messages, plain_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.job_watch import JobWatchers
from coterie.kuscia.kusciaapi.known_jobs import KnownJobs

log = logger("kusciaapi")


class Mode(StrEnum):
    MASTER = "master"
    AUTONOMY = "autonomy"
    LITE = "lite"


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The domain whose API this is."""

    client: Client
    domain: str
    mode: Mode
    paths: DomainPaths
    identity: DomainIdentity
    clock: Clock
    node: str = ""
    """The node of this machine; empty where there is none."""
    jobs: JobWatchers = field(default_factory=JobWatchers, repr=False, compare=False)
    """Those who watch jobs."""
    known_jobs: KnownJobs = field(default_factory=KnownJobs, repr=False, compare=False)
    """For those who query them."""


class OnLite(Enum):
    """What a lite does with a call."""

    HERE = "here"
    FORWARD = "forward"
    """Asks its master, as the domain it is."""
    REFUSE = "refuse"


Work = Callable[[OperationContext, ApiCaller, Any], Awaitable[Object | messages.Shared]]
"""Gives plain data, or the response where it is made for many callers."""
Streaming = Callable[[OperationContext, ApiCaller, Any], AsyncIterator[Any]]
"""Gives plain data too, or responses where one is made for many callers."""


@dataclass(frozen=True, slots=True)
class ApiOperation:
    service: str
    method: str
    path: str
    failure: ApiErrorCode
    """For what goes wrong without a code of its own."""
    work: Work | None = None
    stream: Streaming | None = None
    """Instead of `work`: each piece is one response."""
    for_domains: bool = False
    """Whether other domains may call it through the gateway."""
    on_lite: OnLite = OnLite.HERE
    on_master: bool = True
    secret: bool = False
    """Whether request or answer must never be logged."""
    request_name: str = ""
    response_name: str = ""
    package: str = messages.PACKAGE
    """Of the messages and, over gRPC, of the service."""

    @property
    def request(self) -> Any:
        return messages.message(self.request_name or f"{self.method}Request", self.package)

    @property
    def response(self) -> Any:
        return messages.message(self.response_name or f"{self.method}Response", self.package)

    @property
    def reports_status(self) -> bool:
        """Whether the response has a field for what went wrong."""
        return "status" in self.response.DESCRIPTOR.fields_by_name

    def check(self, here: OperationContext, caller: ApiCaller) -> None:
        """Refused where this operation is not to be had."""
        if here.mode is Mode.LITE and self.on_lite is OnLite.REFUSE:
            raise CallRefused(ApiErrorCode.NOT_ON_LITE, f"{self.method} is not to be had on a lite; ask its master")
        if here.mode is Mode.MASTER and not self.on_master:
            raise CallRefused(
                ApiErrorCode.NOT_ON_MASTER, f"{self.method} is not to be had on a master; ask the domain itself"
            )
        if not caller.everything and not self.for_domains:
            raise CallRefused(ApiErrorCode.PERMISSION, f"domains may not call {self.method}")

    async def run(self, here: OperationContext, caller: ApiCaller, request: Any) -> Any:
        """Of operations with `work`."""
        assert self.work is not None
        try:
            self.check(here, caller)
            return self.answered(await self.work(here, caller, request))
        except (CallRefused, ApiError, TransportError) as problem:
            return self.failed(problem)

    async def pieces(self, here: OperationContext, caller: ApiCaller, request: Any) -> AsyncGenerator[Any, None]:
        """Of operations with `stream`. When something fails the last answer tells why; Refused where it has no field
        for it."""
        assert self.stream is not None
        source = self.stream(here, caller, request)
        try:
            self.check(here, caller)
            async for piece in source:
                yield plain_messages.parse(piece, self.response) if isinstance(piece, dict) else piece
        except (CallRefused, ApiError, TransportError) as problem:
            if not self.reports_status:
                code = problem.code if isinstance(problem, CallRefused) else self.failure
                raise CallRefused(code, str(problem)) from problem
            yield self.failed(problem)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    def answered(self, data: Object | messages.Shared) -> Any:
        if isinstance(data, messages.Shared):
            return data
        return plain_messages.parse({"status": {"message": "success"}, **data}, self.response)

    def failed(self, problem: CallRefused | ApiError | TransportError) -> Any:
        code, details, found = self.failure, tuple[tuple[ApiErrorCode, str], ...](), dict[str, Any]()
        if isinstance(problem, CallRefused):
            code, details, found = problem.code, problem.details, problem.found
        log.info("Refused", method=self.method, code=int(code), why=str(problem))
        response = plain_messages.parse(found, self.response)
        response.status.code, response.status.message = int(code), str(problem)
        for item, why in details:
            response.status.details.add().Pack(messages.Status(code=int(item), message=why))
        return response
