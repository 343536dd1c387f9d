"""The one suite for every `PodRuntime`: what the agent may rely on, whatever runs the containers.

An implementation plugs in by subclassing `RuntimeSuite` in its own test file and giving it a `harness` fixture:

    class TestFakeRuntime(RuntimeSuite):
        @pytest.fixture
        async def harness(self, tmp_path): ...

Containers are `sh -c` scripts of the few words that `coterie.kube.agent.runtimes.fake_script` knows, so the same text runs on
real processes and in the fake.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from coterie.kube.agent.runtimes.protocol import (
    ContainerSpec,
    ContainerState,
    Mount,
    PodRuntime,
    PodSandbox,
    RuntimeFailure,
)

CRI_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP]) (.*)")


class Harness(Protocol):
    root: Path
    image: str
    handler: str
    """What runs the containers of the suite's pods."""
    runtime: PodRuntime
    """Opened."""

    async def restart(self) -> None:
        """Close the runtime and open a new object for the same machine as `runtime`."""

    async def until(self, check: Callable[[], bool], seconds: float = 10.0) -> None:
        """Let time pass until `check()`; fails the test when it never does."""

    async def finish(self, work: Awaitable[object], seconds: float = 10.0) -> object:
        """The result of something that needs time to pass."""


def sandbox(harness: Harness, uid: str = "uid-1", name: str = "pod-1") -> PodSandbox:
    return PodSandbox(
        uid=uid,
        namespace="alice",
        name=name,
        hostname=name,
        directory=harness.root / "pods" / uid,
        hosts="127.0.0.1 localhost\n",
        resolv_conf="nameserver 127.0.0.1\n",
        handler=harness.handler,
    )


def container(
    harness: Harness,
    script: str,
    name: str = "main",
    attempt: int = 0,
    *,
    image: str = "",
    stdin: bool = False,
    stdin_once: bool = False,
    mounts: tuple[Mount, ...] = (),
    uid: str = "uid-1",
) -> ContainerSpec:
    return ContainerSpec(
        name=name,
        attempt=attempt,
        image=image or harness.image,
        command=("sh", "-c", script),
        args=(),
        env=(("GREETING", "hello"),),
        working_dir="",
        mounts=mounts,
        log_path=harness.root / "logs" / uid / name / f"{attempt}.log",
        stdin=stdin,
        stdin_once=stdin_once,
    )


def state_of(runtime: PodRuntime, name: str = "main", uid: str = "uid-1") -> ContainerState:
    pod = runtime.pod(uid)
    assert pod is not None
    return [state for state in pod.containers if state.name == name][-1]


def ended(runtime: PodRuntime, name: str = "main", uid: str = "uid-1") -> Callable[[], bool]:
    return lambda: not state_of(runtime, name, uid).running


def log_lines(path: Path) -> list[tuple[str, str]]:
    """(stream, text) of each whole line of a CRI log."""
    found = []
    for line in path.read_text().splitlines():
        match = CRI_LINE.fullmatch(line)
        assert match, f"not a CRI log line: {line!r}"
        found.append((match[1], match[3]))
    return found


class RuntimeSuite:
    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("each implementation gives its own harness")

    async def test_a_container_runs_until_stopped(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        started = await runtime.start_container("uid-1", container(harness, "sleep inf"))
        assert started.running and started.pid > 0 and started.started_at > 0
        assert started.name == "main" and started.attempt == 0 and started.image == harness.image
        assert started.image_id.startswith("sha256:")
        await harness.finish(runtime.stop_container("uid-1", "main", 5))
        state = state_of(runtime)
        assert not state.running and state.pid == 0 and state.finished_at >= state.started_at
        assert (state.exit_code, state.signal, state.reason) == (143, signal.SIGTERM, "Error")

    @pytest.mark.parametrize(
        ("script", "code", "number", "reason"),
        [
            pytest.param("exit 0", 0, 0, "Completed", id="success"),
            pytest.param("exit 3", 3, 0, "Error", id="failure"),
            pytest.param("sleep 0.2; exit 7", 7, 0, "Error", id="failure-after-a-while"),
            pytest.param("kill -9 $$", 137, 9, "Error", id="killed-itself"),
            pytest.param("kill -SEGV $$", 139, 11, "Error", id="segfault"),
        ],
    )
    async def test_how_a_container_ended_is_known(
        self, harness: Harness, script: str, code: int, number: int, reason: str
    ) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, script))
        await harness.until(ended(runtime))
        state = state_of(runtime)
        assert (state.exit_code, state.signal, state.reason) == (code, number, reason)

    async def test_output_is_a_cri_log(self, harness: Harness) -> None:
        runtime = harness.runtime
        spec = container(harness, "echo one; echo two >&2; echo three")
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", spec)
        await harness.until(ended(runtime))
        await harness.until(lambda: len(log_lines(spec.log_path)) == 3)
        lines = log_lines(spec.log_path)
        # Two pipes have no order between them; each stream keeps its own.
        assert [text for stream, text in lines if stream == "stdout"] == ["one", "three"]
        assert [text for stream, text in lines if stream == "stderr"] == ["two"]
        assert state_of(runtime).log_path == spec.log_path

    async def test_sigterm_may_be_answered(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        spec = container(
            harness, "trap 'exit 5' TERM; echo ready; sleep 0.1; sleep 0.1; sleep 0.1; sleep 0.1; sleep 60"
        )
        await runtime.start_container("uid-1", spec)
        await harness.until(lambda: spec.log_path.exists() and "ready" in spec.log_path.read_text())
        await harness.finish(runtime.stop_container("uid-1", "main", 8), 10)
        assert state_of(runtime).exit_code in (5, 143)

    async def test_whoever_ignores_sigterm_is_killed_after_the_grace(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        spec = container(harness, "trap '' TERM; echo deaf; sleep 0.3; sleep 600; sleep 600")
        await runtime.start_container("uid-1", spec)
        await harness.until(lambda: spec.log_path.exists() and "deaf" in spec.log_path.read_text())
        await harness.finish(runtime.stop_container("uid-1", "main", 0.5))
        state = state_of(runtime)
        assert (state.exit_code, state.signal) == (137, 9)

    async def test_a_signal_is_delivered(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "sleep inf"))
        await runtime.signal_container("uid-1", "main", signal.SIGKILL)
        await harness.until(ended(runtime))
        assert state_of(runtime).signal == signal.SIGKILL

    async def test_containers_of_a_pod_stop_side_by_side(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        for name in ("a", "b", "c"):
            await runtime.start_container("uid-1", container(harness, "sleep inf", name))
        await harness.finish(runtime.stop_pod("uid-1", 5))
        assert all(not state_of(runtime, name).running for name in ("a", "b", "c"))

    async def test_restarts_are_attempts_and_the_last_run_is_kept(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        for attempt, code in enumerate((1, 2, 0)):
            await runtime.start_container("uid-1", container(harness, f"exit {code}", attempt=attempt))
            await harness.until(
                lambda attempt=attempt: (
                    state_of(runtime).attempt == attempt and not state_of(runtime).running  # type: ignore[misc]
                )
            )
        pod = runtime.pod("uid-1")
        assert pod is not None
        assert [(state.attempt, state.exit_code) for state in pod.containers][-2:] == [(1, 2), (2, 0)]

    async def test_a_missing_image_is_said_at_once(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        with pytest.raises(RuntimeFailure) as problem:
            await runtime.start_container("uid-1", container(harness, "exit 0", image="nobody/has:this"))
        assert problem.value.reason == "ErrImageNeverPull"
        assert "nobody/has:this" in problem.value.message

    async def test_events_name_the_pod_whose_container_ended(self, harness: Harness) -> None:
        runtime = harness.runtime
        heard: list[str] = []

        async def listen() -> None:
            async for uid in runtime.events():
                heard.append(uid)

        listener = asyncio.create_task(listen())
        try:
            await runtime.prepare_pod(sandbox(harness))
            await runtime.start_container("uid-1", container(harness, "sleep 0.1; exit 1"))
            await harness.until(lambda: "uid-1" in heard and not state_of(runtime).running)
        finally:
            listener.cancel()
            await asyncio.wait([listener])

    async def test_a_new_runtime_finds_what_runs_and_what_ended(self, harness: Harness) -> None:
        await harness.runtime.prepare_pod(sandbox(harness))
        await harness.runtime.start_container("uid-1", container(harness, "exit 4", "short"))
        before = await harness.runtime.start_container("uid-1", container(harness, "sleep inf", "long", 3))
        await harness.until(ended(harness.runtime, "short"))
        await harness.restart()
        runtime = harness.runtime
        assert [pod.uid for pod in runtime.pods()] == ["uid-1"]
        after = state_of(runtime, "long")
        assert after.running and (after.pid, after.attempt) == (before.pid, 3)
        assert after.started_at == pytest.approx(before.started_at, abs=2)
        assert state_of(runtime, "short").exit_code == 4
        pod = runtime.pod("uid-1")
        assert pod is not None and (pod.namespace, pod.name) == ("alice", "pod-1")
        await harness.finish(runtime.stop_pod("uid-1", 5))
        assert state_of(runtime, "long").exit_code == 143

    async def test_what_ended_while_nobody_looked_is_known_later(self, harness: Harness) -> None:
        await harness.runtime.prepare_pod(sandbox(harness))
        spec = container(harness, "echo begin; sleep 0.3; echo end; exit 9")
        await harness.runtime.start_container("uid-1", spec)
        await harness.restart()
        await harness.until(ended(harness.runtime))
        assert state_of(harness.runtime).exit_code == 9
        await harness.until(lambda: [text for _, text in log_lines(spec.log_path)] == ["begin", "end"])

    async def test_exec_answers_with_output_and_code(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "sleep inf"))
        session = await runtime.exec(
            "uid-1", "main", ["sh", "-c", "echo out; echo problem >&2; exit 6"], stdin=False, tty=False
        )
        out, error = b"", b""
        while data := await session.read_stdout():
            out += data
        while data := await session.read_stderr():
            error += data
        assert (out, error) == (b"out\n", b"problem\n")
        assert await session.wait() == 6
        await session.close()

    async def test_attach_sees_output_and_gives_input(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "cat", stdin=True))
        session = await runtime.attach("uid-1", "main", stdin=True)
        await session.write_stdin(b"hello\n")
        assert await asyncio.wait_for(session.read_stdout(), 10) == b"hello\n"
        await session.close()
        assert state_of(runtime).running

    async def test_input_of_many_does_not_end_with_the_first(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "cat", stdin=True))
        for word in (b"one\n", b"two\n"):
            session = await runtime.attach("uid-1", "main", stdin=True)
            reading = asyncio.ensure_future(session.read_stdout())
            await session.write_stdin(word)
            assert await asyncio.wait_for(reading, 10) == word
            waiting = asyncio.ensure_future(session.read_stdout())
            await session.close_stdin()
            assert await asyncio.wait_for(waiting, 10) == b"", "who has said all need not stay"
            assert await asyncio.wait_for(session.wait(), 10) == 0
            await session.close()
        assert state_of(runtime).running

    async def test_input_of_one_ends_with_it(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "cat", stdin=True, stdin_once=True))
        session = await runtime.attach("uid-1", "main", stdin=True)
        await session.close_stdin()
        await harness.until(ended(runtime))
        await session.close()

    async def test_mounts_are_seen(self, harness: Harness) -> None:
        runtime = harness.runtime
        shared = harness.root / "shared"
        shared.mkdir()
        await runtime.prepare_pod(sandbox(harness))
        target = str(harness.root / "seen-inside")
        spec = container(harness, f"echo written > {target}/file", mounts=(Mount(shared, target),))
        await runtime.start_container("uid-1", spec)
        await harness.until(ended(runtime))
        assert state_of(runtime).exit_code == 0
        assert (shared / "file").read_text() == "written\n"

    async def test_calls_may_be_repeated(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "exit 0"))
        await harness.until(ended(runtime))
        for _ in range(2):
            await runtime.stop_container("uid-1", "main", 1)
            await runtime.stop_pod("uid-1", 1)
        for _ in range(2):
            await runtime.remove_pod("uid-1")
        await runtime.stop_pod("uid-1", 1)
        assert runtime.pod("uid-1") is None and list(runtime.pods()) == []

    async def test_a_removed_pod_leaves_only_its_logs(self, harness: Harness) -> None:
        runtime = harness.runtime
        box = sandbox(harness)
        spec = container(harness, "echo kept")
        await runtime.prepare_pod(box)
        await runtime.start_container("uid-1", spec)
        await harness.until(ended(runtime))
        await harness.until(lambda: log_lines(spec.log_path) == [("stdout", "kept")])
        await runtime.remove_pod("uid-1")
        assert not box.directory.exists()
        assert log_lines(spec.log_path) == [("stdout", "kept")]
        await harness.restart()
        assert list(harness.runtime.pods()) == []

    async def test_use_is_told_for_running_containers(self, harness: Harness) -> None:
        runtime = harness.runtime
        await runtime.prepare_pod(sandbox(harness))
        await runtime.start_container("uid-1", container(harness, "sleep inf", "runs"))
        await runtime.start_container("uid-1", container(harness, "exit 0", "ended"))
        await harness.until(ended(runtime, "ended"))
        usage = await runtime.usage("uid-1")
        assert set(usage) == {"runs"}
        assert usage["runs"].memory_bytes > 0 and usage["runs"].pids >= 1 and usage["runs"].cpu_nanoseconds >= 0

    async def test_images_have_names_and_ids(self, harness: Harness) -> None:
        images = {image.name: image for image in harness.runtime.images()}
        assert harness.image in images and images[harness.image].id.startswith("sha256:")
