"""Runs log_scan.py in a process of its own, a few at a time, each with a limit for its time.

A search that runs longer is ended: the only way to stop a regular expression that backtracks. The node goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from coterie.base import log_scan
from coterie.base.log_scan import ScanAnswer, ScannedLine, ScanRequest

AT_ONCE: Final = 2
WAITING: Final = 16
"""Searches that may wait for one of these; more are refused."""
TIME_LIMIT: Final = 5.0
"""Seconds; a page is done in a fifth of a second, or in as long as unpacking one file takes."""
_MEMORY: Final = 1 << 30
"""Of its own; files that it maps do not count."""
# As a module, not as a script: its bytecode is stored.
_PROGRAM: Final = "import sys; sys.path.append(sys.argv[1]); import log_scan; log_scan.main()"
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class ScanFailed(Exception):
    """The search was ended, or refused; the message says why."""


class ScanBusy(ScanFailed):
    """It may work in a moment."""


@dataclass(slots=True)
class LogScanner:
    """One for each node."""

    time_limit: float = TIME_LIMIT
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _waiting: int = 0

    async def scan(self, request: ScanRequest) -> ScanAnswer:
        if not request.streams:
            return ScanAnswer(())
        if self._waiting >= WAITING:
            raise ScanBusy("too many searches of logs are under way; try again in a few seconds")
        self._waiting += 1
        try:
            async with self._places:
                return await self._run(request)
        finally:
            self._waiting -= 1

    async def _run(self, request: ScanRequest) -> ScanAnswer:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            _PROGRAM,
            os.path.dirname(log_scan.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
        )
        try:
            with contextlib.suppress(OSError, ValueError):
                cpu = int(self.time_limit) + 2
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu, cpu))
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            asked = json.dumps(log_scan.document_of(request)).encode()
            async with asyncio.timeout(self.time_limit):
                answer, _ = await process.communicate(asked)
        except TimeoutError:
            raise ScanFailed(
                f"the search took longer than {self.time_limit:g} s and was ended; "
                "write a regular expression with a fixed text in it and without nested repetitions"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise ScanBusy(f"the search ended with {process.returncode}; a file may have been cut meanwhile: try again")
        return _answer(json.loads(answer))


def _answer(document: dict[str, Any]) -> ScanAnswer:
    lines = tuple(ScannedLine(*each) for each in document["lines"])
    return ScanAnswer(lines, document["frontier"], tuple(document["notes"]), document["scanned"])
