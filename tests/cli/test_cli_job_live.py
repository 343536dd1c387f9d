"""Jobs before the user's eyes: redrawing in place, a window that changes, keys, and servers that go away."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from job_plane import TOKEN, JobPlane, a_job, a_task, plane

from coterie.cli.live_display import without_escapes
from coterie.kube.api.errors import Forbidden
from coterie.kube.client import kubeconfig
from coterie.kube.client.fake import FakeStream, FakeTransport, json_reply, stream_reply
from coterie.kube.client.transport import NotSent, TransportRequest, TransportResponse

running_plane = pytest.fixture(plane, scope="module", name="running_plane")


# A real terminal.


@contextlib.contextmanager
def on_terminal(
    port: int, folder: Path, *words: str, size: tuple[int, int] = (70, 20)
) -> Iterator[tuple[subprocess.Popen[bytes], int, Callable[[str], str]]]:
    """The program on a terminal of its own: the process, our end, and a way to wait for words on it."""
    file = folder / "kubeconfig"
    kubeconfig.make("jobs", f"http://127.0.0.1:{port}", token=TOKEN).write(file)
    ours, theirs = os.openpty()
    resize(ours, size)
    env = {**os.environ, "KUBECONFIG": str(file), "TERM": "xterm", "HOME": str(folder)}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", "job", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    seen = ""

    def read_until(word: str) -> str:
        nonlocal seen
        while not re.search(word, without_escapes(seen)):
            try:
                data = os.read(ours, 65536)
            except OSError as ended:  # Linux says so when the other end is closed
                raise AssertionError(f"no {word!r} in {seen!r}") from ended
            seen += data.decode()
        return seen

    try:
        yield process, ours, read_until
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(30)
        os.close(ours)


def resize(handle: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))


def manifest(folder: Path, name: str, script: str) -> str:
    (folder / "job.json").write_text(json.dumps(a_job(name, a_task("first"), a_task("second", "first", script=script))))
    return str(folder / "job.json")


def test_a_job_on_a_terminal(running_plane: JobPlane, tmp_path):
    with on_terminal(running_plane.port, tmp_path, "run", manifest(tmp_path, "t-ok", "ok")) as (process, _, read_until):
        seen = read_until("t-ok  Succeeded  2/2 tasks")
        assert process.wait(30) == 0
    assert "\x1b[32m✔\x1b[0m" in seen
    assert re.search(r"\x1b\[\d+A", seen)  # it went back up instead of scrolling


def test_the_picture_follows_the_window_and_ctrl_c_leaves_the_job_alone(running_plane: JobPlane, tmp_path):
    with on_terminal(running_plane.port, tmp_path, "run", manifest(tmp_path, "t-keys", "hang")) as (
        process,
        ours,
        read_until,
    ):
        read_until("█")
        resize(ours, (34, 20))
        read_until(r"t-keys  Running  1/2 tasks  \d+s")  # no bar in the head any more
        os.write(ours, b"\x03")
        read_until("End it: `coterie job stop t-keys`")
        assert process.wait(30) == 130


def test_the_program_can_be_killed_softly(running_plane: JobPlane, tmp_path):
    with on_terminal(running_plane.port, tmp_path, "run", manifest(tmp_path, "t-int", "hang")) as (
        process,
        _,
        read_until,
    ):
        read_until("second")
        process.send_signal(signal.SIGINT)
        read_until("goes on")
        assert process.wait(30) == 130


# Servers that behave strangely.


def a_raw_job(version: str, phase: str) -> dict[str, object]:
    made = a_job("j", {**a_task("only"), "taskID": "j-1"})
    made["metadata"] |= {"uid": "u", "resourceVersion": version}
    return {**made, "status": {"phase": phase}}


class Server:
    """Lists what `job` says; each watch of jobs is one of the given; others stay open."""

    def __init__(self, *watches: FakeStream | Exception) -> None:
        self.job = a_raw_job("5", "Running")
        self.watches = list(watches)
        self.transport = FakeTransport(self.answer)

    def answer(self, call: TransportRequest) -> TransportResponse:
        jobs = call.path.endswith("/kusciajobs")
        if call.stream:
            if not jobs:
                return stream_reply(FakeStream())
            following = self.watches.pop(0)
            if isinstance(following, Exception):
                raise following
            return stream_reply(following)
        if call.path.endswith("/kusciajobs/j"):
            return json_reply(self.job)
        return json_reply({"metadata": {"resourceVersion": "5"}, "items": [self.job] if jobs else []})


def changed(version: str, phase: str) -> FakeStream:
    return FakeStream([{"type": "MODIFIED", "object": a_raw_job(version, phase)}])


def test_a_watch_that_the_server_ends_goes_on(fake):
    server = Server(changed("6", "Suspended").end(), changed("7", "Succeeded"))
    told = fake(server.transport)("job", "watch", "j")
    assert told.code == 0, told.err
    assert told.lines[-1].endswith("job j is Succeeded")
    watched = [call.query for call in server.transport.calls if call.stream and call.path.endswith("/kusciajobs")]
    assert ["resourceVersion=5" in watched[0], "resourceVersion=6" in watched[1]] == [True, True]


@pytest.mark.timeout(30)
def test_a_server_that_is_away_for_a_moment_is_told_of_once(fake):
    server = Server(NotSent("refused"), NotSent("refused"), changed("7", "Succeeded"))
    told = fake(server.transport)("job", "watch", "j")
    assert told.code == 0
    assert told.err.count("does not answer (refused)") == 1


def test_a_refusal_ends_the_watch(fake):
    told = fake(Server(Forbidden("kusciajobs is forbidden")).transport)("job", "watch", "j")
    assert told.code == 1
    assert "kusciajobs is forbidden" in told.err
    assert "Traceback" not in told.err


def test_a_line_for_each_pod_as_it_comes(fake):
    """-f takes up pods while the job runs, and each of them once."""

    def task(phase: str, version: str) -> dict[str, object]:
        pods = {"alice/j-1-0": {"podName": "j-1-0", "podPhase": phase, "namespace": "alice"}}
        meta = {"name": "j-1", "uid": "t", "resourceVersion": version, "labels": {"kuscia.secretflow/job-uid": "u"}}
        spec = {"initiator": "alice", "taskInputConfig": "", "parties": []}
        return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "podStatuses": pods}}

    jobs, tasks, log = FakeStream(), FakeStream(), FakeStream()
    asked: list[str] = []

    def answer(call: TransportRequest) -> TransportResponse:
        if call.path.endswith("/log"):
            asked.append(call.query)
            log._lines = [b"hello", b"bye"]
            jobs.send({"type": "MODIFIED", "object": a_raw_job("9", "Succeeded")})
            return stream_reply(log.end())
        if call.path.endswith("/pods/j-1-0"):
            return json_reply({"metadata": {"name": "j-1-0"}, "spec": {"containers": [{"name": "main"}]}})
        if call.stream and call.path.endswith("/kusciatasks"):
            tasks.send(*({"type": "MODIFIED", "object": task("Running", str(v))} for v in (6, 7)))
            return stream_reply(tasks)
        if call.stream:
            return stream_reply(jobs)
        if call.path.endswith("/kusciajobs/j"):
            return json_reply(a_raw_job("5", "Running"))
        items = [a_raw_job("5", "Running")] if call.path.endswith("/kusciajobs") else [task("Pending", "5")]
        return json_reply({"metadata": {"resourceVersion": "5"}, "items": items})

    told = fake(FakeTransport(answer))("job", "logs", "j", "-f", "--tail", "5")
    assert told.lines == ["alice/only/0 | hello", "alice/only/0 | bye"], told.err
    assert asked == ["container=main&follow=true&tailLines=5"]


def test_help_of_each_action_teaches_with_examples(cli):
    for action in (
        "run",
        "ls",
        "show",
        "watch",
        "logs",
        "graph",
        "stop",
        "suspend",
        "restart",
        "cancel",
        "approve",
        "rm",
    ):
        told = cli("job", action, "--help")
        assert told.out.startswith(f"usage: coterie job {action} "), action
        assert f"coterie job {action}" in told.out.partition("Examples:\n")[2], action
        assert max(map(len, told.lines)) <= 120, action
        assert cli("help", "job", action).out == told.out
    assert cli("job").out == cli("job", "--help").out
    wrong = cli("job", "wacth", "x")
    assert (wrong.code, "did you mean `coterie job watch`?" in wrong.err) == (2, True)
