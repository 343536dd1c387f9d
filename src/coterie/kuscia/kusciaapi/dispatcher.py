"""What every door does with a call once it knows who calls: carry it out here, or have the master do it.

HTTP, gRPC, gateway ──> Desk.answer, Desk.pieces ──> Operation
                                                └──> Forwarder (of a lite)
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from coterie.base.log import logger
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.master_forwarding import MasterForwarder
from coterie.kuscia.kusciaapi.metrics import KusciaApiMetrics
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext

log = logger("kusciaapi")

_FAILED = "KusciaAPI failed inside; its log has the details"


class Dispatcher:
    def __init__(self, here: OperationContext, forwarder: MasterForwarder | None = None) -> None:
        """`forwarder`: of a lite."""
        self.here = here
        self.metrics = KusciaApiMetrics()
        self._forwarder = forwarder
        self.under_way = 0
        self.served = 0
        """Calls that began so far."""

    async def answer(self, operation: ApiOperation, caller: ApiCaller, request: Any) -> Any:
        with self._counted():
            answer = await self._carry_out(operation, caller, request)
        self.metrics.call(operation.method, failed=operation.reports_status and bool(answer.status.code))
        return answer

    async def _carry_out(self, operation: ApiOperation, caller: ApiCaller, request: Any) -> Any:
        try:
            if self._forwarder is None or not self._leaves(operation):
                return await operation.run(self.here, caller, request)
            operation.check(self.here, caller)
            return await self._forwarder.ask(operation, request)
        except CallRefused as problem:
            return operation.failed(problem)
        except Exception as error:  # noqa: BLE001 - the edge of one call: report, answer, serve the others
            log.error("A call failed", error=error, trace=True, method=operation.method)
            return operation.failed(CallRefused(ApiErrorCode.UNEXPECTED, _FAILED))

    async def pieces(self, operation: ApiOperation, caller: ApiCaller, request: Any) -> AsyncGenerator[Any, None]:
        """Refused when something fails and the response has no field to say so; else the last piece tells."""
        with self._counted():
            try:
                if self._forwarder is None or not self._leaves(operation):
                    source = operation.pieces(self.here, caller, request)
                else:
                    operation.check(self.here, caller)
                    source = self._forwarder.listen(operation, request)
                async with contextlib.aclosing(source) as found:
                    self.metrics.call(operation.method, failed=False)
                    async for piece in found:
                        yield piece
                return
            except CallRefused as problem:
                failure = problem
            except Exception as error:  # noqa: BLE001 - as above
                log.error("A stream failed", error=error, trace=True, method=operation.method)
                failure = CallRefused(ApiErrorCode.UNEXPECTED, _FAILED)
        if not operation.reports_status:
            raise failure
        yield operation.failed(failure)

    def _leaves(self, operation: ApiOperation) -> bool:
        return self.here.mode is Mode.LITE and operation.on_lite is OnLite.FORWARD

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.under_way += 1
        self.served += 1
        try:
            yield
        finally:
            self.under_way -= 1
