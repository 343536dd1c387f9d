"""The language the tables of commands are written in.

A chapter is a short story in its own namespace: files, then steps in order. Most steps are one kubectl command and
what it must answer; a few (`Act`) are something the test does itself behind kubectl's back.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubectl_runner import Kubectl, Result, Running, minor
from server_process import ServerProcess

Patterns = str | tuple[str, ...]


@dataclass(slots=True)
class Scene:
    """What a step can use: the server, kubectl, the chapter's namespace and a place to remember things."""

    server: ServerProcess
    kubectl: Kubectl
    namespace: str
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """For a command without an end: wait until it printed `ready`, do `act`, wait until it printed `seen`, stop it."""

    ready: str
    act: Callable[[Scene, re.Match[str]], object] | None = None
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    args: str
    out: Patterns = ()
    """Regular expressions that stdout must hold."""
    err: Patterns = ()
    absent: Patterns = ()
    """Regular expressions that stdout must not hold."""
    rc: int = 0
    check: Callable[[Any], object] | None = None
    """Called with stdout read as JSON; must answer something true."""
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    since: str = "1.0"
    until: str = "1.999"
    meanwhile: Meanwhile | None = None

    def fits(self, version: str) -> bool:
        return minor(self.since) <= minor(version) <= minor(self.until)


@dataclass(frozen=True, slots=True)
class Act:
    """Something done through the API's side door."""

    name: str
    do: Callable[[Scene], object]


Step = Command | Act


@dataclass(frozen=True, slots=True)
class Chapter:
    name: str
    steps: tuple[Step, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    agent: bool = False
    """Needs a node whose agent answers logs, exec and port-forward."""

    def commands(self, version: str) -> list[Command]:
        return [step for step in self.steps if isinstance(step, Command) and step.fits(version)]


def play(chapter: Chapter, scene: Scene) -> list[str]:
    """Run all steps, in order; returns what went wrong, each with the command and its output."""
    failures: list[str] = []
    for step in chapter.steps:
        if isinstance(step, Act):
            step.do(scene)
        elif step.fits(scene.kubectl.version):
            result, problems = _run(step, scene)
            if problems:
                failures.append(f"[{chapter.name}: {step.name}] {'; '.join(problems)}\n{result}")
    return failures


def _run(step: Command, scene: Scene) -> tuple[Result, list[str]]:
    # Only {ns} and what a step noted are filled in; braces mean something else in JSON, jsonpath and templates.
    text = step.args.replace("{ns}", scene.namespace)
    for key, value in scene.notes.items():
        text = text.replace("{" + key + "}", value)
    args = shlex.split(text)
    if step.meanwhile is not None:
        return _run_meanwhile(step.meanwhile, scene.kubectl.start(*args, environment=step.env), scene)
    result = scene.kubectl.run(*args, stdin=step.stdin, environment=step.env)
    return result, problems_of(step, result)


def _run_meanwhile(meanwhile: Meanwhile, running: Running, scene: Scene) -> tuple[Result, list[str]]:
    problems = []
    try:
        match = running.wait_for(meanwhile.ready)
        if match is None:
            problems.append(f"never printed {meanwhile.ready!r}")
        else:
            try:
                if meanwhile.act is not None:
                    meanwhile.act(scene, match)
            except (OSError, AssertionError) as problem:
                problems.append(f"{type(problem).__name__}: {problem}")
            if meanwhile.seen and running.wait_for(meanwhile.seen) is None:
                problems.append(f"never printed {meanwhile.seen!r}")
    finally:
        result = running.stop()
    return result, problems


def problems_of(step: Command, result: Result) -> list[str]:
    problems = []
    if result.rc != step.rc:
        problems.append(f"status {result.rc} instead of {step.rc}")
    for pattern in _several(step.out):
        if not re.search(pattern, result.out, re.MULTILINE):
            problems.append(f"stdout lacks {pattern!r}")
    for pattern in _several(step.err):
        if not re.search(pattern, result.err, re.MULTILINE):
            problems.append(f"stderr lacks {pattern!r}")
    for pattern in _several(step.absent):
        if re.search(pattern, result.out, re.MULTILINE):
            problems.append(f"stdout holds {pattern!r}")
    if step.check is not None and not problems:
        try:
            answer = step.check(json.loads(result.out))
        except (ValueError, LookupError, TypeError) as problem:
            problems.append(f"the answer cannot be checked: {type(problem).__name__}: {problem}")
        else:
            if not answer:
                problems.append("the answer is not as expected")
    return problems


def _several(patterns: Patterns) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else patterns
