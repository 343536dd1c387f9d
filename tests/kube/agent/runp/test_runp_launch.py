"""Containers whose first process is killed while it is being set up, before it told its number."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.kube.agent.runtimes.runp import child
from coterie.kube.agent.runtimes.runp.launch import LaunchContext
from coterie.kube.agent.runtimes.runp.loop import Loop
from coterie.kube.agent.runtimes.runp.records import Records
from coterie.kube.agent.runtimes.runp.run import ContainerRun

POWERS = {"namespaces": "", "users": False, "seccomp": False, "cgroup": False, "overlay": False}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[LaunchContext]:
    loop = Loop()
    made = LaunchContext(loop, Records(str(tmp_path)), None, POWERS, b"", -1)
    loop.on_child = made.reap
    yield made


def a_run(home: LaunchContext, tmp_path: Path) -> ContainerRun:
    spec: dict[str, Any] = {
        "uid": "uid-1", "name": "main", "attempt": 0, "image": "i", "image_id": "", "log_path": str(tmp_path / "log"),
        "limits": {"cpu": 0, "shares": 0, "memory": 0, "pids": 0}, "locks": [], "tty": False, "stdin": False, "user": None, "group": None, "groups": [],
        "log": {"bytes": 1 << 20, "files": 1, "age": 0},
    }  # fmt: skip
    home.records.save("uid-1", "pod", {"uid": "uid-1"}, flush=False)
    return ContainerRun(home, spec, lambda run: None)


def die(_: child.ChildSetup) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_child_killed_before_it_told_its_number_is_a_failed_start(
    home: LaunchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "start", die)
    run = a_run(home, tmp_path)
    told: list[tuple[int, str] | None] = []
    run.start(told.append)
    while not told:
        home.loop.step()
    assert told[0] is not None and told[0][0] == child.NOT_SET_UP, "else it counts as running for ever"


def test_who_waits_for_the_end_of_such_a_child_is_told(
    home: LaunchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that was started anew removes a pod whose container the agent before it was just starting."""
    monkeypatch.setattr(child, "start", die)
    run = a_run(home, tmp_path)
    told: list[object] = []
    stopped: list[bool] = []
    run.start(told.append)
    run.stop(0, lambda: stopped.append(run.finished))
    while not told:
        home.loop.step()
    assert stopped == [True]


def test_a_second_agent_that_asks_for_the_same_start_hears_how_it_ended(
    home: LaunchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "start", die)
    run = a_run(home, tmp_path)
    first: list[object] = []
    second: list[object] = []
    run.start(first.append)
    assert run.starting
    run.when_started(second.append)
    while not first:
        home.loop.step()
    assert first == second and not run.starting


def test_the_end_of_an_earlier_process_of_the_same_number_is_not_taken_for_its_own(
    home: LaunchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = os.fork

    def fork_with_a_used_number() -> int:
        pid = fork()
        home._unclaimed[pid] = signal.SIGKILL
        return pid

    def run_to_its_end(birth: child.ChildSetup) -> None:
        os.write(birth.status, b"P%d\n" % os.getpid())
        os.read(birth.go, 1)
        os._exit(0)

    monkeypatch.setattr(os, "fork", fork_with_a_used_number)
    monkeypatch.setattr(child, "start", run_to_its_end)
    run = a_run(home, tmp_path)
    run.start(lambda problem: None)
    while not run.finished:
        home.loop.step()
    assert run.record["exit_code"] == 0
