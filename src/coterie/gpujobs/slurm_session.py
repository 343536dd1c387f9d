"""A Slurm cluster as the controller uses it: submit, poll, fetch, cancel, over a shell.

One poll serves all jobs of the cluster: whoever asks while it runs, or within the cluster's period after it, gets its answer, also
when that is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coterie.base.clock import Clock
from coterie.gpujobs import slurm_commands
from coterie.gpujobs.files import MAX_PACKED, digest
from coterie.gpujobs.shell import CommandShell, ShellUnreachable
from coterie.gpujobs.slurm_commands import JobDetails, PolledJob, QueueSnapshot, SlurmUnavailable
from coterie.gpujobs.storage import StreamEnd

_UPLOAD_SECONDS = 300.0
_CODES = frozenset((0, 73, 74, slurm_commands.TRY_AGAIN))


@dataclass
class SlurmSession:
    shell: CommandShell
    directory: str
    period: float
    clock: Clock
    streams: dict[str, dict[str, StreamEnd]] = field(default_factory=dict)
    """By uid: what running jobs have printed."""
    changed: set[str] = field(default_factory=set)
    """Uids whose streams have grown since somebody stored them."""
    last_used: float = 0.0
    _polling: asyncio.Future[QueueSnapshot] | None = None
    _polled_at: float = 0.0

    async def submit(self, uid: str, script: str, options: Sequence[str], archive: bytes) -> str:
        """The id of the Slurm job, which may have been submitted by an earlier attempt."""
        made = slurm_commands.submit_script(self.directory, uid, script, options)
        return slurm_commands.parse_submit(await self._run(made, archive, timeout=_UPLOAD_SECONDS))

    async def snapshot(self, jobs: Callable[[], Sequence[PolledJob]]) -> QueueSnapshot:
        running = self._polling
        if running is None or (running.done() and self.clock.monotonic() - self._polled_at >= self.period):
            running = self._polling = asyncio.ensure_future(self._poll(jobs()))
        return await asyncio.shield(running)

    async def _poll(self, jobs: Sequence[PolledJob]) -> QueueSnapshot:
        known = [
            PolledJob(job.uid, job.job_id, {name: end.size for name, end in self.streams.get(job.uid, {}).items()})
            for job in jobs
        ]
        asked = {job.uid for job in known}
        try:
            text = await self._run(slurm_commands.poll_script(self.directory, known), limit=32 * 1024 * 1024)
            found = slurm_commands.parse_poll(text)
        finally:
            self._polled_at = self.clock.monotonic()
        for uid, streams in found.tails.items():
            if uid not in asked:
                continue  # nobody on the other side decides what is kept here
            ends = self.streams.setdefault(uid, {})
            ends.update(
                {
                    name: StreamEnd(tail.size, tail.data[-slurm_commands.LIVE_TAIL :])
                    for name, tail in streams.items()
                    if name in slurm_commands.STREAMS
                }
            )
            self.changed.add(uid)
        return found

    async def details(self, uid: str, job_id: str) -> JobDetails:
        text = await self._run(slurm_commands.details_script(self.directory, uid, job_id))
        return slurm_commands.parse_details(text, uid, job_id)

    async def final_streams(self, uid: str, job_id: str) -> dict[str, StreamEnd]:
        found = {}
        for name in slurm_commands.STREAMS:
            data = await self._fetch(uid, f"{job_id}.{name}", slurm_commands.FINAL_TAIL)
            if data:
                before = self.streams.get(uid, {}).get(name)
                found[name] = StreamEnd(max(len(data), before.size if before is not None else 0), data)
        return found

    async def artifacts(self, uid: str, size: int, sha256: str) -> bytes:
        """Raises SlurmUnavailable when what arrives is not what the login node has."""
        data = await self._fetch(uid, "artifacts.tar.gz", min(size, MAX_PACKED))
        if digest(data) != sha256:
            raise SlurmUnavailable("the artifacts were damaged on their way")
        return data

    async def cancel(self, uid: str, job_id: str, *, remove: bool) -> int:
        """How many of its Slurm jobs have not ended yet."""
        self.streams.pop(uid, None)
        return slurm_commands.parse_cancel(
            await self._run(slurm_commands.cancel_script(self.directory, uid, job_id, remove=remove))
        )

    def forget(self, uid: str) -> None:
        self.streams.pop(uid, None)
        self.changed.discard(uid)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self.shell.close()

    async def _fetch(self, uid: str, name: str, limit: int) -> bytes:
        self.last_used = self.clock.monotonic()
        script = slurm_commands.fetch_script(self.directory, uid, name, limit)
        done = await self.shell.run(script, limit=limit, timeout=_UPLOAD_SECONDS)
        return done.output if done.code == 0 else b""

    async def _run(self, script: str, data: bytes = b"", *, limit: int = 8 * 1024 * 1024, timeout: float = 60.0) -> str:
        self.last_used = self.clock.monotonic()
        done = await self.shell.run(script, data, limit=limit, timeout=timeout)
        if done.code not in _CODES or (done.code == 73):
            raise ShellUnreachable(done.error or f"the login node's shell ended with exit code {done.code}")
        return done.text
