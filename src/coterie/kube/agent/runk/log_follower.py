"""The output of copies, kept in files of this node: there it is searched and shown when the copy is long gone.

One task for each container that runs. Lines are asked for with their times; after a break the log is asked for again from the
last time, and lines that were written already are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.runtimes.runp.logs import LogFile
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.client import streams
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError

log = logger("agent.runk.logs")
_PAUSE = 2.0
_LONGEST_LINE = 1 << 20

RunOfContainer = tuple[str, str, int]
"""(uid of the original, container, restarts)."""


class LogFollower:
    def __init__(self, client: Client, namespace: str, clock: Clock, log_bytes: int, log_files: int) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._bytes = log_bytes
        self._files = log_files
        self._owner = TaskOwner("pod-logs")
        self._seen: set[RunOfContainer] = set()

    async def close(self) -> None:
        await self._owner.close()

    def follow(self, run: RunOfContainer, pod: str, path: Path, running: Callable[[], bool]) -> None:
        """Nothing happens when it is followed already, or was."""
        if run not in self._seen:
            self._seen.add(run)
            self._owner.start(f"{pod}/{run[1]}/{run[2]}", self._follow(run, pod, path, running), vital=False)

    def forget(self, uid: str) -> None:
        self._seen = {run for run in self._seen if run[0] != uid}

    async def _follow(self, run: RunOfContainer, pod: str, path: Path, running: Callable[[], bool]) -> None:
        file = LogFile(str(path), self._bytes, self._files)
        try:
            last = last_time(path)
            while True:
                # Asked for once more after its end: what came last may not have been there.
                more = running()
                try:
                    last = await self._copy(pod, run[1], file, last)
                except (NotFound, Forbidden) as problem:
                    log.info("The log of a pod cannot be kept", pod=pod, container=run[1], why=str(problem))
                    return
                except (ApiError, TransportError) as problem:
                    log.debug("The log of a pod broke off", pod=pod, container=run[1], why=str(problem))
                if not more:
                    return
                await self._clock.sleep(_PAUSE)
        finally:
            file.close()

    async def _copy(self, pod: str, container: str, file: LogFile, last: str) -> str:
        """Until it breaks off; answers the time of the last line."""
        rest, since = b"", last
        pieces = streams.log_stream(
            self._client, pod, self._namespace, container=container, follow=True, timestamps=True, since_time=since
        )
        async for piece in pieces:
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            if newline:
                data, count, last = cri_lines(whole, last)
                if count:
                    file.write(data, count)
            if len(rest) > _LONGEST_LINE:
                rest = rest[:_LONGEST_LINE]
        return last


def cri_lines(whole: bytes, last: str) -> tuple[bytes, int, str]:
    """(lines in the format of CRI, how many, time of the last). Lines that are not after `last` were written before."""
    out = []
    for line in whole.split(b"\n"):
        time, _, text = line.partition(b" ")
        stamp = time.decode("ascii", "replace")
        if not stamp.endswith("Z") or _sortable(stamp) <= _sortable(last):
            continue
        out.append(time + b" stdout F " + text)
        last = stamp
    return b"".join(line + b"\n" for line in out), len(out), last


def _sortable(stamp: str) -> str:
    """Fractions of different lengths compare as numbers."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}" if seconds else ""


def last_time(path: Path) -> str:
    """Of the last whole line of a file that an earlier life wrote; empty: there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - (64 << 10)))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return ""
    return lines[-1].partition(b" ")[0].decode("ascii", "replace") if lines else ""
