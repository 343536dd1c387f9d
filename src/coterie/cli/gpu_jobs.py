"""What the commands of `coterie gpujob` share: files to send, following a job, its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.cli.app import App, CliError
from coterie.cli.session import CliSession
from coterie.cli.terminal import Screen
from coterie.gpujobs import storage
from coterie.gpujobs.files import MAX_FILES, InvalidFiles, JobFile, checked_path
from coterie.gpujobs.types import FINISHED, GPU_JOBS, POD, RUNNING, GpuJob
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.client.streams import log_stream

SUCCESS, FAILURE = 0, 1
_PAUSE = 0.5


async def find(session: CliSession, name: str) -> GpuJob:
    try:
        return await session.client.get(GPU_JOBS, name, session.namespace)
    except NotFound as problem:
        words = "`coterie gpujob ls` lists those that exist"
        raise CliError(f"Error: there is no GpuJob {name} in namespace {session.namespace}; {words}") from problem


def local_files(paths: Sequence[str], app: App) -> dict[str, JobFile]:
    """Files by their names, directories by what is in them."""
    found: dict[str, JobFile] = {}
    for text in paths:
        path = app.cwd / Path(text).expanduser()
        try:
            found |= _tree(path) if path.is_dir() else {path.name: _file(path)}
        except OSError as error:
            raise CliError(f"Error: {text} cannot be read: {error.strerror}") from error
        except InvalidFiles as error:
            raise CliError(f"Error: {text}: {error}") from error
    return found


def _tree(top: Path) -> dict[str, JobFile]:
    found = {}
    for path in sorted(top.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[checked_path(path.relative_to(top).as_posix())] = _file(path)
            if len(found) > MAX_FILES:
                raise InvalidFiles(f"more than {MAX_FILES} files")
    return found


def _file(path: Path) -> JobFile:
    return JobFile(path.read_bytes(), bool(path.stat().st_mode & 0o100))


class OutputFollower:
    """Prints what a job prints, as it comes. What is kept of a stream is its end, so there may be gaps; they are reported."""

    def __init__(self, session: CliSession) -> None:
        self._session = session
        self._printed: dict[str, int] = {}
        app = session.app
        self._screens = {"out": Screen(app.out), "err": Screen(app.err)}

    async def print_new(self, job: GpuJob) -> None:
        streams = await storage.load_output(self._session.client, job.metadata.namespace, job.metadata.uid)
        for name in ("out", "err"):
            end = streams.get(name)
            if end is None:
                continue
            printed = self._printed.get(name, 0)
            missing = end.size - printed
            if missing > len(end.data):
                self._session.app.warn(f"... {missing - len(end.data)} bytes of {name} are not kept ...")
            if missing > 0:
                self._screens[name].write(end.data[-missing:])
                self._printed[name] = end.size

    async def print_pod(self, job: GpuJob, *, follow: bool) -> bool:
        """Straight from the pod; False when it is not there."""
        try:
            async for data in log_stream(
                self._session.client, job.status.pod_name, job.metadata.namespace, container="job", follow=follow
            ):
                self._screens["out"].write(data)
        except ApiError:
            return False
        return True


async def follow(session: CliSession, name: str, *, phases: bool) -> GpuJob:
    """Until the job has ended, with what it prints; `phases`: also tell how far it is."""
    output, shown, from_pod = OutputFollower(session), "", False
    while True:
        job = await find(session, name)
        state = state_line(job)
        if phases and state != shown:
            session.app.warn(state)
            shown = state
        if job.status.backend == POD and not from_pod and job.status.phase in (RUNNING, *FINISHED):
            from_pod = await output.print_pod(job, follow=True)
        if not from_pod:
            await output.print_new(job)
        if job.finished:
            return await find(session, name)
        await session.client.clock.sleep(_PAUSE)


def state_line(job: GpuJob) -> str:
    """One line: phase, where, why."""
    status = job.status
    where = f" on {status.cluster} (Slurm job {status.slurm_job_id})" if status.slurm_job_id else ""
    if status.pod_name:
        where = f" in pod {status.pod_name}"
    why = f": {status.reason}" if status.reason else ""
    more = f" ({status.message})" if status.message else ""
    for condition in status.conditions or ():
        if condition.type == "Unreachable" and condition.status == "True":
            more += f" [cluster unreachable: {condition.message}]"
    return f"gpujob {job.metadata.name}: {status.phase or 'new'}{where}{why}{more}"


def summary_line(job: GpuJob) -> str:
    status = job.status
    words = [state_line(job)]
    if status.exit_code is not None:
        words.append(f"exit code {status.exit_code}")
    if status.gpu_seconds is not None:
        words.append(f"{status.gpu_seconds} GPU seconds")
    if status.artifacts:
        words.append(f"{len(status.artifacts)} artifacts: coterie gpujob get {job.metadata.name}")
    return ", ".join(words)
